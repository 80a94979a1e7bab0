"""Overview: present state of the nodes, and results."""

from panels import *

I = 'instance=~"$instance"'
G = f'{I}, gpu=~"$gpu"'
STATES = {
    0: ("free", "text"), 1: ("job", GOOD), 2: ("override", "blue"), 3: ("observed", "yellow"), 4: ("external", FAIR),
    5: ("lost", BAD), 6: ("unresponsive", BAD),
}


def by_state(metric, labels, key, states, by):
    """One number for each series: which of its states holds."""
    return " or ".join(
        f'max by ({by}) ({metric}{{{labels}, {key}="{name}"}} == 1) * {number}' for number, (name, _) in states.items())


DRAW_BY_NODE = f"sum by (instance) (wattune_gpu_power_watts{{{G}}})"
INTENSITY_BY_NODE = f"max by (instance) (wattune_carbon_planned_with_gco2e_per_kwh{{{I}}})"

glance = [
    stat("Carbon intensity", "Intensity used for the current slot, averaged over the nodes shown. Green below 200 g/kWh.",
         Query(f"avg(wattune_carbon_planned_with_gco2e_per_kwh{{{I}}})", 10, 1500), G_PER_KWH, GREENNESS, decimals=0),
    stat("Signal", "Whether every node has a fresh forecast. Stale: plans use the last one or the local forecaster; the "
         "dashboard Grid signal shows which.",
         Query(f"min(wattune_carbon_signal_fresh{{{I}}})", 0, 1), "none", [(None, BAD), (1, GOOD)], graph=False,
         mappings=words({0: ("stale", BAD), 1: ("fresh", GOOD)})),
    stat("Draw", "Power of the GPUs shown, by their sensors.",
         Query(f"sum(wattune_gpu_power_watts{{{G}}})", 50, 1e5), "watt", [(None, DRAW)], decimals=0),
    stat("Emission rate", "Power times intensity, summed over the nodes.",
         Query(f"sum({DRAW_BY_NODE} * on (instance) {INTENSITY_BY_NODE}) / 1000", 1, 1e5), G_PER_H, [(None, INTENSITY)],
         decimals=0),
    stat("Limits below maximum", "How far the limits in force are below the GPUs' maximum. 0 %: no limit is lowered.",
         Query(f"1 - sum(wattune_gpu_power_limit_enforced_watts{{{G}}} and on (instance, gpu_uuid) "
               f"wattune_gpu_power_limit_max_watts) / sum(wattune_gpu_power_limit_max_watts{{{G}}} "
               f"and on (instance, gpu_uuid) wattune_gpu_power_limit_enforced_watts)",
               0, 0.9), "percentunit", [(None, "text"), (0.01, GOOD)], decimals=1),
    stat("Planned saving", "Expected emissions of the plans in force against the same work at the maximum limits, from the "
         "time of each plan to its job's end.",
         Query(f"1 - sum(wattune_job_planned_carbon_gco2e{{{I}}}) / sum(wattune_job_planned_carbon_at_max_gco2e{{{I}}})",
               -0.05, 0.7), "percentunit", [(None, BAD), (0, "text"), (0.01, GOOD)], decimals=1),
]

now = [
    stat("Jobs", "Jobs that have not ended.", Query(f"sum(wattune_jobs{{{I}}})", 1, 100), "none",
         [(None, "text"), (1, GOOD)], graph=False),
    stat("GPUs with an external limit", "GPUs whose limit another program has set. wattune leaves them alone.",
         Query(f"sum(wattune_gpu_external_limit{{{G}}})", 0, 16), "none", [(None, GOOD), (1, FAIR)], graph=False),
    stat("Problems", "Problems that need attention; `wattune status` lists them.",
         Query(f"sum(wattune_problems{{{I}}})", 0, 100), "none", [(None, GOOD), (1, FAIR)], graph=False),
    stat("Energy", "Energy of the GPUs shown, within the time range.",
         Query(f"sum(increase(wattune_gpu_energy_joules_total{{{G}}}[$__range]))", 1e3, 1e13), "joule", [(None, DRAW)],
         graph=False, decimals=2),
    stat("Emissions of jobs", "Emissions of the running jobs so far, by the intensities known now; later values may lower them. "
         "`wattune report` has the ended jobs.",
         Query(f"sum(wattune_job_carbon_gco2e{{{I}}})", 0, 1e8), GRAMS, [(None, INTENSITY)],
         graph=False, decimals=0),
    stat("Solver", "Duration of the last planning run, on the slowest node.",
         Query(f"max(wattune_plan_search_seconds{{{I}}})", 0, 60), "s", [(None, GOOD), (1, FAIR), (10, BAD)]),
]

def saved(bound):
    """Savings of running jobs so far, and of those that ended in the last 30 days."""
    return (f'sum(wattune_job_saved_gco2e{{{I}, bound="{bound}"}} or wattune_ledger_saved_gco2e{{{I}, bound="{bound}"}})')


