/** The modeled curve: three sliders and a chosen alpha, two charts, the same values as tables, and what follows. */
import { chart } from "./charts.mjs";
import { badge, byId, digits, element, MODELED, rounded, table } from "./dom.mjs";
import { breakEven, expectedSpeedup, expectedTokens, MOST_K, optimalK, spaced } from "./model.mjs";

const ALPHAS = spaced(0, 1, 101);
const KS = spaced(1, MOST_K, MOST_K);
const TABLE_ALPHAS = spaced(0, 1, 11).map((alpha) => Number(alpha.toFixed(1)));

const SPEEDUP = { label: "speed-up (MODELED)", colour: "modeled" };
const TOKENS = { label: "tokens a step (MODELED)", colour: "second", scale: "second", dashed: true };
const AXES = { y: "speed-up", second: "tokens a step", lines: [SPEEDUP, TOKENS], breakEven: true };

const modeled = (what) => [badge(MODELED), ` ${what}`];

/** Where a slider stands; its value is shown beside it, and read out with it. */
function read(id) {
  const slider = byId(id);
  byId(`${id}-value`).textContent = slider.value;
  return Number(slider.value);
}

function summary({ k, cost, verify, alpha }) {
  const speedup = expectedSpeedup(alpha, k, cost, verify);
  const from = breakEven(k, cost, verify);
  const best = optimalK(alpha, cost, verify, MOST_K);
  const at = (name, text) => element("strong", { id: name }, text);
  return [
    `At α = ${alpha} and k = ${k}: speed-up `, at("modeled-speedup", `${rounded(speedup)}×`), ", ",
    at("modeled-tokens", rounded(expectedTokens(alpha, k))), " tokens a step. ",
    from === null ? `With k = ${k} speculation never pays. ` : `With k = ${k} it pays above α = ${digits(from, 3)}. `,
    best === 0 ? "At this α the best is not to speculate. " : `At this α the best k is ${best}. `,
    badge(MODELED),
  ];
}

/** Puts the section to work. */
export function startCurve() {
  const overAlpha = chart(byId("chart-alpha"), { ...AXES, x: "α, the acceptance rate" });
  const overK = chart(byId("chart-k"), { ...AXES, x: "k, draft tokens a step", unitStep: true });
  const ids = ["k", "cost", "verify", "alpha"];

  const repaint = () => {
    const [k, cost, verify, alpha] = ids.map(read);
    const speedup = (a, length) => expectedSpeedup(a, length, cost, verify);
    overAlpha.show([ALPHAS, ALPHAS.map((a) => speedup(a, k)), ALPHAS.map((a) => expectedTokens(a, k))]);
    overK.show([KS, KS.map((length) => speedup(alpha, length)), KS.map((length) => expectedTokens(alpha, length))]);
    byId("modeled-summary").replaceChildren(...summary({ k, cost, verify, alpha }));
    const rows = (values, point) =>
      values.map((value) => {
        const [a, length] = point(value);
        return [String(value), rounded(speedup(a, length)), rounded(expectedTokens(a, length))];
      });
    byId("table-alpha").replaceChildren(
      table(modeled(`for k = ${k}`), ["α", "speed-up", "tokens a step"], rows(TABLE_ALPHAS, (a) => [a, k])));
    byId("table-k").replaceChildren(
      table(modeled(`for α = ${alpha}`), ["k", "speed-up", "tokens a step"], rows(KS, (length) => [alpha, length])));
  };
  for (const id of ids) byId(id).addEventListener("input", repaint);
  repaint();
}
