"""A daemon that is killed, frozen and restarted at random, while a loop trains."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from real_daemon import UUIDS, RealDaemon

# Measures the time in wattune's calls. A stand-in for a step, which adds and reads a clock without wattune, tells what
# the machine's other processes make of it.
LOOP = """
import json, sys, time
import wattune

seconds, gpu = float(sys.argv[1]), sys.argv[2]
clock = time.perf_counter

class StandIn:
    count = (0, 0.0)
    def step(self, n):
        self.count = (self.count[0] + n, time.monotonic())

stand_in = StandIn()
stepping, stand_in_s, steps, longest = 0.0, 0.0, 0, 0.0
begun = clock()
job = wattune.job("chaos", total_samples=8 * 500 * seconds, batch_size=8, gpus=[gpu], lease_s=10)
job.start()
others = clock() - begun
until = time.monotonic() + seconds
while time.monotonic() < until:
    time.sleep(0.002)
    sum(range(5_000))
    before = clock()
    job.step(8)
    took = clock() - before
    steps += 1
    longest = max(longest, took)
    stepping += took
    time.sleep(0.0005)
    sum(range(5_000))
    before = clock()
    stand_in.step(8)
    stand_in_s += clock() - before
before = clock()
job.should_pause(), job.phase, job.summary()
problem = job.problem
others += clock() - before
before = clock()
job.end()
others += clock() - before
summary = job.summary(timeout_s=10.0)
print(json.dumps({"stepping_s": stepping, "stand_in_s": stand_in_s, "others_s": others, "steps": steps,
                  "longest_s": longest,
                  "problem": problem, "samples": job.samples, "energy_j": summary.energy_j,
                  "estimated_j": summary.energy_estimated_j, "final": summary.final}))
"""


def test_chaos(folder: Path, request: pytest.FixtureRequest) -> None:
    """Nothing is raised, nothing waits, and the energy of each GPU is right afterwards.

    The last seconds are calm, so that the job is back when it ends.
    """
    chaos_s = float(request.config.getoption("--chaos-s"))
    dice = random.Random(19)
    daemon = RealDaemon(folder)
    daemon.start()
    try:
        daemon.await_ready()
        (folder / "loop.py").write_text(LOOP)
        environment = {
            **os.environ,
            "WATTUNE_SOCKET": daemon.socket,
            "PYTHONPATH": str(Path(__file__).parent.parent / "src"),
        }
        daemon.script({"demand_w": 260}, {"demand_w": 150})
        calm_s = 25.0
        loop = subprocess.Popen(
            [sys.executable, str(folder / "loop.py"), str(chaos_s + calm_s), UUIDS[0]],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        events = _torment(daemon, chaos_s, dice)
        daemon.await_ready()
        output, errors = loop.communicate(timeout=chaos_s + 60.0)
        daemon.script({"idle": True, "idle_w": 0}, {"idle": True, "idle_w": 0})
        # The draw ends at the next call to the driver; then the ledger closes its interval.
        time.sleep(4.0)
        rows = {row["key"]: row for row in daemon.get("/v1/report?by=gpu")["rows"]}
        counters = [daemon.counter_j(gpu) for gpu in range(2)]
    finally:
        daemon.stop()
    assert loop.returncode == 0, errors
    assert "Traceback" not in errors
    result = json.loads(output)
    print(f"\n{events}; {result}; counted: {counters}")
    at_most_s = result["stand_in_s"] + 5e-6 * result["steps"]
    waited_s = max(result["stepping_s"] - at_most_s, 0.0) + result["others_s"]
    assert waited_s < 0.05, result
    assert result["longest_s"] < 0.05, result
    assert result["steps"] > 100 * chaos_s
    assert result["samples"] == 8 * result["steps"]
    for gpu, counter in enumerate(counters):
        ledger = next(row["energy_j"] for key, row in rows.items() if UUIDS[gpu] in key or key == f"gpu:{gpu}")
        assert ledger == pytest.approx(counter, rel=1e-3), f"GPU {gpu}: {ledger} J in the ledger, {counter} J counted"
    # All energy of GPU 0 is the job's, but for a second before it was registered and one after its end, and for what
    # the daemon has flagged as estimated, since nobody watched.
    assert result["problem"] is None
    assert result["final"]
    assert abs(result["energy_j"] - counters[0]) < result["estimated_j"] + 2.0 * 260.0, (result, counters)


def _torment(daemon: RealDaemon, seconds: float, dice: random.Random) -> dict[str, int]:
    """Kills, freezes and restarts the daemon at random for so long; leaves it running. Returns what it did."""
    done = {"killed": 0, "frozen": 0, "stopped": 0}
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0.0:
        event = dice.choice(["killed", "frozen", "frozen", "stopped"])
        length = min(dice.expovariate(1 / 3.0), left)
        done[event] += 1
        if event == "frozen":
            daemon.signal(signal.SIGSTOP)
            time.sleep(length)
            daemon.signal(signal.SIGCONT)
        elif event == "killed":
            daemon.kill()
            time.sleep(length)
            daemon.start()
        else:
            daemon.stop()
            time.sleep(length)
            daemon.start()
        time.sleep(dice.uniform(0.1, 3.0))
    return done