beside = [
    stat("Saved", "Emissions saved against the same work at the original limits: by running jobs so far, and by jobs that ended in the last "
         "30 days. Jobs with unknown savings are left out.",
         Query(saved("mean"), -1e6, 1e8), GRAMS, [(None, BAD), (0, GOOD)], graph=False, decimals=0),
    stat("Savings unknown", "Jobs that ended in the last 30 days with unknown savings; the account of each states the reason.",
         Query(f'sum(wattune_ledger_saved_jobs{{{I}, known="false"}})', 0, 1e5), "none", [(None, "text")], graph=False),
    stat("CPU draw", "Power of the CPU packages, by their energy counters.",
         Query(f'sum(wattune_cpu_power_watts{{{I}, kind="package"}})', 1, 1e5), "watt", [(None, DRAW)], decimals=0),
    stat("Memory draw", "Power of the memory, where the CPUs report it.",
         Query(f'sum(wattune_cpu_power_watts{{{I}, kind="dram"}})', 0.1, 1e5), "watt", [(None, DRAW)], decimals=0),
    stat("CPU and memory energy", "Energy of CPU packages and memory within the time range.",
         Query(f"sum(increase(wattune_cpu_energy_joules_total{{{I}}}[$__range]))", 1, 1e13), "joule", [(None, DRAW)],
         graph=False, decimals=2),
    stat("Lost energy", "Counter resets within the last 24 hours while no daemon read the counter: the energy before "
         "the reset is not in the ledger.",
         Query(f'sum(wattune_ledger_gaps_last_day{{{I}, energy="unknown"}})', 0, 1000), "none",
         [(None, GOOD), (1, FAIR)], graph=False, decimals=0),
]

course = [
    series("Carbon intensity", "Intensity used for the current slot: the source's value, corrected for its bias.",
           [Query(f"wattune_carbon_planned_with_gco2e_per_kwh{{{I}}}", 10, 1500, "{{instance}}")], G_PER_KWH, GREENNESS,
           width=24, height=7, fill=10, decimals=0),
    series("Draw and limits", "Power, limits in force and maximum limits. Power far below the limit: the limit has no "
           "effect.",
           [Query(f"sum(wattune_gpu_power_watts{{{G}}})", 50, 1e5, "draw"),
            Query(f"sum(wattune_gpu_power_limit_enforced_watts{{{G}}})", 100, 1e5, "limits in force"),
            Query(f"sum(wattune_gpu_power_limit_max_watts{{{G}}})", 100, 1e5, "maximum limits")],
           "watt", [(None, DRAW)], width=24, height=8,
           colors={"draw": DRAW, "limits in force": LIMIT, "maximum limits": CEILING}, dashed=["maximum limits"]),
    series("Draw by kind of device", "GPUs, processor packages and memory.",
           [Query(f"sum(wattune_gpu_power_watts{{{G}}})", 50, 1e5, "gpu"),
            Query(f'sum(wattune_cpu_power_watts{{{I}, kind="package"}})', 1, 1e5, "cpu"),
            Query(f'sum(wattune_cpu_power_watts{{{I}, kind="dram"}})', 0.1, 1e5, "dram")],
           "watt", [(None, DRAW)], colors=KINDS, fill=20, custom={"stacking": {"mode": "normal", "group": "A"}}),
    series("Recorded energy by kind of device", "Energy per step of the graph.",
           [Query(by_kind(f"increase(wattune_ledger_recorded_joules_total{{{I}}}[$__rate_interval])"), 0, 1e13, "{{kind}}",
                  least=3)],
           "joule", [(None, DRAW)], colors=KINDS, fill=20, custom={"stacking": {"mode": "normal", "group": "A"}}),
    timeline("State of each GPU's limit", "job: follows a job's plan. override: set manually. observed: wattune may not set "
             "it. external: set by another program, left alone.",
             [Query(by_state("wattune_gpu_state", G, "state", STATES, "instance, gpu"), 0, 6, "{{instance}} GPU {{gpu}}", 2)],
             STATES),
]


SETTLED = ("final", "provisional", "forecast", "unknown")
ledger = [
    series("Recorded energy", "Energy per step of the graph by owner. unattributed: used by a process of no registered job.",
           [Query(f'sum by (share) (increase(wattune_ledger_recorded_joules_total{{{I}}}[$__rate_interval]))', 0, 1e13,
                  "{{share}}")], "joule", [(None, DRAW)], width=10, height=7, fill=30,
           colors={"job": GOOD, "idle": CEILING, "unattributed": FAIR},
           custom={"stacking": {"mode": "normal", "group": "A"}}),
    bars("Energy of the last 30 days by its intensity", "final: will not change. provisional: may be revised. forecast: no "
         "actual value yet. unknown: no value at all.",
         Query(" or ".join(f'sum by (state) (wattune_ledger_settled_joules{{{I}, state="{state}"}})' for state in SETTLED),
               0, 1e13, "{{state}}"), "joule", [(None, DRAW)], width=8, height=7, min=0, decimals=2),
    stat("Gaps in the ledger", "Times within the last 24 hours in which no daemon read a counter, or the counter was reset.",
         Query(f"sum(wattune_ledger_gaps_last_day{{{I}}})", 0, 1000), "none", [(None, GOOD), (1, FAIR)],
         width=3, height=7, graph=False, decimals=0),
    stat("Ledger less counters", "Difference in all blocks closed since each daemon started. It must be 0.",
         Query(f"sum(wattune_ledger_difference_joules{{{I}}})", 0, 0), "joule", [(None, GOOD), (0.001, BAD)], width=3,
         height=7, graph=False),
]


