/** The run form: sends a run, shows its progress while it is going, cancels it, shows and verifies its receipt. */
import { byId, element, reasonOf } from "./dom.mjs";
import { showState } from "./live.mjs";
import { showChecks, showFigures } from "./receipt.mjs";
import { visit } from "./result.mjs";
import { ask, pause, publishedKeys } from "./service.mjs";

const LOST_MS = 60_000; // so long the service fails to answer, and it is given up
const UNHEARD = ["TOWER_SILENT", "TOWER_CLOSED"]; // the tower was sent the run and may be at it

let [busy, runId] = [false, null];

const say = (text, count = "") => {
  const place = byId("run-status");
  if (place.textContent !== text) place.textContent = text; // read out only when it changes
  byId("run-count").textContent = count;
};
const wait = (ms) => new Promise((done) => setTimeout(done, ms));

/** The request that the form holds; what was left empty is the service's to fill in. */
function request(form) {
  const given = new FormData(form);
  const body = { prompt: given.get("prompt"), k: given.get("k") === "auto" ? "auto" : Number(given.get("k")) };
  for (const name of ["n", "temperature", "seed"]) if (given.get(name) !== "") body[name] = Number(given.get(name));
  for (const name of ["chat", "ignore_eos", "include_output"]) if (given.has(name)) body[name] = true;
  return body;
}

const idempotencyKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16)).join("-");

/** Shows a phase, and how far it has come if the tower says so. */
function showProgress({ phase = "running", position, done, total } = {}) {
  const bar = byId("run-progress");
  const known = done > 0 && total > 0;
  if (known) [bar.max, bar.value] = [total, Math.min(done, total)];
  else bar.removeAttribute("value");
  say(phase, position > 0 ? `${position} ahead` : known ? `${done} of ${total}` : "");
}

/** Asks until there is an answer; failures that may pass are put up with for a while. */
async function insist(method, path, options) {
  for (let failing = null; ; ) {
    try {
      return await ask(method, path, options);
    } catch (error) {
      const passing = error.status === undefined || error.status === 429 || error.status >= 500;
      failing ??= Date.now();
      if (!passing || Date.now() - failing > LOST_MS) throw error;
      await wait(error.retryAfter ?? 2000);
    }
  }
}

/** Whether the run has ended; one that the tower took without a word may be going on. */
function ended({ status, body }, asked) {
  const unheard = UNHEARD.includes(body.payload.roadmap?.code) && body.payload.run_id && !asked;
  return status === 200 && !unheard;
}

async function follow(first) {
  runId = first.body.payload.run_id ?? null;
  let [next, asked] = [first, false];
  while (!ended(next, asked)) {
    showProgress(next.body.payload.progress);
    await wait(pause(next.headers));
    next = await insist("GET", `/runs/${runId}`);
    asked = true;
  }
  return next;
}

/** A link to the receipt as a file: what may be handed on, without salt and text. */
function download(text) {
  const { prompt_salt: _salt, output: _output, ...receipt } = JSON.parse(text);
  const link = element("a", { download: `receipt-${receipt.payload_sha3_256.slice(0, 12)}.json` }, "Save the receipt");
  // Python and JavaScript spell some numbers differently, so the payload goes out as the service spelled it.
  const exact = new TextDecoder().decode(Uint8Array.from(atob(receipt.payload_canonical_base64), (c) => c.charCodeAt(0)));
  const whole = JSON.stringify({ ...receipt, payload: "\u0000" }).replace('"\\u0000"', () => exact);
  link.href = URL.createObjectURL(new Blob([whole], { type: "application/json" }));
  return link;
}

async function showReceipt({ text, body }, salt) {
  const [figures, checks] = [element("div"), element("div")];
  byId("run-result").replaceChildren(figures, checks);
  const keys = await publishedKeys();
  const proven = await showChecks(checks, text, { keys });
  const by = keys ? "Checked with the keys that this service publishes now. " : "The service's keys could not be had. ";
  checks.append(element("p", {}, by, download(text)));
  if (salt) {
    checks.append(element("p", {}, "The prompt's salt, yours alone (it proves, and can betray, the prompt): ",
      element("code", {}, salt)));
  }
  showFigures(figures, body.payload, proven, proven ? visit(body.payload) : []);
  if (typeof body.output === "string") checks.append(element("h3", {}, "The text"), element("pre", {}, body.output));
}

/** Switches between a run at work and none; focus stays where there is something to do. */
function switchTo(working) {
  busy = working;
  byId("run-send").setAttribute("aria-disabled", String(working));
  if (!working && document.activeElement === byId("run-cancel")) byId("run-status").focus();
  byId("run-cancel").hidden = byId("run-progress").hidden = !working;
  byId("run-progress").removeAttribute("value");
}

function outcome({ measurement, roadmap }) {
  if (measurement) return "Measured.";
  return roadmap?.code === "CANCELLED" ? "Cancelled." : "Nothing was measured.";
}

async function send(event) {
  event.preventDefault();
  if (busy) return;
  const body = request(event.target);
  runId = null;
  switchTo(true);
  say("sent");
  byId("run-result").replaceChildren();
  let salt = null;
  try {
    // Under one key a run is made once, however often it is sent.
    const headers = { Prefer: "respond-async", "Idempotency-Key": idempotencyKey() };
    const first = await insist("POST", "/run", { body, headers });
    salt = first.body.prompt_salt ?? null;
    const last = await follow(first);
    say(outcome(last.body.payload));
    await showReceipt(last, salt);
  } catch (error) {
    say(reasonOf(error));
    if (runId) byId("run-result").append(element("p", {}, `The run's id: ${runId}; its prompt's salt: ${salt}`));
  } finally {
    switchTo(false);
    showState();
  }
}

async function cancel() {
  if (runId === null) return say("not sent yet; try again");
  say("cancelling");
  try {
    await ask("DELETE", `/runs/${runId}`);
  } catch (error) {
    if (busy) say(reasonOf(error));
  }
}

/** Puts the form to work. */
export function startRuns() {
  byId("run-form").addEventListener("submit", send);
  byId("run-cancel").addEventListener("click", cancel);
}
