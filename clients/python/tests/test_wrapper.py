"""A script that uses the client under `wattune run`."""

from __future__ import annotations

import json
import os
import socket as sockets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wattune
from fake_daemon import FakeDaemon
from test_job import until
from wattune._wrapper import Wrapper


@pytest.fixture
def progress(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sockets.socket]:
    """Returns the socket of `wattune run` for progress, which the environment names."""
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_DGRAM) as sock:
        sock.bind(str(folder / "progress.sock"))
        sock.settimeout(5.0)
        monkeypatch.setenv("WATTUNE_PROGRESS_SOCKET", str(folder / "progress.sock"))
        yield sock


def register(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, **more: Any) -> dict[str, Any]:
    """Registers the job of `wattune run`."""
    status, job = daemon.register({"name": "train", "gpus": [0], "lease_s": 30.0, **more})
    assert status == 201
    monkeypatch.setenv("WATTUNE_JOB_ID", job["job_id"])
    return dict(job)


def test_a_script_replaces_the_job_of_the_run(
    daemon: FakeDaemon, sock: str, progress: sockets.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = {"eta": 1.0, "max_slowdown": 0.02, "deadline": None, "price_weight": 0.0, "pausable": None}
    of_run = register(
        daemon,
        monkeypatch,
        batch_size=4,
        total_samples=900.0,
        objective=objective,
        priority=3,
        tags={"team": "a", "kind": "run"},
        processes={"pids": [1], "cgroup": None, "running": 1},
    )
    monkeypatch.setenv("WATTUNE_SOCKET", sock)
    with wattune.job("resnet50", batch_size=8, eta=0.5, tags={"kind": "script"}, interval_s=0.05) as job:
        announced = json.loads(progress.recv(4096))
        assert announced["source"] == "python_client"
        assert announced["pid"] == os.getpid()
        assert announced["job_id"] == job.id != of_run["job_id"]
        job.step(8)
        assert daemon.wait_for("POST", "/progress")[0]["samples"] == 8
        assert [known["job_id"] for known in daemon.jobs.values() if not known["ended_at"]] == [job.id]
    assert daemon.bodies("POST", "/v1/jobs") == [
        {
            "name": "resnet50",
            "gpus": ["GPU-0"],
            "lease_s": 30.0,
            "batch_size": 8,
            "work": {"total_samples": 900.0},
            "objective": {"max_slowdown": 0.02, "eta": 0.5},
            "tags": {"kind": "script", "team": "a"},
            "priority": 3,
            "replaces": of_run["job_id"],
            "pids": [1],
        }
    ]
    assert job.summary(timeout_s=5.0).final


def test_a_run_without_wishes_and_control_adds_only_that(
    daemon: FakeDaemon, sock: str, progress: sockets.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = {"eta": 1.0, "max_slowdown": 0.03, "price_weight": 0.0}
    of_run = register(daemon, monkeypatch, objective=usual, control=False, priority=0, tags={}, batch_size=None)
    with wattune.job("a", total_samples=10, deadline="2100-01-01T00:00Z", gpus=[1], socket=sock):
        (body,) = daemon.wait_for("POST", "/v1/jobs")
    assert body == {
        "name": "a",
        "gpus": [1],
        "lease_s": 30.0,
        "work": {"total_samples": 10},
        "objective": {"deadline": "2100-01-01T00:00:00.000000Z"},
        "control": False,
        "replaces": of_run["job_id"],
    }


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_job_of_the_run_that_is_gone_is_not_replaced(
    daemon: FakeDaemon, sock: str, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """Whether it ended before the look-up, or between that and the registration."""
    of_run = register(daemon, monkeypatch)
    if is_lost:
        del daemon.jobs[of_run["job_id"]]
    else:
        view = dict(daemon.jobs[of_run["job_id"]])
        daemon.refuse["GET", of_run["job_id"]] = (200, view)
        daemon.jobs[of_run["job_id"]]["ended_at"] = "2026-01-01T00:00:00Z"
    with wattune.job("a", gpus=[0], socket=sock, interval_s=0.05) as job:
        until(lambda: job.id is not None)
        assert "replaces" not in daemon.jobs[job.id or ""]
        assert job.problem is None


def test_jobs_one_after_another_and_a_lost_one_are_registered_and_announced(
    daemon: FakeDaemon, sock: str, progress: sockets.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_run = register(daemon, monkeypatch)
    ids = []
    for name in ("first", "second"):
        with wattune.job(name, gpus=[0], socket=sock, interval_s=0.05) as job:
            ids.append(json.loads(progress.recv(4096))["job_id"])
            assert job.id == ids[-1]
            if name == "second":
                daemon.jobs[ids[-1]]["ended_at"] = "2026-01-01T00:00:00Z"
                job.step(1)
                ids.append(json.loads(progress.recv(4096))["job_id"])
        job.summary(timeout_s=5.0)
    assert list(daemon.jobs) == [of_run["job_id"], *ids]
    assert all(known["ended_at"] for known in daemon.jobs.values())


def test_the_job_that_the_run_registered_last_is_replaced(
    daemon: FakeDaemon, sock: str, folder: Path, progress: sockets.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No daemon answered when the command began, or it has lost the first job."""
    _, later = daemon.register({"name": "train", "gpus": [0, 1]})
    (folder / "job").write_text(later["job_id"])
    monkeypatch.setenv("WATTUNE_JOB_ID", "the-first")
    with wattune.job("a", socket=sock) as job:
        (body,) = daemon.wait_for("POST", "/v1/jobs")
        assert body["replaces"] == later["job_id"]
        assert body["gpus"] == ["GPU-0", "GPU-1"]
        until(lambda: job.id is not None)


def test_a_lost_answer_about_a_replacement_makes_no_second_job(
    daemon: FakeDaemon, sock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(daemon, monkeypatch)
    daemon.lose_next_answer = True
    with wattune.job("a", gpus=[0], socket=sock, interval_s=0.05) as job:
        until(lambda: job.id is not None)
        assert len(daemon.jobs) == 2
        assert job.problem is None


def test_a_job_of_the_prolog_is_replaced_by_those_of_its_processes(
    daemon: FakeDaemon, sock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the GPUs that it sees, its process, and its own lease."""
    daemon.pid_namespace = os.stat("/proc/self/ns/pid").st_ino
    of_prolog = register(daemon, monkeypatch, gpus=[0, 1], lease_s=300.0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with wattune.job("first", socket=sock):
        (first,) = daemon.wait_for("POST", "/v1/jobs")
        until(lambda: len(daemon.jobs) == 2)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        with wattune.job("second", socket=sock) as job:
            _, second = daemon.wait_for("POST", "/v1/jobs", 2)
            until(lambda: job.id is not None)
            assert job.problem is None
    known = {"lease_s": 60.0, "pids": [os.getpid()]}
    assert first == {"name": "first", "gpus": ["GPU-0"], "replaces": of_prolog["job_id"], **known}
    assert second == {"name": "second", "gpus": ["GPU-1"], **known}


@pytest.mark.parametrize(
    ("models", "devices"),
    [
        # CUDA's order is unknown.
        (["A40", "H100", "A40"], "1"),
        # The process sees GPUs that were not allocated to it.
        (["A40"] * 3, None),
    ],
)
def test_gpus_that_are_uncertain_are_those_of_the_prologs_job(
    daemon: FakeDaemon, sock: str, monkeypatch: pytest.MonkeyPatch, models: list[str], devices: str | None
) -> None:
    daemon.models, daemon.energy_j = models, [0.0] * 3
    register(daemon, monkeypatch, gpus=[0, 1], processes={"pids": [], "cgroup": "/job_7", "running": 1})
    if devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    with wattune.job("a", socket=sock):
        (body,) = daemon.wait_for("POST", "/v1/jobs")
    assert body["gpus"] == ["GPU-0", "GPU-1"]
    assert (body["cgroup"], "pids" in body) == ("/job_7", False)


SUBMITTED = {"SLURM_JOB_ID": "8", "ENVIRONMENT": "BATCH"}


@pytest.mark.parametrize(
    ("environment", "is_of_another_job"),
    [
        ({}, False),
        ({"WATTUNE_RUN_SLURM_JOB": "7"}, False),
        ({"WATTUNE_RUN_SLURM_JOB": "7", "SLURM_JOB_ID": "7"}, False),
        ({"WATTUNE_RUN_SLURM_JOB": "7", "SLURM_JOB_ID": "8"}, True),
        # What srun starts is a part of the command; a batch job is not.
        ({"WATTUNE_RUN_SLURM_JOB": "", "SLURM_JOB_ID": "8"}, False),
        ({"WATTUNE_RUN_SLURM_JOB": "", **SUBMITTED}, True),
        # A `wattune run` of an earlier version.
        (SUBMITTED, False),
    ],
)
def test_the_socket_of_another_slurm_jobs_run_is_ignored(environment: dict[str, str], is_of_another_job: bool) -> None:
    wrapper = Wrapper.of({"WATTUNE_PROGRESS_SOCKET": "/s", "WATTUNE_JOB_ID": "a", **environment})
    assert wrapper.progress_socket == (None if is_of_another_job else "/s")
    assert wrapper.may_replace({}) is not is_of_another_job
    # The TaskProlog names the job of the own Slurm job, and `sbatch` passes that of another one on.
    own = environment.get("SLURM_JOB_ID", "7")
    assert wrapper.may_replace({"tags": {"slurm_job_id": own}})
    assert wrapper.may_replace({"tags": {"slurm_job_id": "9"}}) is ("SLURM_JOB_ID" not in environment)


def test_a_job_that_a_run_has_submitted_has_a_job_of_its_own(
    daemon: FakeDaemon, sock: str, progress: sockets.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_run = register(daemon, monkeypatch, tags={"slurm_job_id": "7"}, gpus=[0], priority=3)
    for name, value in {"WATTUNE_RUN_SLURM_JOB": "7", **SUBMITTED}.items():
        monkeypatch.setenv(name, value)
    with wattune.job("a", gpus=[1], tags={"team": "b"}, socket=sock, interval_s=0.05) as job:
        (body,) = daemon.wait_for("POST", "/v1/jobs")
        until(lambda: job.id is not None)
        job.step(1)
        daemon.wait_for("POST", "/progress")
    assert body == {"name": "a", "gpus": [1], "lease_s": 60.0, "tags": {"team": "b", "slurm_job_id": "8"}}
    assert not daemon.jobs[of_run["job_id"]]["ended_at"]
    progress.setblocking(False)
    with pytest.raises(BlockingIOError):
        progress.recv(4096)


def test_control_that_another_job_has_begins_once_that_is_gone(
    daemon: FakeDaemon, sock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattune._session.CONTROL_EVERY_S", 0.1)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    _, other = daemon.register({"name": "other", "gpus": [0]})
    tags = {"slurm_job_id": "7", "control_refused": "conflict"}
    of_prolog = register(daemon, monkeypatch, control=False, tags=tags, lease_s=300.0)
    with wattune.job("a", gpus=[0], socket=sock, interval_s=0.05) as job:
        until(lambda: job.id is not None)
        first = job.id
        assert daemon.jobs[first or ""]["control"] is False
        assert daemon.jobs[of_prolog["job_id"]]["ended_at"]
        job.step(3)
        daemon.wait_for("POST", "/progress")
        daemon.jobs[other["job_id"]]["ended_at"] = "2026-01-01T00:00:00Z"
        until(lambda: job.id != first)
        job.step(2)
        until(lambda: daemon.jobs[job.id or ""]["samples"] == 5)
    known = daemon.jobs[job.id or ""]
    assert known.get("control", True) is True
    assert (known["replaces"], known["tags"]) == (first, {"slurm_job_id": "7"})
    assert daemon.jobs[first or ""]["ended_at"]
    # Both registrations' accounts count.
    assert job.summary(timeout_s=5.0).energy_j == 7200.0
