#!/usr/bin/env python3
"""Every query of every dashboard and rule, asked of a real Prometheus that scrapes real daemons.

    tests/dashboards/check.py WATTUNE LIBFAKE_NVML

Needs `prometheus` and `promtool` in the path. Each query must give at least as many series as
`dashboards/queries.json` says, each value within the range given there; a query without a range fails, as does a range
without a query. Recording rules have theirs in `dashboards/prometheus/ranges.json`.
"""

import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse

sys.dont_write_bytecode = True
import scene  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "dashboards"
RULES = DASHBOARDS / "prometheus" / "rules.yml"
# What Grafana puts in: everything is shown, and a minute is looked at.
SUBSTITUTES = {"__range": "60s", "__rate_interval": "15s", "__interval": "5s", "__range_s": "60"}
# What the scene must set off, by node, and what it must not.
ACTIVE = {
    ("WattuneExternalLimit", "node"), ("WattuneSignalStale", "ageing"), ("WattuneDown", "gone"),
    ("WattuneSourceFailing", "node"), ("WattuneProblems", "demo"),
}
QUIET = {
    "WattuneRestoreFailed", "WattuneLedgerNotWritten", "WattuneJournalNotWritten", "WattuneNodeCapExceeded",
    "WattuneLimitExceeded", "WattuneSearchLate", "WattuneGpuSilent", "WattuneEnergyImplausible",
    "WattuneLedgerEnergyUnknown",
}
PATIENCE_S = 240

failures = []


def fail(text):
    failures.append(text)
    print(f"FAILED  {text}", flush=True)


def promtool(*arguments, **more):
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False, **more)
    said = (done.stdout + done.stderr).strip()
    if done.returncode != 0:
        fail(f"promtool {' '.join(map(str, arguments[:2]))}: {said}")
    return said


class Prometheus:
    def __init__(self, base):
        self.base = base

    def ask(self, path, **parameters):
        query = urllib.parse.urlencode(parameters, doseq=True)
        try:
            return json.loads(scene.get(f"{self.base}/api/v1/{path}?{query}"))["data"]
        except OSError as error:
            body = error.read().decode() if hasattr(error, "read") else ""
            raise RuntimeError(f"{error} {body}") from error

    def instant(self, expr):
        found = self.ask("query", query=expr)
        return found["result"] if found["resultType"] == "vector" else [{"metric": {}, "value": found["result"]}]

    def over_time(self, expr):
        now = time.time()
        return self.ask("query_range", query=expr, start=now - 20, end=now, step=5)["result"]


def start_prometheus(stage, folder):
    port, gone = scene.free_port(), scene.free_port()
    names = {**stage.targets, "gone": f"127.0.0.1:{gone}"}
    targets = "".join(
        f'      - targets: ["{address}"]\n        labels: {{instance: "{name}"}}\n' for name, address in names.items())
    config = folder / "prometheus.yml"
    config.write_text(f"""
global:
  scrape_interval: 1s
  evaluation_interval: 1s
rule_files: ["{RULES}"]
scrape_configs:
  - job_name: wattune
    static_configs:
{targets}""", encoding="utf-8")
    promtool("check", "config", config)
    base = f"http://127.0.0.1:{port}"
    stage.spawn("prometheus", ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}",
                               f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"], base + "/-/ready")
    return Prometheus(base)


def fill(text, variables):
    known = {**SUBSTITUTES, **variables}
    return re.sub(r"\$\{?([A-Za-z_]\w*)\}?", lambda match: known[match[1]], text)


def check_values(what, found, least, low, high):
    check_range(what, found, low, high)
    if len(found) < least:
        fail(f"{what}: {len(found)} series, at least {least} expected")


def check_range(what, found, low, high):
    for series in found:
        points = [series["value"]] if "value" in series else series["values"]
        for _, text in points:
            value = float(text)
            # Written so that a value that is no number fails too.
            if not (low <= value <= high and math.isfinite(value)):
                return fail(f"{what}: {value} is not within {low} to {high} {series['metric']}")
    return None


def choices(prometheus, name, variables, chosen):
    """What may be chosen on a dashboard: every variable's values are asked for as Grafana does; all are shown together, or
    one after the other where one is chosen."""
    if not variables:
        yield chosen
        return
    variable, *rest = variables
    match = re.fullmatch(r"label_values\((.+), *(\w+)\)", fill(variable["query"]["query"], chosen))
    if not match:
        fail(f"{name}: the variable {variable['name']} is not understood: {variable['query']['query']}")
        return
    values = prometheus.ask(f"label/{match[2]}/values", **{"match[]": match[1], "start": time.time() - 60})
    if not values:
        fail(f"{name}: the variable {variable['name']} has no value")
    if variable["multi"]:
        # Grafana escapes values for regular expressions, not the text that stands for all.
        escaped = (re.sub(r"[$^*{}\[\]+?.()|]", r"\\\\\g<0>", value.replace("\\", "\\" * 4)) for value in values)
        values = [variable.get("allValue") or "(" + "|".join(escaped) + ")"]
    for value in values:
        yield from choices(prometheus, name, rest, {**chosen, variable["name"]: value})


