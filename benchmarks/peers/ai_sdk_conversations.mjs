// Conversations of Vercel's AI SDK, which coding agents on npm use, with a gateway; prints what it made of the answers.
//
// node ai_sdk_conversations.mjs URL SLOW_URL WRONG_URL    (SLOW_URL: with signs of life before each answer)
import { generateText, stepCountIs, streamText, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

const [url, slowUrl, wrongUrl] = process.argv.slice(2);
const inputSchema = z.looseObject({ a: z.number() });
const tools = { add: tool({ description: "Adds", inputSchema, execute: async () => 3 }) };
const providerOptions = {
  openai: { store: false, include: ["reasoning.encrypted_content"] },
  anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } },
};

function models(address) {
  const settings = { baseURL: `${address}/v1`, apiKey: "any" };
  return {
    responses: createOpenAI(settings).responses("gpt-5"), // a name with which thoughts are sent back
    chat: createOpenAI(settings).chat("any"),
    compatible: createOpenAICompatible({ name: "gateway", includeUsage: true, ...settings }).chatModel("any"),
    messages: createAnthropic(settings)("claude-sonnet-4-5"),
  };
}

function shown({ text, reasoningText, toolCalls, finishReason, usage }) {
  const calls = toolCalls.map((call) => [call.toolName, call.input, call.invalid ?? false]);
  return { text, thoughts: reasoningText ?? null, calls, finishReason, tokens: [usage.inputTokens, usage.outputTokens] };
}

async function conversation(model, stream) {
  const asked = { model, tools, prompt: "call", stopWhen: stepCountIs(2), providerOptions, maxRetries: 0 };
  if (!stream) return (await generateText(asked)).steps.map(shown);
  const errors = [];
  const result = streamText({ ...asked, onError: ({ error }) => errors.push(String(error)) });
  await result.consumeStream();
  if (errors.length) throw new Error(errors.join("; "));
  return (await result.steps).map(shown);
}

async function status(model) {
  try {
    await generateText({ model, prompt: "text", maxRetries: 0 });
  } catch (error) {
    return [error.statusCode, error.message];
  }
}

const found = {};
for (const [speed, address] of [["fast", url], ["slow", slowUrl]])
  for (const [name, model] of Object.entries(models(address)))
    for (const stream of [false, true]) found[`${speed} ${name}${stream ? " stream" : ""}`] = await conversation(model, stream);
for (const [name, model] of Object.entries(models(wrongUrl))) found[`wrong ${name}`] = await status(model);
console.log(JSON.stringify(found));
