"""Bandit: the policy's estimates for the batch sizes of recurring jobs."""

from panels import *

R = 'instance=~"$instance", recurring="$recurring"'
STAGES = {1: ("exploring", "blue"), 2: ("exploiting", GOOD), 3: ("none converges", BAD)}
STAGE = " or ".join(
    f'max by (instance, recurring) (wattune_recurring_stage{{{R}, stage="{name}"}} == 1) * {number}'
    for number, name in enumerate(("exploring", "exploiting", "none_converges"), 1))
# Nodes may have recurring jobs of the same name: each has estimates of its own.
ARM = "instance, recurring, batch_size"
YES = {0: ("", "text"), 1: ("favourite", GOOD)}


def arm(metric):
    return f"max by ({ARM}) ({metric}{{{R}}})"


MEAN, DEVIATION = arm("wattune_recurring_mean_cost_joules"), arm("wattune_recurring_cost_deviation_joules")

glance = [
    stat("Stage", "exploring: batch sizes are still tried. exploiting: trials use the estimates. none converges: no batch size "
         "reached its target.",
         Query(f"max({STAGE})", 1, 3), "none", [(None, "text")], graph=False, mappings=words(STAGES)),
    stat("Favourite batch size", "Batch size with the lowest expected cost.",
         Query(f"max by ({ARM}) (wattune_recurring_favourite{{{R}}}) == 1", 1, 1, "{{batch_size}}"), "none",
         [(None, GOOD)], graph=False, text="name"),
    stat("Trials", "Trials of the recurring job shown, ended ones included.",
         Query(f"sum(wattune_recurring_trials{{{R}}})", 1, 1e6), "none", [(None, "text"), (1, "blue")], graph=False),
    stat("Running", "Trials that run now.", Query(f"sum(wattune_recurring_trials_running{{{R}}})", 0, 1000), "none",
         [(None, "text"), (1, GOOD)], graph=False),
    stat("Expected cost", "Expected cost of a trial of the favourite: eta times energy plus (1 − eta) times maximum power times "
         "duration.",
         Query(f"min(({MEAN}) and on ({ARM}) ({arm('wattune_recurring_favourite')} == 1))", 1, 1e12), "joule",
         [(None, "blue")], graph=False, decimals=2),
    stat("Relative uncertainty", "Standard deviation of the favourite's expected cost, relative to it.",
         Query(f"max(({DEVIATION} / {MEAN}) and on ({ARM}) ({arm('wattune_recurring_favourite')} == 1))", 0, 2),
         "percentunit", [(None, GOOD), (0.1, "yellow"), (0.3, FAIR)], graph=False, decimals=1),
]

beliefs = [
    series("Expected cost of a trial", "Estimated mean for each batch size; lower is better.",
           [Query(MEAN, 1, 1e12, "{{batch_size}} on {{instance}}")], "joule", [(None, "blue")], width=12, height=9),
    series("Uncertainty", "Standard deviation of that mean. It falls with each trial.",
           [Query(DEVIATION, 0, 1e12, "{{batch_size}} on {{instance}}")], "joule", [(None, "blue")], width=12, height=9),
    bars("Expected cost now", "Estimated mean for each batch size; without a trial it is inferred from neighbours, or absent.",
         Query(MEAN, 1, 1e12, "{{batch_size}} on {{instance}}"), "joule", [(None, "blue")], width=12, min=0, decimals=2),
    bars("Trials with a result", "Number of trials of each batch size.",
         Query(arm("wattune_recurring_pulls"), 0, 1e6, "{{batch_size}} on {{instance}}"), "none",
         [(None, "text"), (1, "blue")], width=12, min=0, decimals=0),
]

posterior = table(
    "Posterior", "All estimates, by batch size.",
    [Query(arm("wattune_recurring_favourite"), 0, 1, column="favourite"),
     Query(MEAN, 1, 1e12, column="mean"), Query(DEVIATION, 0, 1e12, column="deviation"),
     Query(arm("wattune_recurring_mean_carbon_gco2e"), 0, 1e9, column="carbon"),
     Query(arm("wattune_recurring_pulls"), 0, 1e6, column="pulls"),
     Query(f"{arm('wattune_recurring_reached')} / ({arm('wattune_recurring_pulls')} > 0)", 0, 1, column="reached")],
    {"instance": ("Node", {}), "batch_size": ("Batch size", {}),
     "favourite": ("Favourite", unit("none", mapping=YES)), "mean": ("Expected cost", unit("joule", 2)),
     "deviation": ("Standard deviation", unit("joule", 2)), "carbon": ("Expected carbon", unit(GRAMS, 0)),
     "pulls": ("Trials", unit("none", 0)),
     "reached": ("Reached the target", unit("percentunit", 0, [(None, BAD), (0.5, FAIR), (0.9, GOOD)]))}, height=9)

course = [
    series("Favourite", "1 for the batch size with the lowest expected cost.",
           [Query(f"max by ({ARM}) (wattune_recurring_favourite{{{R}}})", 0, 1, "{{batch_size}} on {{instance}}")], "none",
           [(None, "text"), (1, GOOD)], width=16, height=6, max=1, decimals=0,
           custom={"lineInterpolation": "stepAfter", "fillOpacity": 20}),
    stat("Recurring jobs", "Recurring jobs of the nodes shown.",
         Query('sum(wattune_recurring_jobs{instance=~"$instance"})', 1, 1e6), "none", [(None, "text"), (1, "blue")],
         graph=False),
    stat("Left out", "Recurring jobs without series because of the limit on series. The API has all of them.",
         Query('sum(wattune_recurring_jobs_left_out{instance=~"$instance"})', 0, 1e6), "none", [(None, "text"), (1, FAIR)],
         graph=False),
]

DASHBOARD = dashboard(
    "wattune-bandit", "wattune / Bandit", "Batch sizes of a recurring job, and the certainty of the choice.",
    [variable("instance", "Node", "label_values(wattune_recurring_jobs, instance)"),
     variable("recurring", "Recurring job", 'label_values(wattune_recurring_trials{instance=~"$instance"}, recurring)',
              multi=False)],
    PANELS := [*glance, row("Estimates"), *beliefs, posterior, row("History"), *course], since="now-7d")
