// States that simulated GPUs do not get into, made of a real status: what the page says of them must be in words.

const HOSTILE = '<img src=x onerror=alert(1)> & "quoted"';

/** A status in which everything is the matter, and what else the page asks about it. */
export const everythingAtOnce = (status) => {
  const [first] = status.gpus;
  const gpu = (index, changes) => ({ ...first, index, uuid: `GPU-${index}`, simulated: false, model: "NVIDIA A40", ...changes });
  const gpus = [
    gpu(0, { state: "external", detail: "an external writer set it to 250.000 W", power_limit_requested_w: 250, power_limit_enforced_w: 250, power_limit_wanted_w: null, temperature_c: 61, event_reasons: ["hw_thermal_slowdown", "sw_power_cap"] }),
    gpu(1, { state: "lost", detail: "the GPU is gone", power_w: null, power_limit_requested_w: null, power_limit_enforced_w: null, power_limit_min_w: null, power_limit_max_w: null, event_reasons: null }),
    gpu(2, { state: "unresponsive", detail: "a call of the driver hangs", power_w: null }),
    gpu(3, { state: "override", override_until: status.now, power_limit_requested_w: 200, power_limit_enforced_w: 200, power_limit_wanted_w: 180 }),
    gpu(4, { state: "observed", detail: "observing only: no permission" }),
    gpu(5, { state: "job", owner: "job-paused", power_limit_requested_w: 220, power_limit_enforced_w: 200, out_of_band_cap_w: 200, power_limit_original_w: 300, clock_limit_mhz: 1410 }),
    gpu(6, { state: "job", owner: "job-hostile", observed_jobs: ["job-booked"], power_limit_requested_w: 220, power_limit_enforced_w: 220 }),
  ];
  const job = (job_id, name, changes) => ({
    job_id, name, gpus: ["GPU-5"], batch_size: 256, total_samples: 1e6, samples: 250000, control: true, priority: 0, tags: { team: "vision" },
    objective: { eta: 1, max_slowdown: 0.03, deadline: null, carbon_budget_g: null, price_weight: 0, pausable: null },
    lease_s: 60, lease_left_s: 50, phase: "planned", reason: "the best pace", power_limit_w: 220, power_limits_w: [220], clock_limit_mhz: null,
    slowdown: -0.001, active_s: 900, stalled_s: 0, energy_j: 5e6, carbon_g: 500, registered_at: status.now, started_at: status.now,
    expected_end: status.now, resume_at: null, ended_at: null, end_reason: null, warnings: [], ...changes,
  });
  const jobs = [
    job("job-paused", "paused", { phase: "paused", reason: "the hour is dirty", resume_at: status.now, clock_limit_mhz: 1410,
      objective: { eta: 1, max_slowdown: null, deadline: status.now, carbon_budget_g: 2500, price_weight: 0, pausable: null },
      warnings: ["the deadline will be missed by 600 s"] }),
    job("job-hostile", HOSTILE, { gpus: ["GPU-6"], tags: {}, batch_size: null, phase: "profiling" }),
    job("job-booked", "booked", { gpus: ["GPU-6", "GPU-4"], control: false, phase: "observing", total_samples: null, power_limit_w: null, power_limits_w: [null, null] }),
  ];
  const now = status.now;
  return {
    status: {
      ...status, simulated: false, gpus, jobs,
      ledger: { closed_at: now, recorded: [], gaps: 2, gap_j: 5000, difference_j: 0, settlements: 9, pending_hours: 1,
        settled: { forecast_j: 3.6e6, provisional_j: 7.2e6, final_j: 2.52e7, unknown_j: 0, carbon_g: 4200 } },
      price: { zone: "DE-LU", currency: "EUR", price_per_mwh: -3.5 },
      cap: { limit_w: 1200, source: "always", limits_sum_w: 1100, headroom_w: 100, lowest_sum_w: 700, next_change: now, next_limit_w: 900, lead_s: 5 },
      carbon_budget: { from: now, until: now, limit_g: 20000, emissions_g: 21000, left_g: -1000, expected_g: 22000 },
      cpu: { source: "rapl", simulated: false, cores: 64, problems: [], zones: [
        { device: "cpu:package-0", zone: "package-0", kind: "package", path: "/x", power_w: null, energy_j: 3.6e6, energy_in_gaps_j: 0,
          counter_turns: 0, counter_resets: 0, counter_jumps: 0, counter_changes: 0, problem: "may not be read: only root may" }] },
      jobs_left_out: 650, problems_left_out: 12,
      problems: ["GPU 0: an external writer set it to 250.000 W", HOSTILE],
    },
    accounts: {
      "job-paused": { energy_j: 5e6, carbon_g: 500, against_max: null, savings: { against_original: {
        carbon_at_reference_g: 620, carbon_reduction_pct: { low: 17.2, mean: 19.4, high: 21.5 }, carbon_reduction_g: { low: 101, mean: 120, high: 139 } } } },
      "job-hostile": { energy_j: 5e6, carbon_g: 500, against_max: null, savings: { against_original: { unknown: "another job shares its GPU" } } },
      "job-booked": { energy_j: 5e6, carbon_g: 500, against_max: null },
    },
    hostile: HOSTILE,
  };
};
