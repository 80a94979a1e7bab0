"""What the two threads tell each other about a job, and how the daemon's answers read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol

from ._http import Answer


@dataclass(frozen=True)
class View:
    """What is known of a job from the daemon's last answers."""

    job_id: str | None = None
    gpus: tuple[str, ...] = ()
    phase: str | None = None
    reason: str | None = None
    power_limit_w: float | None = None
    slowdown: float | None = None
    resume_at: str | None = None
    warnings: tuple[str, ...] = ()
    problem: str | None = None
    answered_at: float | None = None
    account_at: float | None = None


class Counted(Protocol):
    """The side of a job that the training thread writes."""

    @property
    def count(self) -> tuple[float, float]:
        """Samples of this run so far, and the monotonic time at which they were counted."""

    @property
    def total(self) -> float | None:
        """Samples of the whole run, if they are known."""

    @property
    def is_left(self) -> bool:
        """True if the script has let go of the job without ending it."""


def advice(answer: Answer) -> str:
    """Returns the daemon's words about a refused registration, and what to do."""
    if answer.status == 409:
        return (
            f"{answer.detail}. If that is a job of this process that was not ended, end it. If it is of an earlier run "
            "that was killed, the daemon ends it when its lease has run out. This one is registered then"
        )
    return answer.detail


def unix(text: str) -> float:
    """Returns the Unix time of the daemon's RFC 3339 time, which has up to nine digits of a second."""
    whole, _, _ = text.rstrip("Zz").partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).timestamp() + 1.0
