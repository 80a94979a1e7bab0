"""Fleet: many nodes."""

from panels import *

I = 'instance=~"$instance"'
FRESH = {0: ("stale", BAD), 1: ("fresh", GOOD)}
MODE = {0: ("observe", FAIR), 1: ("control", GOOD)}
POWER = f"sum by (instance) (wattune_gpu_power_watts{{{I}}})"
LIMITS = f"sum by (instance) (wattune_gpu_power_limit_enforced_watts{{{I}}})"
# Of GPUs that report both: a lost one is no saving.
LARGEST = (f"sum by (instance) (wattune_gpu_power_limit_max_watts{{{I}}} "
           f"and on (instance, gpu_uuid) wattune_gpu_power_limit_enforced_watts)")
BELOW = (f"1 - sum by (instance) (wattune_gpu_power_limit_enforced_watts{{{I}}} "
         f"and on (instance, gpu_uuid) wattune_gpu_power_limit_max_watts) / {LARGEST}")
ANSWERS = {0: ("no", BAD), 1: ("yes", GOOD)}
INTENSITY_BY_NODE = f"max by (instance) (wattune_carbon_planned_with_gco2e_per_kwh{{{I}}})"

glance = [
    stat("Nodes", "Nodes that answered the last scrape.", Query(f"count(wattune_build_info{{{I}}})", 2, 1e4), "none",
         [(None, BAD), (1, GOOD)], graph=False),
    stat("Nodes that do not answer", "Targets of the scrape job `wattune` whose daemon is down or cannot be reached.",
         Query(f'count(up{{job="wattune", {I}}} == 0) or vector(0)', 0, 1e4), "none", [(None, GOOD), (1, BAD)], graph=False),
    stat("Nodes with a stale signal", "Nodes that plan with an old forecast, or with none.",
         Query(f"count(wattune_carbon_signal_fresh{{{I}}}) - sum(wattune_carbon_signal_fresh{{{I}}})", 0, 1e4), "none",
         [(None, GOOD), (1, FAIR)], graph=False),
    stat("GPUs", "All GPUs of the nodes shown.", Query(f"count(wattune_gpu_info{{{I}}})", 2, 1e5), "none", [(None, BAD), (1, "text")],
         graph=False),
    stat("Draw", "Power of all GPUs of the nodes shown.", Query(f"sum(wattune_gpu_power_watts{{{I}}})", 50, 1e7), "watt", [(None, DRAW)], decimals=1),
    stat("Emission rate", "Power times intensity, summed over the nodes.", Query(f"sum({POWER} * on (instance) {INTENSITY_BY_NODE}) / 1000",
                                                                    1, 1e7), G_PER_H, [(None, INTENSITY)], decimals=0),
    stat("Planned saving", "Expected emissions of all plans in force against the same work at the maximum limits.",
         Query(f"1 - sum(wattune_job_planned_carbon_gco2e{{{I}}}) / sum(wattune_job_planned_carbon_at_max_gco2e{{{I}}})",
               -0.05, 0.7), "percentunit", [(None, BAD), (0, "text"), (0.01, GOOD)], decimals=1),
]


def node(metric, how="max"):
    return f"{how} by (instance) ({metric}{{{I}}})"


