// The head of the page, notices, tiles, and the sources of the signal.

const BASES = {
  source: "the active source",
  local: "the local forecaster",
  daily_shape: "the last known daily profile",
  constant: "the configured constant",
};

const badge = (kind, ...text) => h("span", { class: `badge ${kind}`, "data-key": kind }, text);

const showBadges = (status) => {
  const carbon = status.carbon;
  show("badges",
    status.mode === "control" ? badge("mode", "control") : badge("mode observe", "observe: limits are never set"),
    status.simulated && badge("simulated", "simulated"),
    badge(`signal ${carbon.freshness}`, [carbon.zone, carbon.source, carbon.freshness === "none" ? "no signal" : carbon.freshness]
      .filter((part) => part).join(" · ")));
};

const showLink = (link, status) => {
  const at = status && moment(status.now, status.now, clockSeconds);
  const day = status && dayOnly.format(new Date(status.now));
  const text = { connecting: "connecting", live: "live", lost: "connection lost", locked: "token needed" }[link.state];
  show("link", h("span", { class: `dot ${link.state}`, "aria-hidden": "true" }), h("span", {}, text), at && h("span", { class: "muted" }, ` ${day} `, at));
};

const tile = (name, value, below) =>
  h("div", { class: "tile", "data-key": name, "data-tile": name }, h("h3", {}, name), h("p", { class: "figure" }, value), h("p", { class: "muted" }, below));

const intensityTile = ({ carbon }) => {
  const kind = [carbon.origin, carbon.kind, carbon.scope === "unspecified" ? null : carbon.scope].filter(Boolean).join(", ");
  const below = carbon.basis === "source" ? kind : `planning with ${intensityText(carbon.planned_with_g_per_kwh)}: ${BASES[carbon.basis] ?? carbon.basis}`;
  return tile("Carbon intensity", quantity(carbon.intensity_g_per_kwh, intensityText), below);
};

const drawTile = ({ gpus }) => {
  const sum = (list) => list.reduce((a, b) => a + b, 0);
  const draws = gpus.map((gpu) => gpu.power_w).filter(isNumber);
  const limits = gpus.map((gpu) => gpu.power_limit_enforced_w ?? gpu.power_limit_requested_w);
  const most = gpus.map((gpu) => gpu.power_limit_max_w);
  const partly = draws.length < gpus.length && draws.length > 0 ? `${draws.length} of ${gpus.length} GPUs report it; ` : "";
  const known = limits.length > 0 && [...limits, ...most].every(isNumber);
  return tile("Draw of all GPUs", draws.length > 0 ? watts(sum(draws)) : absent(),
    `${partly}${known ? `limits ${number(sum(limits))} of ${number(sum(most))} W` : "limits unknown"}`);
};

const emittedTile = ({ jobs, jobs_left_out: more }) => {
  const known = jobs.filter((job) => isNumber(job.carbon_g));
  const total = known.reduce((a, job) => a + job.carbon_g, 0);
  const used = jobs.filter((job) => isNumber(job.energy_j)).reduce((a, job) => a + job.energy_j, 0);
  const partly = known.length > 0 && known.length < jobs.length + more ? `, ${known.length} of ${jobs.length + more}` : "";
  return tile(`Emitted by open jobs${partly}`, known.length > 0 ? grams(total) : absent(jobs.length > 0 ? UNKNOWN : "no open job"),
    jobs.length > 0 && `${energyText(used)} used`);
};

const savedTile = ({ jobs, jobs_left_out: more }, details) => {
  const known = jobs.map((job) => savingOf(details.accounts[job.job_id])).filter(({ pct, reference }) => pct && isNumber(reference));
  if (known.length === 0) return tile("Saved by open jobs", absent(jobs.length > 0 ? UNKNOWN : "no open job"), jobs.length > 0 && "no comparison yet");
  const total = (of) => known.reduce((a, one) => a + of(one), 0);
  const [saved, reference] = [total((one) => one.g.mean), total((one) => one.reference)];
  const partly = known.length < jobs.length + more ? `${known.length} of ${jobs.length + more} jobs; ` : "";
  return tile("Saved by open jobs", quantity(saved, (g) => signed(gramsText(g))),
    `${partly}${signed(number((100 * saved) / reference, 1))} % less than at ${known[0].at}`);
};

const capTile = ({ cap, now }) => {
  if (!cap) return null;
  const next = cap.next_change ? [isNumber(cap.next_limit_w) ? `${wattsText(cap.next_limit_w)} from ` : "no cap from ", moment(cap.next_change, now)] : "";
  return tile("Node's cap", isNumber(cap.limit_w) ? watts(cap.limit_w) : absent("none now"), [`limits add up to ${wattsText(cap.limits_sum_w)}`, next && ["; ", next]]);
};

const budgetTile = ({ carbon_budget: budget, now }) =>
  budget && tile("Carbon budget left", quantity(budget.left_g, (g) => signed(gramsText(g))),
    [`of ${gramsText(budget.limit_g)} until `, moment(budget.until, now), `; ${gramsText(budget.expected_g)} expected`]);

