#!/usr/bin/env python3
"""Compares what wattune reads from NVIDIA GPUs with direct calls of NVML.

    tests/hardware/check.py WATTUNE [SECONDS]

Needs a machine with NVIDIA GPUs that nothing else uses, and a `python3` with PyTorch for CUDA. It trains on GPU 0 for
SECONDS (90 by default) under `wattune run`, with a daemon that only observes. No setting of a GPU is changed: the daemon
runs with `--observe`, and as the user `nobody` if this script runs as root, so that the driver would refuse a write.
Prints what was measured, and ends with code 1 if a reading differs or a setting has changed.
"""

import ctypes
import itertools
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from datetime import datetime

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from nvml import POWER_AVERAGE, POWER_INSTANT, Nvml, Sampler

failures = []


def show(what, value, right=True):
    print(f"{'ok  ' if right else 'FAIL'} {what}: {value}", flush=True)
    if not right:
        failures.append(what)


def near(what, ours, theirs, share):
    difference = (ours - theirs) / theirs
    show(what, f"{ours:.1f}, NVML {theirs:.1f} ({difference:+.2%}; at most {share:.1%})", abs(difference) <= share)


class Daemon:
    """A daemon that observes, in a directory of its own."""

    def __init__(self, binary, directory):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        directory.chmod(0o755)
        state = directory / "state"
        state.mkdir()
        self.user = "nobody" if os.getuid() == 0 else None
        if self.user:
            shutil.chown(state, self.user)
        command = [binary, "serve", "--observe", "--gpus", "nvml", "--state-dir", str(state), "--listen", self.address]
        self.log = open(directory / "log", "w+")
        self.process = subprocess.Popen(
            [*command, "--socket", str(state / "socket")], user=self.user, stderr=self.log, stdout=self.log
        )

    def get(self, path):
        with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
            return json.load(answer)

    def ready(self):
        until = time.monotonic() + 60
        while time.monotonic() < until and self.process.poll() is None:
            try:
                return self.get("/readyz")
            except OSError:
                time.sleep(0.1)
        sys.exit(f"the daemon did not start:\n{self.words()}")

    def words(self):
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def energy_j(self, sampler):
        """The daemon's energy of the GPU, and the counter's value at the same time."""
        asked = time.time()
        view = self.get("/v1/gpus")[sampler.index]
        time.sleep(0.1)
        return view["energy_j"], sampler.joules_at(asked - view["energy_age_s"])


def compare_gpus(daemon, nvml):
    views = daemon.get("/v1/gpus")
    show("GPUs", len(views), len(views) == len(nvml.devices))
    for index, view in enumerate(views):
        settings = nvml.settings(index)
        low, high = settings["range of limits, mW"]
        pairs = {
            "uuid": nvml.text("nvmlDeviceGetUUID", index),
            "model": nvml.text("nvmlDeviceGetName", index),
            "power_limit_requested_w": settings["requested limit, mW"],
            "power_limit_enforced_w": settings["enforced limit, mW"],
            "power_limit_default_w": settings["default limit, mW"],
            "power_limit_min_w": low,
            "power_limit_max_w": high,
        }
        for name, theirs in pairs.items():
            theirs = theirs / 1000 if isinstance(theirs, int) else theirs
            show(f"GPU {index} {name}", f"{view[name]}, NVML {theirs}", view[name] == theirs)
        persistence = settings["persistence mode"]
        show(f"GPU {index} persistence", view["persistence"], view["persistence"] == (persistence and persistence == 1))
        for name in ("driver", "state", "energy_source", "problems", "detail", "clocks_left_alone", "event_reasons"):
            show(f"GPU {index} {name}", view[name])


def sensors(nvml, index, seconds):
    """How often the counter and the two readings of power change, and how long a call takes."""
    reads = {
        "energy counter": lambda: nvml.energy_mj(index),
        "power usage": lambda: nvml.read("nvmlDeviceGetPowerUsage", index),
        "field 185 (average)": lambda: nvml.field(index, POWER_AVERAGE),
        "field 186 (instantaneous)": lambda: nvml.field(index, POWER_INSTANT),
        "requested limit": lambda: nvml.read("nvmlDeviceGetPowerManagementLimit", index),
        "enforced limit": lambda: nvml.read("nvmlDeviceGetEnforcedPowerLimit", index),
        "event reasons": lambda: nvml.read("nvmlDeviceGetCurrentClocksEventReasons", index, ctypes.c_ulonglong),
        "temperature": lambda: nvml.temperature(index),
        "persistence mode": lambda: nvml.read("nvmlDeviceGetPersistenceMode", index),
    }
    for name, read in reads.items():
        changes, times, values, last, cpu = [], [], [], read(), time.thread_time()
        until = time.monotonic() + seconds
        while (begun := time.monotonic()) < until:
            value = read()
            times.append(time.monotonic() - begun)
            values.append(value)
            if value != last:
                changes.append(begun)
                last = value
            time.sleep(0.0005)
        cpu = (time.thread_time() - cpu) / len(times)
        gaps = [b - a for a, b in itertools.pairwise(changes)]
        gap = f"changes every {statistics.median(gaps) * 1e3:.0f} ms" if gaps else "never changed"
        spread = "" if name.startswith("energy") or values[0] is None else f", {min(values)} to {max(values)}"
        took = f"{statistics.median(times) * 1e6:.0f} us (with this loop {cpu * 1e6:.0f} us of CPU time)"
        show(name, f"{gap}{spread}; a call takes {took}, at most {max(times) * 1e3:.1f} ms")


