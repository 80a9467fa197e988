// A rollout as a conversation: the text of each author, and the tool calls of each turn.

import {heading, started} from "./branches.js";
import {cut, el, number, seconds} from "./dom.js";
import {tokens} from "./tokens.js";

/** One block per segment, with tokens. `mark`: position of the first different token. */
export function bySegments(rollout, mode, scale, mark = null, withPrompt = true) {
  return rollout.branches.map((branch) => {
    const number_ = branch.number, trajectory = rollout.trajectories[number_];
    let turn = -1, start = 0;
    const blocks = trajectory.segments.flatMap((segment, at) => {
      const trained = segment.author === "model" || segment.author === "demonstration";
      turn += trained;
      const from = start;
      start += segment.ids.length;
      if (!withPrompt && segment.author === "prompt" && at === 0) return [];
      const rewards = rollout.turn_rewards.filter((reward) => reward.trajectory === number_ && reward.segment === at);
      return [block(segment, trained ? turn : null, rewards, tokens(segment, mode, scale, {start: from, mark: branch === rollout.branches[0] ? mark : null})),
        ...(trained ? [...calls(rollout, number_, turn), started(rollout, number_, at)] : [])];
    });
    return el(".trajectory", {style: {"--depth": branch.depth}}, heading(rollout, branch), blocks);
  });
}

function block(segment, turn, rewards, body) {
  const label = turn === null ? segment.author : `${segment.author}, turn ${turn}`;
  return el(`article.block.by-${segment.author}`, {},
    el("header", {}, el("b", {}, label), el("span.soft", {}, `${number(segment.ids.length)} tokens`),
      segment.media.length > 0 && el("span.soft", {}, `${segment.media.length} images or videos`),
      rewards.map((reward) => el("span.chip", {}, `${reward.name} ${number(reward.value)}`))),
    body);
}

const calls = (rollout, trajectory, turn) =>
  rollout.tool_calls.filter((call) => call.trajectory === trajectory && call.turn === turn).map(callCard);

export function callCard(call) {
  const fine = call.outcome === "ok";
  return el("details.call", {open: true},
    el("summary", {}, el("b", {}, call.name || "unknown tool"), el(`span.outcome.${fine ? "fine" : "bad"}`, {}, call.outcome),
      el("span.soft", {}, `${seconds(call.duration_s)}, ${number(call.num_tokens)} tokens`),
      call.reward !== 0 && el("span.chip", {}, `reward ${number(call.reward)}`)),
    el("dl", {}, el("dt", {}, "arguments"), el("dd", {}, cut(call.arguments)), el("dt", {}, "result"), el("dd", {}, cut(call.result))));
}

/** One block per message, for imported rollouts, which have only messages, and to show what rewards receive. */
export function byMessages(rollout, differs = () => false) {
  return rollout.branches.map((branch) => el(".trajectory", {style: {"--depth": branch.depth}}, heading(rollout, branch),
    rollout.trajectories[branch.number].messages.map((message, at) => el(`article.block.by-${author(message.role)}${differs(at) ? ".differs" : ""}`, {},
      el("header", {}, el("b", {}, message.role || "message")),
      message.thoughts && el("details.thoughts", {}, el("summary", {}, "thoughts"), el(".tokens", {}, cut(message.thoughts, 4000))),
      message.text && el(".tokens", {}, cut(message.text, 4000)),
      message.calls.map((call) => el("dl.called", {}, el("dt", {}, call.name || "unknown tool"), el("dd", {}, cut(call.arguments))))))));
}

const author = (role) => ({assistant: "model", tool: "tool", user: "user"})[role] ?? "prompt";

/** Start and duration of each tool call. */
export function timeline(rollout) {
  const ends = rollout.tool_calls.map((call) => call.started_s + call.duration_s);
  const total = Math.max(rollout.duration_s, ...ends, 1e-9);
  return el(".timeline", {}, rollout.tool_calls.map((call) => el(".lane", {title: `${call.name}: start ${seconds(call.started_s)}, duration ${seconds(call.duration_s)}`},
    el("span.who", {}, call.name || "unknown"),
    el("span.track", {}, el(`i.bar.${call.outcome === "ok" ? "fine" : "bad"}`, {style: {
      left: `${100 * call.started_s / total}%`, width: `${100 * call.duration_s / total}%`}})),
    el("span.took", {}, seconds(call.duration_s)))),
    el(".lane.axis", {}, el("span.who", {}, "rollout"), el("span.track", {}), el("span.took", {}, seconds(rollout.duration_s))));
}
