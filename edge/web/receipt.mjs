/** Receipts checked here, in the browser: dropped, chosen or pasted. The checks are those of verify.mjs. */
import { byId, element } from "./dom.mjs";
import { showPayload } from "./result.mjs";
import { publishedKeys } from "./service.mjs";
import { verifyReceipt } from "./verify.mjs";

const MOST_BYTES = 8 * 1024 * 1024;
const WORDS = { ok: "ok", failed: "FAILED", warning: "warning", skipped: "skipped" };

/** Who signed, as far as the checks say so; what a receipt says of its signers by itself proves nothing. */
function signers(receipt, proven) {
  const lines = [];
  const line = (check, who, key) =>
    element("li", {}, element("strong", {}, proven.has(check) ? "Signed by" : "Says, unproven, that it is signed by"),
      ` ${who}, key ${key}`);
  if (receipt.signature?.signed) lines.push(line("signature", "the edge", `${receipt.signature.keyid} (${receipt.signature.alg})`));
  const tower = receipt.payload.tower;
  if (tower?.attestation) lines.push(line("attestation", `the tower ${tower.id}`, tower.keyid));
  return lines.length ? lines : [element("li", {}, "Nobody has signed it.")];
}

/** Makes every check and shows it; returns the names of those that hold, or null if one failed. */
export async function showChecks(place, text, options) {
  const { ok, checks } = await verifyReceipt(text, options);
  const unproven = checks.filter(({ status }) => status === "warning").length;
  const verdict = ok ? (unproven ? `OK, with ${unproven} warning${unproven > 1 ? "s" : ""}` : "OK") : "FAILED";
  const items = checks.map(({ name, status, detail }) =>
    element("li", { className: `check ${status}` }, element("strong", {}, WORDS[status]), ` ${name}: ${detail}`));
  const colour = ok ? (unproven ? "unproven" : "passed") : "failed";
  place.replaceChildren(element("p", { className: `verdict ${colour}` }, `Receipt: ${verdict}`),
    element("ul", { className: "checks" }, ...items));
  if (!ok) return null;
  const proven = new Set(checks.filter(({ status }) => status === "ok").map(({ name }) => name));
  place.append(element("ul", { className: "signers" }, ...signers(JSON.parse(text), proven)));
  return proven;
}

/** Shows what a receipt says if no check failed; a payload of another shape than ours is not shown at all. */
export function showFigures(place, payload, proven, points = []) {
  if (!proven) return place.replaceChildren(element("p", {}, "Its figures are not shown, as a check failed."));
  try {
    showPayload(place, payload, { proven, points });
  } catch {
    place.replaceChildren(element("p", {}, "Its figures cannot be read."));
  }
}

function clear() {
  byId("receipt-checks").replaceChildren();
  byId("receipt-said").replaceChildren();
}

async function check() {
  clear();
  const text = byId("receipt-text").value.trim();
  if (!text) return byId("receipt-checks").replaceChildren(element("p", {}, "Paste a receipt, or choose its file."));
  const keys = byId("receipt-keys").value.trim() || null;
  const requireSignature = byId("receipt-require").checked;
  const proven = await showChecks(byId("receipt-checks"), text, { keys, requireSignature });
  showFigures(byId("receipt-said"), proven && JSON.parse(text).payload, proven);
}

async function take(file) {
  clear();
  const refuse = (why) => byId("receipt-checks").replaceChildren(element("p", {}, why));
  if (!file) return;
  if (file.size > MOST_BYTES) return refuse("The file is too large for a receipt.");
  try {
    byId("receipt-text").value = await file.text();
  } catch {
    return refuse("The file cannot be read.");
  }
  await check();
}

async function takePublished() {
  const keys = await publishedKeys();
  if (keys !== null) byId("receipt-keys").value = keys;
  byId("receipt-keys-said").textContent = keys === null ? "The service's keys could not be had." : "";
}

/** Puts the section to work. */
export function startReceipts() {
  const zone = byId("receipt-drop");
  const holdsFile = ({ dataTransfer }) => dataTransfer.types.includes("Files");
  byId("receipt-file").addEventListener("change", ({ target }) => take(target.files[0]));
  byId("receipt-check").addEventListener("click", check);
  byId("receipt-text").addEventListener("input", clear);
  byId("receipt-published").addEventListener("click", takePublished);
  // A file dropped beside the zone would make the browser leave the page.
  for (const name of ["dragover", "drop"]) addEventListener(name, (event) => holdsFile(event) && event.preventDefault());
  zone.addEventListener("dragover", (event) => holdsFile(event) && zone.classList.add("over"));
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    zone.classList.remove("over");
    if (holdsFile(event)) take(event.dataTransfer.files[0]);
  });
}
