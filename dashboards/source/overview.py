"""Overview: what happens now on the nodes, and what it comes to."""

from panels import *

I = 'instance=~"$instance"'
G = f'{I}, gpu=~"$gpu"'
STATES = {
    0: ("free", "text"), 1: ("job", GOOD), 2: ("override", "blue"), 3: ("observed", "yellow"), 4: ("foreign", FAIR),
    5: ("lost", BAD), 6: ("unresponsive", BAD),
}


def by_state(metric, labels, key, states, by):
    """One number for each series: which of its states holds."""
    return " or ".join(
        f'max by ({by}) ({metric}{{{labels}, {key}="{name}"}} == 1) * {number}' for number, (name, _) in states.items())


DRAW_BY_NODE = f"sum by (instance) (wattune_gpu_power_watts{{{G}}})"
INTENSITY_BY_NODE = f"max by (instance) (wattune_carbon_planned_with_gco2e_per_kwh{{{I}}})"

glance = [
    stat("Carbon intensity", "What the present is reckoned with, averaged over the nodes shown. Green below 200 g/kWh.",
         Query(f"avg(wattune_carbon_planned_with_gco2e_per_kwh{{{I}}})", 10, 1500), G_PER_KWH, GREENNESS, decimals=0),
    stat("Signal", "Whether every node has a fresh forecast. Stale: plans go on from the last one, or from the local "
         "forecaster; the dashboard Grid signal says which.",
         Query(f"min(wattune_carbon_signal_fresh{{{I}}})", 0, 1), "none", [(None, BAD), (1, GOOD)], graph=False,
         mappings=words({0: ("stale", BAD), 1: ("fresh", GOOD)})),
    stat("Draw", "Power of the GPUs shown, as their sensors tell it.",
         Query(f"sum(wattune_gpu_power_watts{{{G}}})", 50, 1e5), "watt", [(None, DRAW)], decimals=0),
    stat("Emitting", "Draw times the intensity of each node.",
         Query(f"sum({DRAW_BY_NODE} * on (instance) {INTENSITY_BY_NODE}) / 1000", 1, 1e5), G_PER_H, [(None, INTENSITY)],
         decimals=0),
    stat("Limits below maximum", "How far the limits in force are below what the boards allow. 0 %: nothing is held down.",
         Query(f"1 - sum(wattune_gpu_power_limit_enforced_watts{{{G}}} and on (instance, gpu_uuid) "
               f"wattune_gpu_power_limit_max_watts) / sum(wattune_gpu_power_limit_max_watts{{{G}}} "
               f"and on (instance, gpu_uuid) wattune_gpu_power_limit_enforced_watts)",
               0, 0.9), "percentunit", [(None, "text"), (0.01, GOOD)], decimals=1),
    stat("Planned saving", "How much less carbon the plans in force expect than the same work at the largest limits, from "
         "when each plan was made to its job's end.",
         Query(f"1 - sum(wattune_job_planned_carbon_gco2e{{{I}}}) / sum(wattune_job_planned_carbon_at_max_gco2e{{{I}}})",
               -0.05, 0.7), "percentunit", [(None, BAD), (0, "text"), (0.01, GOOD)], decimals=1),
]