nodes = table(
    "Nodes", "The dashboard Overview shows one node in full. A node that does not answer has a row without figures.",
    [Query(f'max by (instance) (up{{job="wattune", {I}}})', 0, 1, least=2, column="answers"),
     Query(f"max by (instance, version) (wattune_build_info{{{I}}})", 1, 1, least=2, column="there"),
     Query(node("wattune_control_enabled"), 0, 1, least=2, column="mode"),
     Query(f"count by (instance) (wattune_gpu_info{{{I}}})", 1, 64, least=2, column="gpus"),
     Query(node("wattune_jobs"), 0, 1000, column="jobs"),
     Query(POWER, 20, 1e5, least=2, column="draw"), Query(LIMITS, 50, 1e5, least=2, column="limits"),
     Query(BELOW, 0, 0.9, least=2, column="below"),
     Query(INTENSITY_BY_NODE, 10, 1500, least=2, column="intensity"),
     Query(node("wattune_carbon_signal_fresh"), 0, 1, least=2, column="fresh"),
     Query(node("wattune_gpu_external_limit", "sum"), 0, 64, least=2, column="external"),
     Query(node("wattune_gpu_restore_failed", "sum"), 0, 64, least=2, column="restore"),
     Query(node("wattune_problems"), 0, 100, least=2, column="problems"),
     Query(node("wattune_plan_search_seconds"), 0, 60, column="solver"),
     Query(node("wattune_store_unwritten_intervals"), 0, 1e5, least=2, column="unwritten"),
     Query(node("wattune_ledger_gaps_last_day", "sum"), 0, 1000, least=2, column="gaps")],
    {"instance": ("Node", {}), "answers": ("Answers", unit("none", mapping=ANSWERS)), "version": ("Version", {}), "mode": ("Mode", unit("none", mapping=MODE)),
     "gpus": ("GPUs", unit("none", 0)), "jobs": ("Jobs", unit("none", 0)), "draw": ("Draw", unit("watt", 0)),
     "limits": ("Limits", unit("watt", 0)), "below": ("Below maximum", unit("percentunit", 1)),
     "intensity": ("Intensity", unit(G_PER_KWH, 0, GREENNESS)), "fresh": ("Signal", unit("none", mapping=FRESH)),
     "external": ("External limits", unit("none", 0, [(None, "text"), (1, FAIR)])),
     "restore": ("Not restored", unit("none", 0, [(None, "text"), (1, BAD)])),
     "problems": ("Problems", unit("none", 0, [(None, "text"), (1, FAIR)])),
     "solver": ("Solver", unit("s", 3, [(None, "text"), (1, FAIR), (10, BAD)])),
     "unwritten": ("Unwritten intervals", unit("none", 0, [(None, "text"), (100, FAIR)])),
     "gaps": ("Gaps of the last day", unit("none", 0, [(None, "text"), (1, FAIR)]))}, height=9)

course = [
    series("Draw", "Power of each node's GPUs.", [Query(POWER, 20, 1e5, "{{instance}}", 2)], "watt", [(None, DRAW)], fill=10,
           custom={"stacking": {"mode": "normal", "group": "A"}}),
    series("Carbon intensity", "Intensity that each node uses for the current slot.",
           [Query(INTENSITY_BY_NODE, 10, 1500, "{{instance}}", 2)], G_PER_KWH, GREENNESS, decimals=0),
    series("Limits below maximum", "How far each node's limits in force are below its GPUs' maximum.",
           [Query(BELOW, 0, 0.9, "{{instance}}", 2)], "percentunit", [(None, "text"), (0.01, GOOD)],
           decimals=1),
    series("Energy", "Energy of each node's GPUs per step of the graph.",
           [Query(f"sum by (instance) (increase(wattune_gpu_energy_joules_total{{{I}}}[$__rate_interval]))", 1, 1e12,
                  "{{instance}}", 2)], "joule", [(None, DRAW)], decimals=1),
]

caps = [
    series("Cap and limits", "Cap of each node that has one, and the sum of its GPUs' limits.",
           [Query(node("wattune_node_cap_watts"), 50, 1e5, "{{instance}}: cap"),
            Query(f"{node('wattune_node_limits_watts')} and on (instance) wattune_node_cap_watts{{{I}}}", 50, 1e5,
                  "{{instance}}: limits")], "watt", [(None, LIMIT)], decimals=0),
    series("Room under the cap", "Below zero the cap is exceeded.",
           [Query(node("wattune_node_cap_headroom_watts"), -5, 1e5, "{{instance}}")], "watt", [(None, BAD), (0, GOOD)],
           decimals=0),
    series("Alerts", "Alerts of `prometheus/rules.yml` that fire or are about to.",
           [Query('count by (alertname) (ALERTS{alertname=~"Wattune.+", instance=~"$instance"}) or vector(0)', 0, 1e4,
                  "{{alertname}}")], "none", [(None, GOOD), (1, FAIR)], width=24, height=6, decimals=0,
           custom={"drawStyle": "bars", "fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}),
]

DASHBOARD = dashboard(
    "wattune-fleet", "wattune / Fleet", "Many nodes: which need attention, their power and their emissions.",
    [variable("instance", "Node", "label_values(wattune_build_info, instance)")],
    PANELS := [*glance, nodes, row("Over time"), *course, row("Caps and alerts"), *caps])