def each(metric):
    return f"max by (instance, gpu) ({metric}{{{G}}})"


gpus = table(
    "GPUs", "Present readings. Empty: the GPU does not report it.",
    [Query(f"max by (instance, gpu, model) (wattune_gpu_info{{{G}}})", 1, 1, least=2, column="there"),
     Query(by_state("wattune_gpu_state", G, "state", STATES, "instance, gpu"), 0, 6, least=2, column="state"),
     Query(each("wattune_gpu_power_watts"), 5, 1500, least=2, column="draw"),
     Query(each("wattune_gpu_power_limit_enforced_watts"), 50, 1500, least=2, column="limit"),
     Query(each("wattune_gpu_power_limit_wanted_watts"), 50, 1500, least=1, column="wanted"),
     Query(each("wattune_gpu_power_limit_default_watts"), 50, 1500, least=2, column="default"),
     Query(each("wattune_gpu_power_limit_min_watts"), 20, 1500, least=2, column="min"),
     Query(each("wattune_gpu_power_limit_max_watts"), 50, 1500, least=2, column="max"),
     Query(each("wattune_gpu_temperature_celsius"), 10, 110, least=1, column="temperature")],
    {"instance": ("Node", {}), "gpu": ("GPU", {}), "model": ("Model", {}),
     "state": ("State", unit("none", mapping=STATES)), "draw": ("Draw", unit("watt", 0)),
     "limit": ("Limit in force", unit("watt", 0)), "wanted": ("Wanted", unit("watt", 0)),
     "default": ("Default", unit("watt", 0)), "min": ("Minimum", unit("watt", 0)), "max": ("Maximum", unit("watt", 0)),
     "temperature": ("Temperature", unit("celsius", 0, [(None, "text"), (80, FAIR), (90, BAD)]))})


def of_job(metric):
    return f"max by (instance, job_id) ({metric}{{{I}}})"


jobs = table(
    "Jobs", "The dashboard Job shows one job in full.",
    [Query(f"max by (instance, job_id, name) (wattune_job_info{{{I}}})", 1, 1, column="there"),
     Query(of_job("wattune_job_slowdown_ratio"), -0.5, 1, column="slowdown"),
     Query(of_job("wattune_job_max_slowdown_ratio"), 0, 10, column="allowed"),
     Query(of_job("wattune_job_energy_joules_total"), 0, 1e12, column="energy"),
     Query(of_job("wattune_job_carbon_gco2e"), 0, 1e8, column="carbon"),
     Query(f"1 - {of_job('wattune_job_planned_carbon_gco2e')} / {of_job('wattune_job_planned_carbon_at_max_gco2e')}",
           -0.05, 0.7, column="saving"),
     Query(f'max by (instance, job_id) (wattune_job_saved_gco2e{{{I}, bound="mean"}})', -1e6, 1e8, column="saved"),
     Query(of_job("wattune_job_plan_age_seconds"), 0, 1e6, column="age"),
     Query(of_job("wattune_job_broken_promises"), 0, 20, column="warnings")],
    {"instance": ("Node", {}), "name": ("Job", {}), "slowdown": ("Slower so far", unit("percentunit", 2)),
     "allowed": ("Allowed", unit("percentunit", 1)), "energy": ("Energy", unit("joule", 2)),
     "carbon": ("Emissions", unit(GRAMS, 0)),
     "saving": ("Planned saving", unit("percentunit", 1, [(None, BAD), (0, "text"), (0.01, GOOD)])),
     "saved": ("Saved so far", unit(GRAMS, 1, [(None, BAD), (0, GOOD)])),
     "age": ("Plan's age", unit("s", 0, [(None, "text"), (21600, FAIR)])),
     "warnings": ("Broken promises", unit("none", 0, [(None, "text"), (1, FAIR)]))})

DASHBOARD = dashboard(
    "wattune-overview", "wattune / Overview", "Present state: the grid, the GPUs, and what plans save.",
    [variable("instance", "Node", "label_values(wattune_build_info, instance)"),
     variable("gpu", "GPU", 'label_values(wattune_gpu_info{instance=~"$instance"}, gpu)')],
    PANELS := [*glance, *now, *beside, row("Over time"), *course, row("In detail"), gpus, jobs, row("Ledger"), *ledger])
