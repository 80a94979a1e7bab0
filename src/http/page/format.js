// Numbers and times for people. Absent values are shown as unknown, never as zero.

const UNKNOWN = "unknown";

const absent = (text = UNKNOWN, why) => h("span", { class: "absent", title: why }, text);

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

const number = (value, digits = 0) =>
  new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(value);

/** Formats three significant digits without an exponent. */
const rounded = (value) => {
  const size = Math.abs(value);
  return number(value, size >= 100 || size === 0 ? 0 : size >= 10 ? 1 : 2);
};

/** Creates a quantity with its machine-readable value. */
const quantity = (value, text) => (isNumber(value) ? h("data", { value }, text(value)) : absent());

const wattsText = (w) => `${number(w)} W`;
const watts = (w) => quantity(w, wattsText);

const energyText = (j) => {
  const size = Math.abs(j);
  if (size >= 3.6e9) return `${rounded(j / 3.6e9)} MWh`;
  if (size >= 3.6e5) return `${rounded(j / 3.6e6)} kWh`;
  return size >= 3600 ? `${rounded(j / 3600)} Wh` : `${rounded(j)} J`;
};
const energy = (j) => quantity(j, energyText);

const gramsText = (g) => {
  const size = Math.abs(g);
  if (size >= 1e6) return `${rounded(g / 1e6)} t`;
  return size >= 1000 ? `${rounded(g / 1000)} kg` : `${rounded(g)} g`;
};
const grams = (g) => quantity(g, gramsText);

const intensityText = (g) => `${number(g)} g/kWh`;

const percentText = (value, digits = 1) => `${number(value, digits)} %`;

/** Formats a fraction as percent with its sign: more time is plus. */
const slowdownText = (fraction) => {
  const text = number(100 * fraction, 2);
  return `${fraction > 0 && text !== "0.00" ? "+" : ""}${text.replace("-0.00", "0.00").replace("-", "−")} %`;
};

const clockTime = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const clockSeconds = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayOnly = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short" });
const yearToo = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

const utcText = (at) => `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;

/** Formats a time in the viewer's zone: with the day if it is not the reference's, with the year if it is far away. */
const timeText = (at, reference, clock = clockTime) => {
  if (reference && at.toDateString() === reference.toDateString()) return clock.format(at);
  const far = reference && Math.abs(at - reference) > 150 * 86400e3;
  return `${(far ? yearToo : dayOnly).format(at)}, ${clock.format(at)}`;
};

/** Creates a time element that shows UTC on hover. */
const moment = (iso, reference, clock) => {
  if (!iso) return absent();
  const at = new Date(iso);
  return h("time", { datetime: iso, title: utcText(at) }, timeText(at, reference && new Date(reference), clock));
};

/** Capitalises the first letter; the name of a driver call keeps its case. */
const sentence = (text) => (text ?? "").replace(/^[a-z](?![a-z]*[A-Z_])/, (first) => first.toUpperCase());

const words = (name) => name.replaceAll("_", " ");

const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;
