// Requests to the server, and the page's state in the URL.

export async function ask(path, words = {}, signal = undefined) {
  const answer = await fetch(`api/${path}?${query(words)}`, {signal});
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(value.error ?? `the server answered ${answer.status}`);
  return value;
}

/** Return a function that polls the state of the runs; it returns null if nothing changed. */
export function watch() {
  let tag = "";
  return async () => {
    const answer = await fetch("api/state", {cache: "no-store", headers: tag ? {"If-None-Match": tag} : {}});
    if (answer.status === 304) return null;
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    tag = answer.headers.get("etag");
    return (await answer.json()).runs;
  };
}

export const query = (words) => new URLSearchParams(
  Object.entries(words).filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .map(([name, value]) => [name, writable(String(value))])).toString();

// A URL cannot contain lone surrogates: they are escaped as in agentrl/store/text.py.
const MARK = "\ufdd0";
const writable = (text) => text.replace(/[\ud800-\udfff\ufdd0]/gu, (found) => MARK + found.charCodeAt(0).toString(16));
const original = (text) => text.replace(/\ufdd0([0-9a-f]{4})/g, (_, code) => String.fromCharCode(parseInt(code, 16)));

/** `#/rollouts?split=val`  ->  ["rollouts", {split: "val"}] */
export function place() {
  const [page, words = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return [page, Object.fromEntries([...new URLSearchParams(words)].map(([name, value]) => [name, original(value)]))];
}

export const link = (page, words = {}) => `#/${page}?${query(words)}`.replace(/\?$/, "");

/** URL of a rollout; `words` are the table's filters. */
export function rolloutLink(row, run, words = {}) {
  const {run: _, ...filters} = words;
  return link("rollout", {
    run, at_split: row.split, at_step: row.step, at_uid: row.uid, at_number: row.number, ...filters,
  });
}

const FILTERS = ["split", "source", "stop", "excluded", "tool", "outcome", "step_min", "step_max", "reward_min", "reward_max",
  "failed", "uid", "index", "number", "step", "sort", "q"];

export const filtersOf = (words) =>
  Object.fromEntries(FILTERS.filter((name) => words[name]).map((name) => [name, words[name]]));
