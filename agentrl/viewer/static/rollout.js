// One rollout: conversation, timeline of tool calls, rewards.

import {ask, filtersOf, link, rolloutLink} from "./api.js";
import {tree} from "./branches.js";
import {byMessages, bySegments, timeline} from "./conversation.js";
import {cut, el, fill, number, seconds, worthShowing} from "./dom.js";
import {MODES, hover, legend, measure} from "./tokens.js";

export async function mount(root, words, context) {
  const page = new Page(root, context);
  await page.change(words);
  return page;
}

export const reference = (words) => ({run: words.run, split: words.at_split, step: words.at_step, uid: words.at_uid, number: words.at_number});

class Page {
  constructor(root, context) {
    this.root = root;
    this.context = context;
    this.turn = 0; // number of the latest navigation; responses to earlier navigations are not drawn
    this.keys = (event) => this.key(event);
    addEventListener("keydown", this.keys);
  }

  close() {
    this.turn = -1;
    removeEventListener("keydown", this.keys);
  }

  async change(words) {
    const turn = ++this.turn;
    this.words = words;
    this.way = null;
    this.focused = document.activeElement?.id;
    const [rollout, problem] = await ask("rollout", reference(words)).then((found) => [found], (error) => [null, error.message]);
    if (turn !== this.turn) return;
    if (problem) return fill(this.root, el("p.problem", {role: "alert"}, problem));
    this.rollout = rollout;
    this.scale = measure([rollout]);
    this.show();
    this.beside(turn);
  }

  get hasTokens() { return this.rollout.trajectories.some((trajectory) => trajectory.segments.length); }
  get view() { return this.words.view === "messages" || !this.hasTokens ? "messages" : "tokens"; }
  get mode() { return MODES.some(([mode]) => mode === this.words.colour) ? this.words.colour : "author"; }

  say(changed) {
    this.words = {...this.words, ...changed};
    history.replaceState(null, "", link("rollout", this.words));
    this.show();
    this.way && this.paths();
  }

  show() {
    const {rollout} = this;
    this.paging = el("nav.paging");
    const main = el(".talk", {}, this.switches(), rollout.tokens_note && this.view === "tokens" && el("p.note", {}, rollout.tokens_note),
      rollout.error && el("p.problem", {}, cut(rollout.error)),
      !rollout.trajectories.length && el("p.note", {}, "No tokens or messages of this rollout are saved."),
      tree(rollout), this.view === "tokens" ? bySegments(rollout, this.mode, this.scale) : byMessages(rollout));
    hover(main);
    fill(this.root, el("section.rollout", {}, this.title(), el(".two", {}, main, this.facts())));
  }

  title() {
    const {rollout, words} = this;
    return el(".title", {},
      el("h1", {}, `Step ${rollout.step}`, el("span.soft", {}, ` ${rollout.split} · group `), el("code", {}, rollout.uid), el("span.soft", {}, ` · #${rollout.number}`)),
      rollout.reward !== null && el("span.reward.brief", {style: {"--r": Math.max(0, Math.min(1, rollout.reward))}}, number(rollout.reward)),
      el("span.links", {},
        el("a", {href: link("siblings", {run: words.run, split: rollout.split, step: rollout.step, uid: rollout.uid})}, "group side by side"),
        el("a", {href: link("task", {run: words.run, source: rollout.source, index: rollout.index})}, this.context.runs.length > 1 ? "this task in another run" : "this task at other steps")),
      this.paging);
  }

  async beside(turn) {
    const {run, at_split, at_step, at_uid, at_number} = this.words;
    const asked = ask("neighbours", {run, ...filtersOf(this.words), at_split, at_step, at_uid, at_number});
    const way = await asked.catch(() => ({position: null})); // on failure only the link to the table is shown
    if (turn !== this.turn) return;
    this.way = way;
    this.paths();
    document.getElementById(this.focused)?.focus({preventScroll: true}); // for navigation by keyboard
  }