now = [
    stat("Jobs", "Jobs that have not ended.", Query(f"sum(wattune_jobs{{{I}}})", 1, 100), "none",
         [(None, "text"), (1, GOOD)], graph=False),
    stat("GPUs left to others", "Boards whose limit somebody else has set. wattune leaves them alone.",
         Query(f"sum(wattune_gpu_foreign_limit{{{G}}})", 0, 16), "none", [(None, GOOD), (1, FAIR)], graph=False),
    stat("Problems", "What somebody should look at; `wattune status` says what.",
         Query(f"sum(wattune_problems{{{I}}})", 0, 100), "none", [(None, GOOD), (1, FAIR)], graph=False),
    stat("Energy", "Of the GPUs shown, within the time range.",
         Query(f"sum(increase(wattune_gpu_energy_joules_total{{{G}}}[$__range]))", 1e3, 1e13), "joule", [(None, DRAW)],
         graph=False, decimals=2),
    stat("Emissions of jobs", "Of the jobs that run, since each began, by the intensities known now: it may fall where these "
         "do. `wattune report` has those that ended.",
         Query(f"sum(wattune_job_carbon_gco2e{{{I}}})", 0, 1e8), GRAMS, [(None, INTENSITY)],
         graph=False, decimals=0),
    stat("Solver", "How long the last search for plans took, on the slowest node.",
         Query(f"max(wattune_plan_search_seconds{{{I}}})", 0, 60), "s", [(None, GOOD), (1, FAIR), (10, BAD)]),
]

def saved(bound):
    """What running jobs saved so far, and those did that ended in the last 30 days."""
    return (f'sum(wattune_job_saved_gco2e{{{I}, bound="{bound}"}} or wattune_ledger_saved_gco2e{{{I}, bound="{bound}"}})')


beside = [
    stat("Saved", "Against the same work at the limits found on the boards: by jobs that run, so far, and by those that ended in the last "
         "30 days. Only jobs of which it is known.",
         Query(saved("mean"), -1e6, 1e8), GRAMS, [(None, BAD), (0, GOOD)], graph=False, decimals=0),
    stat("Savings unknown", "Jobs that ended in the last 30 days of which nobody can tell what they saved; each one's account "
         "says why.",
         Query(f'sum(wattune_ledger_saved_jobs{{{I}, known="false"}})', 0, 1e5), "none", [(None, "text")], graph=False),
    stat("CPU draw", "Of the processor packages, as their counters tell it.",
         Query(f'sum(wattune_cpu_power_watts{{{I}, kind="package"}})', 1, 1e5), "watt", [(None, DRAW)], decimals=0),
    stat("Memory draw", "Of the memory, where the processors tell it.",
         Query(f'sum(wattune_cpu_power_watts{{{I}, kind="dram"}})', 0.1, 1e5), "watt", [(None, DRAW)], decimals=0),
    stat("CPU and memory energy", "Within the time range.",
         Query(f"sum(increase(wattune_cpu_energy_joules_total{{{I}}}[$__range]))", 1, 1e13), "joule", [(None, DRAW)],
         graph=False, decimals=2),
    stat("Energy that nothing tells", "Times of the last 24 hours in which a counter was reset while nobody looked: what it "
         "had counted before is in no book.",
         Query(f'sum(wattune_ledger_gaps_last_day{{{I}, energy="unknown"}})', 0, 1000), "none",
         [(None, GOOD), (1, FAIR)], graph=False, decimals=0),
]

course = [
    series("Carbon intensity", "What the present is reckoned with: what the source says, corrected for its bias.",
           [Query(f"wattune_carbon_planned_with_gco2e_per_kwh{{{I}}}", 10, 1500, "{{instance}}")], G_PER_KWH, GREENNESS,
           width=24, height=7, fill=10, decimals=0),
    series("Draw and limits", "Draw under the limits in force, and what the boards would allow. Draw far below the limit: "
           "the limit changes nothing.",
           [Query(f"sum(wattune_gpu_power_watts{{{G}}})", 50, 1e5, "draw"),
            Query(f"sum(wattune_gpu_power_limit_enforced_watts{{{G}}})", 100, 1e5, "limits in force"),
            Query(f"sum(wattune_gpu_power_limit_max_watts{{{G}}})", 100, 1e5, "largest limits")],
           "watt", [(None, DRAW)], width=24, height=8,
           colors={"draw": DRAW, "limits in force": LIMIT, "largest limits": CEILING}, dashed=["largest limits"]),
    series("Draw by kind of device", "GPUs, processor packages and memory.",
           [Query(f"sum(wattune_gpu_power_watts{{{G}}})", 50, 1e5, "gpu"),
            Query(f'sum(wattune_cpu_power_watts{{{I}, kind="package"}})', 1, 1e5, "cpu"),
            Query(f'sum(wattune_cpu_power_watts{{{I}, kind="dram"}})', 0.1, 1e5, "dram")],
           "watt", [(None, DRAW)], colors=KINDS, fill=20, custom={"stacking": {"mode": "normal", "group": "A"}}),
    series("Booked energy by kind of device", "For each step of the graph.",
           [Query(by_kind(f"increase(wattune_ledger_booked_joules_total{{{I}}}[$__rate_interval])"), 0, 1e13, "{{kind}}",
                  least=3)],
           "joule", [(None, DRAW)], colors=KINDS, fill=20, custom={"stacking": {"mode": "normal", "group": "A"}}),
    timeline("Who decides on each GPU", "job: wattune follows a job's plan. override: set by hand. observed: may not be "
             "set. foreign: somebody else's limit, left alone.",
             [Query(by_state("wattune_gpu_state", G, "state", STATES, "instance, gpu"), 0, 6, "{{instance}} GPU {{gpu}}", 2)],
             STATES),
]


