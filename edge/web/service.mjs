/** Talks to the service that this page came from, and to no other. */

const BASE = document.documentElement.dataset.base;
const TIMEOUT_MS = 40_000; // the gateway gives up after 30 s

/**
 * One request below the base path, or to a path that an answer named.
 *
 * @returns {Promise<{status: number, headers: Headers, text: string, body: any}>} For 200 and 202.
 * @throws {Error} With the problem's own sentence (RFC 9457), or that there was no answer.
 */
export async function ask(method, path, { body, headers = {} } = {}) {
  const url = path.startsWith(`${BASE}/`) ? path : BASE + path;
  const json = body === undefined ? {} : { "Content-Type": "application/json" };
  const options = { method, headers: { ...json, ...headers }, signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-cache" };
  if (body !== undefined) options.body = JSON.stringify(body);
  let [response, text] = [null, ""];
  try {
    response = await fetch(url, options);
    text = await response.text();
  } catch {
    throw new Error("The service cannot be reached.");
  }
  let parsed = null;
  try {
    parsed = JSON.parse(text);
  } catch {} // said below
  if (response.ok && parsed) return { status: response.status, headers: response.headers, text, body: parsed };
  const detail = parsed?.detail ?? `The service answered ${response.status}.`;
  throw Object.assign(new Error(detail), { status: response.status, retryAfter: pause(response.headers) });
}

/** Milliseconds that `Retry-After` asks for; a second where it does not. */
export function pause(headers) {
  const seconds = Number(headers.get("Retry-After") ?? NaN);
  return Number.isFinite(seconds) && seconds >= 0 ? Math.max(seconds, 0.2) * 1000 : 1000;
}

/** The keys that this service publishes, as it wrote them, or null. */
export const publishedKeys = () => ask("GET", "/keys").then(({ text }) => text, () => null);
