/** What a run's receipt says: does it pay, every figure under its label, the curve by k, the histogram, energy. */
import { bars, chart } from "./charts.mjs";
import { badge, digits, element, figure, MEASURED, MODELED, rounded, table, UNAVAILABLE } from "./dom.mjs";
import { expectedSpeedup, MOST_K } from "./model.mjs";

/** Measured speed-ups of this visit's own runs, by everything but k that they depend on: each {k, median, ci95}. */
const visited = new Map();

const between = (interval, count = 4) =>
  interval ? `(95 % interval ${digits(interval[0], count)} to ${digits(interval[1], count)})` : "";

/** Where a run stands in the chart, in a list; an adaptive one where its drafts ended on average. */
function pointsOf({ measurement: m, speedup_measured: measured, k }) {
  if (!measured?.median) return [];
  return [{ k: m.k_requested === "auto" ? m.drafted / m.n : k, median: measured.median, ci95: measured.ci95 }];
}

/** Remembers a run of this visit; returns the points of all runs that can be compared with it. */
export function visit(payload) {
  const { measurement: m, tower, request } = payload;
  if (!m) return [];
  const { k: _k, prompt_commitment: _commitment, ...asked } = request;
  const alike = JSON.stringify([m.draft, m.target, tower?.id, asked]);
  visited.set(alike, [...(visited.get(alike) ?? []), ...pointsOf(payload)]);
  return visited.get(alike);
}

/** The answer to the question of it all, in a sentence. */
function answer({ speedup_measured: measured, measurement: { verdict }, quality_delta: quality }) {
  if (!measured?.median) return ["Does it pay? The speed-up is ", badge(UNAVAILABLE), "."];
  const [low, high] = measured.ci95;
  const changed = /diverged/.test(quality.label);
  const decided = verdict.valid && !changed && (low > 1 || high < 1);
  const word = !decided ? "Not decided" : low > 1 ? "Yes" : "No";
  const how = low > 1 ? "faster" : high < 1 ? "slower" : "neither faster nor slower beyond doubt";
  const doubts = [verdict.valid ? "" : " The measurement's own verdict is: not valid.",
    changed ? " The output was changed." : ""];
  return [element("strong", {}, `${word}: ${digits(measured.median, 2)}× `), badge(MEASURED),
    ` Decoding with the draft was ${how} ${between(measured.ci95, 2)}.`, ...doubts];
}

function energyRows(energy) {
  if (energy.label !== MEASURED) {
    return [["Energy", [badge(UNAVAILABLE), ` ${[energy.reason, energy.code].filter(Boolean).join(", ")}`]]];
  }
  const each = (name, way) => [`J a token, ${name}`, figure(digits(energy.joules_per_token[way], 4), MEASURED)];
  const rows = [each("with the draft", "speculative"), each("target alone", "target_only")];
  if (energy.ratio) {
    const note = `${between(energy.ratio.ci95)} above 1 the draft saves energy`;
    rows.push(["Energy ratio", figure(digits(energy.ratio.median), MEASURED, note)]);
  }
  return rows;
}

function advice({ recommended_k: k, k: ran, speedup }) {
  if (k === null || k === undefined) return [badge(UNAVAILABLE)];
  const contradicted = k === ran && speedup.ci95?.[1] < 1;
  return [k === 0 ? "do not speculate " : `k = ${k} `, badge(MODELED), contradicted ? " yet as measured it does not pay" : ""];
}

function unchanged({ identical_rate: rate, label }) {
  if (!Number.isFinite(rate)) return [badge(label)];
  return [rate === 1 ? "yes " : `no, in ${rounded(1 - rate)} of the compared blocks it was another `, badge(label)];
}

function alphaRows(payload) {
  const { accepted_rate_ci95: interval, alpha, k_requested: k } = payload.measurement;
  const why = k === "auto" ? "drafts stop where a refusal is expected" : "no draft token was examined";
  const shown = payload.accepted_rate;
  const rows = [["Accepted rate α", figure(rounded(shown), MEASURED, shown === null ? why : between(interval))]];
  if (alpha) rows.push(["α of fixed steps", figure(rounded(alpha.value), MEASURED, `${between(alpha.ci95)} ${alpha.source}`)]);
  return rows;
}

