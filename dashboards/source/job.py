"""Job: one training run."""

from panels import *

J = 'instance=~"$instance", job_id=~"$job_id"'
PHASES = {
    0: ("waiting", "text"), 1: ("profiling", "blue"), 2: ("planned", GOOD), 3: ("paused", "yellow"), 4: ("observing", FAIR),
}
SLOW = [(None, GOOD), (0.03, FAIR), (0.1, BAD)]
# Ratios of counters: right in a demo too, whose clock is too fast.
PACE = f"sum(rate(wattune_job_samples_total{{{J}}}[$__rate_interval])) / sum(rate(wattune_job_active_seconds_total{{{J}}}[$__rate_interval]))"
COST = f"sum(rate(wattune_job_energy_joules_total{{{J}}}[$__range])) / sum(rate(wattune_job_samples_total{{{J}}}[$__range]))"


def on_boards(metric):
    """The sum over the boards of the jobs chosen; one that several of them share counts once."""
    boards = f"max by (instance, gpu_uuid) (wattune_job_gpu_info{{{J}}})"
    value = f'max by (instance, gpu_uuid) ({metric}{{instance=~"$instance"}})'
    return f"sum({boards} * on (instance, gpu_uuid) group_left {value})"


PHASE = " or ".join(
    f'max by (job_id) (wattune_job_phase{{{J}, phase="{name}"}} == 1) * {number}' for number, (name, _) in PHASES.items())

glance = [
    stat("Phase", "waiting: no report yet. profiling: limits are being measured. planned: a plan is followed. observing: "
         "limits may not be set.",
         Query(f"max({PHASE})", 0, 4), "none", [(None, "text")], graph=False, mappings=words(PHASES)),
    stat("Done", "Samples reported, of all of them. Empty for a job that did not say how many there are.",
         Query(f"sum(wattune_job_samples_total{{{J}}} and on (instance, job_id) wattune_job_work_samples{{{J}}}) "
               f"/ sum(wattune_job_work_samples{{{J}}})", 0, 1.001), "percentunit",
         [(None, "blue"), (1, GOOD)], decimals=1),
    stat("Slower so far", "Than at the largest limit, profiling included. Plans may put a job's slow hours first: what it allows "
         "is of its whole life, and Broken promises tells whether that will be kept.",
         Query(f"max(wattune_job_slowdown_ratio{{{J}}})", -0.5, 1), "percentunit", SLOW, decimals=2),
    stat("Planned saving", "How much less carbon the plan in force expects than the same work at the largest limit.",
         Query(f"1 - sum(wattune_job_planned_carbon_gco2e{{{J}}}) / sum(wattune_job_planned_carbon_at_max_gco2e{{{J}}})",
               -0.05, 0.7), "percentunit", [(None, BAD), (0, "text"), (0.01, GOOD)], decimals=1),
    stat("Emissions", "Of what is booked so far, by the intensities known now: it may fall where these do.",
         Query(f"sum(wattune_job_carbon_gco2e{{{J}}})", 0, 1e8), GRAMS, [(None, INTENSITY)], decimals=0),
    stat("Energy", "Booked for the job so far.", Query(f"sum(wattune_job_energy_joules_total{{{J}}})", 0, 1e12), "joule",
         [(None, DRAW)], decimals=2),
]

now = [
    stat("Expected to end in", "By the plan in force. Negative: it should have ended.",
         Query(f"max(max by (instance) (wattune_job_expected_end_time_seconds{{{J}}}) - on (instance) "
               'max by (instance) (wattune_present_time_seconds{instance=~"$instance"}))', -1e5, 1e8), "s",
         [(None, FAIR), (0, "text")], graph=False, decimals=1),
    stat("Plan's age", "Plans are made anew when a forecast, a slot or the job's progress asks for it.",
         Query(f"max(wattune_job_plan_age_seconds{{{J}}})", 0, 1e6), "s", [(None, GOOD), (21600, FAIR)], graph=False),
    stat("Lease left", "A job that is silent for longer than its lease is taken for dead.",
         Query(f"min(wattune_job_lease_left_seconds{{{J}}} / wattune_job_lease_seconds{{{J}}})", 0, 1), "percentunit",
         [(None, BAD), (0.2, FAIR), (0.5, GOOD)], graph=False, decimals=0),
    stat("Broken promises", "What cannot be kept; `GET /v1/jobs/{id}` says which and by how much.",
         Query(f"sum(wattune_job_broken_promises{{{J}}})", 0, 50), "none", [(None, GOOD), (1, FAIR)], graph=False),
    stat("Stood still", "Time in which the job stood still for its own reasons, which does not count as slowness.",
         Query(f"sum(wattune_job_stalled_seconds_total{{{J}}})", 0, 1e7), "s", [(None, "text")], graph=False, decimals=1),
    stat("Energy per sample", "Within the time range.", Query(COST, 1e-6, 1e6), "joule", [(None, DRAW)], graph=False,
         decimals=2),
]

