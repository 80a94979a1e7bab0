// Intensity, and below it the limits on the same time axis: actual and past values, forecasts and plans.

const INKS = ["--ink-1", "--ink-2", "--ink-3", "--ink-4", "--ink-5", "--ink-6", "--ink-7", "--ink-8"];
const DASH = [5, 4];

const seconds = (iso) => Date.parse(iso) / 1000;

const toSpans = (list, value, more = () => ({})) =>
  list.flatMap((entry) =>
    isNumber(value(entry)) ? [{ start: seconds(entry.start), end: seconds(entry.end), value: value(entry), ...more(entry) }] : []);

/** Joins neighbours of equal value. */
const joined = (spans) => {
  const out = [];
  for (const span of spans) {
    const last = out.at(-1);
    if (last && last.end === span.start && last.value === span.value) last.end = span.end;
    else out.push({ ...span });
  }
  return out;
};

/** Returns past and planned limits of each GPU; GPUs with equal ones share a line. */
const limitGroups = (status, details) => {
  const groups = new Map();
  for (const gpu of status.gpus) {
    const was = joined(toSpans(details.limits[gpu.uuid] ?? [], (span) => span.power_limit_enforced_w));
    const job = status.jobs.find((j) => j.job_id === gpu.owner);
    const place = job?.gpus.indexOf(gpu.uuid) ?? -1;
    const plan = place >= 0 ? details.plans[job.job_id] : undefined;
    // A plan that cannot be applied is not shown; in observe mode all plans are hypothetical.
    const segments = plan && (plan.applied || status.mode === "observe") ? plan.segments : [];
    const will = joined(toSpans(segments, (segment) => segment.power_limits_w[place]));
    const key = JSON.stringify([job?.job_id, was.map((x) => [x.start, x.value]), will]);
    const group = groups.get(key) ?? { gpus: [], draws: [], job, was, will };
    group.gpus.push(gpu.index);
    group.draws.push(toSpans(details.limits[gpu.uuid] ?? [], (span) => span.power_w));
    groups.set(key, group);
  }
  return [...groups.values()].map((group, i) => ({
    ...group,
    ink: INKS[i % INKS.length],
    name: `GPU ${group.gpus.join(", ")}${group.job ? ` (${group.job.name})` : ""}`,
  }));
};

/** Returns the limit at a time, with the GPUs' mean draw if it is past. */
const limitCell = (group, t, now) => {
  const span = spanAt(t < now ? group.was : group.will, t);
  if (!span) return absent("–", UNKNOWN);
  const draws = group.draws.map((spans) => spanAt(spans, t)?.value);
  const mean = draws.reduce((a, b) => a + b, 0) / draws.length;
  return [watts(span.value), t < now && isNumber(mean) && h("span", { class: "muted" }, `, drew ${number(mean)}`)];
};

