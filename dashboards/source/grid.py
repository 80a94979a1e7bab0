"""Grid signal: forecasts, actual values, and the skill of the forecasts."""

from panels import *

I = 'instance="$instance"'
BASES = {1: ("source", GOOD), 2: ("local forecaster", "yellow"), 3: ("shape of a day", FAIR), 4: ("constant", BAD)}
BASIS = " or ".join(
    f'max by (instance) (wattune_carbon_basis{{{I}, basis="{name}"}} == 1) * {number}'
    for number, name in enumerate(("source", "local", "daily_shape", "constant"), 1))
ERROR = [(None, GOOD), (0.1, "yellow"), (0.2, FAIR), (0.4, BAD)]
SKILL = [(None, BAD), (0.5, FAIR), (0.8, GOOD)]
FRESH = {0: ("stale", BAD), 1: ("fresh", GOOD)}
YES = {0: ("no", "text"), 1: ("yes", GOOD)}
TROUBLE = {0: ("no", "text"), 1: ("yes", FAIR)}

glance = [
    stat("Carbon intensity", "Intensity of the current slot: the best known value.",
         Query(f"avg(wattune_carbon_intensity_gco2e_per_kwh{{{I}}})", 10, 1500), G_PER_KWH, GREENNESS, decimals=0),
    stat("Signal", "Whether the node has a fresh forecast.",
         Query(f"min(wattune_carbon_signal_fresh{{{I}}})", 0, 1), "none", [(None, BAD), (1, GOOD)], graph=False,
         mappings=words(FRESH)),
    stat("Last valid response", "Time since a source's last valid response.",
         Query(f"max(wattune_carbon_signal_age_seconds{{{I}}})", 0, 1e5), "s", [(None, GOOD), (7200, FAIR), (21600, BAD)],
         graph=False),
    stat("Basis", "local forecaster: extrapolated from actual values. shape of a day: actual values are more than a "
         "day old. constant: no value is known.",
         Query(f"max({BASIS})", 1, 4), "none", [(None, "text")], graph=False, mappings=words(BASES)),
    stat("Weight of the forecast", "Weight of the forecast in plans, by its recent skill: 0 % none, 100 % full.",
         Query(f"avg(wattune_carbon_forecast_followed_ratio{{{I}}})", 0, 1), "percentunit", SKILL, decimals=0),
    stat("Error a day ahead", "Mean absolute percentage error of the last 14 days' forecasts that were available at midnight "
         "(UTC), of the worst source.",
         Query(f'max(wattune_carbon_forecast_error_ratio{{{I}, horizon_h="24"}})', 0, 0.5), "percentunit", ERROR,
         graph=False, decimals=1),
]

course = [
    series("Current slot, and past forecasts for it", "Best known value of the current slot, and the newest forecasts for it "
           "one hour and one day before.",
           [Query(f"avg(wattune_carbon_intensity_gco2e_per_kwh{{{I}}})", 10, 1500, "now"),
            Query(f'avg(wattune_carbon_forecast_gco2e_per_kwh{{{I}, horizon_h="1"}})', 10, 1500, "an hour before"),
            Query(f'avg(wattune_carbon_forecast_gco2e_per_kwh{{{I}, horizon_h="24"}})', 10, 1500, "a day before")],
           G_PER_KWH, GREENNESS, width=24, height=8, decimals=0,
           colors={"now": INTENSITY, "an hour before": "light-blue", "a day before": "blue"}, dashed=["a day before"]),
    series("Actual value, and past forecasts for it", "Latest slot with an actual value, which may be some hours ago. All three "
           "lines are for the same slot.",
           [Query(f"avg(wattune_carbon_outcome_gco2e_per_kwh{{{I}}})", 10, 1500, "actual"),
            Query(f'avg(wattune_carbon_outcome_forecast_gco2e_per_kwh{{{I}, horizon_h="1"}})', 10, 1500, "an hour before"),
            Query(f'avg(wattune_carbon_outcome_forecast_gco2e_per_kwh{{{I}, horizon_h="24"}})', 10, 1500, "a day before")],
           G_PER_KWH, GREENNESS, width=16, height=8, decimals=0,
           colors={"actual": INTENSITY, "an hour before": "light-blue", "a day before": "blue"}, dashed=["a day before"]),
    series("Error of that forecast", "Error for the latest slot with an actual value.",
           [Query(f"avg by (horizon_h) (abs(wattune_carbon_outcome_forecast_gco2e_per_kwh{{{I}}} / on (instance) "
                  f"group_left wattune_carbon_outcome_gco2e_per_kwh{{{I}}} - 1))", 0, 1, "{{horizon_h}} h before")],
           "percentunit", ERROR, width=8, height=8, decimals=1, lines="dashed",
           colors={"1 h before": "light-blue", "24 h before": "blue"}),
]

