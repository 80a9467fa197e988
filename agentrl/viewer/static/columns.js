// Columns of the table of rollouts, and the user's choice of columns.

import {el, fill} from "./dom.js";

const KEY = "agentrl-columns";
const WIDE = [["prompt", "prompt", 170], ["answer", "answer", 170]];
const PLACE = [["step", "step", 62, "n"], ["stop", "stop", 146], ["turns", "turns", 66, "n"], ["tokens", "tokens", 74, "n"], ["duration_s", "time", 84, "n"]];
const OTHERS = [["split", "split", 62], ["source", "data source", 124], ["uid", "group", 146, "code"], ["number", "#", 44, "n"], ["excluded", "not trained on", 150],
  ["group_size", "rollouts in group", 134, "n"],
  ["index", "row", 70, "n"], ["calls", "calls", 60, "n"], ["trained", "trained", 78, "n"]];
const HIDDEN = new Set(["uid", "number", "group_size", "index", "calls", "trained"]);
const OF_DROPPED = new Set(["uid", "group_size"]); // shown if dropped groups are listed
export const UNSORTED = new Set(["prompt", "answer", "outcomes", "guards"]);
const GUARD = "reward/guard/", ON_A_LINE = 4;

/** Every column of a run: [name, label, minimum width, kind, shown by default]. `dropped`: dropped groups are shown. */
export function columnsOf(choices, dropped = false) {
  const rewards = choices.columns.filter((name) => name.startsWith("reward/"))
    .map((name) => [name, name.slice(7), Math.max(78, Math.min(150, 30 + 7 * (name.length - 7))), "n"]);
  const guards = choices.columns.filter((name) => name.startsWith(GUARD));
  const raised = guards.length > choices.idle.length, isGuard = (name) => name.startsWith(GUARD);
  const several = (name) => name === "split" || name === "source" ? choices[name].length > 1 : name !== "excluded" || choices[name].length > 0;
  const all = [...WIDE, ["reward", "score", 72, "n"], ...rewards, ["outcomes", "tools", 176], ...(guards.length ? [["guards", "guards", 110]] : []), ...PLACE, ...OTHERS];
  return all.map(([name, label, width, kind]) =>
    [name, label, width, kind, (!HIDDEN.has(name) || (dropped && OF_DROPPED.has(name))) && several(name) && !isGuard(name) && (name !== "guards" || raised)]);
}

export function shownColumns(all) {
  const own = kept();
  return all.filter(([name, , , , first]) => own[name] ?? first);
}

const BROAD = {stop: 2, outcomes: 2, guards: ON_A_LINE};

/** Width of a value with its label, in quarters of a phone's screen. */
export const quarters = (name, label) => BROAD[name] ?? (label.length <= 8 ? 1 : label.length <= 20 ? 2 : ON_A_LINE);

/** Number of lines that the values of a card need, without prompt and answer. */
export function cardLines(columns) {
  let lines = 1, used = 0;
  for (const [name, label] of columns.filter(([name]) => name !== "prompt" && name !== "answer")) {
    if (used + quarters(name, label) > ON_A_LINE) [lines, used] = [lines + 1, 0];
    used += quarters(name, label);
  }
  return lines;
}

/** The guards that a rollout raised. */
export const raisedGuards = (row) => Object.entries(row)
  .filter(([name, value]) => name.startsWith(GUARD) && value > 0).map(([name]) => name.slice(GUARD.length).replaceAll("_", " "));

/** Checkboxes for the columns; the browser stores the choice. */
export function columnChooser(changed) {
  const node = el("details.menu");
  const choose = (name, shown) => {
    keep(name === null ? {} : {...kept(), [name]: shown});
    changed();
  };
  const outside = (event) => {
    if (!node.contains(event.target)) node.open = false;
    if (!node.isConnected) document.removeEventListener("click", outside);
  };
  document.addEventListener("click", outside);
  function show(all) {
    const shown = new Set(shownColumns(all).map(([name]) => name));
    fill(node, el("summary", {}, "columns"), el(".boxes", {}, all.map(([name, label]) => {
      const input = el("input", {type: "checkbox", id: `column-${name}`, checked: shown.has(name), onchange: () => choose(name, input.checked)});
      return el("label.check", {}, input, label);
    }), el("button.plain", {type: "button", id: "columns-default", onclick: () => choose(null)}, "default columns")));
  }
  return {node, show};
}

let memory = "{}"; // the choice of columns, used if the browser's storage is off

function kept() {
  try {
    const value = JSON.parse(localStorage.getItem(KEY) ?? memory);
    return value && typeof value === "object" ? value : {};
  } catch { // storage is off, or has invalid content
    return JSON.parse(memory);
  }
}

function keep(columns) {
  memory = JSON.stringify(columns);
  try { localStorage.setItem(KEY, memory); } catch { /* storage is off: keep the choice for this page only */ }
}
