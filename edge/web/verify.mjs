/**
 * Checks a receipt offline, in a browser or in Node 20 and later, with nothing but this file.
 * These are the checks receipt, digest, exact_bytes, label, time, attestation and signature of `specdec verify`, in its
 * words; it does not recompute what a measurement says.
 * The trust root is what the caller pins: a key inside a receipt, or the word VERIFIED, proves nothing. Python prints
 * some numbers unlike JavaScript (1.0, 1e-07), and digests are over bytes: what is hashed is payload_canonical_base64,
 * once it is found to be canonical and to say what `payload` says.
 */
const SCHEMA = "szl.a11oy.specdec";
const DIGEST_ALG = "sha3_256";
const DIGEST_CANONICALIZATION =
  'json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False), UTF-8; ' +
  "the exact bytes are in payload_canonical_base64";
const PAYLOAD_TYPE = "application/vnd.in-toto+json";
const STATEMENT_TYPE = "https://in-toto.io/Statement/v1";
const SITE = "https://a-11-oy.com/specdec";
const ATTESTED = ["ended_at", "energy", "measurement", "nonce", "output_sha3_256", "request", "run_id"];
const MEASURED_ONLY = ["measurement", "accepted_rate", "mean_accepted_len", "speedup_modeled", "speedup_measured",
  "quality_delta", "output_sha3_256"];
const CLOCK_SKEW = 5 * 60_000; // ms by which two honest clocks may be apart
const A_TIME = "a UTC time like 2026-11-30T00:00:00Z";
const BLIND = "this browser cannot check Ed25519 signatures, so not checked";

/** Says what is wrong, as a clause; it becomes a failed check. */
class Refused extends Error {}
function must(fits, cause) {
  if (!fits) throw new Refused(cause);
}
/** What `make` gives; if it fails, `cause` says why. */
function attempt(make, cause) {
  try {
    return make();
  } catch (error) {
    throw new Refused(cause(error.message));
  }
}
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const encode = (text) => new TextEncoder().encode(text);
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const decode = (bytes) => attempt(() => utf8.decode(bytes), () => "the text is not UTF-8");
const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

// --- SHA3-256 (FIPS 202), which WebCrypto lacks ----------------------------------------------------------------------
const ROTATIONS = [0, 1, 62, 28, 27, 36, 44, 6, 55, 20, 3, 10, 43, 25, 39, 41, 45, 15, 21, 8, 18, 2, 61, 56, 14];
const ROUND_CONSTANTS = [0x1n, 0x8082n, 0x800000000000808an, 0x8000000080008000n, 0x808bn, 0x80000001n,
  0x8000000080008081n, 0x8000000000008009n, 0x8an, 0x88n, 0x80008009n, 0x8000000an, 0x8000808bn, 0x800000000000008bn,
  0x8000000000008089n, 0x8000000000008003n, 0x8000000000008002n, 0x8000000000000080n, 0x800an, 0x800000008000000an,
  0x8000000080008081n, 0x8000000000008080n, 0x80000001n, 0x8000000080008008n];
