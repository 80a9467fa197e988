// Frame of the page: header, current page, polling, and error banners.

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
let shown = null, page = null, disconnected = false, turn = 0;

/** The default page: curves, if any run has them. */
const first = () => context.runs.length && !context.runs.some((run) => run.has_curves) ? "rollouts" : "curves";

/** Each page draws into its own element. Late responses of a page that the user left draw into a removed element. */
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

function showBanners() {
  const problems = context.runs.flatMap((run) => run.problems);
  const waiting = context.runs.filter((run) => run.num_files === 0 && run.rows > 0);
  fill(banners,
    disconnected && el("p.problem", {}, "The server has stopped. Start `agentrl view` again."),
    problems.slice(0, 5).map((line) => el("p.problem", {}, line)),
    problems.length > 5 && el("p.problem", {}, `and ${problems.length - 5} more problems`),
    waiting.map((run) => el("p.note", {}, `${run.name} has no rollouts yet. New rollouts appear here.`)));
}

async function update() {
  try {
    const runs = await poll();
    const reconnected = disconnected;
    disconnected = false;
    if (runs) context.runs = runs;
    if (runs || reconnected) showBanners();
    if (runs) {
      header(shown ?? first(), place()[1]);
      await page?.refresh?.(runs).catch(() => {}); // on failure keep the old page; the banners show file errors
    }
  } catch {
    disconnected = true;
    showBanners();
  }
  setTimeout(update, POLL_MS);
}

addEventListener("hashchange", show);
await update(); // before the first page: pages need the number of runs
show();