  paths() {
    const {way, words} = this, rest = {...filtersOf(words), view: words.view, colour: words.colour};
    const to = (row, text, id) => row ? el("a.step", {href: rolloutLink(row, words.run, rest), id}, text) : el("span.step.off", {}, text);
    fill(this.paging, to(way.before, "← previous", "previous"),
      way.position !== null && el("span.soft", {}, `${number(way.position + 1)} of ${number(way.matched)}`), to(way.after, "next →", "next"),
      el("a.step", {href: link("rollouts", {run: words.run, ...filtersOf(words)})}, "table"));
  }

  key(event) {
    if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const id = {ArrowLeft: "previous", ArrowRight: "next"}[event.key];
    if (id) document.getElementById(id)?.click();
  }

  switches() {
    const pressed = (on, changed, text) => el("button", {type: "button", id: `say-${text}`, "aria-pressed": String(on), onclick: () => this.say(changed)}, text);
    const authors = [...new Set(this.rollout.trajectories.flatMap((each) => each.segments.map((segment) => segment.author)))];
    return el(".switches", {},
      this.hasTokens && el(".buttons", {role: "group", "aria-label": "view"}, pressed(this.view === "tokens", {view: ""}, "Tokens"),
        pressed(this.view === "messages", {view: "messages"}, "Messages")),
      this.view === "tokens" && el(".buttons", {role: "group", "aria-label": "colour"},
        MODES.map(([mode, text]) => pressed(this.mode === mode, {colour: mode}, text))),
      this.view === "tokens" && legend(this.mode, this.scale, authors));
  }

  facts() {
    const {rollout} = this;
    const list = (pairs) => el("dl.facts", {}, pairs.filter(Boolean).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
    const named = (rewards) => worthShowing(rewards).map(([name, value]) => [name, number(value)]);
    return el("aside", {},
      el(".card", {}, el(".big", {}, number(rollout.reward), el("span.soft", {}, rollout.reward === null ? "no score" : " score")), list(named(rollout.rewards).filter(([name]) => name !== "score")),
        Object.keys(rollout.tool_rewards).length > 0 && [el("h3", {}, "tool rewards"), list(named(rollout.tool_rewards))],
        rollout.turn_rewards.length > 0 && [el("h3", {}, "turn rewards"), list(rollout.turn_rewards.map((each) => [each.name, number(each.value)]))]),
      el(".card", {}, list([
        ["stop", el(`span.stop.${rollout.stop === "finished" ? "fine" : "odd"}`, {}, rollout.stop)],
        rollout.excluded && ["not trained on", rollout.excluded],
        rollout.infra_failed && ["dropped", "infrastructure failure"],
        ["turns", number(this.turns())], ["time", seconds(rollout.duration_s)],
        ["policy version", rollout.versions.join(", ") || "none"], ["seed", el("code", {}, rollout.seed)]])),
      this.harness(),
      rollout.tool_calls.length > 0 && el(".card", {}, el("h3", {}, `tool calls, ${rollout.tool_calls.length}`), timeline(rollout)),
      el(".card", {}, el("h3", {}, "task"), list([
        ["data source", cut(rollout.source, 200)], ["row", String(rollout.index)], rollout.agent_name && ["agent loop", rollout.agent_name],
        ["ground truth", cut(rollout.ground_truth, 300)], rollout.extra_info !== "{}" && ["extra", cut(rollout.extra_info, 300)]])));
  }

  harness() {
    const {harness_output: output, ...others} = this.rollout.facts;
    const names = Object.keys(others);
    return names.length + (output ? 1 : 0) > 0 && el(".card.harness", {}, el("h3", {}, "agent loop"),
      el("dl.facts", {}, names.map((name) => [el("dt", {}, name.replaceAll("_", " ")), el("dd", {}, cut(others[name], 300))])),
      output && el("details", {}, el("summary", {}, "output"), el("pre", {}, output)));
  }

  turns() {
    const trained = (segment) => segment.author === "model" || segment.author === "demonstration";
    return this.rollout.trajectories.reduce((sum, trajectory) => sum + (trajectory.segments.length
      ? trajectory.segments.filter(trained).length : trajectory.messages.filter((message) => message.role === "assistant").length), 0);
  }
}
