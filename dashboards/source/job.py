"""Job: one training run."""

from panels import *

J = 'instance=~"$instance", job_id=~"$job_id"'
PHASES = {
    0: ("waiting", "text"), 1: ("profiling", "blue"), 2: ("planned", GOOD), 3: ("paused", "yellow"), 4: ("observing", FAIR),
    5: ("held", "purple"), 6: ("suspended", "dark-yellow"),
}
SLOW = [(None, GOOD), (0.03, FAIR), (0.1, BAD)]
# Ratios of counters: correct in a demo too, whose clock runs faster.
THROUGHPUT = f"sum(rate(wattune_job_samples_total{{{J}}}[$__rate_interval])) / sum(rate(wattune_job_active_seconds_total{{{J}}}[$__rate_interval]))"
COST = f"sum(rate(wattune_job_energy_joules_total{{{J}}}[$__range])) / sum(rate(wattune_job_samples_total{{{J}}}[$__range]))"


def on_gpus(metric):
    """Returns the sum over the GPUs of the jobs shown; a GPU that several of them share counts once."""
    gpus = f"max by (instance, gpu_uuid) (wattune_job_gpu_info{{{J}}})"
    value = f'max by (instance, gpu_uuid) ({metric}{{instance=~"$instance"}})'
    return f"sum({gpus} * on (instance, gpu_uuid) group_left {value})"


PHASE = " or ".join(
    f'max by (job_id) (wattune_job_phase{{{J}, phase="{name}"}} == 1) * {number}' for number, (name, _) in PHASES.items())

glance = [
    stat("Phase", "waiting: no report yet. profiling: limits are being measured. planned: limits follow a plan. observing: "
         "limits may not be set. held: waits for its start. suspended: has left its GPUs until the grid is cleaner.",
         Query(f"max({PHASE})", 0, max(PHASES)), "none", [(None, "text")], graph=False, mappings=words(PHASES)),
    stat("Done", "Reported samples relative to the job's total. Empty for a job without a stated total.",
         Query(f"sum(wattune_job_samples_total{{{J}}} and on (instance, job_id) wattune_job_work_samples{{{J}}}) "
               f"/ sum(wattune_job_work_samples{{{J}}})", 0, 1.001), "percentunit",
         [(None, "blue"), (1, GOOD)], decimals=1),
    stat("Slower so far", "Slowdown against the maximum limit, profiling included. Plans may put slow hours first: the allowed "
         "slowdown is for the job's whole life, and Broken promises shows whether it will be kept.",
         Query(f"max(wattune_job_slowdown_ratio{{{J}}})", -0.5, 1), "percentunit", SLOW, decimals=2),
    stat("Planned saving", "Expected emissions of the plan in force against the same work at the maximum limit.",
         Query(f"1 - sum(wattune_job_planned_carbon_gco2e{{{J}}}) / sum(wattune_job_planned_carbon_at_max_gco2e{{{J}}})",
               -0.05, 0.7), "percentunit", [(None, BAD), (0, "text"), (0.01, GOOD)], decimals=1),
    stat("Emissions", "Emissions of the energy recorded so far, by the intensities known now; later values may lower them.",
         Query(f"sum(wattune_job_carbon_gco2e{{{J}}})", 0, 1e8), GRAMS, [(None, INTENSITY)], decimals=0),
    stat("Energy", "Energy recorded for the job so far.", Query(f"sum(wattune_job_energy_joules_total{{{J}}})", 0, 1e12), "joule",
         [(None, DRAW)], decimals=2),
]

now = [
    stat("Expected to end in", "By the plan in force. Negative: the job is late.",
         Query(f"max(max by (instance) (wattune_job_expected_end_time_seconds{{{J}}}) - on (instance) "
               'max by (instance) (wattune_present_time_seconds{instance=~"$instance"}))', -1e5, 1e8), "s",
         [(None, FAIR), (0, "text")], graph=False, decimals=1),
    stat("Plan's age", "A new plan is made for a new forecast or slot, or when the job's progress requires it.",
         Query(f"max(wattune_job_plan_age_seconds{{{J}}})", 0, 1e6), "s", [(None, GOOD), (21600, FAIR)], graph=False),
    stat("Lease left", "A job without reports for longer than its lease is ended.",
         Query(f"min(wattune_job_lease_left_seconds{{{J}}} / wattune_job_lease_seconds{{{J}}})", 0, 1), "percentunit",
         [(None, BAD), (0.2, FAIR), (0.5, GOOD)], graph=False, decimals=0),
    stat("Broken promises", "Promises that cannot be kept; `GET /v1/jobs/{id}` says which and by how much.",
         Query(f"sum(wattune_job_broken_promises{{{J}}})", 0, 50), "none", [(None, GOOD), (1, FAIR)], graph=False),
    stat("Own pauses", "Time in which the job paused by itself, which does not count as slowdown.",
         Query(f"sum(wattune_job_stalled_seconds_total{{{J}}})", 0, 1e7), "s", [(None, "text")], graph=False, decimals=1),
    stat("Energy per sample", "Energy per sample within the time range.", Query(COST, 1e-6, 1e6), "joule", [(None, DRAW)], graph=False,
         decimals=2),
]

