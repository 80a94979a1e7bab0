#!/usr/bin/env python3
"""Measures what the Python client costs the training thread, beside Zeus and CodeCarbon, in one run.

    benches/client_overhead.py WATTUNE LIBRARY [STEPS]     default 20000; needs the package registry of pip

WATTUNE is the daemon's binary, LIBRARY the fake driver library (tests/fake_nvml). Makes a virtual environment of its own
for Zeus and CodeCarbon, and runs each of the measured calls in a process of its own, between two pieces of work of about
a millisecond each, as in a training loop. Prints p50 and p99.9, and fails where the client's p50 misses its bound. On a
machine with other work, compare p99.9 with that of an add and a clock.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ["zeus==0.16.0", "codecarbon==3.3.2"]
BOUND_S = 5e-6

SETTINGS = """
state_dir = "{folder}/state"
[gpus]
backend = "nvml"
[gpus.nvml]
library = "{library}"
[carbon]
source = "fixed"
[http]
listen = "off"
socket = "{folder}/d.sock"
"""


def measure(call, steps):
    """Returns the durations of a call, in seconds, each after about a millisecond of other work. Takes half a minute."""
    taken = []
    ends = time.perf_counter() + 30.0
    for _ in range(steps):
        if time.perf_counter() > ends and len(taken) > 10:
            break
        until = time.perf_counter() + 1e-3
        while time.perf_counter() < until:
            sum(range(500))
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return taken


def nothing():
    """Measures the measurement itself."""
    return lambda: None


def stand_in():
    """Measures what a step must do at least, without wattune: the rest of its tail is the machine's."""
    count = [(0, 0.0)]

    def call():
        count[0] = (count[0][0] + 32, time.monotonic())

    return call


def step():
    """Counts a batch with wattune's client."""
    import wattune

    job = wattune.job("bench", total_samples=1e9, batch_size=32, gpus=[0]).start()
    while job.phase is None:
        time.sleep(0.01)
    return lambda: job.step(32)


def wattune_window():
    """Measures a window with the client's drop-in for Zeus."""
    from wattune.zeus import ZeusMonitor

    return window(ZeusMonitor(gpu_indices=[0]))


def zeus_window():
    """Measures a window with Zeus."""
    from zeus.monitor import ZeusMonitor

    return window(ZeusMonitor(gpu_indices=[0], cpu_indices=[]))


def window(monitor):
    """Returns a call that ends a window and begins the next one."""
    monitor.begin_window("step", sync_execution=False)

    def call():
        monitor.end_window("step", sync_execution=False)
        monitor.begin_window("step", sync_execution=False)

    return call


def wattune_task():
    """Measures a task with the client's drop-in for CodeCarbon."""
    from wattune.codecarbon import EmissionsTracker

    return task(EmissionsTracker(save_to_file=False))


def codecarbon_task():
    """Measures a task with CodeCarbon, which needs no network here: the intensity is given."""
    from codecarbon import OfflineEmissionsTracker

    tracker = OfflineEmissionsTracker(
        country_iso_code="DEU", output_methods=[], log_level="error", force_carbon_intensity_g_co2e_kwh=300
    )
    return task(tracker)


def task(tracker):
    """Returns a call that measures a task."""

    def call():
        tracker.start_task()
        tracker.stop_task()

    return call


# Name, function, and by what to divide the number of calls, of which the slower ones need fewer.
CASES = [
    ("nothing", nothing, 1),
    ("an add and a clock", stand_in, 1),
    ("wattune job.step", step, 1),
    ("zeus.monitor window", zeus_window, 20),
    ("wattune.zeus window", wattune_window, 20),
    ("codecarbon task", codecarbon_task, 400),
    ("wattune.codecarbon task", wattune_task, 400),
]


def run(name, python, environment, steps):
    """Runs a case in a process of its own; returns its durations, or the reason why it has none."""
    command = [python, __file__, "--case", name, "--steps", str(steps)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, check=False)
    if done.returncode != 0:
        return None, done.stderr.strip().splitlines()[-1]
    return json.loads(done.stdout.splitlines()[-1]), None


def main(wattune, library, steps):
    """Starts the daemon, runs all cases, and prints the table."""
    with tempfile.TemporaryDirectory(prefix="wt") as name:
        folder = pathlib.Path(name)
        venv.create(folder / "venv", with_pip=True)
        python = str(folder / "venv" / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES], check=True)
        (folder / "gpus").mkdir()
        (folder / "gpus" / "boards.json").write_text('{"boards":[{"demand_w":250}]}')
        # Zeus finds the driver library by its name.
        driver = folder / "gpus" / "libnvidia-ml.so.1"
        driver.write_bytes(pathlib.Path(library).read_bytes())
        (folder / "state").mkdir()
        (folder / "wattune.toml").write_text(SETTINGS.format(folder=folder, library=driver))
        environment = {
            **os.environ,
            "FAKE_NVML_DIR": str(folder / "gpus"),
            "LD_LIBRARY_PATH": str(folder / "gpus"),
            "WATTUNE_SOCKET": str(folder / "d.sock"),
            "PYTHONPATH": str(ROOT / "clients" / "python" / "src"),
        }
        serve = [wattune, "serve", "--config", str(folder / "wattune.toml")]
        bare = {key: value for key, value in environment.items() if not key.startswith("WATTUNE_")}
        daemon = subprocess.Popen(serve, env=bare, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            while not (folder / "d.sock").exists():
                if daemon.poll() is not None:
                    sys.exit(f"the daemon has ended; start it by hand: {' '.join(serve)}")
                time.sleep(0.05)
            missed = table(python, environment, steps)
        finally:
            daemon.terminate()
            daemon.wait(20)
    if missed:
        sys.exit(f"missed: job.step takes {missed * 1e6:.1f} µs at p50, and its bound is {BOUND_S * 1e6:.0f} µs")


def table(python, environment, steps):
    """Prints a row for each case; returns the client's p50 if it misses its bound."""
    missed = None
    print(f"{'call':<26}{'p50':>12}{'p99.9':>12}{'mean':>12}{'calls':>9}   microseconds")
    for name, _, divisor in CASES:
        taken, why = run(name, python, environment, max(steps // divisor, 20))
        if taken is None:
            print(f"{name:<26}   {why}")
            missed = missed or (float("inf") if name == "wattune job.step" else None)
            continue
        taken.sort()
        p50, p999 = taken[len(taken) // 2], taken[min(int(len(taken) * 0.999), len(taken) - 1)]
        mean = sum(taken) / len(taken)
        print(f"{name:<26}{p50 * 1e6:>12.2f}{p999 * 1e6:>12.2f}{mean * 1e6:>12.2f}{len(taken):>9}", flush=True)
        if name == "wattune job.step" and p50 > BOUND_S:
            missed = p50
    return missed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wattune", nargs="?", help="the daemon's binary")
    parser.add_argument("library", nargs="?", help="the fake driver library")
    parser.add_argument("count", nargs="?", type=int, default=20_000, help="number of steps")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is not None:
        # This folder has a codecarbon.py of its own.
        sys.path.pop(0)
        case = next(function for name, function, _ in CASES if name == given.case)
        print(json.dumps(measure(case(), given.steps)))
    elif given.library is None:
        parser.error("give the daemon's binary and the fake driver library")
    else:
        main(given.wattune, given.library, given.count)