def check_dashboards(prometheus, report):
    stated = {(q["dashboard"], q["panel"], q["expr"]): q for q in json.loads((DASHBOARDS / "queries.json").read_text())}
    asked = set()
    for path in sorted((DASHBOARDS / "grafana").glob("*.json")):
        dashboard = json.loads(path.read_text())
        chosen = list(choices(prometheus, path.stem, dashboard["templating"]["list"][1:], {}))
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                key = (path.stem, panel["title"], target["expr"])
                what = f"{path.stem} / {panel['title']} / {target['refId']}"
                asked.add(key)
                if key not in stated:
                    report(f"{what}: no range is stated for {target['expr']}")
                    continue
                q, most = stated[key], 0
                # Where one node or job is chosen, not each of them has everything.
                for one in chosen:
                    expr = fill(target["expr"], one)
                    try:
                        found = prometheus.instant(expr) if target["instant"] else prometheus.over_time(expr)
                        check_range(what, found, q["low"], q["high"])
                        most = max(most, len(found))
                    except RuntimeError as error:
                        report(f"{what}: {error}")
                if most < q["series"]:
                    report(f"{what}: {most} series, at least {q['series']} expected")
    for key in stated.keys() - asked:
        report(f"a range is stated for what nobody asks: {key}")
    return len(asked)


def check_rules(prometheus):
    ranges = json.loads((DASHBOARDS / "prometheus" / "ranges.json").read_text())
    rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
    recorded = {rule["name"] for rule in rules if rule["type"] == "recording"}
    if recorded != set(ranges):
        fail(f"recording rules and ranges.json differ: {recorded ^ set(ranges)}")
    for rule in rules:
        if rule["health"] != "ok":
            fail(f"rule {rule['name']}: {rule['health']} {rule.get('lastError', '')}")
    for name, (low, high) in ranges.items():
        check_values(f"rule {name}", prometheus.instant(name), 1, low, high)
    active = {(a["labels"]["alertname"], a["labels"].get("instance", "")) for a in prometheus.ask("alerts")["alerts"]}
    for missing in ACTIVE - active:
        fail(f"alert {missing[0]} is not active for {missing[1]}")
    for name, instance in active:
        if name in QUIET:
            fail(f"alert {name} is active for {instance}")
    return len(rules), len(active)


def wait_for(prometheus, stage, node):
    """Waits until the scene is complete: whatever comes last in the demo and on the nodes."""
    wanted = [
        'count(wattune_carbon_forecast_rank_correlation{instance="demo", horizon_h="24"})',
        'count(wattune_carbon_outcome_forecast_gco2e_per_kwh{instance="demo", horizon_h="24"})',
        'count(wattune_job_planned_carbon_gco2e{instance="node"})',
        'count(wattune_job_slowdown_ratio{instance="demo"})',
        'count(wattune_gpu_external_limit{instance="node"} == 1)',
        'count(wattune_carbon_signal_fresh{instance="ageing"} == 0)',
        'count(wattune_carbon_source_circuit_open{instance="node"} == 1)',
        'count(instance_job:wattune_energy_per_sample_joules:rate5m)',
    ]
    begun = time.monotonic()
    while time.monotonic() - begun < PATIENCE_S:
        stage.meddle(node)
        wanted = [expr for expr in wanted if not prometheus.instant(expr)]
        if not wanted:
            # Rates and ranges need some samples more.
            time.sleep(20)
            return
        time.sleep(1)
    for expr in wanted:
        fail(f"not seen within {PATIENCE_S} s: {expr}")


def main():
    wattune, fake_nvml = (pathlib.Path(a).resolve() for a in sys.argv[1:3])
    subprocess.run([sys.executable, DASHBOARDS / "generate.py", "--check"], check=True)
    print(promtool("check", "rules", RULES))
    print(promtool("test", "rules", "rules_test.yml", cwd=RULES.parent))
    promtool("check", "config", DASHBOARDS / "prometheus" / "prometheus.yml")
    with tempfile.TemporaryDirectory() as folder, scene.Scene(wattune, fake_nvml, folder) as stage:
        stage.demo()
        node = stage.node()
        stage.ageing()
        prometheus = start_prometheus(stage, pathlib.Path(folder))
        wait_for(prometheus, stage, node)
        for name, address in stage.targets.items():
            said = promtool("check", "metrics", input=scene.get(f"http://{address}/metrics"))
            if said:
                fail(f"promtool check metrics of {name}: {said}")
        queries = check_dashboards(prometheus, fail)
        rules, active = check_rules(prometheus)
        print(f"{queries} queries of dashboards, {rules} rules, {active} active alerts")
        if failures:
            for log in pathlib.Path(folder).glob("*.log"):
                print(f"--- {log.name}\n{log.read_text()[-2000:]}")
    if failures:
        sys.exit(f"{len(failures)} failures")


if __name__ == "__main__":
    main()
