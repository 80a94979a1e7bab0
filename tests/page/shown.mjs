// What the page shows, read from its document, and whether that is what the API says.

import assert from "node:assert/strict";
import { eventually } from "./daemon.mjs";

/** What the page shows, taken in one moment. */
export const shown = (page) =>
  page.evaluate(() => {
    const text = (node) => node?.textContent.replace(/\s+/g, " ").trim() ?? null;
    const value = (node) => (node?.querySelector("data") ? Number(node.querySelector("data").value) : null);
    const facts = (job) => Object.fromEntries([...job.querySelectorAll(".fact")].map((fact) => [text(fact.querySelector("dt")),
      { text: text(fact.querySelector("dd")), value: value(fact.querySelector("dd")), time: fact.querySelector("dd time")?.dateTime }]));
    const rows = (id) => [...document.querySelectorAll(`#${id} tbody tr:not(.below)`)].map((row) =>
      [...row.children].map((cell) => ({ text: text(cell), value: value(cell), time: cell.querySelector("time")?.dateTime })));
    return {
      now: document.body.dataset.shown,
      badges: text(document.getElementById("badges")),
      link: text(document.getElementById("link")),
      notices: text(document.getElementById("notices")),
      tiles: Object.fromEntries([...document.querySelectorAll("[data-tile]")].map((tile) =>
        [tile.dataset.tile, { text: text(tile.querySelector(".figure")), value: value(tile.querySelector(".figure")), below: text(tile.querySelector(".muted:last-child")) }])),
      jobs: [...document.querySelectorAll("#jobs article")].map((job) => ({
        id: job.dataset.job, name: text(job.querySelector("h3")), state: text(job.querySelector(".state")),
        progress: job.querySelector("progress") && { value: job.querySelector("progress").value, max: job.querySelector("progress").max },
        share: text(job.querySelector(".progress span")), reason: text(job.querySelector(".reason")), facts: facts(job),
        warnings: [...job.querySelectorAll(".warnings li")].map(text),
      })),
      gpus: rows("gpus"), cpu: rows("cpu"), sources: rows("sources"), recurring: rows("recurring"), ended: rows("ended"),
      timeline: rows("timeline-table"),
      heads: [...document.querySelectorAll("#timeline-table thead th")].map(text),
    };
  });

/** The page, and the status event that it shows. */
export const shownWith = (page, listener) =>
  eventually("a status that both have", async () => {
    const now = await shown(page);
    const status = listener.statuses.get(now.now);
    return status && [now, status];
  });

export const sentence = (text) => text[0].toUpperCase() + text.slice(1);
export const sum = (list) => list.reduce((a, b) => a + b, 0);
export const close = (a, b, what) => assert.ok(Math.abs(a - b) <= 1e-9 * Math.max(1, Math.abs(b)), `${what}: ${a} and ${b}`);
/** A quantity as people read it, in the units that the page may choose. */
const reads = (text, value, units, what) => {
  const [, figure, unit] = text.match(/^([\d.,−-]+) (\S+)/) ?? assert.fail(`${what}: ${text}`);
  const said = Number(figure.replaceAll(",", "").replace("−", "-")) * (units[unit] ?? assert.fail(`${what}: the unit of ${text}`));
  assert.ok(Math.abs(said - value) <= 0.006 * Math.abs(value) + 0.5 * units[unit] * 0.01, `${what}: ${text} is ${value}`);
};
const ENERGY = { J: 1, Wh: 3600, kWh: 3.6e6, MWh: 3.6e9 };
const GRAMS = { g: 1, kg: 1000, t: 1e6 };

export const sameJob = (job, told, name) => {
  assert.equal(job.name, told.name);
  const phases = { waiting: "waiting", profiling: "being profiled", planned: "following its plan", paused: "asked to pause", observing: "observed only" };
  assert.equal(job.state, phases[told.phase], name);
  close(job.progress.max, told.total_samples, name);
  close(job.progress.value, Math.min(told.samples, told.total_samples), name);
  assert.equal(job.share, `${Math.min(100, (100 * told.samples) / told.total_samples).toFixed(1)} %`, name);
  assert.ok(job.reason.startsWith(sentence(told.reason).replace(/\s+/g, " ")), `${name}: ${job.reason} / ${told.reason}`);
  const facts = job.facts;
  if (told.slowdown === null) assert.match(facts["Slowdown so far"].text, /^unknown/, name);
  else {
    close(facts["Slowdown so far"].value, told.slowdown, name);
    assert.equal(Number.parseFloat(facts["Slowdown so far"].text.replace("−", "-")).toFixed(2), (100 * told.slowdown).toFixed(2).replace("-0.00", "0.00"), name);
  }
  assert.match(facts["Slowdown so far"].text, new RegExp(`\\(${(100 * told.objective.max_slowdown).toFixed(1)} % allowed in all\\)`), name);
  close(facts.Energy.value, told.energy_j, name);
  reads(facts.Energy.text, told.energy_j, ENERGY, name);
  if (told.carbon_g === null) assert.match(facts.Emissions.text, /^unknown/, name);
  else {
    close(facts.Emissions.value, told.carbon_g, name);
    reads(facts.Emissions.text, told.carbon_g, GRAMS, name);
  }
  if (told.power_limit_w !== null) close(facts["Power limit"].value, told.power_limit_w, name);
  assert.equal(facts["Expected end"].time ?? null, told.expected_end, name);
  assert.deepEqual(job.warnings, told.warnings.map(sentence), name);
};

export const sameGpu = ([head, state, limit, range, draw, slowed, temperature], told, jobs) => {
  const name = `GPU ${told.index}`;
  assert.equal(head.text, `${told.index} ${told.model}`);
  if (told.state === "job") assert.equal(state.text, `Controlled for ${jobs.find((job) => job.job_id === told.owner).name}`);
  else assert.equal(state.text, { free: "Free" }[told.state], name);
  close(limit.value, told.power_limit_enforced_w, name);
  assert.equal(range.text.startsWith(`${told.power_limit_min_w} to ${told.power_limit_max_w} W`), true, range.text);
  if (told.power_limit_original_w !== null) assert.match(range.text, new RegExp(`original ${told.power_limit_original_w}`), name);
  close(draw.value, told.power_w, name);
  assert.equal(draw.text, `${Math.round(told.power_w)} W`, name);
  assert.equal(told.event_reasons.length > 0, slowed.text !== "No", name);
  assert.equal(temperature.text, told.temperature_c === null ? "unknown" : `${Math.round(told.temperature_c)} °C`, name);
};

/** A row of the table beside what the API said of that hour; of the last answers whichever the page shows. */
export const sameHour = (row, heads, answers, now) => {
  const [at, intensity] = row;
  const t = Date.parse(at.time);
  const covers = (slot) => Date.parse(slot.start) <= t && t < Date.parse(slot.end);
  const told = answers.map((slots) => slots?.find(covers)?.intensity_g_per_kwh ?? null);
  const matches = told.some((value) => (value === null ? intensity.value === null : intensity.value !== null && Math.abs(value - intensity.value) < 1e-9));
  assert.ok(matches, `${at.time} (now ${now}): ${intensity.text}, told ${told}`);
  assert.equal(heads.length, row.length);
  return intensity.value !== null;
};