SETTLED = ("final", "provisional", "forecast", "unknown")
books = [
    series("Booked energy", "For each step of the graph, by whom it belongs to. unattributed: a process that nobody registered.",
           [Query(f'sum by (share) (increase(wattune_ledger_booked_joules_total{{{I}}}[$__rate_interval]))', 0, 1e13,
                  "{{share}}")], "joule", [(None, DRAW)], width=10, height=7, fill=30,
           colors={"job": GOOD, "idle": CEILING, "unattributed": FAIR},
           custom={"stacking": {"mode": "normal", "group": "A"}}),
    bars("Settled energy of the last 30 days", "By what is known of its intensity. final: changes no more. provisional: may "
         "be revised. forecast: what came is not known yet. unknown: nothing is known.",
         Query(" or ".join(f'sum by (state) (wattune_ledger_settled_joules{{{I}, state="{state}"}})' for state in SETTLED),
               0, 1e13, "{{state}}"), "joule", [(None, DRAW)], width=8, height=7, min=0, decimals=2),
    stat("Gaps in the books", "Of the last 24 hours, found by whichever daemon: times in which nobody watched a counter, or it "
         "lost what it had counted.",
         Query(f"sum(wattune_ledger_gaps_last_day{{{I}}})", 0, 1000), "none", [(None, GOOD), (1, FAIR)],
         width=3, height=7, graph=False, decimals=0),
    stat("Books less counters", "In all blocks closed since each daemon started. Anything but 0 is wrong.",
         Query(f"sum(wattune_ledger_difference_joules{{{I}}})", 0, 0), "joule", [(None, GOOD), (0.001, BAD)], width=3,
         height=7, graph=False),
]


def each(metric):
    return f"max by (instance, gpu) ({metric}{{{G}}})"


gpus = table(
    "GPUs", "What the hardware says now. Empty: the board does not tell.",
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
     "default": ("Default", unit("watt", 0)), "min": ("Lowest", unit("watt", 0)), "max": ("Largest", unit("watt", 0)),
     "temperature": ("Temperature", unit("celsius", 0, [(None, "text"), (80, FAIR), (90, BAD)]))})


def of_job(metric):
    return f"max by (instance, job_id) ({metric}{{{I}}})"


jobs = table(
    "Jobs", "The dashboard Job shows one of them in full.",
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
    "wattune-overview", "wattune / Overview", "What wattune does now: the grid, the GPUs under it, and what plans save.",
    [variable("instance", "Node", "label_values(wattune_build_info, instance)"),
     variable("gpu", "GPU", 'label_values(wattune_gpu_info{instance=~"$instance"}, gpu)')],
    PANELS := [*glance, *now, *beside, row("Over time"), *course, row("In detail"), gpus, jobs, row("Books"), *books])
