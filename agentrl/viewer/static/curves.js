// Charts of all metrics of the chosen runs, grouped by prefix. A chart is drawn when it becomes visible.
// agentrl/telemetry/metrics declares which metrics and groups come first.

import {ask, link} from "./api.js";
import {chart} from "./chart.js";
import {SLOTS, chosenRuns, controls, runChooser, viewOf} from "./curve_controls.js";
import {el, fill, number} from "./dom.js";
import {isFlat} from "./scale.js";

const SHARED = ["metric", "runs"]; // parameters that change the list of charts; other parameters change only the drawing

export async function mount(root, words, context) {
  const page = new Curves(root, words, context);
  await page.load();
  return page;
}

class Curves {
  constructor(root, words, context) {
    this.words = words;
    this.context = context;
    this.read = new Map(); // run -> version and values of its curves
    this.seen = new IntersectionObserver((entries) => entries.forEach((entry) => entry.isIntersecting && this.draw(entry.target)), {rootMargin: "300px"});
    this.waiting = new WeakMap();
    this.drawn = new Map();
    this.closed = new Set();
    this.search = el("input.search", {type: "search", name: "q", placeholder: "search metrics", "aria-label": "search metrics",
      value: words.metric ?? "", oninput: () => this.say({metric: this.search.value})});
    this.status = el("span.status", {role: "status"});
    this.controls = controls((changed) => this.say(changed));
    this.chooser = runChooser((changed) => this.say(changed));
    this.warnings = el(".warnings");
    this.groups = el(".groups");
    fill(root, el("section.curves", {}, el(".filters", {}, this.search, this.controls.node, this.status), this.chooser.node, this.warnings, this.groups));
  }

  close() { this.seen.disconnect(); }

  /** Save the settings in the URL, so that a link shows the same curves. */
  say(changed) {
    const words = Object.fromEntries(Object.entries({...this.words, ...changed}).filter(([, value]) => value !== ""));
    history.replaceState(null, "", link("curves", words));
    this.change(words);
  }

  change(words) {
    const same = SHARED.every((name) => this.words[name] === words[name]);
    this.words = words;
    if (this.search !== document.activeElement) this.search.value = words.metric ?? "";
    same ? this.redraw() : this.load();
  }

  async load() {
    const all = this.context.runs, chosen = chosenRuns(this.words, all), asked = this.words;
    this.overview ??= await ask("overview");
    await Promise.all(chosen.filter((run) => this.read.get(run)?.version !== all[run].curves).map(async (run) => {
      const version = all[run].curves;
      this.read.set(run, {version, ...await ask("curves", {run})});
    }));
    if (asked !== this.words) return;
    this.versions = all.map((run) => run.curves).join();
    this.runs = chosen.map((run) => ({...this.read.get(run), slot: run % SLOTS, name: all[run].name}));
    this.show();
  }

  async refresh(runs) {
    if (runs.map((run) => run.curves).join() !== this.versions) await this.load();
  }

  show() {
    const wanted = (this.words.metric ?? "").toLowerCase();
    const names = [...new Set(this.runs.flatMap((run) => Object.keys(run.series)))];
    const found = names.filter((name) => name.toLowerCase().includes(wanted));
    fill(this.status, names.length ? `${found.length} of ${names.length} metrics` : "no metrics yet");
    fill(this.warnings, this.runs.flatMap((run) => run.warnings.map(({step, text}) =>
      el("p.warned", {}, this.runs.length > 1 && el(`i.swatch.s${run.slot}`), el("b", {}, `step ${step}`), " ", text))));
    this.chooser.show(this.words, this.context.runs);
    this.seen.disconnect();
    this.drawn.clear();
    this.look();
    fill(this.groups, grouped(found, this.overview, !wanted).map(([name, members]) => this.group(name, members)));
  }

  /** Update the controls and the settings that all charts share. */
  look() {
    const axis = this.words.x === "time" || this.words.x === "tokens" ? this.words.x : null;
    this.controls.show(this.words, [...new Set(this.runs.flatMap((run) => Object.keys(run.axes)))]);
    this.places = (run) => axis ? run.axes[axis] ?? [] : run.steps;
    const longest = Math.max(0, ...this.runs.map((run) => this.places(run).at(-1) ?? 0));
    this.view = viewOf(this.words, longest, (zoom) => this.say({from: zoom ? String(zoom[0]) : "", to: zoom ? String(zoom[1]) : ""}));
  }

  redraw() {
    this.look();
    for (const [node, metric] of this.drawn) if (node.isConnected) fill(node, this.chart(metric));
  }

  group(name, members) {
    const flat = members.filter((metric) => isFlat(this.values(metric))), drawn = members.filter((metric) => !flat.includes(metric));
    const toggled = (event) => this.closed[event.target.open ? "delete" : "add"](name);
    return el("details.group", {open: !this.closed.has(name), "data-group": name, ontoggle: toggled},
      el("summary", {}, el("h2", {}, name), el("span.soft", {}, String(members.length))),
      el(".charts", {}, drawn.map((metric) => this.promise(metric))),
      flat.length > 0 && el("p.flat", {}, el("span.soft", {}, "constant: "), flat.map((metric) =>
        el("span.constant", {"data-metric": metric}, metric, " ", el("b", {}, number(this.values(metric)[0] ?? null))))));
  }

  values(metric) {
    return this.runs.flatMap((run) => run.series[metric] ?? []).filter((value) => value !== null);
  }

  /** Placeholder of a chart, drawn when it becomes visible. */
  promise(metric) {
    const node = el(".card.promised", {"data-promise": metric});
    this.waiting.set(node, metric);
    this.seen.observe(node);
    return node;
  }

  draw(node) {
    const metric = this.waiting.get(node);
    if (!metric) return;
    this.waiting.delete(node);
    this.seen.unobserve(node);
    node.classList.remove("promised");
    this.drawn.set(node, metric);
    fill(node, this.chart(metric));
  }

  chart(metric) {
    const scaled = (places) => places.map((at) => at / this.view.scale);
    const lines = this.runs.map((run) => ({slot: run.slot, x: scaled(this.places(run)), values: this.places(run).length ? run.series[metric] ?? [] : []}));
    const warned = this.runs.flatMap((run) => scaled(run.warnings.map(({step}) => this.places(run)[run.steps.indexOf(step)]).filter(Number.isFinite)));
    return chart(metric, lines, this.view, warned);
  }
}

function grouped(names, overview, withFirst) {
  const groups = new Map();
  for (const name of names) {
    const group = name.split("/")[0];
    groups.set(group, [...(groups.get(group) ?? []), name]);
  }
  const rank = (name) => (overview.groups.indexOf(name) + 1) || overview.groups.length + 1;
  const sorted = [...groups].sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b));
  const first = overview.metrics.filter((name) => names.includes(name));
  return withFirst && first.length ? [["overview", first], ...sorted] : sorted;
}
