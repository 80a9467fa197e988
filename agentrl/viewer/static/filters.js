// Filter bar above the table. The URL parameters store the chosen filters.

import {el, fill, short} from "./dom.js";

const WAIT_MS = 120;
const CHOICES = [["split", "split", "all splits"], ["source", "source", "all sources"], ["stop", "stop", "any stop"],
  ["excluded", "excluded", "any exclusion"],
  ["tool", "tools", "any tool"], ["outcome", "outcomes", "any outcome"]];
const RANGES = [["step", "step", 1], ["reward", "reward", "any"]];

export function bar(changed) {
  let words = {}, timer = 0;
  const say = (name, value) => {
    words = {...words, [name]: value};
    if (value === "" || value === false) delete words[name];
    changed(words);
  };
  const later = (name, value) => {
    clearTimeout(timer);
    timer = setTimeout(() => say(name, value), WAIT_MS);
  };
  const run = el("select", {"aria-label": "run", onchange: () => say("run", run.value)});
  const selects = CHOICES.map(([name, , any]) => {
    const select = el("select", {"aria-label": name, name, onchange: () => say(name, select.value)}, el("option", {value: ""}, any));
    return select;
  });
  const inputs = RANGES.flatMap(([name, , step]) => ["min", "max"].map((end) => {
    const input = el("input", {type: "number", name: `${name}_${end}`, step: String(step), placeholder: end === "min" ? "from" : "to",
      "aria-label": `${name} ${end}`, oninput: () => later(`${name}_${end}`, input.value)});
    return input;
  }));
  const failed = el("input", {type: "checkbox", name: "failed", onchange: () => say("failed", failed.checked ? "1" : "")});
  const text = el("input.search", {type: "search", name: "q", placeholder: "search messages", "aria-label": "search messages",
    oninput: () => later("q", text.value)});
  const chips = el("span.chips");
  const reset = el("button.plain", {type: "button", onclick: () => changed(words.run ? {run: words.run} : {})}, "reset");
  const range = (label, from, to) => el("label.range", {}, label, from, to);
  const toggle = el("button.plain.toggle", {type: "button", "aria-expanded": "false", onclick: () =>
    toggle.setAttribute("aria-expanded", String(node.classList.toggle("open")))}, "filters");
  const node = el("form.filters.folded", {onsubmit: (event) => event.preventDefault()}, toggle,
    run, selects, range("step", inputs[0], inputs[1]), range("reward", inputs[2], inputs[3]),
    el("label.check", {}, failed, "failed only"), text, chips, reset);

  function show(given, choices, runs) {
    words = {...given};
    run.hidden = runs.length < 2;
    fill(run, runs.map((each, at) => el("option", {value: String(at)}, tail(each.name))));
    run.value = given.run ?? "0";
    CHOICES.forEach(([name, list, any], at) => options(selects[at], choices[list], given[name] ?? "", any));
    for (const input of [...inputs, text]) if (input !== document.activeElement) input.value = given[input.name] ?? "";
    failed.checked = Boolean(given.failed);
    inputs[0].placeholder = choices.steps[0] ?? "from";
    inputs[1].placeholder = choices.steps[1] ?? "to";
    fill(chips, ["uid", "index", "number", "step"].filter((name) => given[name]).map((name) =>
      el("button.chip", {type: "button", title: "remove this filter", onclick: () => say(name, "")}, `${name === "uid" ? "group" : name} ${short(given[name], 24)} ×`)));
    reset.hidden = Object.keys(given).every((name) => name === "run");
  }
  return {node, show};
}

/** The end of a long path, because the paths of several runs differ at the end. */
const tail = (name) => name.length > 18 ? `…${name.slice(-17)}` : name;

/** Fill a select with `values`. A chosen value stays listed even if no rollout has it, because it may come from a link. */
function options(select, values, chosen, any) {
  const all = [...new Set([...values, ...(chosen ? [chosen] : [])])].filter((value) => value !== "");
  const known = [...select.options].slice(1).map((option) => option.value);
  if (known.length !== all.length || known.some((value, at) => value !== all[at])) {
    select.replaceChildren(el("option", {value: ""}, any));
    for (const value of all) {
      const option = el("option", {}, short(value));
      option.value = value; // the original text, not the shortened text
      select.append(option);
    }
  }
  select.value = chosen;
  select.classList.toggle("set", chosen !== "");
}