/** The permutation of 25 lanes of 64 bits, each held as its low half and its high half. */
function keccak(state) {
  const [sums, moved] = [new Uint32Array(10), new Uint32Array(50)];
  for (const constant of ROUND_CONSTANTS) {
    for (let i = 0; i < 10; i += 1) sums[i] = state[i] ^ state[i + 10] ^ state[i + 20] ^ state[i + 30] ^ state[i + 40];
    for (let i = 0; i < 50; i += 1) {
      const next = (i + 2) % 10; // of the next lane the same half; `^ 1` makes it the other half
      state[i] ^= sums[(i + 8) % 10] ^ ((sums[next] << 1) | (sums[next ^ 1] >>> 31)); // theta
    }
    for (let i = 0; i < 50; i += 1) {
      const [x, y, by] = [(i >> 1) % 5, Math.floor(i / 10), ROTATIONS[i >> 1]];
      const from = by < 32 ? i : i ^ 1;
      const turned = (state[from] << (by % 32)) | ((state[from ^ 1] >>> 1) >>> (31 - (by % 32))); // rho
      moved[10 * ((2 * x + 3 * y) % 5) + 2 * y + (i % 2)] = turned; // pi
    }
    const next = (i, by) => moved[i - (i % 10) + ((i + by) % 10)];
    for (let i = 0; i < 50; i += 1) state[i] = moved[i] ^ (~next(i, 2) & next(i, 4)); // chi
    state[0] ^= Number(constant & 0xffffffffn); // iota
    state[1] ^= Number(constant >> 32n);
  }
}
/** SHA3-256. @param {Uint8Array} bytes @returns {string} 64 lower-case hex digits */
export function sha3_256(bytes) {
  const rate = 136;
  const padded = new Uint8Array((Math.floor(bytes.length / rate) + 1) * rate);
  padded.set([...bytes, 0x06]);
  padded[padded.length - 1] |= 0x80;
  const [words, state] = [new DataView(padded.buffer), new Uint32Array(50)];
  for (let at = 0; at < padded.length; at += 4) {
    state[(at % rate) / 4] ^= words.getUint32(at, true);
    if (at % rate === rate - 4) keccak(state);
  }
  for (let i = 0; i < 8; i += 1) words.setUint32(4 * i, state[i], true);
  return hex(padded.subarray(0, 32));
}

// --- JSON: a reader that refuses whatever has two meanings, and one spelling for each value --------------------------
/** A float as Python prints it: the same shortest digits, but 1.0, 1e-07 and 1e+16. */
function pythonFloat(x) {
  const size = Math.abs(x);
  if (size !== 0 && (size < 1e-4 || size >= 1e16)) return x.toExponential().replace(/(e[+-])(?=\d$)/, (e) => e + "0");
  return (Object.is(x, -0) ? "-0" : String(x)) + (Number.isInteger(x) ? ".0" : "");
}
/** Sorts like the text by code points, as Python does; JavaScript alone puts an emoji before U+FB33. */
const codePoints = (text) => Array.from(text, (c) => c.codePointAt(0).toString(16).padStart(6, "0")).join();

/**
 * Reads JSON if it has one meaning everywhere: the value, its canonical text, and `members`, the same of each member.
 * `respelled` says that JavaScript wrote it, where 1e16 is an integer.
 */
export function readJson(text, respelled = false) {
  attempt(() => JSON.parse(text), () => "the text is not JSON");
  const tokens = text.match(/"(?:\\.|[^"\\])*"|[-+.\w]+|[{}[\]]/g); // enough now that the grammar is known to be right
  let at = 0;
  const scalar = () => {
    const spelling = tokens[at++];
    const value = JSON.parse(spelling);
    must(typeof value !== "string" || !/\p{Surrogate}/u.test(value), "a string holds a lone surrogate");
    if (typeof value !== "number") return { value, text: JSON.stringify(value) };
    must(Number.isFinite(value), "a number is not finite");
    const [integer, safe] = [!/[.eE]/.test(spelling), Number.isSafeInteger(value)];
    must(!integer || safe || respelled, "an integer lies beyond 2^53 - 1");
    return { value, text: integer && safe ? String(value) : pythonFloat(value) };
  };
  const node = (depth) => {
    const first = tokens[at];
    if (first !== "{" && first !== "[") return scalar();
    must(depth < 32, "the JSON is nested deeper than 32");
    const members = new Map(); // by name or by index
    for (at += 1; tokens[at] !== "}" && tokens[at] !== "]"; ) {
      const key = first === "{" ? scalar().value : members.size;
      must(!members.has(key), "an object names a key twice");
      members.set(key, node(depth + 1));
    }
    at += 1;
    const items = [...members.values()];
    if (first === "[") return { value: items.map((item) => item.value), text: `[${items.map((item) => item.text)}]` };
    const texts = [...members].map(([key, member]) => [codePoints(key), `${JSON.stringify(key)}:${member.text}`]);
    const value = Object.fromEntries([...members].map(([key, member]) => [key, member.value]));
    return { value, text: `{${texts.sort(([a], [b]) => (a < b ? -1 : 1)).map(([, text]) => text)}}`, members };
  };
  return node(0);
}
/** Equality of two JSON values; 1.0 is 1 and -0 is 0. */
const same = (a, b) => readJson(JSON.stringify(a), true).text === readJson(JSON.stringify(b), true).text;