def latency(daemon, count):
    times = []
    for _ in range(count):
        begun = time.monotonic()
        daemon.get("/gpu/get_power?gpu_ids=0")
        times.append(time.monotonic() - begun)
    times.sort()
    show(
        "get_power, a new connection each time",
        f"p50 {times[count // 2] * 1e3:.2f} ms, p99 {times[count * 99 // 100] * 1e3:.2f} ms",
    )


def train(binary, daemon, nvml, sampler, seconds):
    variables = {**os.environ, "WATTUNE_LISTEN": daemon.address}
    command = [binary, "run", "--name", "hardware", "--gpus", "0", "--batch-size", "8192", "--", sys.executable]
    before, cpu, begun = daemon.energy_j(sampler), daemon.cpu_s(), time.time()
    run = subprocess.Popen(
        [*command, str(HERE / "train.py"), str(seconds)], env=variables, text=True, stdout=subprocess.PIPE
    )
    time.sleep(seconds * 0.4)
    sensors(nvml, 0, min(2, seconds / 40))
    latency(daemon, 200)
    view = daemon.get("/v1/gpus")[0]
    for name in (
        "power_w",
        "event_reasons",
        "counter_over_power",
        "sm_clock_mhz",
        "temperature_c",
        "owner",
        "observed_jobs",
    ):
        show(f"GPU 0 {name}", view[name])
    job = daemon.get("/v1/jobs")[0]
    for name in ("phase", "progress_source", "samples", "reason", "warnings", "processes"):
        show(f"job {name}", job[name])
    out = run.communicate()[0]
    ended = time.time()
    show("wattune run", run.returncode, run.returncode == 0)
    time.sleep(3)
    after, used = daemon.energy_j(sampler), daemon.cpu_s() - cpu
    show("CPU of the daemon", f"{used / (time.time() - begun):.2%}")
    near("energy of GPU 0, J", after[0] - before[0], after[1] - before[1], 0.005)
    steps = int(out.rpartition("steps")[2])
    account = daemon.get(f"/v1/jobs/{job['job_id']}/emissions")
    saving = account["savings"]["against_original"]
    pct = saving.get("carbon_reduction_pct", {}).get("mean")
    said = saving["unknown"] if pct is None else f"{pct:.2f} %, where no limit was set"
    show("saving", said, pct is None or abs(pct) <= 1)
    show("samples", f"{account['samples']}, the script {steps * 8192}", account["samples"] == steps * 8192)
    most = sampler.joules_at(ended) - sampler.joules_at(begun)
    gpu = account["energy_by_device_j"]["gpu"]
    show(
        "energy of the job, J",
        f"{gpu:.1f}, from start to end of `wattune run` {most:.1f} ({gpu / most - 1:+.2%})",
        0.95 * most <= gpu <= 1.005 * most,
    )
    ended_at = datetime.fromisoformat(account["ended_at"]).timestamp()
    registered = datetime.fromisoformat(job["registered_at"]).timestamp()
    near("energy of the job's span, J", gpu, sampler.joules_at(ended_at) - sampler.joules_at(registered), 0.01)
    show(
        "account",
        {
            name: account[name]
            for name in ("energy_by_device_j", "energy_estimated_j", "time_s", "stalled_s", "warnings")
        },
    )


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    binary, seconds = str(pathlib.Path(sys.argv[1]).resolve()), float((sys.argv[2:] or [90])[0])
    nvml = Nvml()
    found = [nvml.settings(index) for index in range(len(nvml.devices))]
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(binary, pathlib.Path(directory))
        daemon.ready()
        cpu, begun = daemon.cpu_s(), time.monotonic()
        time.sleep(min(20, seconds / 3))
        show("CPU of the daemon, without clients", f"{(daemon.cpu_s() - cpu) / (time.monotonic() - begun):.2%}")
        sampler = Sampler(nvml, 0)
        sampler.start()
        try:
            compare_gpus(daemon, nvml)
            sensors(nvml, 0, min(2, seconds / 40))
            train(binary, daemon, nvml, sampler, seconds)
        finally:
            sampler.stop()
            daemon.process.terminate()
            code = daemon.process.wait(30)
            print(daemon.words())
        show("exit code of the daemon", code, code == 0)
    left = [nvml.settings(index) for index in range(len(nvml.devices))]
    show("settings of the GPUs after it", left, left == found)
    sys.exit(f"{len(failures)} differ: {', '.join(failures)}" if failures else 0)


if __name__ == "__main__":
    main()
