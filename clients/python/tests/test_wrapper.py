"""A script that uses the client under `wattune run`."""

from __future__ import annotations

import json
import os
import socket as sockets
import time
from pathlib import Path

import pytest

import wattune
from fake_daemon import FakeDaemon
from test_job import until


def test_under_wattune_run_its_job_is_completed_and_left_open(
    daemon: FakeDaemon, sock: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, job_of_run = daemon.register({"name": "python train.py", "gpus": [0]})
    job_of_run["samples"] = 50.0
    progress = sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM)
    progress.bind(str(folder / "p.sock"))
    progress.settimeout(5.0)
    monkeypatch.setenv("WATTUNE_JOB_ID", job_of_run["job_id"])
    monkeypatch.setenv("WATTUNE_SOCKET", sock)
    monkeypatch.setenv("WATTUNE_PROGRESS_SOCKET", str(folder / "p.sock"))
    with wattune.job("resnet50", total_samples=100, batch_size=8, interval_s=0.05) as job:
        announced = json.loads(progress.recv(4096))
        assert announced["source"] == "python_client"
        assert announced["job_id"] == job_of_run["job_id"]
        assert announced["pid"] == os.getpid()
        daemon.wait_for("PATCH", job_of_run["job_id"])
        job.step(8)
        # Another process of this run has counted 50 before.
        assert daemon.wait_for("POST", "/progress")[0]["samples"] == 58
    assert daemon.bodies("POST", "/v1/jobs") == []
    assert daemon.bodies("PATCH", "")[0] == {"name": "resnet50", "batch_size": 8, "work": {"total_samples": 100}}
    time.sleep(0.2)
    assert daemon.bodies("DELETE", "") == []
    assert job.summary(timeout_s=5.0).energy_j == 3600.0
    progress.close()


def test_a_job_of_wattune_run_that_is_lost_is_replaced_and_announced(
    daemon: FakeDaemon, sock: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, job_of_run = daemon.register({"name": "python train.py", "gpus": [0]})
    progress = sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM)
    progress.bind(str(folder / "p.sock"))
    progress.settimeout(5.0)
    monkeypatch.setenv("WATTUNE_JOB_ID", job_of_run["job_id"])
    monkeypatch.setenv("WATTUNE_PROGRESS_SOCKET", str(folder / "p.sock"))
    with wattune.job("a", gpus=[0], socket=sock, interval_s=0.05) as job:
        until(lambda: job.id == job_of_run["job_id"])
        with wattune.job("second", gpus=[1], socket=sock, interval_s=0.05) as second:
            until(lambda: second.id is not None)
            assert second.id != job_of_run["job_id"], "two counts do not go to one job"
        job_of_run["ended_at"] = "2026-01-01T00:00:00Z"
        job.step(1)
        until(lambda: job.id not in (None, job_of_run["job_id"]))
        announced = [json.loads(progress.recv(4096))["job_id"] for _ in range(2)]
        assert announced == [job_of_run["job_id"], job.id]
    # Who registers a job ends it.
    until(lambda: all(known["ended_at"] for known in daemon.jobs.values()))
    progress.close()
