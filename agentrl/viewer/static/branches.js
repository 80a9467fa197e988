// Tree of a rollout's trajectories: which trajectory continues another, and which was started by another.

import {el, number, short} from "./dom.js";

const KINDS = {task: "task", resume: "saved beginning", messages: "sub-agent", restart: "after a summary", render: "history rendered again", branch: "branch"};

/** The first trajectory of the rollout's own conversation. */
export const first = (rollout) => rollout.trajectories[rollout.branches[0]?.number ?? 0];

/** How a trajectory was opened, in words. */
export function origin(branch) {
  if (branch.parent === null) return branch.kind === "messages" ? "own conversation" : KINDS[branch.kind] ?? "";
  const where = branch.turn === null ? `trajectory ${branch.parent}` : `turn ${branch.turn} of trajectory ${branch.parent}`;
  return branch.turn === null ? `${KINDS[branch.kind] ?? "continues"}: continues ${where}` : `${KINDS[branch.kind] ?? "started"}: started in ${where}`;
}

/** List of the trajectories, each below the one that started it; nothing if the rollout has only one trajectory. */
export function tree(rollout) {
  if (rollout.branches.length < 2) return null;
  return el("nav.tree", {"aria-label": "trajectories"}, el("ul", {}, rollout.branches.map((branch) => el("li", {style: {"--depth": branch.depth}},
    el("button", {type: "button", onclick: () => show(branch.number)}, `trajectory ${branch.number}`),
    el("span.soft", {}, origin(branch)), el("span.soft", {}, size(rollout.trajectories[branch.number])),
    branch.weight !== 1 && el("span.chip", {}, branch.weight === 0 ? "not trained on" : `weight ${number(branch.weight)}`),
    branch.remark && el("span.chip", {}, short(branch.remark, 200))))));
}

/** Heading of a trajectory. */
export const heading = (rollout, branch) => rollout.branches.length > 1 &&
  el("h3", {id: `trajectory-${branch.number}`, tabindex: "-1"}, `trajectory ${branch.number}`, el("span.soft", {}, ` ${origin(branch)}`));

/** Links to the trajectories that a turn started; the turn is a segment of trajectory `parent`. */
export const started = (rollout, parent, segment) => {
  const found = rollout.branches.filter((branch) => branch.parent === parent && branch.segment === segment);
  return found.length > 0 && el("p.started", {}, "started: ", found.map((branch) =>
    el("button", {type: "button", onclick: () => show(branch.number)}, `trajectory ${branch.number}`)));
};

function show(trajectory) {
  const heading_ = document.getElementById(`trajectory-${trajectory}`);
  heading_?.scrollIntoView({block: "start"});
  heading_?.focus({preventScroll: true});
}

function size(trajectory) {
  const trained = trajectory.segments.filter((segment) => segment.author === "model" || segment.author === "demonstration");
  const turns = trained.length || trajectory.messages.filter((message) => message.role === "assistant").length;
  const tokens = trajectory.segments.reduce((sum, segment) => sum + segment.ids.length, 0);
  return [`${number(turns)} ${turns === 1 ? "turn" : "turns"}`, tokens && `${number(tokens)} tokens`].filter(Boolean).join(", ");
}
