"""Runs of a recurring job."""

from __future__ import annotations

import time

import pytest

import wattune
from fake_daemon import FakeDaemon
from test_job import until


def begin(sock: str, **more: object) -> wattune.Recurring:
    arguments = {"batch_sizes": [32, 64, 128], "default": 64, "target": 0.75, "max_epochs": 9, "socket": sock, **more}
    return wattune.recurring("nightly", **arguments)  # type: ignore[arg-type]


def test_uses_the_daemons_batch_size_and_stops_when_told(daemon: FakeDaemon, sock: str) -> None:
    with begin(sock) as run:
        assert run.batch_size == 128
        spec = daemon.bodies("PUT", "/v1/recurring/nightly")[0]
        assert spec == {
            "batch_sizes": [32, 64, 128],
            "default_batch_size": 64,
            "target_metric": 0.75,
            "higher_is_better": True,
            "max_epochs": 9,
            "eta": 0.5,
            "beta": 2.0,
            "lease_s": 14400.0,
            "number_of_gpus": 2,
            "max_power_w": 600.0,
            "gpu_model": "NVIDIA A40",
        }
        registered = daemon.wait_for("POST", "/v1/jobs")[0]
        assert (registered["name"], registered["batch_size"]) == ("nightly", 128)
        until(lambda: run.job.id is not None)
        run.step(128)
        assert run.report(0, 0.3) is False
        assert run.max_epochs == 7
        daemon.verdict = {"stop": True, "reached": True, "reason": "it has reached its target"}
        assert run.report(1, 0.8) is True
        assert (run.should_stop, run.reached, run.reason) == (True, True, "it has reached its target")
        run.report(2, 0.9)
    reports = daemon.bodies("POST", "/trials/1/progress")
    times = [report.pop("time_s") for report in reports]
    assert 0.0 < times[0] < times[1] < 10.0
    assert reports == [
        {"epochs": 1, "metric": 0.3, "job_id": run.job.id},
        {"epochs": 2, "metric": 0.8, "job_id": run.job.id},
    ], "no report after the end"
    assert daemon.bodies("POST", "/end") == [], "the daemon has ended the trial"
    daemon.wait_for("DELETE", run.job.id or "?")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "withdrawn"),
        (KeyboardInterrupt(), "withdrawn"),
        (MemoryError(), "not_reached"),
        (type("OutOfMemoryError", (RuntimeError,), {})(), "not_reached"),
    ],
)
def test_an_unfinished_run_is_ended(daemon: FakeDaemon, sock: str, error: BaseException | None, outcome: str) -> None:
    def train() -> None:
        with begin(sock):
            if error is not None:
                raise error

    if error is None:
        train()
    else:
        with pytest.raises(type(error)):
            train()
    assert daemon.wait_for("POST", "/trials/1/end") == [{"outcome": outcome}]


def test_an_unfinished_run_makes_no_way_for_a_job_of_its_name(daemon: FakeDaemon, sock: str) -> None:
    with begin(sock) as run:
        until(lambda: run.job.id is not None)
        with wattune.job(run.job.name, socket=sock) as other:
            until(lambda: other.problem is not None)
        assert not daemon.jobs[run.job.id or ""]["ended_at"]


def test_without_a_daemon_the_default_is_used(sock: str, caplog: pytest.LogCaptureFixture) -> None:
    begun = time.monotonic()
    with begin(sock) as run:
        assert run.batch_size == 64
        for epoch in range(run.max_epochs):
            assert run.report(epoch, 0.9) is False
    assert time.monotonic() - begun < 1.0
    assert "no wattune daemon answers" in (run.problem or "")
    assert sum(r.getMessage().startswith("recurring job") for r in caplog.records) == 1


def test_a_frozen_daemon_is_waited_for_once(daemon: FakeDaemon, sock: str) -> None:
    with begin(sock, wait_s=0.4) as run:
        until(lambda: run.job.id is not None)
        daemon.frozen.set()
        begun = time.monotonic()
        for epoch in range(8):
            assert run.report(epoch, 0.3) is False
        assert time.monotonic() - begun < 1.5
        daemon.frozen.clear()


