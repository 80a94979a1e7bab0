"""The best start of a job that may wait, from the daemon's forecast."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlencode

from ._daemon import Daemon
from ._http import Unreachable, addresses


@dataclass(frozen=True)
class Advice:
    """When to start a job, and what waiting is expected to save. A figure that is unknown is None, never zero.

    Attributes:
        start: Time at which to start the job, in UTC.
        starts_at_once: True if the job should start now; False before its earliest start.
        wait_s: Seconds from the time of the advice to the start; 0.0 if it should start now.
        latest_start: Latest start, in UTC.
        reason: Reason as a word: `cleaner_later`, or one of those to start as early as possible.
        text: Reason in one sentence.
        expected_saving_pct: Expected reduction of emissions by waiting, in percent.
        saving_low_pct: Lower bound of its 80 % prediction interval.
        saving_high_pct: Upper bound of its 80 % prediction interval.
        loss_probability: Probability that waiting emits more than starting at once, from 0 to 1.
        basis: Data behind the forecast: `source`, `local`, `daily_shape` or `constant`; None without a daemon.
        warnings: Doubts about the advice.
        raw: The daemon's whole answer, with all windows and the forecast.
    """

    start: datetime
    starts_at_once: bool
    wait_s: float
    latest_start: datetime
    reason: str
    text: str
    expected_saving_pct: float | None = None
    saving_low_pct: float | None = None
    saving_high_pct: float | None = None
    loss_probability: float | None = None
    basis: str | None = None
    warnings: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        return self.text


def when(
    hours: float | None = None,
    within: float = 24.0,
    *,
    name: str | None = None,
    power_w: float | None = None,
    earliest: datetime | None = None,
    min_gain: float | None = None,
    confidence: float | None = None,
    socket: str | None = None,
    listen: str | None = None,
    timeout_s: float = 5.0,
) -> Advice:
    """Returns when to start a job that may wait, so that it emits least.

    If no daemon answers, the advice is to start at once, with a warning: a training must not depend on the daemon.

    Args:
        hours: Duration of the job in hours; None for that of the earlier runs of `name`.
        within: Hours for which the job may wait: its latest start, counted from now.
        name: Name of a job that ran on the machine before.
        power_w: Mean power of the job in watts.
        earliest: Earliest start, with its time zone.
        min_gain: Minimum gain for which the job waits, as a fraction; the daemon's default is 0.02.
        confidence: Minimum probability that waiting pays; the daemon's default is 0.5.
        socket: Path of the daemon's Unix socket, if it is not the usual one.
        listen: TCP address of the daemon, if it is not the usual one.
        timeout_s: Longest time to wait for the answer.

    Raises:
        ValueError: If the question is wrong, by the checks of this function or of the daemon.
    """
    if hours is None and name is None:
        raise ValueError("give the job's duration in hours, or the name of a job that ran before")
    for label, value, least in (("hours", hours, 0.0), ("within", within, 0.0), ("power_w", power_w, 0.0)):
        if value is not None and not (math.isfinite(value) and value >= least):
            raise ValueError(f"{label} is {value}; it must be a number of at least {least:g}")
    if confidence is not None and not 0.0 <= confidence <= 1.0:
        raise ValueError(f"confidence is {confidence}; it must be from 0 to 1, such as 0.9")
    if earliest is not None and earliest.tzinfo is None:
        raise ValueError("earliest has no time zone; use for example datetime.now(timezone.utc)")
    query = {
        "duration_s": None if hours is None else hours * 3600.0,
        "within_s": within * 3600.0,
        "name": name,
        "power_w": power_w,
        "earliest": None if earliest is None else earliest.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "min_gain": min_gain,
        "max_loss_probability": None if confidence is None else 1.0 - confidence,
    }
    path = "/v1/when?" + urlencode({key: value for key, value in query.items() if value is not None})
    daemon = Daemon(addresses(socket, listen))
    try:
        answer = daemon.request("GET", path, timeout_s=timeout_s)
    except Unreachable as error:
        return _at_once(within, str(error))
    finally:
        daemon.close()
    if answer.status == 422:
        raise ValueError(answer.detail)
    if not answer.ok or not isinstance(answer.body, dict):
        return _at_once(within, f"the daemon gives no advice: {answer.detail}")
    try:
        return _read(answer.body)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return _at_once(within, f"the daemon's advice cannot be read: {error!r}")


def _at_once(within: float, why: str) -> Advice:
    now = datetime.now(timezone.utc)
    return Advice(
        start=now,
        starts_at_once=True,
        wait_s=0.0,
        latest_start=now + timedelta(hours=min(within, 24.0 * 3650)),
        reason="no_advice",
        text="Starting at once: no daemon advises.",
        warnings=(why,),
    )


def _read(body: Mapping[str, Any]) -> Advice:
    start, asked = _time(body["start"]), _time(body["asked_at"])
    return Advice(
        start=start,
        starts_at_once=bool(body["starts_at_once"]),
        wait_s=max(0.0, (start - asked).total_seconds()),
        latest_start=_time(body["latest_start"]),
        reason=str(body["reason"]),
        text=str(body["advice"]),
        expected_saving_pct=_number(body, "expected_saving_pct"),
        saving_low_pct=_number(body, "saving_low_pct"),
        saving_high_pct=_number(body, "saving_high_pct"),
        loss_probability=_number(body, "loss_probability"),
        basis=str(body["basis"]),
        warnings=tuple(str(warning) for warning in body.get("warnings", ())),
        raw=dict(body),
    )


def _number(body: Mapping[str, Any], key: str) -> float | None:
    value = body.get(key)
    return float(value) if isinstance(value, (int, float)) else None


def _time(text: str) -> datetime:
    """Reads a time in RFC 3339, of whose fraction Python keeps microseconds."""
    whole, dot, rest = text.replace("Z", "+00:00").partition(".")
    if not dot:
        return datetime.fromisoformat(whole)
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    return datetime.fromisoformat(f"{whole}.{digits[:6].ljust(6, '0')}{rest[len(digits) :]}")
