// Every metric of one run or two, by the first word of its name; a line is drawn when it comes into sight.

import {ask, link} from "./api.js";
import {chart} from "./chart.js";
import {el, fill, number} from "./dom.js";

const FIRST = ["reward/mean", "success", "val/success", "val/reward/mean", "response_length/mean", "tool_calls/mean",
  "actor/entropy", "actor/grad_norm", "actor/loss", "timing_s/step"];
const ORDER = ["reward", "success", "val", "actor", "groups", "response_length", "num_turns", "tool_calls", "tool", "stop"];

export async function mount(root, words, context) {
  const page = new Curves(root, words, context);
  await page.load();
  return page;
}

class Curves {
  constructor(root, words, context) {
    this.words = words;
    this.context = context;
    this.seen = new IntersectionObserver((entries) => entries.forEach((entry) => entry.isIntersecting && this.draw(entry.target)), {rootMargin: "300px"});
    this.waiting = new WeakMap();
    this.closed = new Set();
    this.search = el("input.search", {type: "search", name: "q", placeholder: "search metrics", "aria-label": "search metrics",
      value: words.metric ?? "", oninput: () => this.filter()});
    this.status = el("span.status", {role: "status"});
    this.warnings = el(".warnings");
    this.groups = el(".groups");
    fill(root, el("section.curves", {}, el(".filters", {}, this.search, this.status), this.warnings, this.groups));
  }

  close() { this.seen.disconnect(); }

  change(words) {
    this.words = words;
    this.search.value = words.metric ?? "";
    this.show();
  }

  filter() {
    this.words = {...this.words, metric: this.search.value};
    history.replaceState(null, "", link("curves", this.words));
    this.show();
  }

  async load() {
    const count = Math.max(1, this.context.runs.length);
    this.runs = await Promise.all(Array.from({length: count}, (_, run) => ask("curves", {run})));
    this.versions = this.context.runs.map((run) => run.curves).join();
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
    fill(this.warnings, this.runs.flatMap((run, at) => run.warnings.map(({step, text}) =>
      el("p.warned", {}, this.runs.length > 1 && el(`i.swatch.s${at}`), el("b", {}, `step ${step}`), " ", text))));
    this.seen.disconnect();
    fill(this.groups, grouped(found, !wanted).map(([name, members]) => this.group(name, members)));
  }

  group(name, members) {
    const flat = members.filter((metric) => this.flat(metric)), drawn = members.filter((metric) => !flat.includes(metric));
    const toggled = (event) => this.closed[event.target.open ? "delete" : "add"](name);
    return el("details.group", {open: !this.closed.has(name), "data-group": name, ontoggle: toggled},
      el("summary", {}, el("h2", {}, name), el("span.soft", {}, String(members.length))),
      el(".charts", {}, drawn.map((metric) => this.promise(metric))),
      flat.length > 0 && el("p.flat", {}, el("span.soft", {}, "never changed: "), flat.map((metric) =>
        el("span.constant", {"data-metric": metric}, metric, " ", el("b", {}, number(this.values(metric)[0] ?? null))))));
  }

  values(metric) {
    return this.runs.flatMap((run) => run.series[metric] ?? []).filter((value) => value !== null);
  }

  flat(metric) {
    const values = this.values(metric);
    return values.every((value) => value === values[0]);
  }

  /** Room for a chart, drawn once it is in sight. */
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
    const lines = this.runs.map((run) => ({steps: run.steps, values: run.series[metric] ?? []}));
    node.append(chart(metric, lines, this.runs.flatMap((run) => run.warnings.map(({step}) => step))));
  }
}

function grouped(names, withFirst) {
  const groups = new Map();
  for (const name of names) {
    const group = name.split("/")[0];
    groups.set(group, [...(groups.get(group) ?? []), name]);
  }
  const rank = (name) => (ORDER.indexOf(name) + 1) || ORDER.length + 1;
  const sorted = [...groups].sort(([a], [b]) => rank(a) - rank(b) || a.localeCompare(b));
  const first = FIRST.filter((name) => names.includes(name));
  return withFirst && first.length ? [["at a glance", first], ...sorted] : sorted;
}
