/** What a run's receipt says: does it pay, every figure under its label, the curve by k, the histogram, energy. */
import { bars, chart } from "./charts.mjs";
import { badge, digits, element, figure, MEASURED, MODELED, rounded, table, UNAVAILABLE } from "./dom.mjs";
import { expectedSpeedup, MOST_K } from "./model.mjs";

/** Measured speed-ups of this visit, by pair: each {k, median, ci95}. */
const visited = new Map();

const between = (interval, count = 4) =>
  interval ? `(95 % interval ${digits(interval[0], count)} to ${digits(interval[1], count)})` : "";

/** The answer to the question of it all, in a sentence. */
function answer({ speedup_measured: measured, measurement }) {
  if (!measured?.median) return ["Does it pay? The speed-up is ", badge(UNAVAILABLE), "."];
  const [low, high] = measured.ci95;
  const word = low > 1 ? "Yes" : high < 1 ? "No" : "Not decided";
  const why = low > 1 ? "faster" : high < 1 ? "slower" : "neither faster nor slower beyond doubt";
  const doubt = measurement.verdict.valid ? "" : " The measurement's own verdict is: not valid.";
  return [
    element("strong", {}, `${word}: ${digits(measured.median, 2)}× `), badge(MEASURED),
    ` Decoding with the draft was ${why} ${between(measured.ci95, 2)}.${doubt}`,
  ];
}

function energyRows(energy) {
  if (energy.label !== MEASURED) {
    return [["Energy", [badge(UNAVAILABLE), ` ${energy.reason ?? ""} (${energy.code})`]]];
  }
  const each = (name, way) => [`J a token, ${name}`, figure(digits(energy.joules_per_token[way], 4), MEASURED)];
  const rows = [each("with the draft", "speculative"), each("target alone", "target_only")];
  if (energy.ratio) {
    const note = `${between(energy.ratio.ci95)} above 1 the draft saves energy`;
    rows.push(["Energy ratio", figure(digits(energy.ratio.median), MEASURED, note)]);
  }
  return rows;
}

function advice(measurement) {
  const k = measurement.recommended_k;
  if (k === null || k === undefined) return [badge(UNAVAILABLE)];
  return [k === 0 ? "do not speculate " : `k = ${k} `, badge(MODELED)];
}

function figures(payload) {
  const m = payload.measurement;
  const measured = payload.speedup_measured;
  const adaptive = m.k_requested === "auto";
  const verdict = m.verdict.valid ? "valid" : `not valid: ${m.verdict.reasons.join("; ")}`;
  const predicted = m.speedup_predicted?.value;
  return table("Figures of this run", null, [
    ["Pair", `${payload.draft_model} → ${payload.target_model}`],
    ["Steps", [`${payload.n} of ${m.n_requested}, ${adaptive ? `adaptive, up to k = ${payload.k}` : `k = ${payload.k}`} `,
      badge(MEASURED)]],
    ["Accepted rate α", figure(rounded(payload.accepted_rate), MEASURED, between(m.accepted_rate_ci95))],
    ["Tokens a step", figure(rounded(payload.mean_accepted_len), MEASURED)],
    ["Speed-up, measured", figure(digits(measured?.median), MEASURED,
      measured?.median ? `${between(measured.ci95)}, ${measured.pairs} pairs` : "")],
    ["Speed-up, predicted from measured costs", figure(rounded(predicted), MODELED)],
    ["Speed-up, Theorem 3.8", figure(rounded(payload.speedup_modeled), MODELED,
      `at cost ratio ${payload.accounting_modeled.cost_ratio}`)],
    ["Recommended", advice(m)],
    ["Output unchanged", [badge(payload.quality_delta.label)]],
    ...energyRows(payload.energy),
    ["Verdict", verdict],
    ["Tower", `${payload.tower?.id ?? "unnamed"}, its signature: ${payload.tower?.attested ?? UNAVAILABLE}`],
  ]);
}