def test_another_specification_is_refused_but_training_goes_on(
    daemon: FakeDaemon, sock: str, caplog: pytest.LogCaptureFixture
) -> None:
    with begin(sock):
        pass
    with begin(sock, target=0.9) as run:
        assert run.batch_size == 64
        assert "another specification" in (run.problem or "")
        assert "take another name" in (run.problem or "")
    daemon.models.append("NVIDIA H100")
    daemon.energy_j.append(0.0)
    with begin(sock) as run:
        assert run.batch_size == 128, "other GPUs are no other specification"


def test_a_quota_is_refused_without_advice_about_a_job_that_does_not_exist(daemon: FakeDaemon, sock: str) -> None:
    why = "8000 recurring jobs belong to user 1000; DELETE finished jobs"
    daemon.refuse["PUT", "/nightly"] = (409, {"detail": why})
    with begin(sock) as run:
        assert run.batch_size == 64
        assert run.problem == f"the daemon refuses: {why}"


def test_gpus_of_two_models_have_no_number_without_a_model(sock: str) -> None:
    fake = FakeDaemon(models=["A", "B"]).serve_unix(sock)
    try:
        with begin(sock) as run:
            assert (run.batch_size, run.problem) == (128, None)
        spec = fake.bodies("PUT", "/v1/recurring/nightly")[0]
        assert spec["max_power_w"] == 600.0
        assert not {"number_of_gpus", "gpu_model"} & set(spec)
    finally:
        fake.stop()


def test_a_job_that_is_registered_anew_reports_under_its_new_id(daemon: FakeDaemon, sock: str) -> None:
    with begin(sock) as run:
        until(lambda: run.job.id is not None)
        first = run.job.id or "?"
        run.report(0, 0.3)
        daemon.jobs[first]["ended_at"] = "2026-01-01T00:00:00Z"
        run.step(128)
        until(lambda: run.job.id not in (None, first))
        run.report(1, 0.4)
        reports = daemon.bodies("POST", "/trials/1/progress")
        assert [report["job_id"] for report in reports] == [first, run.job.id]
        assert not any("energy_j" in report for report in reports), "the daemon adds up both jobs"


def test_energy_of_gpus_is_reported_where_the_job_does_not_fit(
    daemon: FakeDaemon, sock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = daemon.account
    devices = {"gpu": 3600.0, "cpu": 300.0, "dram": 100.0}
    monkeypatch.setattr(daemon, "account", lambda j: {**account(j), "energy_j": 4000.0, "energy_by_device_j": devices})
    with begin(sock) as run:
        until(lambda: run.job.id is not None)
        run.job.end()
        daemon.refuse["POST", "/progress"] = (422, {"detail": "is another job's", "field": "job_id"})
        run.report(0, 0.3)
        report = daemon.bodies("POST", "/trials/1/progress")[-1]
        assert report["energy_j"] == 3600.0
        assert "job_id" not in report
        assert 0.0 < report["time_s"] < 10.0


@pytest.mark.parametrize("metric", [float("nan"), float("inf"), None, "much"])
def test_a_metric_that_is_no_number_is_none(daemon: FakeDaemon, sock: str, metric: float | None) -> None:
    with begin(sock) as run:
        until(lambda: run.job.id is not None)
        run.report(0, metric)
        assert daemon.bodies("POST", "/progress")[-1]["metric"] is None


def test_all_ranks_use_rank_0s_batch_size(daemon: FakeDaemon, sock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="agree="):
        begin(sock)
    of_rank_0 = iter([128, (False, False), (True, True)])
    with begin(sock, agree=lambda _: next(of_rank_0)) as run:
        assert run.batch_size == 128
        assert not run.report(0, 0.3)
        assert run.report(1, 0.8)
    assert daemon.requests == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_sizes": []}, "at least one"),
        ({"batch_sizes": [8, 8]}, "each once"),
        ({"default": 7}, "one of batch_sizes"),
        ({"max_epochs": 0}, "at least 1"),
        ({"beta": 1.0}, "more than 1"),
        ({"max_slowdown": 5}, "a fraction"),
    ],
)
def test_wrong_arguments_raise(daemon: FakeDaemon, sock: str, arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        begin(sock, **arguments)
    assert daemon.requests == []
