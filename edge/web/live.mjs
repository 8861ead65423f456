/** The state of now: label, pair, tower and queue, as /health tells them. */
import { badge, byId, element, reasonOf, setBadge, UNAVAILABLE } from "./dom.mjs";
import { ask } from "./service.mjs";

const EVERY_MS = 30_000;

function pairOf({ same_family_pair: pair }) {
  return pair.found ? `${pair.draft} → ${pair.target}` : `none: ${pair.reason}`;
}

function queueOf({ queue }) {
  if (!queue) return [badge(UNAVAILABLE)];
  const running = queue.running ? "one run at work" : "idle";
  return [`${running}, ${queue.waiting} waiting, room for ${queue.limit}`];
}

function energyOf({ energy }) {
  if (!energy) return [badge(UNAVAILABLE)];
  return [badge(energy.label), energy.code ? ` ${energy.code}` : ""];
}

/** Asks once, and shows the answer. */
export async function showState() {
  let facts;
  try {
    const { body } = await ask("GET", "/health");
    setBadge(byId("live-label"), body.label);
    facts = [
      ["Pair", [pairOf(body)]],
      ["Tower", [body.tower_reachable ? "reachable" : "not reachable"]],
      ["Queue", queueOf(body)],
      ["Energy", energyOf(body)],
      ["A measured run", [body.measured_run_possible ? "is possible now" : "is not possible now"]],
    ];
  } catch (error) {
    setBadge(byId("live-label"), UNAVAILABLE);
    facts = [["State", [reasonOf(error)]]];
  }
  const entries = facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, ...value)]);
  byId("live-facts").replaceChildren(...entries);
}

/** Keeps the state up to date while the page is looked at. */
export function startLive() {
  showState();
  setInterval(() => document.visibilityState === "visible" && showState(), EVERY_MS);
}
