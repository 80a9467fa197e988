// Table of rollouts. The server filters, sorts and pages; only visible rows are drawn.

import {ask, filtersOf, link, rolloutLink} from "./api.js";
import {el, fill, number, seconds, short} from "./dom.js";
import {UNSORTED, cardLines, columnChooser, columnsOf, quarters, raisedGuards, shownColumns} from "./columns.js";
import {bar} from "./filters.js";

const ROW_PX = 32, CARD_PX = 66, LINE_PX = 24, BLOCK = 100, EXCERPTS = 25, SPARE = 10, SEARCH_MS = 250, SETTLED_MS = 60;
const MARKS = 5; // maximum number of tool calls with a mark
const MAX_PX = 30_000_000; // browsers draw nothing below this position
const DROPPED = "excluded"; // the split of dropped groups
const PHONE = matchMedia("(max-width: 640px)"); // rows are shown as cards

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
    this.excerpts = new Map();
    this.matched = 0;
    this.shown = [];
    this.bar = bar((changed) => this.say(changed));
    this.status = el("span.status", {role: "status"});
    this.news = el("button.news", {type: "button", hidden: true, onclick: () => this.up()});
    this.chooser = columnChooser(() => this.columns());
    this.head = el(".head", {role: "row"});
    this.body = el(".rows", {role: "rowgroup"});
    this.scroller = el(".scroller", {role: "table", "aria-label": "rollouts", tabindex: "0", onscroll: () => this.draw()}, this.head, this.body);
    this.resized = new ResizeObserver(() => this.choices && this.columns());
    this.resized.observe(this.scroller);
    fill(root, el("section.rollouts", {}, this.bar.node, el(".under", {}, this.status, this.news, this.chooser.node), this.scroller));
  }

  get run() { return Number(this.words.run ?? 0); }

  close() {
    this.resized.disconnect();
    clearTimeout(this.timer);
    clearTimeout(this.reading);
    this.asked?.abort();
  }

  get rowPx() {
    return PHONE.matches ? CARD_PX + LINE_PX * cardLines(this.shown) : ROW_PX;
  }

  /** Save new filters in the URL, without a history entry for each typed letter. */
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
    const first = Math.floor(this.scroller.scrollTop / this.rowPx / BLOCK);
    const fresh = new Map();
    try {
      const answer = await this.block(first, this.asked.signal);
      fresh.set(first, answer.rows);
      this.blocks = fresh;
      this.excerpts = new Map();
      this.tell(answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.blocks = fresh;
      this.excerpts = new Map();
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
    this.choices = answer.choices;
    this.columns();
    this.bar.show(this.words, answer.choices, this.context.runs);
    const searching = answer.num_searched < answer.num_parts;
    fill(this.status, `${number(answer.matched)} of ${number(answer.total)} rollouts`,
      searching && el("span.soft", {}, `, searched ${answer.num_searched} of ${answer.num_parts} files…`),
      answer.num_hidden > 0 && [", ", el("a", {id: "dropped", href: link("rollouts", {...this.words, split: DROPPED})}, `${number(answer.num_hidden)} more in dropped groups`)]);
    if (searching && this.words.q) this.timer = setTimeout(() => this.load(), SEARCH_MS);
  }

  columns() {
    const all = columnsOf(this.choices, Boolean(this.words.excluded) || this.words.split === DROPPED);
    this.shown = shownColumns(all);
    this.chooser.show(all);
    const widths = this.shown.map(([, , width]) => `minmax(${width}px, ${width}fr)`).join(" ");
    this.scroller.style.setProperty("--columns", widths);
    this.scroller.style.setProperty("--width", `${this.shown.reduce((sum, [, , width]) => sum + width, 0)}px`);
    this.scroller.style.setProperty("--row", `${this.rowPx}px`);
    fill(this.head, this.shown.map(([name, label, , kind]) => this.heading(name, label, kind)));
    this.draw();
  }

  heading(name, label, kind) {
    const sort = this.words.sort ?? "", own = sort.replace(/^-/, "") === name;
    const direction = own ? (sort.startsWith("-") ? "descending" : "ascending") : "none";
    const next = !own ? (kind === "n" ? `-${name}` : name) : sort.startsWith("-") ? (kind === "n" ? name : "")
      : kind === "n" ? "" : `-${name}`;
    const attributes = {role: "columnheader", "aria-sort": direction, title: label, "data-column": name};
    if (UNSORTED.has(name)) return el(`.cell.unsorted`, attributes, label);
    return el(`.cell.${kind ?? "t"}`, attributes,
      el("button", {type: "button", id: `sort-${name}`, onclick: () => this.say({...this.words, sort: next})},
        label, el("i.arrow", {"aria-hidden": "true"}, own ? (sort.startsWith("-") ? "↓" : "↑") : "")));
  }

  draw() {
    const row = this.rowPx;
    this.body.style.height = `${Math.min(this.matched * row, MAX_PX)}px`;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / row) - SPARE);
    const last = Math.min(this.matched, first + Math.ceil(this.scroller.clientHeight / row) + 2 * SPARE);
    const rows = [];
    for (let at = first; at < last; at++) rows.push(this.row(at));
    if (!this.matched) rows.push(el("p.empty", {}, "No rollouts match."));
    fill(this.body, rows);
    this.scroller.setAttribute("aria-rowcount", String(this.matched + 1));
    if (this.shown.some(([name]) => name === "prompt" || name === "answer")) this.readLater(first, last);
  }

  /** Prompts and answers are requested after the rows, because they may be in many files. */
  readLater(first, last) {
    clearTimeout(this.reading);
    this.reading = setTimeout(() => {
      for (let at = Math.floor(first / EXCERPTS); at * EXCERPTS < last; at++) this.readExcerpts(at);
    }, SETTLED_MS);
  }

  async readExcerpts(at) {
    if (this.excerpts.has(at)) return;
    const into = this.excerpts;
    into.set(at, null); // request only once
    try {
      const words = {...filtersOf(this.words), run: this.words.run, offset: at * EXCERPTS, limit: EXCERPTS};
      const {rows} = await ask("excerpts", words, this.asked.signal);
      into.set(at, new Map(rows.map((row) => [keyOf(row), row])));
      if (into === this.excerpts) this.draw();
    } catch {
      into.delete(at);
    }
  }

  row(at) {
    const row = this.blocks.get(Math.floor(at / BLOCK))?.[at % BLOCK];
    const style = {transform: `translateY(${at * this.rowPx}px)`};
    if (!row) {
      this.fetch(Math.floor(at / BLOCK));
      return el(".row.waiting", {style});
    }
    const href = rolloutLink(row, this.words.run, filtersOf(this.words));
    const texts = this.excerpts.get(Math.floor(at / EXCERPTS))?.get(keyOf(row)) ?? {};
    const cells = this.shown.map(([name, label, , kind]) => el(`.cell.${kind ?? "t"}`, {role: "cell", "data-label": label, "data-cell": name, style: {"--quarters": quarters(name, label)}}, cell({...row, ...texts}, name)));
    return el(row.failed ? "a.row.failed" : "a.row", {role: "row", id: `row-${at}`, "aria-rowindex": String(at + 2), href, style}, cells);
  }

  async fetch(at) {
    if (this.blocks.has(at)) return;
    const into = this.blocks;
    into.set(at, []); // request only once
    try {
      const answer = await this.block(at, this.asked.signal);
      into.set(at, answer.rows);
      if (into === this.blocks) this.draw();
    } catch {
      into.delete(at);
    }
  }

  /** If the user has scrolled down, offer a button that shows new rollouts, so that rows do not move. */
  async refresh(runs) {
    const run = runs[this.run];
    if (!run || run.rows === this.version) return;
    const reading = run.num_read < run.num_files;
    if (this.scroller.scrollTop < this.rowPx || reading) return this.load();
    fill(this.news, "show new rollouts");
    this.news.hidden = false;
  }

  up() {
    this.scroller.scrollTop = 0;
    this.load();
  }
}

