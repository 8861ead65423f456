/** The run form: sends a run, shows its progress while it is going, cancels it, shows and verifies its receipt. */
import { byId, element, reasonOf } from "./dom.mjs";
import { showState } from "./live.mjs";
import { showChecks } from "./receipt.mjs";
import { showPayload } from "./result.mjs";
import { ask, pause, publishedKeys } from "./service.mjs";

const LOST_MS = 60_000; // so long no answer to the question how the run is doing, and it is given up

let runId = null;
let cancelled = false;

const say = (text) => {
  byId("run-status").textContent = text;
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

/** Of the same key a run is made once, however often it is sent. */
const idempotencyKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16)).join("-");

function showProgress({ phase, done, total }) {
  const bar = byId("run-progress");
  if (total > 0) [bar.max, bar.value] = [total, Math.min(done, total)];
  else bar.removeAttribute("value");
  say(`${phase}: ${done} of ${total}`);
}

/** Asks how the run is doing until it has ended; an answer that does not come is asked for again for a while. */
async function follow(answer) {
  const { payload } = answer.body;
  runId = payload.run_id;
  let heard = Date.now();
  for (let next = answer; ; ) {
    if (next.status === 200) return next;
    if (next.body) showProgress(next.body.payload.progress ?? { phase: "running", done: 0, total: 0 });
    await wait(next.retryAfter ?? pause(next.headers));
    try {
      next = await ask("GET", `/runs/${runId}`);
      heard = Date.now();
    } catch (error) {
      const passing = error.status === undefined || error.status === 429 || error.status >= 500;
      if (!passing || Date.now() - heard > LOST_MS) throw error;
      next = { status: 202, retryAfter: error.retryAfter ?? 2000 };
    }
  }
}

/** Offers the receipt as a file: what may be handed on, without salt and text. */
function download(text) {
  const { prompt_salt: _salt, output: _output, ...receipt } = JSON.parse(text);
  const link = element("a", { download: `receipt-${receipt.payload_sha3_256.slice(0, 12)}.json` }, "Save the receipt");
  // Python and JavaScript spell some numbers differently, so the payload goes out as the service spelled it.
  link.href = URL.createObjectURL(new Blob([asSent(text, receipt)], { type: "application/json" }));
  return link;
}

/** The receipt's text with the payload's exact bytes in place of what JavaScript would write. */
function asSent(text, receipt) {
  const exact = new TextDecoder().decode(Uint8Array.from(atob(receipt.payload_canonical_base64), (c) => c.charCodeAt(0)));
  return JSON.stringify({ ...receipt, payload: "\u0000" }).replace('"\\u0000"', () => exact);
}

async function showReceipt(answer, salt) {
  const place = byId("run-result");
  const [shown, checks] = [element("div"), element("div")];
  place.replaceChildren(shown, checks);
  const { payload, output } = answer.body;
  showPayload(shown, payload);
  await showChecks(checks, answer.text, { keys: await publishedKeys() });
  checks.append(element("p", {}, "Checked with the keys that this service publishes now. ", download(answer.text)));
  if (salt && payload.measurement) {
    const salted = element("code", {}, salt);
    checks.append(element("p", {}, "The prompt's salt, yours alone (it proves, and can betray, the prompt): ", salted));
  }
  if (typeof output === "string") place.append(element("h3", {}, "The text"), element("pre", {}, output));
}

function busy(running) {
  byId("run-send").disabled = running;
  byId("run-cancel").hidden = byId("run-progress").hidden = !running;
  byId("run-progress").removeAttribute("value");
}

async function send(event) {
  event.preventDefault();
  [runId, cancelled] = [null, false];
  busy(true);
  say("sent");
  byId("run-result").replaceChildren();
  try {
    const headers = { Prefer: "respond-async", "Idempotency-Key": idempotencyKey() };
    const first = await ask("POST", "/run", { body: request(event.target), headers });
    const last = await follow(first);
    say(last.body.payload.measurement ? "Measured." : cancelled ? "Cancelled." : "Nothing was measured.");
    await showReceipt(last, first.body.prompt_salt);
  } catch (error) {
    say(reasonOf(error));
  } finally {
    busy(false);
    showState();
  }
}

async function cancel() {
  if (runId === null) return say("not sent yet; try again");
  cancelled = true;
  say("cancelling");
  await ask("DELETE", `/runs/${runId}`).catch((error) => say(reasonOf(error)));
}

/** Puts the form to work. */
export function startRuns() {
  byId("run-form").addEventListener("submit", send);
  byId("run-cancel").addEventListener("click", cancel);
}