/** Measured points of this visit's runs with the same pair, one of which is this one. */
function pointsOf(payload) {
  const { draft, target, drafted, n } = payload.measurement;
  const pair = JSON.stringify([draft, target]);
  const points = visited.get(pair) ?? new Map();
  if (payload.speedup_measured?.median) {
    // An adaptive run stands where its drafts ended on average.
    const k = payload.measurement.k_requested === "auto" ? drafted / n : payload.k;
    points.set(payload.run_id, { k, median: payload.speedup_measured.median, ci95: payload.speedup_measured.ci95 });
  }
  visited.set(pair, points);
  return [...points.values()].sort((a, b) => a.k - b.k);
}

/** The chart by k: what the theorem says at this alpha, what measured costs predict, and what was measured. */
function byK(payload, place) {
  const { measurement: m, accounting_modeled: accounting } = payload;
  const alpha = m.accepted_rate ?? m.alpha?.value ?? null;
  const points = pointsOf(payload);
  const predicted = m.predicted_curve?.speedup ?? [];
  const whole = Array.from({ length: MOST_K }, (_, i) => i + 1);
  const at = [...new Set([...whole, ...points.map((point) => point.k)])].sort((a, b) => a - b);
  const theorem = (k) =>
    alpha === null || !Number.isInteger(k) ? null : expectedSpeedup(alpha, k, accounting.cost_ratio, accounting.verify_cost);
  const measured = (k) => points.filter((point) => point.k === k).at(-1) ?? null;
  const data = [at, at.map(theorem), at.map((k) => predicted[k] ?? null), at.map((k) => measured(k)?.median ?? null)];
  const most = Math.max(1, ...data.slice(1).flat().filter(Number.isFinite), ...points.map(({ ci95 }) => ci95[1]));
  const lines = [
    { label: "Theorem 3.8 (MODELED)", colour: "modeled", dashed: true },
    { label: "at measured costs (MODELED)", colour: "second" },
    { label: "MEASURED", colour: "measured", points: true, intervals: at.map((k) => measured(k)?.ci95 ?? null) },
  ];
  const x = "k, draft tokens a step";
  chart(place, { x, y: "speed-up", lines, unitStep: true, breakEven: true, range: [0, most * 1.1] }).show(data);
  const cell = (value) => rounded(value ?? NaN) ?? "–";
  const rows = at.map((k, i) => [rounded(k), ...data.slice(1).map((column) => cell(column[i])), between(measured(k)?.ci95)]);
  const caption = "Speed-up by k; measured: this visit's runs of this pair";
  const heads = ["k", "Theorem 3.8 (MODELED)", "at measured costs (MODELED)", "MEASURED", "95 % interval"];
  // Wider than a phone: it scrolls, by keyboard too.
  const scroll = { className: "scroll", role: "region", tabIndex: 0, "aria-label": caption };
  return element("div", scroll, table(caption, heads, rows));
}

function histogram({ measurement: { acceptance_histogram: counts, n } }) {
  const share = (count) => `${((100 * count) / n).toFixed(1)} %`;
  const rows = counts.map((count, accepted) => [String(accepted), count, share(count)]);
  return bars("Steps by accepted draft tokens: MEASURED", ["accepted", "steps", "share"], rows);
}

function roadmap(payload) {
  const { reason, runbook } = payload.roadmap ?? {};
  const steps = [runbook ?? []].flat().map((step) => element("li", {}, step));
  return [element("p", {}, `Nothing was measured: ${reason ?? "no reason is given"}.`),
    steps.length ? element("ul", {}, ...steps) : null].filter(Boolean);
}

/** Shows a payload in `place`; what is not a run's has only its label. */
export function showPayload(place, payload) {
  const label = element("p", { className: "label" }, badge(payload.label));
  if (!payload.measurement) {
    const curve = payload.accounting_modeled?.expected_speedup_at_alpha ?? {};
    const rows = Object.entries(curve).map(([alpha, speedup]) => [alpha, figure(String(speedup), MODELED)]);
    const modeled = table(`Modeled speed-up, k = ${payload.accounting_modeled?.k}`, ["α", "speed-up"], rows);
    place.replaceChildren(label, ...(payload.roadmap ? roadmap(payload) : []), modeled);
    return;
  }
  const drawing = element("div", { className: "chart" });
  place.replaceChildren(label, element("p", { className: "answer" }, ...answer(payload)), figures(payload), drawing);
  const values = byK(payload, drawing);
  place.append(element("details", {}, element("summary", {}, "The chart's values"), values), histogram(payload));
}
