// The frame: which page is shown, what is new in the runs, and what is wrong with them.

import {link, place, watch} from "./api.js";
import {el, fill, visibleText} from "./dom.js";
import * as curves from "./curves.js";
import * as rollout from "./rollout.js";
import * as rollouts from "./rollouts.js";
import {siblings, task} from "./beside.js";

const POLL_MS = 1000, NAMED = 3, PAGES = {curves, rollouts, rollout, siblings, task};
const top = document.getElementById("top"), banners = document.getElementById("banners");
const root = document.getElementById("page"), poll = watch();
const context = {runs: [], root};
let shown = null, page = null, gone = false, turn = 0;

/** Curves first, where a run has any. */
const first = () => context.runs.length && !context.runs.some((run) => run.has_curves) ? "rollouts" : "curves";

/** Each page has a holder of its own: one that was left before its answers came draws where nobody looks. */
async function show() {
  const [name, words] = place();
  const wanted = PAGES[name] ? name : first();
  header(wanted, words);
  if (shown === wanted && page?.change) return page.change(words);
  const own = ++turn, holder = el(".holder", {}, el("p.empty.wait", {role: "status"}, "reading…"));
  page?.close?.();
  page = null;
  shown = wanted;
  document.getElementById("hover").hidden = true;
  document.body.dataset.page = wanted;
  fill(root, holder);
  root.scrollTop = 0;
  if (own > 1) root.focus();
  const made = await PAGES[wanted].mount(holder, words, context)
    .catch((error) => fill(holder, el("p.problem", {role: "alert"}, error.message)));
  if (own === turn) page = made;
  else made?.close?.();
}

function header(wanted, words) {
  document.title = visibleText([words.at_uid ?? words.uid, wanted, "agentrl view"].filter(Boolean).join(" · "));
  const tab = (name, text) =>
    el("a.tab", {id: `tab-${name}`, href: link(name, words.run ? {run: words.run} : {}), "aria-current": name === wanted ? "page" : null}, text);
  fill(top,
    el("strong", {}, "agentrl"),
    el("nav", {}, tab("curves", "Curves"), tab("rollouts", "Rollouts")),
    el("span.runs", {}, context.runs.length > NAMED ? el("span.run", {}, `${context.runs.length} runs`) : context.runs.map((run, at) =>
      el("span.run", {title: run.name}, context.runs.length > 1 && el(`i.swatch.s${at}`), el("bdi", {}, run.name)))),
    el("span.progress", {}, progress()),
    el("button.theme", {type: "button", id: "theme", title: "light or dark", "aria-label": "light or dark", onclick: theme}, "◐"));
}

function progress() {
  const behind = context.runs.filter((run) => run.num_read < run.num_files);
  const total = context.runs.reduce((sum, run) => sum + run.num_rollouts, 0);
  const count = total && context.runs.length <= NAMED ? `${total.toLocaleString("en")} rollouts` : "";
  return behind.length ? `${count || "0 rollouts"}, reading ${behind[0].num_read} of ${behind[0].num_files} files` : count;
}

function theme() {
  const dark = document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

function tell() {
  const problems = context.runs.flatMap((run) => run.problems);
  const waiting = context.runs.filter((run) => run.num_files === 0 && run.rows > 0);
  fill(banners,
    gone && el("p.problem", {}, "The server has ended: start `agentrl view` again."),
    problems.slice(0, 5).map((line) => el("p.problem", {}, line)),
    problems.length > 5 && el("p.problem", {}, `and ${problems.length - 5} more files`),
    waiting.map((run) => el("p.note", {}, `${run.name} has no rollouts yet; they appear here as they are written.`)));
}

async function look() {
  try {
    const runs = await poll();
    const back = gone;
    gone = false;
    if (runs) context.runs = runs;
    if (runs || back) tell();
    if (runs) {
      header(shown ?? first(), place()[1]);
      await page?.refresh?.(runs).catch(() => {}); // what is shown stays; what is wrong with its files is told above
    }
  } catch {
    gone = true;
    tell();
  }
  setTimeout(look, POLL_MS);
}

addEventListener("hashchange", show);
await look(); // a page needs to know how many runs there are
show();