/** Milliseconds since 1970 at a UTC time as receipts write it, null if it is none. */
function readTime(text) {
  if (typeof text !== "string" || !/^(?!0000)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/.test(text)) return null;
  const time = new Date(text);
  const real = !Number.isNaN(Number(time)) && time.toISOString().startsWith(text.slice(0, -1)); // no 30 February
  return real ? Number(time) : null;
}

/** Decodes base64: padded, no white space, no stray bits; in the URL-safe alphabet only if asked, as DSSE asks. */
export function strictBase64(text, urlSafe = false) {
  const standard = urlSafe && typeof text === "string" ? text.replaceAll("-", "+").replaceAll("_", "/") : text;
  const binary = attempt(() => atob(standard), () => "the base64 is not strict");
  must(btoa(binary) === standard, "the base64 is not strict");
  return Uint8Array.from(binary, (character) => character.charCodeAt(0));
}
/** DSSE's pre-authentication encoding, the bytes that get signed. @param {string} type @param {Uint8Array} body */
export function pae(type, body) {
  return Uint8Array.from([...encode(`DSSEv1 ${encode(type).length} ${type} ${body.length} `), ...body]);
}
const sha256 = async (bytes) => hex(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)));
const digests = async (text) => ({ sha3_256: sha3_256(encode(text)), sha256: await sha256(encode(text)) });

