// Controls of the curves: x-axis, logarithmic y-axis, smoothing, zoom, and choice of runs.

import {el, fill} from "./dom.js";
import {tickText, timeUnit} from "./scale.js";

const X = [["step", "step"], ["time", "time"], ["tokens", "tokens"]], SHOWN = 6;
export const SLOTS = 8;

/** Create the controls. They call `say(changed)` with the URL parameters that change. */
export function controls(say) {
  const x = el("select", {name: "x", "aria-label": "x axis", onchange: () => say({x: x.value === "step" ? "" : x.value, from: "", to: ""})},
    X.map(([name, text]) => el("option", {value: name}, `x: ${text}`)));
  const log = el("input", {type: "checkbox", name: "log", onchange: () => say({log: log.checked ? "1" : ""})});
  const smooth = el("input", {type: "range", name: "smooth", min: "0", max: "0.98", step: "0.02", value: "0", "aria-label": "smoothing",
    oninput: () => say({smooth: smooth.value === "0" ? "" : smooth.value})});
  const reset = el("button.plain", {type: "button", name: "unzoom", onclick: () => say({from: "", to: ""})}, "reset zoom");
  const node = el("span.controls", {}, x, el("label.check", {}, log, "log y"), el("label.check", {}, "smoothing", smooth), reset);
  function show(words, axes) {
    for (const option of x.options) option.disabled = option.value !== "step" && !axes.includes(option.value);
    x.value = words.x ?? "step";
    log.checked = Boolean(words.log);
    if (smooth !== document.activeElement) smooth.value = words.smooth ?? "0";
    reset.hidden = !words.from;
  }
  return {node, show};
}

/** Chart settings for URL parameters; `longest` is the largest x. Values of x are shown in units of `scale`. */
export function viewOf(words, longest, onZoom) {
  const axis = axisOf(words.x, longest), ends = words.from && words.to ? [words.from, words.to].map(Number) : [NaN];
  const smooth = Math.min(0.99, Math.max(0, Number(words.smooth) || 0));
  const zoomed = (places) => onZoom(places?.map((at) => Number((at * axis.scale).toPrecision(6))));
  const zoom = ends.every(Number.isFinite) && ends[0] < ends[1] ? ends.map((at) => at / axis.scale) : null;
  return {...axis, log: Boolean(words.log), smooth, zoom, onZoom: zoomed};
}

function axisOf(name, longest) {
  if (name === "tokens") return {scale: 1, xTitle: "tokens processed", xWord: "tokens", xText: tickText};
  if (name !== "time") return {scale: 1, xTitle: "step", xWord: "step", xText: (at) => String(Math.round(at)), integers: true};
  const {unit, word} = timeUnit(longest);
  return {scale: unit, xTitle: `time in steps, ${word}`, xWord: "time", xText: (at) => tickText(Number(at.toPrecision(3)))};
}

/** Numbers of the runs whose curves are drawn: those in the URL, otherwise the first few. */
export function chosenRuns(words, runs) {
  const named = words.runs?.split(",").map(Number).filter((run) => runs[run]);
  return named ?? [...runs.keys()].filter((run) => runs[run].has_curves).slice(0, SHOWN);
}

/** One checkbox per run with curves; hidden if there is only one run. */
export function runChooser(say) {
  const node = el("details.chooser");
  function show(words, runs) {
    const drawable = [...runs.keys()].filter((run) => runs[run].has_curves);
    node.hidden = drawable.length < 2;
    const chosen = new Set(chosenRuns(words, runs));
    const choose = (each) => say({runs: [...each].sort((a, b) => a - b).join(",") || "none"});
    const box = (at) => {
      const input = el("input", {type: "checkbox", id: `choose-${at}`, checked: chosen.has(at), onchange: () => {
        chosen[input.checked ? "add" : "delete"](at);
        choose(chosen);
      }});
      return el("label.check", {title: runs[at].name}, input, el(`i.swatch.s${at % SLOTS}`), el("bdi", {}, runs[at].name));
    };
    if (node.dataset.count !== String(drawable.length)) node.open = true;
    node.dataset.count = String(drawable.length);
    fill(node, el("summary", {}, `${chosen.size} of ${drawable.length} runs`), el(".boxes", {}, drawable.map(box),
      el("button.plain", {type: "button", id: "choose-all", onclick: () => choose(drawable)}, "all"),
      el("button.plain", {type: "button", id: "choose-none", onclick: () => choose([])}, "none")));
  }
  return {node, show};
}
