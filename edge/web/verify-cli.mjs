#!/usr/bin/env node
/** Prints one line per check of a receipt. Exit status: 0 none failed, 1 one did, 2 there is nothing to check. */
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { loadKeys, readJson, verifyReceipt } from "./verify.mjs";

const USAGE = "usage: node verify-cli.mjs RECEIPT.json [--key FILE] [--tower-key FILE] [--require-signature]";
const OPTIONS = {
  key: { type: "string" },
  "tower-key": { type: "string" },
  "require-signature": { type: "boolean", default: false },
};

/** A file's text, strictly UTF-8. */
function read(path) {
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(readFileSync(path));
}

/** Pinned keys from a file, once they are known to be usable. */
async function readKeys(path, role) {
  const keys = path === undefined ? undefined : read(path);
  if (keys !== undefined) await loadKeys(keys, role);
  return keys;
}

async function main() {
  const { values, positionals } = parseArgs({ options: OPTIONS, allowPositionals: true });
  if (positionals.length !== 1) throw new Error(USAGE);
  const text = read(positionals[0]);
  readJson(text);
  const keys = await readKeys(values.key, "edge");
  const towerKeys = await readKeys(values["tower-key"], "tower");
  const report = await verifyReceipt(text, { keys, towerKeys, requireSignature: values["require-signature"] });
  for (const { name, status, detail } of report.checks) {
    console.log(`${status.padEnd(8)} ${name.padEnd(12)} ${detail}`);
  }
  const unchecked = report.checks.filter(({ status }) => status === "warning").length;
  console.log(!report.ok ? "FAILED" : unchecked ? `OK, with ${unchecked} warning(s)` : "OK");
  return report.ok ? 0 : 1;
}

try {
  process.exitCode = await main();
} catch (error) {
  console.error(`error: ${error.message}`);
  process.exitCode = 2;
}
