"""What Prometheus scrapes in the check of the dashboards: the demo, a node with boards of the fake driver, jobs, a cap,
recurring jobs and somebody else's limit, and a node whose signal becomes stale."""

import csv
import datetime as dt
import json
import math
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

HOUR = dt.timedelta(hours=1)
BOARD = "GPU-00000000-0000-0000-0000-00000000000{}"


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=20) as answer:
        return answer.read().decode()


def ask(base, method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.loads(answer.read() or "null")
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{method} {path}: {error.code} {error.read().decode()}") from error


def grid_file(path, until, told=True):
    """Three days of a grid with what came, if that is told, and its forecast until some time."""
    hour = dt.datetime.now(dt.timezone.utc).replace(minute=0, second=0, microsecond=0)
    rows, start = [], hour - 72 * HOUR
    while start < until:
        end = min(start + HOUR, until)
        expected = 300 + 120 * math.sin(2 * math.pi * (start.hour - 9) / 24)
        actual = expected * (1 + 0.05 * math.sin(start.timestamp() / 20_000)) if told and end <= hour else None
        rows.append([start.isoformat(), end.isoformat(), f"{expected:.1f}", "" if actual is None else f"{actual:.1f}"])
        start = end
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["timestamp", "to", "forecast", "actual"], *rows])


def price_file(path):
    hour = dt.datetime.now(dt.timezone.utc).replace(minute=0, second=0, microsecond=0)
    rows = [[(hour + n * HOUR).isoformat(), f"{40 + 30 * math.sin(n / 4):.2f}"] for n in range(-2, 24)]
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["timestamp", "price"], *rows])


class Processors(threading.Thread):
    """A package and its memory as the kernel shows them, in plain files whose counters go on."""

    ZONES = {"intel-rapl:0": ("package-0", 60), "intel-rapl:0/intel-rapl:0:0": ("dram", 8)}
    RANGE_UJ = 262_143_328_850

    def __init__(self, root):
        super().__init__(daemon=True)
        self.root, self.stop, self.begun = root, threading.Event(), time.monotonic()
        for zone, (name, _) in self.ZONES.items():
            (root / zone).mkdir(parents=True)
            (root / zone / "name").write_text(name + "\n")
            (root / zone / "max_energy_range_uj").write_text(f"{self.RANGE_UJ}\n")
        self.write()
        self.start()

    def write(self):
        for zone, (_, watts) in self.ZONES.items():
            counter = int((time.monotonic() - self.begun) * watts * 1e6) % self.RANGE_UJ
            fresh = self.root / zone / "energy_uj.new"
            fresh.write_text(f"{counter}\n")
            fresh.rename(self.root / zone / "energy_uj")

    def run(self):
        while not self.stop.wait(0.1):
            self.write()


# What feeds a board: some processor time of its own.
FEEDER = "import time\nwhile True:\n    sum(range(200_000))\n    time.sleep(0.05)\n"


class Job(threading.Thread):
    """A training run that reports twice a second; a lower limit makes it a little slower."""

    def __init__(self, base, name, gpu, **more):
        super().__init__(daemon=True)
        self.base, self.gpu, self.stop = base, gpu, threading.Event()
        self.feeder = subprocess.Popen([sys.executable, "-c", FEEDER])
        body = {"name": name, "gpus": [gpu], "batch_size": 256, "lease_s": 60, "tags": {"team": "vision"},
                "pids": [self.feeder.pid], **more}
        self.id = ask(base, "POST", "/v1/jobs", body)["job_id"]
        self.start()

    def run(self):
        samples, before = 0.0, time.monotonic()
        while not self.stop.wait(0.5):
            try:
                limit = ask(self.base, "GET", f"/v1/gpus/{self.gpu}")["power_limit_enforced_w"]
                now = time.monotonic()
                samples += (now - before) * 1000 * (min(limit, 260) / 300) ** 0.4
                before = now
                ask(self.base, "POST", f"/v1/jobs/{self.id}/progress", {"samples": samples, "at_s": now})
            except (OSError, RuntimeError) as error:
                if not self.stop.is_set():
                    print(f"job {self.id}: {error}", flush=True)


