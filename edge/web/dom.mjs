/** How the page makes elements, and writes a number with the word for what it is. Text only ever enters as text. */

/** An element; `properties` are its own, or attributes where a name holds a dash; children are nodes or text. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "scope") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export const byId = (id) => document.getElementById(id);

export const MEASURED = "MEASURED";
export const MODELED = "MODELED";
export const UNAVAILABLE = "UNAVAILABLE";

/** The class that colours a label: by the word in it that says what it is. */
const kindOf = (label) => /ROADMAP|MODELED|UNAVAILABLE|MEASURED/.exec(label)?.[0].toLowerCase() ?? "unavailable";

/** A label in words and colour. */
export const badge = (label) => element("span", { className: `badge ${kindOf(label)}` }, label);

/** Shows a label in an element that is there already; nothing is touched, or read out again, if it is the same. */
export function setBadge(place, label) {
  if (place.textContent === label) return;
  place.className = `badge ${kindOf(label)}`;
  place.textContent = label;
}

/** A number to so many digits; whatever is no number has none. */
export const digits = (value, count = 4) => (Number.isFinite(value) ? value.toFixed(count) : null);

/** A number as receipts round it: to four digits, without the zeros at its end. */
export const rounded = (value) => (Number.isFinite(value) ? String(Number(value.toFixed(4))) : null);

/** A figure and its label; without one it is UNAVAILABLE, with the reason if there is one. */
export function figure(text, label, note = null) {
  if (text === null || text === undefined) return [badge(UNAVAILABLE), note ? ` ${note}` : ""];
  return [`${text} `, badge(label), note ? ` ${note}` : ""];
}

/** A table with a caption, text or nodes; `rows` are lists of cells, the first of each its heading. */
export function table(caption, heads, rows) {
  const cell = (content) => element("td", {}, ...[content].flat());
  const line = ([first, ...others]) =>
    element("tr", {}, element("th", { scope: "row" }, ...[first].flat()), ...others.map(cell));
  const head = heads && element("thead", {}, element("tr", {}, ...heads.map((h) => element("th", { scope: "col" }, ...[h].flat()))));
  const body = element("tbody", {}, ...rows.map(line));
  return element("table", {}, element("caption", {}, ...[caption].flat()), head, body);
}

/** What a caught error says. */
export const reasonOf = (error) => (error instanceof Error ? error.message : String(error));