skill = [
    bars("Error", "Mean absolute percentage error over the last 14 days, by source and hours ahead.",
         Query(f"max by (source, horizon_h) (wattune_carbon_forecast_error_ratio{{{I}}})", 0, 0.5,
               "{{source}}, {{horizon_h}} h ahead"), "percentunit", ERROR, width=6, min=0, decimals=1),
    bars("Bias", "Mean of forecast less actual value over the last 14 days. Plans correct for it.",
         Query(f"max by (source, horizon_h) (wattune_carbon_forecast_bias_gco2e_per_kwh{{{I}}})", -300, 300,
               "{{source}}, {{horizon_h}} h ahead"), G_PER_KWH, [(None, FAIR), (-20, GOOD), (20, FAIR)], width=6, decimals=1),
    bars("Rank correlation", "Whether the forecast knows which hours of a day are cleaner: 1 is perfect, 0 is chance.",
         Query(f"max by (source, horizon_h) (wattune_carbon_forecast_rank_correlation{{{I}}})", -1, 1,
               "{{source}}, {{horizon_h}} h ahead"), "none", SKILL, width=6, min=-1, max=1, decimals=2),
    bars("Caught gain", "Saving of running in each day's six cleanest hours by the forecast, relative to the saving with "
         "perfect foresight.",
         Query(f"max by (source, horizon_h) (wattune_carbon_forecast_caught_gain_ratio{{{I}}})", -1, 1.001,
               "{{source}}, {{horizon_h}} h ahead"), "percentunit", SKILL, width=6, max=1, decimals=0),
]


def of_source(metric):
    return f"max by (instance, source) ({metric}{{{I}}})"


sources = [
    table("Sources", "Chain of sources of the node.",
          [Query(of_source("wattune_carbon_source_followed"), 0, 1, column="followed"),
           Query(of_source("wattune_carbon_source_fresh"), 0, 1, column="fresh"),
           Query(of_source("wattune_carbon_source_failures"), 0, 1e4, column="failures"),
           Query(of_source("wattune_carbon_source_circuit_open"), 0, 1, column="circuit"),
           Query(of_source("wattune_carbon_source_quarantined"), 0, 1, column="held"),
           Query(of_source("wattune_carbon_source_requests_last_hour"), 0, 1000, column="requests"),
           Query(of_source("wattune_carbon_source_requests_allowed_per_hour"), 1, 36000, column="allowed")],
          {"instance": ("Node", {}), "source": ("Source", {}), "followed": ("Active", unit("none", mapping=YES)),
           "fresh": ("Signal", unit("none", mapping=FRESH)),
           "failures": ("Failures in a row", unit("none", 0, [(None, "text"), (1, FAIR), (5, BAD)])),
           "circuit": ("Requested seldom", unit("none", mapping=TROUBLE)),
           "held": ("Jump quarantined", unit("none", mapping=TROUBLE)),
           "requests": ("Requests in an hour", unit("none", 0)), "allowed": ("Allowed", unit("none", 0))},
          width=16, height=7),
    series("Electricity price", "Day-ahead price of the present slot. Negative prices are normal.",
           [Query(f"max by (zone, currency) (wattune_electricity_price_per_mwh{{{I}}})", -1000, 10000,
                  "{{zone}}, {{currency}}")], "suffix: /MWh", [(None, "text"), (0, "blue")], width=8, height=7, decimals=1),
    timeline("Basis of the signal", "A source, or its replacement while no source is good.", [Query(BASIS, 1, 4, "{{instance}}")], BASES, height=5),
    timeline("Origin of the current intensity", "measured and estimated: actual values of the source. forecast: its forecast. "
             "fallback: made by wattune.",
             [Query(" or ".join(f'max by (instance) (wattune_carbon_intensity_origin{{{I}, origin="{name}"}} == 1) * {number}'
                                for number, name in enumerate(
                                    ("measured", "estimated", "forecast", "fallback", "synthetic"), 1)), 1, 5,
                    "{{instance}}")],
             {1: ("measured", GOOD), 2: ("estimated", "light-green"), 3: ("forecast", "blue"), 4: ("fallback", FAIR),
              5: ("synthetic", "text")}, height=5),
]

START = f"max by (instance, duration_h) (wattune_when_start_time_seconds{{{I}}} - on (instance) group_left wattune_present_time_seconds{{{I}}})"

ahead = [
    table("Best starts within a day", "For jobs that can wait: time until the best start, expected reduction of emissions by it, and the "
          "probability that it emits more than starting now. 0 s: start now.",
          [Query(START, -600, 90000, column="wait"),
           Query(f"max by (instance, duration_h) (wattune_when_expected_saving_ratio{{{I}}})", 0, 1, column="saving"),
           Query(f"max by (instance, duration_h) (wattune_when_loss_probability_ratio{{{I}}})", 0, 1, least=0, column="loss")],
          {"duration_h": ("Hours of the job", {}), "wait": ("Starts in", unit("s", 0)),
           "saving": ("Expected saving", unit("percentunit", 1)), "loss": ("Risk of a loss", unit("percentunit", 0))},
          width=12, height=7, sort="Expected saving"),
    series("Expected saving of waiting", "Expected reduction of emissions by the best start within a day, by hours of the job; 0 if it "
           "should start now.",
           [Query(f"max by (duration_h) (wattune_when_expected_saving_ratio{{{I}}})", 0, 1, "{{duration_h}} h")],
           "percentunit", [(None, GOOD)], width=12, height=7, decimals=0),
]

DASHBOARD = dashboard(
    "wattune-grid", "wattune / Grid signal", "Forecasts of the grid, actual values, and the skill of the forecasts.",
    [variable("instance", "Node", "label_values(wattune_carbon_signal_fresh, instance)", multi=False)],
    PANELS := [*glance, row("Forecast against actual"), *course, row("Skill over the last 14 days"), *skill,
               row("Sources"), *sources, row("Windows ahead"), *ahead], since="now-2d")