class Scene:
    def __init__(self, wattune, fake_nvml, folder):
        self.wattune, self.fake_nvml, self.folder = wattune, fake_nvml, pathlib.Path(folder)
        self.processes, self.jobs, self.targets = [], [], {}
        self.processors = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for job in self.jobs:
            job.stop.set()
            job.feeder.kill()
        if self.processors:
            self.processors.stop.set()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    def spawn(self, name, command, ready, **environment):
        """Starts a program; `ready` is the URL that answers once it is."""
        log = open(self.folder / f"{name}.log", "w", encoding="utf-8")
        env = {**os.environ, **environment}
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env)
        self.processes.append(process)
        for _ in range(600):
            if process.poll() is not None:
                break
            try:
                get(ready)
                return process
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"{name} does not answer:\n{(self.folder / f'{name}.log').read_text()}")

    def serve(self, name, settings, *flags, **environment):
        folder = self.folder / name
        folder.mkdir()
        config, port = folder / "wattune.toml", free_port()
        config.write_text(settings, encoding="utf-8")
        base = f"http://127.0.0.1:{port}"
        command = [self.wattune, "serve", "--config", config, "--state-dir", folder / "state", "--listen",
                   f"127.0.0.1:{port}", *flags]
        self.spawn(name, command, base + "/readyz", **environment)
        self.targets[name] = f"127.0.0.1:{port}"
        return base

    def demo(self):
        """Ten simulated days within about five minutes, of which the first two matter."""
        port = free_port()
        command = [self.wattune, "demo", "--days", "10", "--duration", "300", "--jobs", "2", "--listen",
                   f"127.0.0.1:{port}"]
        self.spawn("demo", command, f"http://127.0.0.1:{port}/healthz")
        self.targets["demo"] = f"127.0.0.1:{port}"

    def node(self):
        """Three boards of the fake driver and a processor under a cap; a source that answers before one that does not."""
        grid, price = self.folder / "grid.csv", self.folder / "price.csv"
        grid_file(grid, dt.datetime.now(dt.timezone.utc) + 48 * HOUR)
        price_file(price)
        driver = self.folder / "driver"
        driver.mkdir()
        (driver / "boards.json").write_text(json.dumps({"boards": [{}, {}, {"idle": True}]}))
        self.processors = Processors(self.folder / "powercap")
        nobody = f"http://127.0.0.1:{free_port()}"
        settings = f"""
[plan]
shortest_slot_s = 1
dwell_s = 0
[control]
clocks = "off"
tick_s = 0.2
interval_s = 5
[profile]
step_w = 50
settle_s = 0.3
standard_error = 0.02
reference_standard_error = 0.02
[cpu]
powercap_root = "{self.folder / "powercap"}"
[cap]
limit_w = 850
[carbon]
source = ["file", "uk_carbon_intensity"]
zone = "GB"
poll_interval_s = 1
[carbon.file]
path = "{grid}"
kind = "average"
scope = "operational"
[carbon.uk_carbon_intensity]
base_url = "{nobody}"
[price]
source = "file"
[price.file]
path = "{price}"
"""
        flags = ("--gpus", "nvml", "--nvml-library", str(self.fake_nvml))
        base = self.serve("node", settings, *flags, FAKE_NVML_DIR=str(driver))
        self.jobs.append(Job(base, "resnet50", 0, work={"total_samples": 1e8}, objective={"max_slowdown": 0.05}))
        self.jobs.append(Job(base, "bert", 1))
        self.recurring(base)
        return base

    def recurring(self, base):
        """A recurring job that has tried its batch sizes some times."""
        spec = {"batch_sizes": [32, 64, 128, 256], "default_batch_size": 128, "max_epochs": 100, "target_metric": 0.6,
                "max_power_w": 300, "objective": "carbon", "reference_g_per_kwh": 400, "seed": 1}
        ask(base, "PUT", "/v1/recurring/nightly", spec)
        for _ in range(12):
            trial = ask(base, "POST", "/v1/recurring/nightly/trials", {})
            path, size = f"/v1/recurring/nightly/trials/{trial['number']}", trial["batch_size"]
            seconds = 4000 + 20 * abs(size - 100)
            for epoch in range(1, 11):
                told = ask(base, "POST", path + "/progress", {
                    "epochs": epoch, "energy_j": seconds * 25 * epoch, "time_s": seconds * epoch / 10,
                    "metric": 0.061 * epoch})
                if told["stop"]:
                    break
            ask(base, "POST", path + "/end", {})
        ask(base, "POST", "/v1/recurring/nightly/trials", {})

    def meddle(self, base):
        """Somebody else sets the limit of a board that a job holds. Does nothing before wattune has set it."""
        gpu = ask(base, "GET", "/v1/gpus/1")
        if gpu["state"] == "external":
            return True
        if gpu["power_limit_original_w"] is not None:
            state = self.folder / "driver" / "state" / f"{BOARD.format(1)}.txt"
            lines = state.read_text().splitlines()
            lines = ["limit_mw=225000" if line.startswith("limit_mw=") else line for line in lines]
            fresh = state.with_suffix(".new")
            fresh.write_text("\n".join(lines) + "\n")
            fresh.rename(state)
        return False

    def ageing(self):
        """A node whose forecast ends soon."""
        grid = self.folder / "ending.csv"
        grid_file(grid, dt.datetime.now(dt.timezone.utc) + dt.timedelta(seconds=20), told=False)
        settings = f"""
[gpus]
backend = "simulated"
[carbon]
source = "file"
poll_interval_s = 1
[carbon.file]
path = "{grid}"
"""
        return self.serve("ageing", settings)