function figures(payload, proven) {
  const m = payload.measurement;
  const measured = payload.speedup_measured;
  const adaptive = m.k_requested === "auto";
  const verdict = m.verdict.valid ? "valid" : `not valid: ${m.verdict.reasons.join("; ")}`;
  const signed = proven.has("attestation") ? "its key signed this measurement" : "that it measured this is not proven here";
  return table("Figures of this run", null, [
    ["Pair", `${payload.draft_model} → ${payload.target_model}`],
    ["Steps", [`${payload.n} of ${m.n_requested}, ${adaptive ? `adaptive, up to k = ${payload.k}` : `k = ${payload.k}`} `,
      badge(MEASURED)]],
    ...alphaRows(payload),
    ["Tokens a step", figure(rounded(payload.mean_accepted_len), MEASURED)],
    ["Speed-up, measured", figure(digits(measured?.median), MEASURED,
      measured?.median ? `${between(measured.ci95)}, ${measured.pairs} pairs` : "")],
    ["Speed-up, predicted from measured costs", figure(rounded(m.speedup_predicted?.value), MODELED,
      adaptive ? "no single k is predicted" : "")],
    ["Speed-up, Theorem 3.8", figure(rounded(payload.speedup_modeled), MODELED,
      adaptive ? "no single k is modeled" : `at cost ratio ${payload.accounting_modeled.cost_ratio}`)],
    ["Recommended", advice(m)],
    ["Output unchanged", unchanged(payload.quality_delta)],
    ...energyRows(payload.energy),
    ["Verdict", verdict],
    ["Tower", `${payload.tower?.id ?? "unnamed"}; ${signed}`],
  ]);
}

/** The chart by k: what the theorem says at this alpha, what measured costs predict, and what was measured. */
function byK({ measurement: m, accounting_modeled: accounting }, points, place) {
  const alpha = m.accepted_rate ?? m.alpha?.value ?? null;
  const predicted = m.predicted_curve?.speedup ?? [];
  const whole = Array.from({ length: MOST_K }, (_, i) => ({ k: i + 1 }));
  const missing = whole.filter(({ k }) => !points.some((point) => point.k === k));
  const all = [...missing, ...points].sort((a, b) => a.k - b.k);
  const theorem = (k) =>
    alpha === null || !Number.isInteger(k) ? null : expectedSpeedup(alpha, k, accounting.cost_ratio, accounting.verify_cost);
  const data = [all.map(({ k }) => k), all.map(({ k }) => theorem(k)), all.map(({ k }) => predicted[k] ?? null),
    all.map(({ median }) => median ?? null)];
  const most = Math.max(1, ...data.slice(1).flat().filter(Number.isFinite), ...points.map(({ ci95 }) => ci95[1]));
  const lines = [
    { label: "Theorem 3.8 (MODELED)", colour: "modeled", dashed: true },
    { label: "at measured costs (MODELED)", colour: "second" },
    { label: "MEASURED", colour: "measured", points: true, intervals: all.map(({ ci95 }) => ci95 ?? null) },
  ];
  const x = "k, draft tokens a step";
  chart(place, { x, y: "speed-up", lines, unitStep: true, breakEven: true, range: [0, most * 1.1] }).show(data);
  const cell = (value) => rounded(value ?? NaN) ?? [badge(UNAVAILABLE)];
  const rows = all.map(({ k, median, ci95 }, i) => [rounded(k), cell(data[1][i]), cell(data[2][i]),
    median === undefined ? "not run" : rounded(median), between(ci95)]);
  const at = alpha === null ? "" : ` α = ${rounded(alpha)};`;
  const caption = `Speed-up by k;${at} measured: this visit's runs like this one`;
  const heads = ["k", ["Theorem 3.8 ", badge(MODELED)], ["at measured costs ", badge(MODELED)], [badge(MEASURED)],
    "95 % interval"];
  // Wider than a phone: it scrolls, by keyboard too.
  const scroll = { className: "scroll", role: "region", tabIndex: 0, "aria-label": caption };
  return element("div", scroll, table(caption, heads, rows));
}

function histogram({ measurement: { acceptance_histogram: counts, n } }) {
  const share = (count) => `${((100 * count) / n).toFixed(1)} %`;
  const rows = counts.map((count, accepted) => [String(accepted), count, share(count)]);
  return bars(["Steps by accepted draft tokens ", badge(MEASURED)], ["accepted", "steps", "share"], rows);
}

function roadmap({ reason, runbook }) {
  const steps = [runbook ?? []].flat().map((step) => element("li", {}, step));
  const why = element("p", {}, `Nothing was measured: ${reason ?? "no reason is given"}.`);
  return steps.length ? [why, element("ul", {}, ...steps)] : [why];
}

/**
 * Shows a payload in `place`; what is not a run's has only its label and the modeled curve.
 *
 * @param {{proven: Set<string>, points: object[]}} about Checks that hold; this visit's points, empty for others' runs.
 */
export function showPayload(place, payload, { proven, points }) {
  const label = element("p", { className: "label" }, badge(payload.label));
  if (!payload.measurement) {
    const { k, expected_speedup_at_alpha: curve } = payload.accounting_modeled;
    const rows = Object.entries(curve).map(([alpha, speedup]) => [alpha, figure(rounded(speedup), MODELED)]);
    const modeled = table(`Modeled speed-up, k = ${k}`, ["α", "speed-up"], rows);
    place.replaceChildren(label, ...(payload.roadmap ? roadmap(payload.roadmap) : []), modeled);
    return;
  }
  const drawing = element("div", { className: "chart" });
  place.replaceChildren(label, element("p", { className: "answer" }, ...answer(payload)), figures(payload, proven), drawing);
  const values = byK(payload, points.length ? points : pointsOf(payload), drawing);
  place.append(element("details", {}, element("summary", {}, "The chart's values"), values), histogram(payload));
}
