/**
 * Charts, drawn by uPlot in the page's own colours: lines, measured points with their intervals, the break-even line.
 * What a chart shows is also in a table beside it; the chart itself is hidden from screen readers.
 */
import { element } from "./dom.mjs";

const HEIGHT = 260;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** All charts, so that each can follow the page's width and colours. */
const drawn = new Set();

/** Draws into a chart where its value is 1: above it speculation pays. */
function drawBreakEven(plot, scale) {
  const { ctx, bbox } = plot;
  const y = Math.round(plot.valToPos(1, scale, true));
  if (y < bbox.top || y > bbox.top + bbox.height) return;
  ctx.save();
  ctx.strokeStyle = colour("break-even");
  ctx.lineWidth = 2 * devicePixelRatio;
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}

/** Draws the 95 % intervals of a series' points. */
function drawIntervals(plot, scale, { at, intervals }) {
  const { ctx } = plot;
  const cap = 5 * devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = colour("measured");
  ctx.lineWidth = 2 * devicePixelRatio;
  for (const [i, interval] of intervals.entries()) {
    if (!interval) continue;
    const x = plot.valToPos(at[i], "x", true);
    const [low, high] = interval.map((value) => plot.valToPos(value, scale, true));
    ctx.beginPath();
    ctx.moveTo(x, low);
    ctx.lineTo(x, high);
    for (const y of [low, high]) {
      ctx.moveTo(x - cap, y);
      ctx.lineTo(x + cap, y);
    }
    ctx.stroke();
  }
  ctx.restore();
}

/**
 * A chart in `place`, which is emptied. Its `lines` are [{label, colour, scale, dashed, points, intervals}].
 *
 * @param {HTMLElement} place
 * @param {{x: string, y: string, second?: string, lines: object[], unitStep?: boolean, breakEven?: boolean}} what
 *   `y` names the left axis, "speed-up", `second` the right one; `unitStep` says that x holds whole numbers.
 * @returns {{show: (data: (number|null)[][]) => void}} `data`: x, then one list for each line.
 */
export function chart(place, what) {
  let [plot, data] = [null, null];

  const axis = (label, extra = {}) => ({
    label, labelSize: 22, size: 46, stroke: colour("ink"), font: "13px system-ui", labelFont: "13px system-ui",
    grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 }, ...extra,
  });
  const whole = what.unitStep ? { incrs: [1, 2, 4, 8, 16] } : {};
  const series = (line) => ({
    label: line.label, scale: line.scale ?? "y", stroke: colour(line.colour), width: line.points ? 0 : 2,
    dash: line.dashed ? [8, 5] : undefined, spanGaps: true,
    points: { show: Boolean(line.points), size: 9, fill: colour(line.colour), stroke: colour(line.colour) },
    value: (_, value) => (value === null || value === undefined ? "–" : value.toFixed(4)),
  });
  const draw = () => {
    plot?.destroy();
    place.replaceChildren();
    const axes = [axis(what.x, { size: 40, ...whole }), axis(what.y)];
    if (what.second) axes.push(axis(what.second, { side: 1, scale: "second", grid: { show: false } }));
    const marks = (made) => {
      if (what.breakEven) drawBreakEven(made, "y");
      const found = what.lines.find((line) => line.intervals);
      if (found) drawIntervals(made, found.scale ?? "y", { at: data[0], intervals: found.intervals });
    };
    plot = new uPlot(
      {
        width: Math.max(240, place.clientWidth), height: HEIGHT, axes,
        scales: { x: { time: false }, y: { range: (_, low, high) => what.range ?? [Math.min(0, low), Math.max(high, what.breakEven ? 1 : 0) * 1.05] } },
        series: [{ label: what.x, value: (_, x) => (x === null || x === undefined ? "–" : String(Number(x.toFixed(2)))) },
          ...what.lines.map(series)],
        cursor: { drag: { x: false, y: false } }, legend: { live: true }, hooks: { draw: [marks] },
      },
      data, place,
    );
    place.querySelector(".uplot").setAttribute("aria-hidden", "true"); // its values are in the table beside it
  };

  const one = {
    show(values) {
      data = values;
      if (plot) plot.setData(values);
      else draw();
    },
    /** Draws again after the page has changed; a chart that has left the page is forgotten. */
    follow(colours) {
      if (!place.isConnected) drawn.delete(one);
      else if (plot && (colours || plot.width !== place.clientWidth)) draw();
    },
  };
  drawn.add(one);
  return one;
}

/** Has all charts follow the window's width, and the change between light and dark. */
export function followThePage() {
  addEventListener("resize", () => drawn.forEach((one) => one.follow(false)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((one) => one.follow(true)));
}

/** Counts as bars: a table whose cells hold a bar each. */
export function bars(caption, heads, rows) {
  const most = Math.max(1, ...rows.map(([, count]) => count));
  const line = ([name, count, share]) => {
    const bar = element("span", { className: "bar", "aria-hidden": "true" });
    bar.style.width = `${(100 * count) / most}%`;
    return element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, String(count)),
      element("td", {}, share), element("td", { className: "bars" }, bar));
  };
  const head = element("tr", {}, ...heads.map((h) => element("th", { scope: "col" }, h)),
    element("td", { "aria-hidden": "true" }));
  return element("table", { className: "histogram" }, element("caption", {}, ...[caption].flat()),
    element("thead", {}, head), element("tbody", {}, ...rows.map(line)));
}