const makeTimeline = () => {
  let shown = null;
  const narrow = matchMedia("(max-width: 640px)");
  const small = narrow.matches;

  const readout = (t) => {
    if (t === null || !shown) return byId("readout").replaceChildren();
    const at = new Date(t * 1000);
    const parts = [timeText(at, new Date(shown.now * 1000))];
    const slot = spanAt(shown.actual, t) ?? spanAt(shown.estimated, t) ?? spanAt(shown.ahead, t);
    if (slot) parts.push(`${intensityText(slot.value)} (${slot.state})`);
    for (const group of shown.groups.slice(0, 3)) {
      const limit = spanAt(group.was, t) ?? spanAt(group.will, t);
      if (limit) parts.push(`GPU ${group.gpus.join(", ")} ${wattsText(limit.value)}`);
    }
    byId("readout").textContent = parts.join(" · ");
  };

  const intensity = makeChart(byId("intensity-plot"), small ? 150 : 190, false, readout);
  const limits = makeChart(byId("limits-plot"), small ? 150 : 190, true, readout);

  const times = (now) => {
    const ahead = small ? 24 : 36;
    return { now, from: now - (small ? 12 : 24) * HOUR, until: now + ahead * HOUR };
  };

  const drawIntensity = (now) => {
    const { actual, estimated, ahead } = shown;
    const lines = [
      { name: "actual", spans: actual, colour: "--intensity" },
      { name: "forecast", spans: [...estimated, ...ahead], colour: "--intensity", dash: DASH },
    ].filter((line) => line.spans.length > 0);
    const band = ahead.filter((span) => isNumber(span.low) && isNumber(span.high));
    const values = [...actual, ...estimated, ...ahead].flatMap((span) => [span.value, span.high ?? 0]);
    intensity.draw({ lines, band, top: 1.08 * Math.max(100, ...values), ...times(now) });
    const bandName = "80 % prediction interval";
    show("intensity-legend", legend([...lines, ...(band.length ? [{ name: bandName, colour: "--band", band: true }] : [])]));
    byId("intensity-summary").textContent = describeForecast(ahead, now);
  };

  const drawLimits = (status, now) => {
    const { groups } = shown;
    const lines = groups.flatMap((group) => [
      { name: group.name, spans: group.was, colour: group.ink, width: 2 },
      { name: `${group.name}, planned`, spans: group.will, colour: group.ink, dash: DASH, width: 2 },
    ]).filter((line) => line.spans.length > 0);
    const most = status.gpus.map((gpu) => gpu.power_limit_max_w ?? 0);
    const values = lines.flatMap((line) => line.spans.map((span) => span.value));
    limits.draw({ lines, band: [], top: 1.08 * Math.max(100, ...most, ...values), ...times(now) });
    const named = groups.map((group) => ({ name: group.name, colour: group.ink }));
    const planned = groups.some((group) => group.will.length > 0);
    show("limits-legend", legend([...named, ...(planned ? [{ name: status.mode === "observe" ? "planned, not applied" : "planned", colour: "--muted", dash: true }] : [])]));
    const present = (group) => spanAt(group.was, now - 1)?.value;
    const presentLimits = groups.map((group) => `${group.name}: ${isNumber(present(group)) ? wattsText(present(group)) : UNKNOWN}`);
    byId("limits-summary").textContent = `${presentLimits.join("; ")}. The table below the charts has the rest.`;
  };

  const describeForecast = (ahead, now) => {
    const next = ahead.filter((span) => span.end > now && span.start < now + 24 * HOUR);
    if (next.length === 0) return "No forecast is known.";
    const low = next.reduce((a, b) => (b.value < a.value ? b : a));
    const high = next.reduce((a, b) => (b.value > a.value ? b : a));
    const at = (span) => timeText(new Date(1000 * span.start), new Date(1000 * now));
    return `Within 24 hours the forecast is lowest at ${at(low)} with ${intensityText(low.value)} and highest at ${at(high)} with ` +
      `${intensityText(high.value)}. The table below the charts has the rest.`;
  };

  const fillTable = () => {
    if (!shown || !byId("timeline-details").open) return;
    const { from, until, now } = times(shown.now);
    const reference = new Date(1000 * now).toISOString();
    const rows = [];
    for (let t = Math.ceil(from / HOUR) * HOUR; t <= until; t += HOUR) {
      const slot = spanAt(shown.actual, t) ?? spanAt(shown.estimated, t) ?? spanAt(shown.ahead, t);
      const isKnown = slot || shown.groups.some((group) => spanAt(t < now ? group.was : group.will, t));
      if (rows.length === 0 && !isKnown) continue;
      rows.push({
        key: String(t),
        head: moment(new Date(1000 * t).toISOString(), reference),
        cells: [
          slot ? quantity(slot.value, intensityText) : absent("–", UNKNOWN),
          isNumber(slot?.low) ? `${number(slot.low)} to ${number(slot.high)}` : absent("–", "not reported"),
          slot?.state ?? absent("–", UNKNOWN),
          ...shown.groups.map((group) => limitCell(group, t, now)),
        ],
      });
    }
    const heads = ["At", "Intensity", "80 % interval", "State", ...shown.groups.map((g) => g.name)];
    const region = { class: "scroll", role: "region", tabindex: 0, "aria-label": "Intensity and limits, hour by hour" };
    show("timeline-table", h("div", region, table("Intensity and limits at each full hour", heads, rows, "grid")));
  };

  byId("timeline-details").addEventListener("toggle", fillTable);

  return {
    /** Draws the charts from the data that was read. */
    draw: (status, details) => {
      const now = seconds(status.now);
      const state = (slot) => ({ state: slot.state });
      const past = toSpans(details.past, (slot) => slot.intensity_g_per_kwh, state);
      const ahead = toSpans(details.ahead, (slot) => slot.intensity_g_per_kwh, (slot) => ({
        low: slot.low_g_per_kwh, high: slot.high_g_per_kwh, state: "forecast",
      }));
      const actual = past.filter((span) => span.state !== "forecast");
      const estimated = past.filter((span) => span.state === "forecast");
      shown = { now, actual, estimated, ahead, groups: limitGroups(status, details) };
      const nothing = past.length + ahead.length === 0;
      show("timeline-empty", nothing && h("p", { class: "absent" },
        "There are no intensities, neither past nor forecast. Configure a zone or a source in [carbon]."));
      byId("plots").hidden = false;
      byId("intensity-part").hidden = nothing;
      drawIntensity(now);
      drawLimits(status, now);
      fillTable();
    },
    /** Moves the charts to the current time. */
    move: (status) => {
      if (!shown) return;
      const now = seconds(status.now);
      intensity.move(times(now));
      limits.move(times(now));
    },
    repaint: () => {
      intensity.repaint();
      limits.repaint();
    },
  };
};
