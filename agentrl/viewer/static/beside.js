// Rollouts side by side: all rollouts of a group, or one task in two runs. The first difference is marked.

import {ask, filtersOf, link, rolloutLink} from "./api.js";
import {first as firstOf} from "./branches.js";
import {byMessages, bySegments} from "./conversation.js";
import {SLOTS} from "./curve_controls.js";
import {el, fill, number, seconds, short, worthShowing} from "./dom.js";
import {hover, measure} from "./tokens.js";

const MAX_SIBLINGS = 64, MAX_CHOICES = 500;

export const siblings = {mount: async (root, words) => {
  const {rows} = await ask("rows", {...filtersOf(words), run: words.run, limit: MAX_SIBLINGS});
  if (!rows.length) throw new Error(`step ${words.step} has no group '${words.uid}'`);
  const rollouts = await Promise.all(rows.map((row) => fetched(row, words.run)));
  let reference = 0;
  const draw = () => fill(root, el("section.beside", {},
    el(".title", {}, el("h1", {}, `${rows.length} rollouts`, el("span.soft", {}, ` of group `), el("code", {}, words.uid), el("span.soft", {}, ` · step ${words.step} · ${words.split}`)),
      el("span.soft", {}, "A frame marks the first token that differs from the reference. Tokens before it are pale.")),
    question(rollouts[0]),
    columns(rollouts, reference, rollouts.map((rollout, at) => el("header.attempt", {},
      el("a", {href: rolloutLink(rows[at], words.run)}, `#${rollout.number}`), facts(rollout),
      el("button", {type: "button", id: `reference-${at}`, "aria-pressed": String(at === reference), onclick: () => { reference = at; draw(); }}, "reference"))))));
  draw();
  return {};
}};

/** Numbers of the current run and another run, in ascending order; a single run is returned twice. */
function sides(words, count) {
  const run = Number(words.run ?? 0), other = Number(words.other ?? (run || count < 2 ? 0 : 1));
  return run < other ? [run, other] : [other, run];
}

export const task = {mount: async (root, words, context) => {
  const runs = sides(words, context.runs.length);
  const asked = {source: words.source, index: words.index};
  const found = await Promise.all(runs.map((run) => ask("rows", {...asked, run, limit: MAX_CHOICES})));
  const rows = found.map((answer) => answer.rows);
  // two runs: the newest rollout of each; one run: its oldest and its newest rollout
  const chosen = [words.left ?? (runs[0] === runs[1] ? rows[0].length - 1 : 0), words.right ?? 0].map(Number);
  let turn = 0;
  const draw = async () => {
    const own = ++turn;
    const rollouts = await Promise.all(rows.map((side, at) => side[chosen[at]] && fetched(side[chosen[at]], runs[at])));
    if (own !== turn) return; // the user chose another rollout in the meantime
    const there = rollouts.filter(Boolean);
    fill(root, el("section.beside", {},
      el(".title", {}, el("h1", {}, `Row ${words.index}`, el("span.soft", {}, ` of ${short(words.source ?? "")}`)), el("span.soft", {}, "A frame marks the first token that differs.")),
      there.length ? question(there[0]) : el("p.note", {}, "No rollout of this task is saved."),
      columns(rollouts, 0, rows.map((side, at) => picker(side, at)))));
  };
  const which = (at) => {
    if (context.runs.length < 3) return el("bdi", {}, context.runs[runs[at]]?.name ?? "");
    const select = el("select", {"aria-label": at ? "run on the right" : "run on the left", id: `run-${at}`, onchange: () => {
      const {left, right, ...rest} = words;
      location.hash = link("task", {...rest, run: String(runs[1 - at]), other: select.value});
    }}, context.runs.map((run, number_) => el("option", {value: String(number_)}, run.name)));
    select.value = String(runs[at]);
    return select;
  };
  const picker = (side, at) => {
    const select = el("select", {"aria-label": at ? "rollout on the right" : "rollout on the left", id: `rollout-${at}`, onchange: () => {
      chosen[at] = Number(select.value);
      history.replaceState(null, "", link("task", {...words, left: String(chosen[0]), right: String(chosen[1])}));
      draw().catch((error) => fill(root, el("p.problem", {role: "alert"}, error.message)));
    }}, side.map((row, place) => el("option", {value: String(place)}, `step ${row.step}, ${row.split}, #${row.number}, reward ${number(row.reward)}`)));
    select.value = String(chosen[at]);
    return el("header.attempt", {}, runs[0] !== runs[1] && el(`i.swatch.s${runs[at] % SLOTS}`), which(at),
      side.length ? [select, el("a", {href: rolloutLink(side[chosen[at]], runs[at])}, "open")] : el("span.soft", {}, "has no rollout of this task"));
  };
  await draw();
  return {};
}};

const fetched = (row, run) => ask("rollout", {run, split: row.split, step: row.step, uid: row.uid, number: row.number});

const facts = (rollout) => [
  el("span.reward", {style: {"--r": Math.max(0, Math.min(1, rollout.reward))}}, number(rollout.reward)),
  worthShowing(rollout.rewards).filter(([name]) => name !== "score").map(([name, value]) => el("span.chip", {}, `${name} ${number(value)}`)),
  el(`span.stop.${rollout.stop === "finished" ? "fine" : "odd"}`, {}, rollout.stop), el("span.soft", {}, seconds(rollout.duration_s))];

function question(rollout) {
  const asked = firstOf(rollout)?.messages.find((message) => message.role === "user");
  return el("p.question", {}, asked && el("span", {}, short(asked.text, 400)), el("span.soft", {}, `  ground truth: ${short(rollout.ground_truth, 200)}`));
}

function columns(rollouts, reference, heads) {
  const scale = measure(rollouts.filter(Boolean));
  const node = el(".columns", {style: {"--count": String(rollouts.length)}}, rollouts.map((rollout, at) =>
    el(".column", {}, heads[at], rollout && body(rollouts, rollout, at, reference, scale))));
  hover(node);
  return node;
}

function body(rollouts, rollout, at, reference, scale) {
  const others = at === reference ? rollouts.filter((each, other) => each && other !== at) : [rollouts[reference]].filter(Boolean);
  const first = (sequence, same) => Math.min(...others.map((other) => firstDifference(sequence(rollout), sequence(other), same)));
  const ids = (each) => (firstOf(each)?.segments ?? []).flatMap((segment) => segment.ids);
  if (ids(rollout).length) {
    const mark = first(ids, (a, b) => a === b);
    const place = !others.length ? null : mark === Infinity ? ids(rollout).length : mark;
    return bySegments(rollout, "author", scale, place, rollout.trajectories.length > 1);
  }
  const mark = first((each) => firstOf(each)?.messages ?? [], (a, b) => JSON.stringify(a) === JSON.stringify(b));
  return byMessages(rollout, (place) => place === mark);
}

/** Index of the first difference of two sequences; Infinity if the sequences are equal. */
export function firstDifference(left, right, same) {
  const length = Math.min(left.length, right.length);
  for (let at = 0; at < length; at++) if (!same(left[at], right[at])) return at;
  return left.length === right.length ? Infinity : length;
}