// SubjectPublicKeyInfo (RFC 5280) of a P-256 point, uncompressed, and of an Ed25519 key: all but the key itself.
const P256 = { alg: "ECDSA_SHA_256", head: "3059301306072a8648ce3d020106082a8648ce3d030107034200", size: 65 };
const ED25519 = { alg: "ED25519", head: "302a300506032b6570032100", size: 32 };
const PEM = /-----BEGIN PUBLIC KEY-----([^]+?)-----END PUBLIC KEY-----/g;
const isAnswer = (keys) => /^[ \t\n\r\v\f]*\{/.test(keys);
async function readKey({ pem, valid_from = null, valid_to = null }) {
  const unreadable = () => "the PEM public key cannot be read";
  const blocks = [...pem.matchAll(PEM)];
  must(blocks.length === 1 && blocks[0][0] === pem.trim(), "an entry of the keys does not hold one PEM public key");
  const der = attempt(() => strictBase64(blocks[0][1].replace(/\s/g, "")), unreadable);
  const kind = [P256, ED25519].find(({ head, size }) => hex(der.slice(0, -size)) === head);
  must(kind, der[0] === 0x30 ? "the key is neither P-256 nor Ed25519" : unreadable());
  const how = kind === P256 ? { name: "ECDSA", namedCurve: "P-256", hash: "SHA-256" } : { name: "Ed25519" };
  const key = await crypto.subtle.importKey("raw", der.slice(-kind.size), how, false, ["verify"]).catch(() => null);
  must(key || kind === ED25519, unreadable()); // some browsers lack Ed25519
  return { alg: kind.alg, how, key, keyid: await sha256(der), valid_from, valid_to };
}

/** The entries of a saved `GET /keys` answer. */
function published(text) {
  const unread = (why) => `the keys cannot be read: ${why}`;
  const { keys } = attempt(() => readJson(text).value, unread);
  must(Array.isArray(keys), unread(`keys ${keys === undefined ? "is required" : "must be a list"}`));
  keys.forEach((entry, i) => {
    const wants = (fits, what) => must(fits, unread(`keys[${i}]${what}`));
    wants(isObject(entry), " must be a JSON object");
    wants(["edge", "tower", undefined].includes(entry.kind), ".kind must be 'edge' or 'tower'");
    wants(typeof entry.pem === "string", `.pem ${entry.pem === undefined ? "is required" : "must be a string"}`);
    for (const [name, time = null] of ["valid_from", "valid_to"].map((field) => [field, entry[field]])) {
      wants(time === null || readTime(time) !== null, `.${name} must be ${A_TIME}`);
    }
  });
  return keys;
}
/** Pinned keys of a role, from PEM blocks, which have none, or from a saved `GET /keys` answer. */
export async function loadKeys(text, role) {
  const entries = isAnswer(text) ? published(text) : (text.match(PEM) ?? []).map((pem) => ({ pem, kind: role }));
  const ours = entries.filter(({ kind = "edge" }) => kind === role);
  must(ours.length, "the key file holds no public key for this");
  return Promise.all(ours.map(readKey));
}
/** An ECDSA signature in DER as the r || s that WebCrypto wants; null unless encoding that again gives the same DER. */
function rawSignature(der) {
  const cut = 4 + der[3];
  const numbers = [der.subarray(4, cut), der.subarray(cut + 2)].map((n) => [...new Uint8Array(32), ...n].slice(-32));
  const integers = numbers.flatMap((number) => {
    const short = number.slice(number.findIndex((byte, i) => byte !== 0 || i === 31));
    return [0x02, short.length + (short[0] >> 7), ...(short[0] > 0x7f ? [0] : []), ...short];
  });
  return hex([0x30, integers.length, ...integers]) === hex(der) ? Uint8Array.from(numbers.flat()) : null;
}

/** The statement in an envelope, the key id that it names, the pinned key that signed; `blind` if one is unusable. */
async function openEnvelope(envelope, pinned) {
  must(envelope?.payloadType === PAYLOAD_TYPE, `the envelope's payloadType is not ${PAYLOAD_TYPE}`);
  const [first, ...others] = Array.isArray(envelope.signatures) ? envelope.signatures : [];
  must(isObject(first) && !others.length, "the envelope must hold exactly one signature");
  const body = strictBase64(envelope.payload, true);
  const message = pae(PAYLOAD_TYPE, body);
  must(message.length <= 4096, "the statement exceeds 4096 bytes");
  const statement = attempt(() => readJson(decode(body)).value, (why) => `the statement cannot be read: ${why}`);
  must(isObject(statement), "the statement is not a JSON object");
  const signature = strictBase64(first.sig, true);
  const opened = { statement, keyid: first.keyid ?? null, key: null, blind: false };
  for (const key of pinned ?? []) {
    const raw = key.alg === P256.alg ? rawSignature(signature) : signature;
    if (key.key === null) opened.blind = true;
    else if (raw && (await crypto.subtle.verify(key.how, key.key, raw, message))) return { ...opened, key };
  }
  must(!pinned || opened.blind, "no trusted key made this signature");
  return opened;
}

// --- the checks: each gives status and detail, nothing if it does not apply, or refuses ------------------------------
/** Reads a receipt; `text` and `members` spell its payload as the carried bytes do, if these are canonical and fit. */
function open(given) {
  const text = typeof given === "string" ? given : attempt(() => JSON.stringify(given), () => "it is not JSON");
  const { value: receipt, members } = readJson(text, text !== given);
  must(isObject(receipt?.payload), "it is not a JSON object with a payload");
  let payload = members.get("payload");
  try {
    const carried = decode(strictBase64(receipt.payload_canonical_base64));
    const exact = readJson(carried);
    if (exact.text === carried && same(exact.value, payload.value)) payload = exact;
  } catch {} // the check of the exact bytes says why
  return { receipt, payload: payload.value, text: payload.text, members: payload.members };
}
/** Refuses what is dated outside of the time in which its key signed. */
function inItsTime(key, what, dated) {
  const [made, from, to] = [dated, key.valid_from, key.valid_to].map(readTime);
  const [which, is] = ["the key that signed it", `and the ${what} is`];
  if (made === null) return must(from === null && to === null, `the ${what} is not dated`);
  must(from === null || made >= from - CLOCK_SKEW, `${which} is valid from ${key.valid_from}, ${is} older`);
  must(to === null || made <= to + CLOCK_SKEW, `${which} was valid until ${key.valid_to}, ${is} newer`);
}
const CHECKS = {
  receipt({ receipt, payload }) {
    must(receipt.schema === `${SCHEMA}.receipt.v1`, `its schema is not ${SCHEMA}.receipt.v1`);
    must(payload.schema === `${SCHEMA}.v1`, `its payload's schema is not ${SCHEMA}.v1`);
    return ["ok", "both schemas are known"];
  },
  digest({ receipt, text }) {
    const { digest_alg = DIGEST_ALG, digest_canonicalization: how = DIGEST_CANONICALIZATION } = receipt;
    must(digest_alg === DIGEST_ALG, `digest_alg is not ${DIGEST_ALG}`);
    must(how === DIGEST_CANONICALIZATION, "digest_canonicalization is not the one known here");
    must(receipt.payload_sha3_256 === sha3_256(encode(text)), "payload_sha3_256 is not the SHA3-256 of the payload");
    return ["ok", "the payload's SHA3-256 matches"];
  },
  exact_bytes({ receipt: { payload_canonical_base64: carried }, text }) {
    if (carried === undefined) return ["warning", "the receipt carries no payload_canonical_base64"];
    const bytes = attempt(() => strictBase64(carried), (why) => `payload_canonical_base64 cannot be read: ${why}`);
    must(hex(bytes) === hex(encode(text)), "payload_canonical_base64 is not the payload's canonical bytes");
    return ["ok", "the carried bytes are the payload's"];
  },
  label({ payload }) {
    const { label, measured, energy } = payload;
    if (label === "SPEC-DECODE MEASURED") {
      const held = measured === "MEASURED" && isObject(payload.measurement);
      must(held, "the label says MEASURED, the payload holds no measurement");
      return ["ok", "MEASURED, with a measurement"];
    }
    must(["SPEC-DECODE ROADMAP", "SPEC-DECODE MODELED"].includes(label), "the label is not one of ours");
    must(measured === "UNAVAILABLE", "without a measurement `measured` must be UNAVAILABLE");
    for (const name of MEASURED_ONLY) {
      must([null, undefined, "UNAVAILABLE"].includes(payload[name]), `${name} is given without a measurement`);
    }
    must(!isObject(energy) || energy.label === "UNAVAILABLE", "energy is given without a measurement");
    return ["ok", "nothing is called MEASURED"];
  },
  time({ receipt, payload }, { now }) {
    const dates = [receipt, payload].map(({ generated_at = null }) => generated_at);
    if (dates.includes(null)) return ["skipped", "receipt or payload is not dated"];
    const [made, measured] = dates.map(readTime);
    must(made !== null && measured !== null, `a date is not ${A_TIME}`);
    must(measured <= made + CLOCK_SKEW, "the payload is dated after the receipt that holds it");
    if (made <= now + CLOCK_SKEW) return ["ok", `made at ${receipt.generated_at}`];
    const [days, clock] = [Math.floor((made - now) / 86_400_000), new Date(made - now).toISOString().slice(11, 19)];
    const ahead = `${days ? `${days} day${days === 1 ? "" : "s"}, ` : ""}${clock.replace(/^0/, "")}`;
    return ["warning", `the receipt is dated ${ahead} ahead of this machine's clock; one of the two is wrong`];
  },
  async attestation({ payload, members }, { keys, towerKeys }) {
    if (payload.measured !== "MEASURED") return null;
    const { tower = { attested: "UNPINNED" }, run_id = null, nonce = null, generated_at: ended_at = null } = payload;
    const known = isObject(tower) && ["UNPINNED", "VERIFIED"].includes(tower.attested);
    must(known, "tower.attested must be UNPINNED or VERIFIED in a measured run");
    let pinned = towerKeys === null ? null : await loadKeys(towerKeys, "tower");
    // A saved answer may hold them too; an edge that has pinned no tower publishes none.
    const both = towerKeys === null && isAnswer(keys) && published(keys).some(({ kind }) => kind === "tower");
    if (both) pinned = await loadKeys(keys, "tower");
    if ((tower.attestation ?? null) === null) {
      must(tower.attested === "UNPINNED", "tower.attested is VERIFIED, yet there is no attestation");
      return [pinned ? "failed" : "warning", "the tower has not signed this measurement"];
    }
    const { statement, keyid, key, blind } = await openEnvelope(tower.attestation, pinned);
    const cut = (name) => members.get(name === "ended_at" ? "generated_at" : name)?.text ?? "null";
    const digest = await digests(`{${ATTESTED.map((name) => `"${name}":${cut(name)}`)}}`);
    const about = { subject: [{ name: "result", digest }], predicate: { run_id, nonce, ended_at } };
    const expected = { _type: STATEMENT_TYPE, predicateType: `${SITE}/attestation/v1`, ...about };
    must(same(statement, expected), "the tower's attestation is about another result");
    must(!key || keyid === key.keyid, "the tower's attestation names another key than the one that signed");
    must(same(tower.keyid ?? null, keyid), "tower.keyid is not the one that the attestation names");
    if (key) inItsTime(key, "measurement", ended_at);
    if (key) return ["ok", `the measurement is signed by the pinned tower key ${key.keyid.slice(0, 16)}`];
    return ["warning", blind ? BLIND : "signed by a tower whose key is not pinned here, so not checked"];
  },
  async signature({ receipt, payload: { label = null, run_id = null }, text }, { keys, requireSignature }) {
    const block = receipt.signature;
    const unproven = requireSignature ? "failed" : "warning";
    must(typeof block?.signed === "boolean", "the receipt does not say whether it is signed");
    if (!block.signed) {
      const plain = block.status === "DSSE_PLACEHOLDER" && !("envelope" in block);
      must(plain, "an unsigned receipt must say DSSE_PLACEHOLDER");
      return [unproven, "the receipt is not signed"];
    }
    must(block.status === "DSSE", "a signed receipt must say DSSE");
    const pinned = keys === null ? null : await loadKeys(keys, "edge");
    const { statement, keyid, key, blind } = await openEnvelope(block.envelope, pinned);
    must(statement._type === STATEMENT_TYPE, "the signed statement's _type is not ours");
    must(statement.predicateType === `${SITE}/receipt/v1`, "the signed statement's predicateType is not ours");
    const [subject, ...others] = Array.isArray(statement.subject) ? statement.subject : [];
    must(isObject(subject) && !others.length, "the signed statement does not have one subject");
    must(same(subject.digest ?? null, await digests(text)), "the signed statement is about another payload");
    const generated_at = String(receipt.generated_at ?? "None");
    for (const [name, value] of Object.entries({ label, run_id, generated_at })) {
      const repeats = isObject(statement.predicate) && same(statement.predicate[name] ?? null, value);
      must(repeats, `the signed statement's ${name} is not the receipt's`);
    }
    must(same(block.keyid ?? null, keyid), "signature.keyid is not the one that the envelope names");
    if (!key) return [unproven, blind ? BLIND : "the signature cannot be checked without a pinned key"];
    must(keyid === key.keyid && block.alg === key.alg, "signature.keyid or alg is not that of the key that signed");
    inItsTime(key, "receipt", receipt.generated_at);
    return ["ok", `signed by the pinned edge key ${key.keyid.slice(0, 16)}`];
  },
};

/**
 * Makes every check; whatever is malformed fails one, and nothing is thrown.
 * @param {string | object} receipt Its text, read strictly, or what JSON.parse made of it if it has its exact bytes.
 * @param {{keys?: string, towerKeys?: string, requireSignature?: boolean, now?: Date | number}} [options]
 *   Pinned keys of edge and tower, as PEM or a saved `GET /keys` answer (in `keys` it may hold both); whether to fail a
 *   receipt whose signature is missing or cannot be checked; the time to compare dates with.
 * @returns {Promise<{ok: boolean, checks: {name: string, status: string, detail: string}[]}>} `ok`: none failed.
 */
export async function verifyReceipt(receipt, { keys, towerKeys, requireSignature = false, now = Date.now() } = {}) {
  const pins = { keys: keys ?? null, towerKeys: towerKeys ?? null, requireSignature, now: Number(now) };
  let [checks, opened] = [[], null];
  for (const [name, make] of Object.entries(CHECKS)) {
    try {
      const [status, detail] = (await make((opened ??= open(receipt)), pins)) ?? [];
      if (status) checks.push({ name, status, detail });
    } catch (error) {
      const detail = error instanceof Refused ? error.message : "it could not be checked (WebCrypto needs https)";
      checks.push({ name, status: "failed", detail });
    }
    if (opened === null) break;
  }
  return { ok: checks.every(({ status }) => status !== "failed"), checks };
}