/** The ledger's last 30 days by the state of the intensities. */
const ledgerTile = ({ ledger }) => {
  const settled = ledger?.settled;
  if (!settled) return null;
  const parts = [["final", settled.final_j], ["provisional", settled.provisional_j], ["forecast", settled.forecast_j], ["unknown", settled.unknown_j]];
  const all = parts.reduce((a, [, j]) => a + j, 0);
  const shares = parts.filter(([, j]) => j > 0).map(([name, j]) => `${percentText((100 * j) / all, 0)} ${name}`);
  const gaps = ledger.gaps > 0 ? `; ${plural(ledger.gaps, "gap")} in the readings` : "";
  return tile("Emissions in 30 days", all > settled.unknown_j ? grams(settled.carbon_g) : absent(), `${energyText(all)}: ${shares.join(", ") || "nothing yet"}${gaps}`);
};

const priceTile = ({ price }) =>
  price && tile("Price", quantity(price.price_per_mwh, (p) => `${signed(number(p, 1))} ${price.currency}/MWh`), `${price.zone}, day ahead`);

const showTiles = (status, details) =>
  show("tiles", intensityTile(status), drawTile(status), emittedTile(status), savedTile(status, details), capTile(status), budgetTile(status), ledgerTile(status), priceTile(status));

const signalNotice = ({ carbon, now }) => {
  if (carbon.freshness === "fresh" && carbon.basis === "constant") {
    return h("p", { class: "notice", "data-key": "signal", id: "signal-notice" },
      `There is no carbon source: ${intensityText(carbon.planned_with_g_per_kwh)} is assumed for all hours. Limits save energy, but all hours count the same. `,
      "Configure a source in [carbon].");
  }
  if (carbon.freshness === "fresh") return null;
  const using = `planning with ${intensityText(carbon.planned_with_g_per_kwh)} from ${BASES[carbon.basis] ?? carbon.basis}`;
  const since = carbon.stale_since
    ? ["The signal has been stale since ", moment(carbon.stale_since, now), "; "]
    : "There is no carbon signal; ";
  return h("p", { class: "notice", "data-key": "signal", id: "signal-notice" }, since, using, " since ", moment(carbon.basis_since, now), ".",
    carbon.last_error && h("span", { class: "muted" }, ` ${sentence(carbon.last_error)}`));
};

const linkNotice = (link, status) => {
  if (link.state !== "lost") return null;
  const since = h("time", { datetime: link.since.toISOString(), title: utcText(link.since) }, clockSeconds.format(link.since));
  return h("p", { class: "notice trouble", "data-key": "link", id: "link-notice" }, "The connection to the daemon has been lost since ", since, ` (${link.why}). `,
    status ? ["The figures are from ", moment(status.now, status.now, clockSeconds), "; reconnecting."] : "Reconnecting.");
};

const showNotices = (link, status, troubles) => {
  const problems = status?.problems ?? [];
  show("notices",
    linkNotice(link, status),
    link.problem && h("p", { class: "notice trouble", "data-key": "problem" }, sentence(link.problem)),
    status && signalNotice(status),
    problems.length > 0 && h("section", { class: "notice", "data-key": "problems", "aria-label": "Problems", id: "problems" },
      h("ul", {}, problems.map((text) => h("li", {}, sentence(text))),
        status.problems_left_out > 0 && h("li", {}, `${number(status.problems_left_out)} more; /v1/status lists them.`))),
    troubles.length > 0 && h("p", { class: "notice", "data-key": "troubles" }, troubles.join(" ")));
};

const showSources = (status) => {
  const { sources, scores, notes } = status.carbon;
  const heads = ["Source", "State", "Last answer", "Forecast until", "Error a day ahead", "Problem"];
  const row = (source) => {
    const score = scores.find((one) => one.source === source.source && one.horizon_h === 24);
    return {
      key: `${source.rank} ${source.source}`,
      head: [source.source, source.followed && h("span", { class: "state planned" }, "active")],
      cells: [[source.freshness === "none" ? "nothing yet" : source.freshness, source.circuit === "open" && ", queried rarely",
        source.stale_since && [" since ", moment(source.stale_since, status.now)]],
      moment(source.fetched_at, status.now), moment(source.forecast_until, status.now),
      quantity(score?.mape_pct, (pct) => percentText(pct)),
      sentence(source.last_error ?? source.quarantined ?? "nothing")],
    };
  };
  show("sources",
    sources.length > 0 ? table("Sources of the carbon signal", heads, sources.map(row)) : h("p", { class: "absent" }, "No source is configured."),
    notes.length > 0 && h("ul", { class: "notes" }, notes.map((text) => h("li", {}, sentence(text)))));
};

const showFoot = (status) =>
  show("foot", `wattune ${status.version}, running since `, moment(status.started_at, status.now),
    ". Times are in your zone; hover over one for UTC. This page only reads. ",
    h("a", { href: "/openapi.json" }, "API description"), " ", h("a", { href: "/metrics" }, "Metrics"));
