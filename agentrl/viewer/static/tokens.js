// Tokens, coloured by author, log-probability, advantage or policy version.

import {el, fill, number, visible} from "./dom.js";

export const MODES = [["author", "Author"], ["logprob", "Log-probability"], ["advantage", "Advantage"], ["version", "Policy version"]];
const AT_ONCE = 3000, FIRST = 3000, PROMPT_SHOWN = 160, PROMPT_LONG = 320, LOWEST = -6;
const SHADES = ["--s0", "--s1", "--s2", "--s3", "--s4", "--s5"];

/** Scale of the colours: the largest advantage, and all policy versions of a page. */
export function measure(rollouts) {
  let most = 0;
  const versions = new Set();
  for (const segment of rollouts.flatMap((rollout) => rollout.trajectories).flatMap((trajectory) => trajectory.segments)) {
    for (const value of segment.advantages ?? []) if (Number.isFinite(value)) most = Math.max(most, Math.abs(value));
    for (const [version] of segment.versions) versions.add(version);
  }
  return {most, versions: [...versions].sort((a, b) => a - b)};
}

/** Tokens outside the screen are plain text until the user scrolls near them: 50,000 elements take seconds to draw. */
const waiting = new WeakMap();
const near = new IntersectionObserver((entries) => entries.filter((entry) => entry.isIntersecting).forEach(({target}) => {
  near.unobserve(target);
  waiting.get(target)();
}), {root: document.getElementById("page"), rootMargin: "800px"});

/** The tokens of one segment. `mark`: position of the first different token; tokens before it are pale. */
export function tokens(segment, mode, scale, {start = 0, mark = null} = {}) {
  const node = el(`.tokens.by-${segment.author}${mode === "author" ? ".tinted" : ""}`);
  const total = segment.ids.length, prompt = segment.author === "prompt";
  const limit = prompt && total > PROMPT_LONG ? PROMPT_SHOWN : AT_ONCE;
  const versions = segment.versions.flatMap(([version, count]) => Array(count).fill(version));
  const draw = (from, to) => {
    const part = document.createDocumentFragment();
    for (let at = from; at < to; at++) part.append(token(segment, at, versions[at], mode, scale, start, mark));
    return part;
  };
  const more = el("button.more", {type: "button", onclick: () => more.replaceWith(draw(limit, total))},
    `show all ${total.toLocaleString("en")} tokens`);
  const fillNow = () => fill(node, draw(0, Math.min(limit, total)), total > limit && more);
  if (start + Math.min(limit, total) <= FIRST) fillNow();
  else {
    fill(node, (segment.texts ?? segment.ids.map((id) => `${id} `)).slice(0, limit).join(""));
    waiting.set(node, fillNow);
    near.observe(node);
  }
  return node;
}

function token(segment, at, version, mode, scale, start, mark) {
  const text = segment.texts?.[at], node = el("span.token");
  node.append(...(text === undefined ? [`${segment.ids[at]} `] : shown(text)));
  const place = start + at;
  if (mark !== null && place === mark) node.classList.add("differs");
  if (mark !== null && place < mark) node.classList.add("same");
  node.facts = {id: segment.ids[at], text, author: segment.author, logprob: segment.logprobs?.[at],
    advantage: segment.advantages?.[at], version, place, temperature: segment.temperature};
  const colour = shade(node.facts, mode, scale);
  if (colour) node.style.backgroundColor = colour;
  return node;
}

/** Text with visible line ends. */
function shown(text) {
  if (text === "") return ["▯"];
  return text.split("\n").flatMap((line, at) => [...(at ? [el("span.newline", {}, "↵"), document.createTextNode("\n")] : []), ...visible(line)]);
}

function shade({logprob, advantage, version}, mode, scale) {
  if (mode === "logprob" && Number.isFinite(logprob)) return mix("--bad", 0.6 * Math.min(1, logprob / LOWEST));
  if (mode === "advantage" && Number.isFinite(advantage) && scale.most)
    return mix(advantage > 0 ? "--good" : "--bad", 0.5 * Math.abs(advantage) / scale.most);
  if (mode === "version" && version !== undefined) return mix(SHADES[scale.versions.indexOf(version) % SHADES.length], 0.35);
  return null;
}

const mix = (colour, share) => `color-mix(in srgb, var(${colour}) ${(100 * share).toFixed(1)}%, transparent)`;

/** Legend of the colours. */
export function legend(mode, scale, authors) {
  if (mode === "author") return el(".legend", {}, authors.map((author) => el("span", {}, el(`i.swatch.by-${author}`), author)));
  if (mode === "version") return el(".legend", {}, scale.versions.map((version, at) =>
    el("span", {}, el("i.swatch", {style: {background: mix(SHADES[at % SHADES.length], 0.6)}}), `version ${version}`)));
  if (mode === "logprob") return el(".legend", {}, el("span", {}, "likely: 0"), el("i.ramp.logprob"), el("span", {}, `unlikely: ${LOWEST} or less`));
  if (!scale.most) return el(".legend", {}, "all advantages are 0");
  return el(".legend", {}, el("span", {}, `−${number(scale.most)}`), el("i.ramp.advantage"), el("span", {}, `+${number(scale.most)}`));
}

/** One tooltip for all tokens under `root`. */
export function hover(root) {
  const tip = document.getElementById("hover");
  root.addEventListener("pointerover", (event) => {
    const facts = event.target.closest?.(".token")?.facts;
    tip.hidden = !facts;
    if (!facts) return;
    fill(tip, el("dl", {}, rows(facts).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
    const box = event.target.closest(".token").getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
    const above = box.top - tip.offsetHeight - 6;
    tip.style.top = `${above > 0 ? above : box.bottom + 6}px`;
  });
  root.addEventListener("pointerleave", () => { tip.hidden = true; });
}

function rows(facts) {
  const chance = Number.isFinite(facts.logprob) ? ` (${number(100 * Math.exp(facts.logprob))}%)` : "";
  return [
    ["token", facts.text === undefined ? "?" : facts.text === "" ? "part of a character" : JSON.stringify(facts.text)],
    ["id", String(facts.id)], ["author", facts.author], ["position", String(facts.place)],
    facts.logprob !== undefined && ["log-prob", `${number(facts.logprob)}${chance}`],
    facts.advantage !== undefined && ["advantage", number(facts.advantage)],
    facts.version !== undefined && ["version", String(facts.version)],
    facts.temperature !== 1 && ["temperature", number(facts.temperature)],
  ].filter(Boolean);
}
