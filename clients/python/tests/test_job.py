"""A job's life, as the daemon sees it."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import socket as sockets
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

import wattune
from fake_daemon import FakeDaemon
from wattune._gpus import Selection
from wattune._session import Session


def test_registers_reports_and_ends(daemon: FakeDaemon, sock: str) -> None:
    with wattune.job(
        "resnet50",
        total_samples=1000,
        batch_size=8,
        max_slowdown=0.05,
        tags={"team": "a"},
        socket=sock,
        interval_s=0.05,
    ) as job:
        (registered,) = daemon.wait_for("POST", "/v1/jobs")
        assert registered == {
            "name": "resnet50",
            "gpus": ["GPU-0", "GPU-1"],
            "lease_s": 60,
            "batch_size": 8,
            "work": {"total_samples": 1000},
            "objective": {"max_slowdown": 0.05},
            "tags": {"team": "a"},
        }
        before = time.monotonic()
        for _ in range(5):
            job.step(8)
        daemon.wait_for("POST", "/progress")
        until(lambda: job.phase == "planned")
        assert (job.power_limit_w, job.slowdown, job.problem) == (225.0, 0.01, None)
        assert job.gpus == ("GPU-0", "GPU-1")
    assert len(daemon.wait_for("DELETE", job.id or "?")) == 1
    last = daemon.bodies("POST", "/progress")[-1]
    assert last["samples"] == 40
    assert last["source"] == "python_client"
    assert before <= last["at_s"] <= time.monotonic()
    summary = job.summary(timeout_s=5.0)
    assert summary.final
    assert summary.energy_j == 3600.0
    assert summary.carbon_g == 90.0
    assert summary.saved_g == wattune.Interval(10.0, 9.0, 11.0)
    assert summary.time_lost_s == wattune.Interval(20.0, 10.0, 30.0)
    assert "0.001 kWh, 90 gCO2e, saved 10 (9 to 11) gCO2e" in str(summary)


def test_no_news_is_not_reported_as_standstill(daemon: FakeDaemon, sock: str) -> None:
    with wattune.job("a", socket=sock, interval_s=0.05, lease_s=2.0) as job:
        job.step(1)
        daemon.wait_for("POST", "/progress")
        daemon.wait_for("POST", "/lease")
        assert len(daemon.bodies("POST", "/progress")) == 1


def test_a_total_that_becomes_known_is_reported(daemon: FakeDaemon, sock: str) -> None:
    with wattune.job("a", socket=sock, interval_s=0.05) as job:
        job.step(1)
        assert "total_samples" not in daemon.wait_for("POST", "/progress")[0]
        job.total_samples = 500
        job.step(1)
        assert daemon.wait_for("POST", "/progress", 2)[1]["total_samples"] == 500
        job.step(1)
        assert "total_samples" not in daemon.wait_for("POST", "/progress", 3)[2]


def test_a_lost_job_is_registered_anew_and_goes_on_counting(daemon: FakeDaemon, sock: str) -> None:
    with wattune.job("a", total_samples=100, socket=sock, interval_s=0.05) as job:
        job.step(30)
        daemon.wait_for("POST", "/progress")
        first = job.id
        daemon.jobs[first or ""]["ended_at"] = "2026-01-01T00:00:00Z"
        job.step(20)
        again = daemon.wait_for("POST", "/v1/jobs", 2)[1]
        assert again["work"] == {"total_samples": 100}
        until(lambda: job.id not in (None, first))
        until(lambda: daemon.jobs[job.id or ""]["samples"] == 50)
    assert job.summary(timeout_s=5.0).energy_j == 7200.0


def test_a_daemon_that_starts_later_is_joined(sock: str, caplog: pytest.LogCaptureFixture) -> None:
    with wattune.job("a", total_samples=100, socket=sock, interval_s=0.05) as job:
        job.step(10)
        until(lambda: job.problem is not None)
        assert "no wattune daemon answers" in (job.problem or "")
        time.sleep(0.3)
        assert [r.levelname for r in caplog.records].count("WARNING") == 1, "said once"
        daemon = FakeDaemon().serve_unix(sock)
        daemon.wait_for("POST", "/v1/jobs")
        job.step(5)
        assert daemon.wait_for("POST", "/progress")[0]["samples"] == 15
        until(lambda: job.problem is None)
    daemon.stop()


@pytest.mark.parametrize(
    ("status", "token", "expected"),
    [
        (401, "bad", "the daemon refuses the token: the token is invalid; training goes on without it"),
        (403, "bad", "the daemon refuses the token: the token is invalid; training goes on without it"),
        (401, None, "the daemon refuses access: the token is invalid; training goes on without it"),
        (404, "bad", "no wattune daemon answers (what answers is not a wattune daemon: the token is invalid)"),
    ],
)
def test_a_refused_token_is_not_an_absent_daemon(
    daemon: FakeDaemon,
    sock: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: int,
    token: str | None,
    expected: str,
) -> None:
    if token is not None:
        monkeypatch.setenv("WATTUNE_TOKEN", token)
    daemon.refuse["GET", "/v1/status"] = (status, {"detail": "the token is invalid"})
    with wattune.job("a", socket=sock, interval_s=0.05) as job:
        daemon.wait_for("GET", "/v1/status", 2)
        until(lambda: job.problem is not None)
        assert (job.problem or "").startswith(expected)
        warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert len(warnings) == 1, "logged once"
        assert ("`wattune serve` starts one" in warnings[0]) is (status == 404)
        daemon.refuse.clear()
        until(lambda: job.id is not None)
        assert job.problem is None


def test_a_refusal_without_a_detail_is_not_of_the_daemon(daemon: FakeDaemon, sock: str) -> None:
    daemon.refuse["GET", "/v1/status"] = (401, {})
    with wattune.job("a", socket=sock, interval_s=0.05) as job:
        until(lambda: job.problem is not None)
        assert "is not a wattune daemon: status 401" in (job.problem or "")


def test_a_killed_daemon_is_found_again(sock: str) -> None:
    first = FakeDaemon().serve_unix(sock)
    with wattune.job("a", socket=sock, interval_s=0.05) as job:
        job.step(1)
        first.wait_for("POST", "/progress")
        first.stop()
        os.unlink(sock)
        job.step(1)
        until(lambda: "no wattune daemon" in (job.problem or ""))
        second = FakeDaemon()
        second.jobs = first.jobs
        second.serve_unix(sock)
        job.step(1)
        assert second.wait_for("POST", "/progress")[0]["samples"] == 3
    second.wait_for("DELETE", "")
    second.stop()


def test_a_registration_whose_answer_is_lost_is_found(daemon: FakeDaemon, sock: str) -> None:
    daemon.lose_next_answer = True
    with wattune.job("a", socket=sock, interval_s=0.05) as job:
        until(lambda: job.id is not None)
        assert len(daemon.jobs) == 1
        job.step(3)
        assert daemon.wait_for("POST", "/progress")[-1]["samples"] == 3


def test_the_job_of_another_process_is_not_taken_for_an_own_one() -> None:
    session = SimpleNamespace(_daemon=SimpleNamespace(shares_pids=lambda: True))
    own: dict[str, Any] = {"gpus": ["GPU-0a"], "processes": {"pids": [os.getpid()]}}
    cases: list[tuple[dict[str, Any], tuple[int | str, ...], bool]] = [
        (own, ("GPU-0",), True),
        ({**own, "processes": {"pids": [1]}}, ("GPU-0",), False),
        ({**own, "processes": None}, (0,), True),
        ({**own, "gpus": ["GPU-1a"]}, ("GPU-0",), False),
        ({**own, "gpus": ["GPU-0a", "GPU-1a"]}, ("GPU-0",), False),
    ]
    for found, gpus, expected in cases:
        assert Session._may_be_own(cast("Session", session), found, Selection(gpus)) is expected, (found, gpus)


def test_a_fault_in_one_dialogue_leaves_the_others_alone(
    daemon: FakeDaemon, sock: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = Session.serve

    def serve(self: Session) -> float:
        if self.spec.name == "faulty":
            raise ZeroDivisionError("a fault")
        return served(self)

    monkeypatch.setattr(Session, "serve", serve)
    faulty = wattune.job("faulty", gpus=[0], socket=sock).start()
    with wattune.job("sound", gpus=[1], socket=sock, interval_s=0.05) as sound:
        sound.step(3)
        daemon.wait_for("POST", "/progress")
    faulty.end()
    daemon.wait_for("DELETE", f"/{sound.id}")
    assert "a fault" in caplog.text


def test_a_conflict_says_what_to_do_and_is_tried_again(
    daemon: FakeDaemon, sock: str, caplog: pytest.LogCaptureFixture
) -> None:
    with wattune.job("other", socket=sock, interval_s=0.05) as other:
        until(lambda: other.id is not None)
        with wattune.job("a", socket=sock, interval_s=0.05) as job:
            until(lambda: job.problem is not None)
            assert "controlled by job" in (job.problem or "")
            assert "its lease has run out" in (job.problem or "")
            other.end()
            until(lambda: job.id is not None)
            assert job.problem is None
    assert sum("controlled by" in r.getMessage() for r in caplog.records) == 1, "logged once"


def test_a_job_without_a_reference_makes_way(daemon: FakeDaemon, sock: str, caplog: pytest.LogCaptureFixture) -> None:
    jobs = [wattune.job(f"left-{gpu}", gpus=[gpu], socket=sock, interval_s=0.05).start() for gpu in (0, 1)]
    until(lambda: None not in [job.id for job in jobs])
    left = [job.id for job in jobs]
    jobs.clear()
    gc.collect()
    with wattune.job("next", gpus=[0, 1], socket=sock, interval_s=0.05) as job:
        until(lambda: job.id is not None)
        assert job.problem is None
        assert [name for name, known in daemon.jobs.items() if known["ended_at"]] == left
        job.step(3)
        assert daemon.wait_for("POST", "/progress")[-1]["samples"] == 3
    assert sum("was not ended" in record.getMessage() for record in caplog.records) == 2
    assert not any("controlled by" in record.getMessage() for record in caplog.records)


def test_a_cell_of_a_notebook_may_run_again(daemon: FakeDaemon, sock: str) -> None:
    """The first job may still be referred to, such as by the traceback of its interruption."""
    first = wattune.job("resnet50", socket=sock, interval_s=0.05).start()
    first.step(5)
    daemon.wait_for("POST", "/progress")
    again = wattune.job("resnet50", socket=sock, interval_s=0.05).start()
    until(lambda: again.id is not None)
    assert daemon.jobs[first.id or ""]["ended_at"]
    assert "a new job of this process" in (first.problem or "")
    assert first.summary().final
    first.step(1)
    first.end()
    assert not daemon.jobs[again.id or ""]["ended_at"]
    assert len(daemon.bodies("DELETE", first.id or "?")) == 1
    again.end()
    daemon.wait_for("DELETE", again.id or "?")


@pytest.mark.parametrize("kind", ["another name", "another thread", "in a block"])
def test_a_job_that_may_still_run_does_not_make_way(daemon: FakeDaemon, sock: str, kind: str) -> None:
    first = wattune.job("b" if kind == "another name" else "a", socket=sock, interval_s=0.05)
    begin = first.__enter__ if kind == "in a block" else first.start
    if kind == "another thread":
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
    else:
        begin()
    until(lambda: first.id is not None)
    with wattune.job("a", socket=sock, interval_s=0.05) as second:
        until(lambda: second.problem is not None)
        assert "controlled by job" in (second.problem or "")
        assert not daemon.jobs[first.id or ""]["ended_at"]
        first.end()
        until(lambda: second.id is not None)


def test_a_left_job_whose_end_is_refused_is_ended_once(daemon: FakeDaemon, sock: str) -> None:
    first = wattune.job("a", socket=sock, interval_s=0.05).start()
    until(lambda: first.id is not None)
    daemon.refuse["DELETE", first.id or "?"] = 500, {"detail": "the store is full"}
    with wattune.job("a", socket=sock, interval_s=0.05) as second:
        until(lambda: "controlled by job" in (second.problem or ""))
        assert len(daemon.bodies("DELETE", first.id or "?")) == 1
        daemon.jobs[first.id or ""]["ended_at"] = "2026-01-01T00:00:00Z"
        until(lambda: second.id is not None)


def test_refusals_with_other_numbers_are_logged_once(
    daemon: FakeDaemon, sock: str, caplog: pytest.LogCaptureFixture
) -> None:
    with wattune.job("a", socket=sock, interval_s=0.05) as job:
        for number in range(5):
            detail = {"detail": f"is {number}, less than the {number + 1} reported before", "field": "samples"}
            daemon.refuse["POST", "/progress"] = (422, detail)
            job.step(1)
            daemon.wait_for("POST", "/progress", number + 1)
            until(lambda number=number: f"is {number}," in (job.problem or ""))
    assert sum(r.levelno == logging.WARNING for r in caplog.records) == 1


def test_a_job_runs_once(daemon: FakeDaemon, sock: str, caplog: pytest.LogCaptureFixture) -> None:
    job = wattune.job("a", socket=sock, interval_s=0.05)
    with job:
        until(lambda: job.id is not None)
    with job:
        job.step(1)
    assert "make a new one" in caplog.text
    assert len(daemon.bodies("POST", "/v1/jobs")) == 1


def test_copies_of_a_job_say_nothing(daemon: FakeDaemon, sock: str) -> None:
    with wattune.job("a", socket=sock, interval_s=0.05) as job:
        until(lambda: job.id is not None)
        copy = pickle.loads(pickle.dumps(job))
        copy.start()
        copy.step(5)
        copy.end()
        assert (copy.samples, copy.id) == (5, None)
        assert "copy" in (copy.problem or "")
        assert job.samples == 0
    assert len(daemon.bodies("POST", "/v1/jobs")) == 1


def test_refusals_are_logged_once(daemon: FakeDaemon, sock: str, caplog: pytest.LogCaptureFixture) -> None:
    daemon.refuse["POST", "/v1/jobs"] = (
        422,
        {"detail": "is in percent; write 0.03", "field": "objective.max_slowdown"},
    )
    with wattune.job("a", socket=sock, interval_s=0.05) as job:
        daemon.wait_for("POST", "/v1/jobs", 3)
        assert job.problem == "not registered: objective.max_slowdown: is in percent; write 0.03"
    assert sum(r.levelno == logging.WARNING for r in caplog.records) == 1


@pytest.mark.parametrize("trouble", ["frozen", "slow", "broken", "garbage", "absent"])
def test_trouble_never_holds_training_up(daemon: FakeDaemon, sock: str, trouble: str) -> None:
    if trouble == "frozen":
        daemon.frozen.set()
    elif trouble == "slow":
        daemon.slow_s = 3.0
    elif trouble == "broken":
        daemon.fail_with = 500
    elif trouble == "absent":
        sock += "no"
    elif trouble == "garbage":
        daemon.stop()
        os.unlink(sock)
        threading.Thread(target=_talk_nonsense, args=(sock,), daemon=True).start()
        until(lambda: os.path.exists(sock))
    spent = 0.0
    for _ in range(3):
        begun = time.perf_counter()
        job = wattune.job("a", socket=sock, interval_s=0.05).start()
        spent += time.perf_counter() - begun
        for _ in range(10):
            time.sleep(0.02)
            begun = time.perf_counter()
            job.step(8)
            job.should_pause()
            job.summary()
            spent += time.perf_counter() - begun
        begun = time.perf_counter()
        job.end()
        spent += time.perf_counter() - begun
    assert spent < 0.05, f"{spent * 1e3:.1f} ms in three jobs"


def _talk_nonsense(path: str) -> None:
    with sockets.socket(sockets.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            client, _ = listener.accept()
            with client:
                client.recv(100)
                client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


def test_exceptions_pass_and_end_the_job(daemon: FakeDaemon, sock: str) -> None:
    job = wattune.job("a", socket=sock, interval_s=0.05)

    def train() -> None:
        with job:
            until(lambda: job.id is not None)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    daemon.wait_for("DELETE", job.id or "?")


def test_odd_steps_are_ignored(daemon: FakeDaemon, sock: str, caplog: pytest.LogCaptureFixture) -> None:
    with wattune.job("a", socket=sock, interval_s=0.05) as job:
        for odd in (-1, float("nan"), "eight", None, object(), float("inf")):
            job.step(odd)  # type: ignore[arg-type]
        job.step(2.5)
        job.step(True)
        assert job.samples == 3.5
    assert sum("is ignored" in r.getMessage() for r in caplog.records) == 1


def test_threads_may_step_together(sock: str) -> None:
    job = wattune.job("a", socket=sock)

    def count() -> None:
        for _ in range(20_000):
            job.step(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert job.samples == 80_000


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"name": ""}, ValueError, "1 to 128"),
        ({"name": 7}, TypeError, "text"),
        ({"total_samples": -5}, ValueError, "more than 0"),
        ({"total_samples": "many"}, TypeError, "number"),
        ({"batch_size": 0}, ValueError, "at least 1"),
        ({"batch_size": 2.5}, TypeError, "whole"),
        ({"max_slowdown": 3}, ValueError, "3 % is 0.03"),
        ({"deadline": "tomorrow", "total_samples": 1}, ValueError, "a time such as"),
        ({"deadline": "2026-12-01T08:00Z"}, ValueError, "needs total_samples"),
        ({"pausable": True}, ValueError, "needs max_slowdown or a deadline"),
        ({"pausable": {"idle_w": 5}, "max_slowdown": 0.1}, ValueError, "idle_w"),
        ({"gpus": "0,1"}, TypeError, "list"),
        ({"gpus": []}, ValueError, "empty"),
        ({"gpus": [-1]}, ValueError, "at least 0"),
        ({"tags": {"a": 1}}, TypeError, "text"),
        ({"interval_s": 0}, ValueError, "at least 0.05"),
        ({"listen": "nowhere"}, ValueError, "not an address such as"),
        ({"world_size": 0}, ValueError, "at least 1"),
    ],
)
def test_wrong_arguments_raise_at_once(arguments: dict[str, object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        wattune.job(**{"name": "a", **arguments})  # type: ignore[arg-type]


def test_pause_calls_save_once_and_goes_on(daemon: FakeDaemon, sock: str) -> None:
    saved: list[float] = []
    with wattune.job("a", max_slowdown=0.1, pausable=True, socket=sock, interval_s=0.05) as job:
        assert job.wait_while_paused(save=lambda: saved.append(0.0)) == 0.0
        job.step(1)
        daemon.phase = "paused"
        until(lambda: daemon.bodies("POST", "/progress") != [])
        job.step(1)
        until(job.should_pause)
        assert job.resume_at is not None
        before = len(daemon.bodies("POST", "/progress")) + len(daemon.bodies("POST", "/lease"))
        threading.Timer(0.5, lambda: setattr(daemon, "phase", "planned")).start()
        waited = job.wait_while_paused(save=lambda: saved.append(1.0))
        assert 0.4 < waited < 2.0
        assert saved == [1.0]
        after = len(daemon.bodies("POST", "/progress")) + len(daemon.bodies("POST", "/lease"))
        assert after - before >= 4, "it goes on reporting"


def test_a_pause_does_not_outlast_its_daemon(daemon: FakeDaemon, sock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattune._job._PAUSE_HOLDS_S", 0.3)
    with wattune.job("a", max_slowdown=0.1, pausable=True, socket=sock, interval_s=0.05) as job:
        daemon.phase = "paused"
        job.step(1)
        until(job.should_pause)
        daemon.frozen.set()
        assert job.wait_while_paused() < 1.5


def test_pauses_are_agreed(daemon: FakeDaemon, sock: str) -> None:
    decisions = iter([True, True, False])
    with wattune.job("a", socket=sock, interval_s=0.05) as job:
        assert job.wait_while_paused(agree=lambda wish: next(decisions)) > 0.0


def test_local_rank_0_reports_for_all(daemon: FakeDaemon, sock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with wattune.job("a", socket=sock, interval_s=0.05) as silent:
        silent.step(8)
        time.sleep(0.2)
    assert daemon.requests == []
    assert "local rank 0 reports" in (silent.problem or "")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with wattune.job("a", socket=sock, interval_s=0.05) as job:
        job.step(8)
        assert daemon.wait_for("POST", "/progress")[0]["samples"] == 32
        assert job.gpus == ("GPU-0", "GPU-1")
    with wattune.job("a", socket=sock, interval_s=0.05, world_size=1) as job:
        job.step(8)
        assert job.samples == 8


def test_pids_are_sent_in_one_namespace_only(daemon: FakeDaemon, sock: str) -> None:
    with wattune.job("a", socket=sock, interval_s=0.05):
        assert "pids" not in daemon.wait_for("POST", "/v1/jobs")[0]
    daemon.pid_namespace = os.stat("/proc/self/ns/pid").st_ino
    with wattune.job("a", socket=sock, interval_s=0.05):
        assert daemon.wait_for("POST", "/v1/jobs", 2)[1]["pids"] == [os.getpid()]


def test_tcp_is_tried_after_the_socket(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    other = FakeDaemon()
    monkeypatch.setenv("WATTUNE_LISTEN", other.serve_tcp())
    monkeypatch.setenv("WATTUNE_SOCKET", "/nonexistent/too.sock")
    with wattune.job("a", interval_s=0.05):
        other.wait_for("POST", "/v1/jobs")
    other.stop()


def until(condition: object, timeout_s: float = 5.0) -> None:
    """Waits until the condition holds."""
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to hold"
        time.sleep(0.005)
