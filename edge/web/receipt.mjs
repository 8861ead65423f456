/** Receipts checked here, in the browser: dropped, chosen or pasted. The checks are those of verify.mjs. */
import { badge, byId, element, reasonOf } from "./dom.mjs";
import { showPayload } from "./result.mjs";
import { publishedKeys } from "./service.mjs";
import { verifyReceipt } from "./verify.mjs";

const MOST_BYTES = 8 * 1024 * 1024;
const WORDS = { ok: "ok", failed: "FAILED", warning: "warning", skipped: "skipped" };

/** Who signed: the key ids that the receipt names, which say something only once the checks above say so. */
function signers(receipt) {
  const lines = [];
  if (receipt.signature?.signed) lines.push(`edge: key ${receipt.signature.keyid} (${receipt.signature.alg})`);
  const tower = receipt.payload?.tower;
  if (tower?.attestation) lines.push(`tower ${tower.id}: key ${tower.keyid}`);
  return lines.length ? lines : ["nobody: the receipt is not signed"];
}

/** Makes every check and shows it; returns whether none failed. */
export async function showChecks(place, text, options) {
  const { ok, checks } = await verifyReceipt(text, options);
  const unproven = checks.filter(({ status }) => status === "warning").length;
  const verdict = ok ? (unproven ? `OK, with ${unproven} warning${unproven > 1 ? "s" : ""}` : "OK") : "FAILED";
  const items = checks.map(({ name, status, detail }) =>
    element("li", { className: `check ${status}` }, element("strong", {}, WORDS[status]), ` ${name}: ${detail}`));
  const summary = element("p", { className: `verdict ${ok ? "passed" : "failed"}`, role: "status" }, `Receipt: ${verdict}`);
  place.replaceChildren(summary, element("ul", { className: "checks" }, ...items));
  if (ok) {
    const receipt = JSON.parse(text);
    const who = signers(receipt).map((line) => element("li", {}, line));
    place.append(element("p", {}, "Signed by:"), element("ul", { className: "signers" }, ...who));
  }
  return ok;
}

async function check() {
  const text = byId("receipt-text").value.trim();
  const [place, said] = [byId("receipt-checks"), byId("receipt-said")];
  said.replaceChildren();
  if (!text) return place.replaceChildren(element("p", {}, "Paste a receipt, or choose its file."));
  const keys = byId("receipt-keys").value.trim() || null;
  try {
    const requireSignature = byId("receipt-require").checked;
    if (await showChecks(place, text, { keys, requireSignature })) showPayload(said, JSON.parse(text).payload);
    else said.replaceChildren(element("p", {}, "Its figures are not shown, as a check failed."));
  } catch (error) {
    place.replaceChildren(element("p", { className: "verdict failed" }, badge("UNAVAILABLE"), ` ${reasonOf(error)}`));
  }
}

async function take(file) {
  if (!file) return;
  if (file.size > MOST_BYTES) {
    byId("receipt-checks").replaceChildren(element("p", {}, "The file is too large for a receipt."));
    return;
  }
  byId("receipt-text").value = await file.text();
  await check();
}

/** Puts the section to work. */
export function startReceipts() {
  const zone = byId("receipt-drop");
  byId("receipt-file").addEventListener("change", ({ target }) => take(target.files[0]));
  byId("receipt-check").addEventListener("click", check);
  byId("receipt-published").addEventListener("click", async () => {
    byId("receipt-keys").value = (await publishedKeys()) ?? "";
  });
  // A file dropped anywhere else would make the browser leave the page.
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => event.preventDefault());
  zone.addEventListener("dragover", () => zone.classList.add("over"));
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    zone.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
}
