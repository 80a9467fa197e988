// The table of rollouts: filtered, sorted and paged by the server, of which only what is on the screen is drawn.

import {ask, filtersOf, link, rolloutLink} from "./api.js";
import {el, fill, number, seconds, short} from "./dom.js";
import {bar} from "./filters.js";

const ROW_PX = 32, BLOCK = 100, SPARE = 10, SEARCH_MS = 250;
const MAX_PX = 30_000_000; // browsers draw nothing further down
const COLUMNS = [
  ["step", "step", 62, "n"], ["split", "split", 62], ["uid", "group", 146, "code"], ["number", "#", 44, "n"],
  ["source", "data source", 124], ["index", "row", 70, "n"], ["reward", "reward", 76, "n"],
  ["stop", "stop", 128], ["turns", "turns", 64, "n"], ["calls", "calls", 60, "n"],
  ["outcomes", "tools", 128], ["tokens", "tokens", 74, "n"], ["trained", "trained", 76, "n"],
  ["duration_s", "time", 86, "n"],
];

export async function mount(root, words, context) {
  const table = new Table(root, words, context);
  await table.load();
  return table;
}

class Table {
  constructor(root, words, context) {
    this.words = words;
    this.context = context;
    this.blocks = new Map();
    this.matched = 0;
    this.bar = bar((changed) => this.say(changed));
    this.status = el("span.status", {role: "status"});
    this.news = el("button.news", {type: "button", hidden: true, onclick: () => this.up()});
    this.head = el(".head", {role: "row"});
    this.body = el(".rows", {role: "rowgroup"});
    this.scroller = el(".scroller", {role: "table", "aria-label": "rollouts", tabindex: "0", onscroll: () => this.draw()}, this.head, this.body);
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.scroller);
    fill(root, el("section.rollouts", {}, this.bar.node, el(".under", {}, this.status, this.news), this.scroller));
  }

  get run() { return Number(this.words.run ?? 0); }

  close() {
    this.resized.disconnect();
    clearTimeout(this.timer);
    this.asked?.abort();
  }

  /** Other filters: kept in the address, without a step back in the history for each letter typed. */
  say(words) {
    history.replaceState(null, "", link("rollouts", words));
    this.change(words);
  }

  change(words) {
    this.words = words;
    this.scroller.scrollTop = 0;
    return this.load();
  }

  async load() {
    clearTimeout(this.timer);
    this.asked?.abort();
    this.asked = new AbortController();
    this.scroller.setAttribute("aria-busy", "true");
    const first = Math.floor(this.scroller.scrollTop / ROW_PX / BLOCK);
    const fresh = new Map();
    try {
      const answer = await this.block(first, this.asked.signal);
      fresh.set(first, answer.rows);
      this.blocks = fresh;
      this.tell(answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.blocks = fresh;
      this.matched = 0;
      fill(this.status, el("span.bad", {}, error.message));
    }
    this.scroller.setAttribute("aria-busy", "false");
    this.news.hidden = true;
    this.draw();
  }

  block(at, signal) {
    return ask("rows", {...filtersOf(this.words), run: this.words.run, offset: at * BLOCK, limit: BLOCK}, signal);
  }

  tell(answer) {
    this.matched = answer.matched;
    this.version = answer.version;
    this.columns(answer.choices.columns);
    this.bar.show(this.words, answer.choices, this.context.runs);
    const searching = answer.num_searched < answer.num_parts;
    fill(this.status, `${number(answer.matched)} of ${number(answer.total)} rollouts`,
      searching && el("span.soft", {}, `, searched ${answer.num_searched} of ${answer.num_parts} files…`));
    if (searching && this.words.q) this.timer = setTimeout(() => this.load(), SEARCH_MS);
  }

  columns(names) {
    const rewards = names.filter((name) => name.startsWith("reward/")).map((name) => [name, name.slice(7), 90, "n"]);
    const after = COLUMNS.findIndex(([name]) => name === "stop");
    this.shown = [...COLUMNS.slice(0, after), ...rewards, ...COLUMNS.slice(after)];
    const widths = this.shown.map(([, , width]) => `minmax(${width}px, ${width}fr)`).join(" ");
    this.scroller.style.setProperty("--columns", widths);
    this.scroller.style.setProperty("--width", `${this.shown.reduce((sum, [, , width]) => sum + width, 0)}px`);
    fill(this.head, this.shown.map(([name, label, , kind]) => this.heading(name, label, kind)));
  }

  heading(name, label, kind) {
    const sort = this.words.sort ?? "", own = sort.replace(/^-/, "") === name;
    const direction = own ? (sort.startsWith("-") ? "descending" : "ascending") : "none";
    const next = !own ? (kind === "n" ? `-${name}` : name) : sort.startsWith("-") ? (kind === "n" ? name : "")
      : kind === "n" ? "" : `-${name}`;
    const attributes = {role: "columnheader", "aria-sort": direction, title: label, "data-column": name};
    if (name === "outcomes") return el(".cell", attributes, label);
    return el(`.cell.${kind ?? "t"}`, attributes,
      el("button", {type: "button", id: `sort-${name}`, onclick: () => this.say({...this.words, sort: next})},
        label, el("i.arrow", {"aria-hidden": "true"}, own ? (sort.startsWith("-") ? "↓" : "↑") : "")));
  }

  draw() {
    const height = Math.min(this.matched * ROW_PX, MAX_PX);
    this.body.style.height = `${height}px`;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / ROW_PX) - SPARE);
    const last = Math.min(this.matched, first + Math.ceil(this.scroller.clientHeight / ROW_PX) + 2 * SPARE);
    const rows = [];
    for (let at = first; at < last; at++) rows.push(this.row(at));
    if (!this.matched) rows.push(el("p.empty", {}, "No rollout is all of this."));
    fill(this.body, rows);
    this.scroller.setAttribute("aria-rowcount", String(this.matched + 1));
  }

  row(at) {
    const row = this.blocks.get(Math.floor(at / BLOCK))?.[at % BLOCK];
    const style = {transform: `translateY(${at * ROW_PX}px)`};
    if (!row) {
      this.fetch(Math.floor(at / BLOCK));
      return el(".row.waiting", {style});
    }
    const href = rolloutLink(row, this.words.run, filtersOf(this.words));
    const cells = this.shown.map(([name, , , kind]) => el(`.cell.${kind ?? "t"}`, {role: "cell"}, cell(row, name)));
    return el(row.failed ? "a.row.failed" : "a.row", {role: "row", id: `row-${at}`, "aria-rowindex": String(at + 2), href, style}, cells);
  }

  async fetch(at) {
    if (this.blocks.has(at)) return;
    const into = this.blocks;
    into.set(at, []); // asked once
    try {
      const answer = await this.block(at, this.asked.signal);
      into.set(at, answer.rows);
      if (into === this.blocks) this.draw();
    } catch {
      into.delete(at);
    }
  }

  /** Rows that moved under a reader's eyes would be worse than rows that wait. */
  async refresh(runs) {
    const run = runs[this.run];
    if (!run || run.rows === this.version) return;
    const reading = run.num_read < run.num_files;
    if (this.scroller.scrollTop < ROW_PX || reading) return this.load();
    fill(this.news, "new rollouts: show them");
    this.news.hidden = false;
  }

  up() {
    this.scroller.scrollTop = 0;
    this.load();
  }
}

function cell(row, name) {
  const value = row[name];
  if (name === "outcomes") return tools(row);
  if (name === "reward") return el(`span.reward`, {style: {"--r": Math.max(0, Math.min(1, value))}}, number(value));
  if (name === "stop") return el(`span.stop.${value === "finished" ? "fine" : row.failed ? "bad" : "odd"}`, {}, value);
  if (name === "duration_s") return seconds(value);
  if (name === "step" || name === "index" || name === "number") return String(value);
  return typeof value === "number" ? number(value) : short(value ?? "");
}

/** One mark a call; what went wrong is said. */
function tools(row) {
  const wrong = row.outcomes.map((outcome, at) => [outcome, row.tools[at]]).filter(([outcome]) => outcome !== "ok");
  const marks = row.outcomes.slice(0, 12).map((outcome, at) => {
    const title = `${short(row.tools[at] || "unknown")}: ${outcome}`;
    return el(`i.mark.${outcome === "ok" ? "fine" : "bad"}`, {title, role: "img", "aria-label": title});
  });
  return [el("span.marks", {}, marks), wrong.length > 0 && el("span.bad", {}, wrong[0][0])];
}
