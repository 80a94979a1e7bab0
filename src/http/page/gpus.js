// GPUs: the owner, the requested limit and the state of each.

const OWNERS = {
  free: "Free",
  override: "Manual override",
  external: "External limit",
  observed: "Observed only",
  lost: "Lost",
  unresponsive: "Does not answer",
};

const REASONS = {
  idle: "idle",
  sw_power_cap: "at its power limit",
  hw_slowdown: "slowed by the hardware",
  sync_boost: "clocked with other GPUs",
  sw_thermal_slowdown: "slowed by heat",
  hw_thermal_slowdown: "slowed by heat (hardware)",
  hw_power_brake: "braked by the power supply",
};

const near = (a, b) => isNumber(a) && isNumber(b) && Math.abs(a - b) < 0.5;

const ownerOf = (gpu, status) => {
  const name = (id) => status.jobs.find((job) => job.job_id === id)?.name ?? id;
  const by = gpu.state === "job" ? `Controlled for ${name(gpu.owner)}` : OWNERS[gpu.state] ?? words(gpu.state);
  return [
    h("span", { class: `state ${gpu.state}` }, by),
    gpu.state === "override" && gpu.override_by && gpu.override_by !== "local" && h("span", { class: "muted" }, ` by ${gpu.override_by}`),
    gpu.state === "override" && gpu.override_until && h("span", { class: "muted" }, " until ", moment(gpu.override_until, status.now)),
    gpu.observed_jobs.length > 0 && h("span", { class: "muted" }, ` also used by: ${gpu.observed_jobs.map(name).join(", ")}`),
  ];
};

/** Draws the limit and the draw on a scale from 0 to the highest limit. */
const meter = (gpu) => {
  const most = gpu.power_limit_max_w;
  const limit = gpu.power_limit_enforced_w ?? gpu.power_limit_requested_w;
  if (!isNumber(most) || !isNumber(limit)) return null;
  const x = (w) => Math.min(100, (100 * w) / most);
  const tick = (w, name) => isNumber(w) && s("line", { class: name, x1: x(w), x2: x(w), y1: 0, y2: 10 });
  return s("svg", { class: "meter", viewBox: "-1 0 102 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    s("rect", { class: "track", x: 0, y: 3, width: 100, height: 4 }),
    isNumber(gpu.power_w) && s("rect", { class: "draw", x: 0, y: 3, width: x(gpu.power_w), height: 4 }),
    tick(gpu.power_limit_min_w, "bound"),
    tick(gpu.power_limit_original_w, "original"),
    tick(limit, "limit"));
};

const inForceCell = (gpu) => {
  const parts = [watts(gpu.power_limit_enforced_w ?? gpu.power_limit_requested_w)];
  const asked = gpu.power_limit_requested_w;
  if (isNumber(asked) && isNumber(gpu.power_limit_enforced_w) && !near(asked, gpu.power_limit_enforced_w)) {
    parts.push(h("span", { class: "trouble" }, ` of ${wattsText(asked)} requested`));
  }
  if (isNumber(gpu.power_limit_wanted_w) && !near(gpu.power_limit_wanted_w, asked)) {
    parts.push(h("span", { class: "muted" }, `, ${wattsText(gpu.power_limit_wanted_w)} wanted`));
  }
  if (isNumber(gpu.out_of_band_cap_w)) parts.push(h("span", { class: "trouble" }, `, capped out of band at ${wattsText(gpu.out_of_band_cap_w)}`));
  if (isNumber(gpu.clock_limit_mhz)) parts.push(h("span", { class: "muted" }, `, clocks locked to ${number(gpu.clock_limit_mhz)} MHz`));
  return [...parts, meter(gpu)];
};

const rangeCell = (gpu) => {
  const [low, high] = [gpu.power_limit_min_w, gpu.power_limit_max_w];
  if (!isNumber(low) || !isNumber(high)) return absent("not reported");
  const more = [];
  if (isNumber(gpu.power_limit_default_w) && !near(gpu.power_limit_default_w, high)) more.push(`default ${number(gpu.power_limit_default_w)}`);
  if (isNumber(gpu.power_limit_original_w)) more.push(`original ${number(gpu.power_limit_original_w)}`);
  return [`${number(low)} to ${number(high)} W`, more.length > 0 && h("span", { class: "muted" }, ` (${more.join(", ")})`)];
};

const slowedCell = (gpu) => {
  if (gpu.event_reasons === null) return absent("not reported");
  if (gpu.event_reasons.length === 0) return "No";
  return sentence(gpu.event_reasons.map((name) => REASONS[name] ?? words(name)).join(", "));
};

const showGpus = (status) => {
  if (status.gpus.length === 0) {
    return show("gpus", h("p", { class: "absent" }, "No GPU was found. Run `wattune doctor` for a diagnosis."));
  }
  const heads = ["GPU", "State", "Limit in force", "Range", "Draw", "Clocks lowered", "Temperature"];
  const row = (gpu) => ({
    key: gpu.uuid,
    head: [h("span", { title: `${gpu.uuid}, ${gpu.pci_bus_id}` }, `${gpu.index} `), h("span", { class: "muted" }, gpu.model)],
    cells: [ownerOf(gpu, status), inForceCell(gpu), rangeCell(gpu), watts(gpu.power_w), slowedCell(gpu),
      quantity(gpu.temperature_c, (c) => `${number(c)} °C`)],
    below: gpu.detail && gpu.state !== "job" && gpu.state !== "free" ? sentence(gpu.detail) : null,
  });
  show("gpus", table("GPUs, their owners, limits and draw", heads, status.gpus.map(row)));
};

/** CPU packages and memory, if the daemon reads them. */
const showCpu = ({ cpu }) => {
  if (!cpu) return show("cpu", null);
  const heads = ["Zone", "Draw", "Energy since the start"];
  const row = (zone) => ({ key: zone.device, head: zone.zone, cells: [watts(zone.power_w), energy(zone.energy_j)],
    below: zone.problem && sentence(zone.problem) });
  const zones = cpu.zones.length > 0 ? table("CPU packages and memory, their draw and energy", heads, cpu.zones.map(row))
    : h("p", { class: "absent" }, sentence(cpu.problems[0] ?? "no CPU package was found"));
  show("cpu", [h("h3", {}, "CPU and memory"), zones]);
};
