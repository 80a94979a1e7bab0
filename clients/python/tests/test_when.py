"""`wattune.when`: the daemon's advice when to start a job, and what is said without one."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import wattune
from fake_daemon import FakeDaemon
from real_daemon import RealDaemon

ADVICE: dict[str, Any] = {
    "start": "2026-11-26T12:00:00.123456789Z",
    "asked_at": "2026-11-25T22:00:00Z",
    "starts_at_once": False,
    "latest_start": "2026-11-26T22:00:00Z",
    "reason": "cleaner_later",
    "advice": "Starting at 12:00.",
    "expected_saving_pct": 25.5,
    "saving_low_pct": 18,
    "saving_high_pct": 31.0,
    "loss_probability": 0.01,
    "basis": "source",
    "warnings": ["the forecast ends early"],
    "windows": [],
}


def test_the_advice_is_read_and_the_question_is_whole(daemon: FakeDaemon, sock: str) -> None:
    daemon.when = ADVICE
    earliest = datetime(2026, 11, 26, 1, tzinfo=timezone(timedelta(hours=1)))
    advice = wattune.when(6, 24, name="lm", power_w=250, earliest=earliest, min_gain=0.05, confidence=0.75, socket=sock)
    assert advice.start == datetime(2026, 11, 26, 12, 0, 0, 123456, tzinfo=timezone.utc)
    assert advice.wait_s == pytest.approx(14 * 3600 + 0.123456)
    assert (advice.expected_saving_pct, advice.saving_low_pct, advice.basis) == (25.5, 18.0, "source")
    assert advice.warnings == ("the forecast ends early",)
    assert str(advice) == "Starting at 12:00."
    assert advice.raw["windows"] == []
    path = daemon.requests[-1][1]
    asked = {key: value[0] for key, value in parse_qs(urlsplit(path).query).items()}
    assert asked == {
        "duration_s": "21600.0",
        "within_s": "86400.0",
        "name": "lm",
        "power_w": "250",
        "earliest": "2026-11-26T00:00:00Z",
        "min_gain": "0.05",
        "max_loss_probability": "0.25",
    }


def test_without_a_daemon_the_job_starts_at_once(sock: str) -> None:
    advice = wattune.when(hours=6, within=24, socket=sock)
    assert advice.starts_at_once
    assert advice.wait_s == 0.0
    assert advice.reason == "no_advice"
    assert len(advice.warnings) == 1
    assert advice.latest_start - advice.start == timedelta(hours=24)
    assert advice.expected_saving_pct is None


@pytest.mark.parametrize("broken", [{}, {**ADVICE, "start": "soon"}, {**ADVICE, "start": None}, []])
def test_an_answer_that_cannot_be_read_means_at_once(daemon: FakeDaemon, sock: str, broken: Any) -> None:
    daemon.when = broken
    advice = wattune.when(hours=6, socket=sock)
    assert advice.starts_at_once
    assert advice.warnings


def test_wrong_questions_are_errors(daemon: FakeDaemon, sock: str) -> None:
    for wrong in (
        {},
        {"hours": -1},
        {"hours": float("nan")},
        {"hours": 1, "within": float("inf")},
        {"hours": 1, "confidence": 90},
        {"hours": 1, "earliest": datetime(2026, 1, 1)},
    ):
        with pytest.raises(ValueError, match=r"give|is|has"):
            wattune.when(**wrong, socket=sock)
    assert not daemon.requests
    daemon.fail_with = 422
    with pytest.raises(ValueError, match=r"\w"):
        wattune.when(hours=6, socket=sock)


def test_the_real_daemon_advises(real: RealDaemon) -> None:
    advice = wattune.when(hours=1, within=12, socket=real.socket)
    assert advice.reason != "no_advice", advice.warnings
    assert advice.raw["duration_s"] == 3600
    with pytest.raises(ValueError, match="duration_s"):
        wattune.when(name="never-ran", socket=real.socket)
