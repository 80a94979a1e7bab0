"""The client against the real daemon, on fake GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import wattune
from real_daemon import UUIDS, RealDaemon
from test_job import until


def train(job: wattune.Job, seconds: float) -> None:
    """Steps 100 times a second."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        time.sleep(0.01)
        job.step(8)


def test_a_job_of_its_own_gpu(real: RealDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with wattune.job(
        "resnet50", total_samples=100_000, batch_size=8, tags={"team": "a"}, interval_s=0.2, socket=real.socket
    ) as job:
        until(lambda: job.id is not None)
        train(job, 3.0)
        view = real.get(f"/v1/jobs/{job.id}")
        assert view["gpus"] == [UUIDS[1]]
        assert view["tags"] == {"team": "a"}
        assert view["total_samples"] == 100_000
        assert view.get("progress_source", "python_client") == "python_client"
        assert view["samples"] <= job.samples
        # The daemon runs below this very process, so it refuses its pids, and the job is registered without them.
        assert view["processes"] is None
        until(lambda: job.phase in ("profiling", "planned"))
        assert job.problem is None
        assert job.summary(timeout_s=5.0).energy_j is not None
    summary = job.summary(timeout_s=5.0)
    assert summary.final
    assert summary.samples == job.samples
    # 3 s at 100 W, or less under a lower limit, in whole ledger intervals.
    assert summary.energy_j == pytest.approx(300.0, abs=120.0)
    assert summary.carbon_g == pytest.approx((summary.energy_kwh or 0.0) * 300.0, rel=1e-3)
    assert summary.unknown or summary.saved_g


def test_every_job_is_ended(real: RealDaemon) -> None:
    """A hundred jobs in several threads, each of them short; afterwards no job and no connection is left."""

    def some(gpu: int) -> None:
        for number in range(50):
            with wattune.job(f"short-{number}", gpus=[gpu], interval_s=0.05, socket=real.socket) as job:
                job.step(1)
                if number % 2:
                    until(lambda: job.id is not None or job.problem is not None, 20.0)

    threads = [threading.Thread(target=some, args=(gpu,)) for gpu in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: real.get("/v1/jobs") == [], 20.0)


def test_a_recurring_job(real: RealDaemon) -> None:
    sizes = []
    for _ in range(2):
        with wattune.recurring(
            "nightly", batch_sizes=[8, 16], target=0.75, max_epochs=5, gpus=[0], socket=real.socket
        ) as run:
            sizes.append(run.batch_size)
            until(lambda: run.job.id is not None)
            for epoch in range(run.max_epochs):
                train(run.job, 1.2)
                if run.report(epoch, 0.4 * (epoch + 1)):
                    break
            assert run.problem is None
            assert (run.should_stop, run.reached, epoch) == (True, True, 1)
    assert sizes[0] == 16
    trials = real.get("/v1/recurring/nightly/trials")
    assert [trial["state"] for trial in trials] == ["reached", "reached"]
    assert all(trial["energy_j"] > 0.0 and trial["epochs"] == 2 for trial in trials)


def test_a_killed_training_is_ended_by_its_lease(real: RealDaemon) -> None:
    script = "import wattune, time, os\njob = wattune.job('a', gpus=[0], lease_s=2, interval_s=0.1).start()\n"
    script += "while job.id is None: time.sleep(0.01)\nprint(job.id, flush=True)\nos.kill(os.getpid(), 9)\n"
    environment = {**os.environ, "WATTUNE_SOCKET": real.socket, "PYTHONPATH": str(Path(wattune.__file__).parent.parent)}
    killed = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    job = killed.stdout.strip()
    assert json.loads(json.dumps(real.get(f"/v1/jobs/{job}")))["ended_at"] is None
    until(lambda: real.get(f"/v1/jobs/{job}")["ended_at"] is not None, 10.0)