beside = [
    series("Saved so far", "Emissions of the same work at the limit found on its boards less its own, with the interval that holds the "
           "truth 95 times in 100 by the errors of the profile. Nothing: it cannot be told.",
           [Query(f'max by (bound) (wattune_job_saved_gco2e{{{J}}})', -1e6, 1e8, "{{bound}}", least=3)], GRAMS,
           [(None, GOOD)], colors={"mean": GOOD, "low": CEILING, "high": CEILING}, dashed=["low", "high"], decimals=1),
    series("Energy by kind of device", "Booked for the job, for each step of the graph: processors and memory where it told "
           "its processes.",
           [Query(f"sum by (kind) (increase(wattune_job_device_energy_joules_total{{{J}}}[$__rate_interval]))", 0, 1e12,
                  "{{kind}}", least=3)],
           "joule", [(None, DRAW)], colors=KINDS, fill=20, custom={"stacking": {"mode": "normal", "group": "A"}}),
]

course = [
    series("Intensity", "What the present is reckoned with on the job's node.",
           [Query('max(wattune_carbon_planned_with_gco2e_per_kwh{instance=~"$instance"} and on (instance) '
                  f"wattune_job_info{{{J}}})", 10, 1500, "intensity")], G_PER_KWH, GREENNESS, width=24, height=6, fill=10,
           colors={"intensity": INTENSITY}, decimals=0),
    series("Draw and limits of its GPUs", "All of the job's boards together.",
           [Query(on_boards("wattune_gpu_power_watts"), 20, 1e5, "draw"),
            Query(on_boards("wattune_gpu_power_limit_enforced_watts"), 50, 1e5, "limit in force"),
            Query(on_boards("wattune_gpu_power_limit_wanted_watts"), 50, 1e5, "limit wanted"),
            Query(on_boards("wattune_gpu_power_limit_max_watts"), 50, 1e5, "largest limit")],
           "watt", [(None, DRAW)], width=24, height=8,
           colors={"draw": DRAW, "limit in force": LIMIT, "limit wanted": "light-orange", "largest limit": CEILING},
           dashed=["limit wanted", "largest limit"]),
    series("Slowness", "So far, and what the job allows over its whole life: plans may put its slow hours first.",
           [Query(f"max(wattune_job_slowdown_ratio{{{J}}})", -0.5, 1, "so far"),
            Query(f"max(wattune_job_max_slowdown_ratio{{{J}}})", 0, 10, "allowed")], "percentunit", SLOW,
           colors={"so far": "blue", "allowed": CEILING}, dashed=["allowed"], decimals=2),
    series("Pace", "Samples per second of training; time in which the job stood still is left out.",
           [Query(PACE, 1e-3, 1e7, "samples per second")], "suffix: samples/s", [(None, "blue")],
           colors={"samples per second": "blue"}),
    timeline("Phase", "What is done for the job.", [Query(PHASE, 0, 4, "{{job_id}}")], PHASES, height=4),
]

about = table(
    "About", "What the job said of itself. Tags are columns of their own in `wattune_job_info`.",
    [Query(f"max by (instance, job_id, name, batch_size, control) (wattune_job_info{{{J}}})", 1, 1, column="there"),
     Query(f"count by (instance, job_id) (wattune_job_gpu_info{{{J}}})", 1, 16, column="boards")],
    {"instance": ("Node", {}), "name": ("Job", {}), "job_id": ("Id", {}), "batch_size": ("Batch size", {}),
     "control": ("Controlled", {}), "boards": ("GPUs", unit("none", 0))}, height=4)

DASHBOARD = dashboard(
    "wattune-job", "wattune / Job", "One training run: what is done for it, what it used, and whether its promise is kept.",
    [variable("instance", "Node", "label_values(wattune_job_info, instance)"),
     variable("job", "Job", 'label_values(wattune_job_info{instance=~"$instance"}, name)', multi=False),
     variable("job_id", "Run", 'label_values(wattune_job_info{instance=~"$instance", name="$job"}, job_id)', within=True)],
    PANELS := [*glance, *now, row("Over time"), *course, *beside, about])