beside = [
    series("Saved so far", "Emissions of the same work at the original limit less those of the job, with the 95 % confidence interval. "
           "Empty: unknown.",
           [Query(f'max by (bound) (wattune_job_saved_gco2e{{{J}}})', -1e6, 1e8, "{{bound}}", least=3)], GRAMS,
           [(None, GOOD)], colors={"mean": GOOD, "low": CEILING, "high": CEILING}, dashed=["low", "high"], decimals=1),
    series("Energy by kind of device", "Energy recorded for the job per step of the graph: CPU and memory where it named "
           "its processes.",
           [Query(f"sum by (kind) (increase(wattune_job_device_energy_joules_total{{{J}}}[$__rate_interval]))", 0, 1e12,
                  "{{kind}}", least=3)],
           "joule", [(None, DRAW)], colors=KINDS, fill=20, custom={"stacking": {"mode": "normal", "group": "A"}}),
]

course = [
    series("Intensity", "Intensity that the job's node uses for the current slot.",
           [Query('max(wattune_carbon_planned_with_gco2e_per_kwh{instance=~"$instance"} and on (instance) '
                  f"wattune_job_info{{{J}}})", 10, 1500, "intensity")], G_PER_KWH, GREENNESS, width=24, height=6, fill=10,
           colors={"intensity": INTENSITY}, decimals=0),
    series("Draw and limits of its GPUs", "Sum over the job's GPUs.",
           [Query(on_gpus("wattune_gpu_power_watts"), 20, 1e5, "draw"),
            Query(on_gpus("wattune_gpu_power_limit_enforced_watts"), 50, 1e5, "limit in force"),
            Query(on_gpus("wattune_gpu_power_limit_wanted_watts"), 50, 1e5, "limit wanted"),
            Query(on_gpus("wattune_gpu_power_limit_max_watts"), 50, 1e5, "maximum limit")],
           "watt", [(None, DRAW)], width=24, height=8,
           colors={"draw": DRAW, "limit in force": LIMIT, "limit wanted": "light-orange", "maximum limit": CEILING},
           dashed=["limit wanted", "maximum limit"]),
    series("Slowdown", "So far, and allowed over the job's whole life: plans may put slow hours first.",
           [Query(f"max(wattune_job_slowdown_ratio{{{J}}})", -0.5, 1, "so far"),
            Query(f"max(wattune_job_max_slowdown_ratio{{{J}}})", 0, 10, "allowed")], "percentunit", SLOW,
           colors={"so far": "blue", "allowed": CEILING}, dashed=["allowed"], decimals=2),
    series("Throughput", "Samples per second of training, without pauses.",
           [Query(THROUGHPUT, 1e-3, 1e7, "samples per second")], "suffix: samples/s", [(None, "blue")],
           colors={"samples per second": "blue"}),
    timeline("Phase", "What the daemon does for the job.", [Query(PHASE, 0, max(PHASES), "{{job_id}}")], PHASES, height=4),
]

about = table(
    "About", "Data from the job's registration. Tags are labels of `wattune_job_info`.",
    [Query(f"max by (instance, job_id, name, batch_size, control) (wattune_job_info{{{J}}})", 1, 1, column="there"),
     Query(f"count by (instance, job_id) (wattune_job_gpu_info{{{J}}})", 1, 16, column="gpus")],
    {"instance": ("Node", {}), "name": ("Job", {}), "job_id": ("Id", {}), "batch_size": ("Batch size", {}),
     "control": ("Controlled", {}), "gpus": ("GPUs", unit("none", 0))}, height=4)

DASHBOARD = dashboard(
    "wattune-job", "wattune / Job", "One training run: its limits, its energy, and whether its promises are kept.",
    [variable("instance", "Node", "label_values(wattune_job_info, instance)"),
     variable("job", "Job", 'label_values(wattune_job_info{instance=~"$instance"}, name)', multi=False),
     variable("job_id", "Run", 'label_values(wattune_job_info{instance=~"$instance", name="$job"}, job_id)', within=True)],
    PANELS := [*glance, *now, row("Over time"), *course, *beside, about])