const keyOf = (row) => JSON.stringify([row.split, row.step, row.uid, row.number]);

function cell(row, name) {
  const value = row[name];
  if (name === "outcomes") return tools(row);
  if (name === "guards") return raisedGuards(row).map((guard) => el("span.chip.raised", {}, guard));
  if (name === "prompt" || name === "answer") return value === undefined ? "" : short(value, 240);
  if (name === "reward") return el(`span.reward`, {style: {"--r": Math.max(0, Math.min(1, value))}}, number(value));
  if (name === "stop") return el(`span.stop.${value === "finished" ? "fine" : row.failed ? "bad" : "odd"}`, {}, value);
  if (name === "duration_s") return seconds(value);
  if (name === "step" || name === "index" || name === "number") return String(value);
  return typeof value === "number" ? number(value) : short(value ?? "");
}

/** One mark per tool call, and the first failed outcome as text. */
function tools(row) {
  const wrong = row.outcomes.map((outcome, at) => [outcome, row.tools[at]]).filter(([outcome]) => outcome !== "ok");
  const marks = row.outcomes.slice(0, MARKS).map((outcome, at) => {
    const title = `${short(row.tools[at] || "unknown")}: ${outcome}`;
    return el(`i.mark.${outcome === "ok" ? "fine" : "bad"}`, {title, role: "img", "aria-label": title});
  });
  const more = row.outcomes.length - marks.length;
  return [el("span.marks", {}, marks), more > 0 && el("span.soft", {}, `+${more} `), wrong.length > 0 && el("span.bad", {}, wrong[0][0])];
}
