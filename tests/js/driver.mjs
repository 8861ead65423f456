/**
 * Answers the tests of edge/web/verify.mjs: one JSON request per line on standard input, one answer per line.
 *
 * Node's own crypto and @sigstore/core, neither of which verify.mjs uses, stand beside it for comparison.
 */
import { createHash, createPublicKey, verify } from "node:crypto";
import { createInterface } from "node:readline";
import { dsse } from "@sigstore/core";
import { pae, sha3_256, strictBase64, verifyReceipt } from "../../edge/web/verify.mjs";

const { subtle } = globalThis.crypto;
const importKey = subtle.importKey.bind(subtle);

/** A browser without Ed25519, or without any WebCrypto. */
function pretend(browser) {
  const value = browser === "no WebCrypto" ? undefined : subtle;
  Object.defineProperty(globalThis.crypto, "subtle", { value, configurable: true });
  subtle.importKey = async (format, bytes, how, ...rest) => {
    if (browser === "no Ed25519" && how.name === "Ed25519") throw new DOMException("unknown", "NotSupportedError");
    return importKey(format, bytes, how, ...rest);
  };
}

const ANSWERS = {
  async verify({ receipt, browser, ...options }) {
    pretend(browser);
    return verifyReceipt(receipt, options);
  },
  sha3({ base64 }) {
    const bytes = Buffer.from(base64, "base64");
    return [sha3_256(new Uint8Array(bytes)), createHash("sha3-256").update(bytes).digest("hex")];
  },
  base64({ text, urlSafe }) {
    try {
      return Buffer.from(strictBase64(text, urlSafe)).toString("hex");
    } catch (error) {
      return error.message;
    }
  },
  pae({ type, body }) {
    const ours = pae(type, new TextEncoder().encode(body));
    return [ours, dsse.preAuthEncoding(type, Buffer.from(body))].map((bytes) => Buffer.from(bytes).toString("utf8"));
  },
  /** Whether Node accepts an envelope's signature over what @sigstore/core says was signed. */
  accepts({ envelope, pem }) {
    const message = dsse.preAuthEncoding(envelope.payloadType, Buffer.from(envelope.payload, "base64"));
    const key = createPublicKey(pem);
    const digest = key.asymmetricKeyType === "ec" ? "sha256" : null;
    return verify(digest, message, key, Buffer.from(envelope.signatures[0].sig, "base64"));
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { ask, ...request } = JSON.parse(line);
  process.stdout.write(`${JSON.stringify(await ANSWERS[ask](request))}\n`);
}
