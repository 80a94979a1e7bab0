"""What a job asks for: checked when the job is made, so that nothing about it can fail while it trains."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, Union

Deadline = Union[datetime, timedelta, str]
# The daemon accepts so many tags.
MOST_TAGS = 16
# Tag of a job that is recorded without control only because another job controlled one of its GPUs when it began.
CONTROL_REFUSED = "control_refused"


@dataclass(frozen=True)
class Spec:
    """A job's specification, as checked by `check`."""

    name: str
    total_samples: float | None = None
    batch_size: int | None = None
    objective: dict[str, Any] = field(default_factory=dict)
    gpus: tuple[int | str, ...] | None = None
    tags: dict[str, str] = field(default_factory=dict)
    control: bool = True
    priority: int = 0
    lease_s: float = 60.0

    def registration(
        self,
        gpus: Sequence[int | str],
        total: float | None,
        control: bool,
        replaced: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Returns the body of the request that registers the job on these GPUs with this much work.

        Args:
            gpus: The GPUs.
            total: Samples of the whole run; None if unknown.
            control: False to have energy recorded only.
            replaced: Open job of `wattune run` or Slurm's Prolog that this one replaces, as the daemon describes it.
                What the script leaves open is taken from it, so that the command line's promises and tags still hold.
        """
        known = replaced or {}
        tags = dict(known.get("tags", {}))
        # Whoever records a job without control does not want its replacement controlled, unless control was refused.
        may_control = known.get("control", True) or tags.pop(CONTROL_REFUSED, None) is not None
        total = total if total is not None and total > 0 else known.get("total_samples")
        body: dict[str, Any] = {
            "name": self.name,
            "gpus": list(gpus),
            "lease_s": self.lease_s,
            "batch_size": self.batch_size or known.get("batch_size"),
            "work": None if total is None else {"total_samples": total},
            "objective": {**_stated(known.get("objective", {})), **self.objective},
            "tags": _merged(self.tags, tags),
            "priority": self.priority or known.get("priority"),
        }
        if total is None:
            # Promises that need to know the work are not made without it, and no pause is taken without a promise.
            body["objective"].pop("carbon_budget_g", None)
            if body["objective"].pop("deadline", None) is not None and "max_slowdown" not in body["objective"]:
                body["objective"].pop("pausable", None)
        if not control or not may_control:
            body["control"] = False
        if replaced is not None:
            body["replaces"] = replaced["job_id"]
            processes = replaced.get("processes") or {}
            body.update({key: processes[key] for key in ("pids", "cgroup") if processes.get(key)})
        return {key: value for key, value in body.items() if value or key == "control"}


def _merged(tags: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Returns these tags, and of the others as many as the daemon accepts."""
    more = [(key, value) for key, value in others.items() if key not in tags]
    return {**tags, **dict(more[: MOST_TAGS - len(tags)])}


def _stated(objective: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the request asked for in an objective as the daemon describes it, without what the daemon adds.

    A job for which nothing was asked has the promise of 3 %, which is no reason to keep a script's own promise tighter.
    """
    usual = {"eta": 1.0, "price_weight": 0.0}
    stated = {key: value for key, value in objective.items() if value is not None and value != usual.get(key)}
    return {} if stated == {"max_slowdown": 0.03} else stated


def check(
    name: str,
    *,
    total_samples: float | None,
    batch_size: int | None,
    max_slowdown: float | None,
    deadline: Deadline | None,
    carbon_budget_g: float | None,
    eta: float | None,
    price_weight: float | None,
    pausable: bool | Mapping[str, float],
    gpus: Sequence[int | str] | None,
    tags: Mapping[str, str] | None,
    control: bool,
    priority: int,
    lease_s: float,
) -> Spec:
    """Returns the specification.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument's value is impossible.
    """
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r}; it is text, such as 'resnet50'")
    if not 1 <= len(name) <= 128:
        raise ValueError(f"name has {len(name)} characters; it has 1 to 128")
    total = None if total_samples is None else number("total_samples", total_samples, above=0.0)
    batch = None if batch_size is None else whole("batch_size", batch_size, least=1)
    objective: dict[str, Any] = {}
    if max_slowdown is not None:
        objective["max_slowdown"] = number("max_slowdown", max_slowdown, least=0.0)
        if objective["max_slowdown"] >= 1.0:
            raise ValueError(f"max_slowdown is {max_slowdown}; it is a fraction, so 3 % is 0.03")
    if deadline is not None:
        objective["deadline"] = _deadline(deadline)
    if carbon_budget_g is not None:
        objective["carbon_budget_g"] = number("carbon_budget_g", carbon_budget_g, above=0.0)
    for key, weight in (("eta", eta), ("price_weight", price_weight)):
        if weight is not None:
            objective[key] = number(key, weight, least=0.0, most=1.0)
    if pausable is not False:
        objective["pausable"] = _pausable(pausable)
    if "pausable" in objective and max_slowdown is None and deadline is None:
        raise ValueError("pausable needs max_slowdown or a deadline: without one the job could wait for ever")
    for key in ("deadline", "carbon_budget_g"):
        if key in objective and total is None:
            raise ValueError(f"{key} needs total_samples: without it the end of the work is unknown")
    if not isinstance(control, bool):
        raise TypeError(f"control is {control!r}; it is True or False")
    lease = number("lease_s", lease_s, least=1.0, most=86400.0)
    return Spec(
        name,
        total,
        batch,
        objective,
        _gpus(gpus),
        _tags(tags),
        control,
        whole("priority", priority, -1000, 1000),
        lease,
    )


def number(
    name: str, value: object, least: float = -math.inf, most: float = math.inf, above: float = -math.inf
) -> float:
    """Returns a finite number within its bounds; numbers of other libraries, such as NumPy's, count too.

    Raises:
        TypeError: If the value is no number.
        ValueError: If it is out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} is {value!r}; it is a number")
    real = float(value)
    if not math.isfinite(real) or not least <= real <= most or real <= above:
        bounds = [f"more than {above:g}"] if above > -math.inf else []
        bounds += [f"at least {least:g}"] if least > -math.inf else []
        bounds += [f"at most {most:g}"] if most < math.inf else []
        raise ValueError(f"{name} is {value!r}; it is {' and '.join(bounds) or 'a finite number'}")
    return int(real) if isinstance(value, numbers.Integral) else real


def whole(name: str, value: object, least: int, most: int | None = None) -> int:
    """Returns a whole number within its bounds.

    Raises:
        TypeError: If the value is no whole number.
        ValueError: If it is out of bounds.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{name} is {value!r}; it is a whole number")
    return int(number(name, value, least, math.inf if most is None else most))


def _deadline(deadline: Deadline) -> str:
    if isinstance(deadline, timedelta):
        when = datetime.now(timezone.utc) + deadline
    elif isinstance(deadline, datetime):
        # A time without a zone is the machine's local time, as everywhere in Python.
        when = deadline.astimezone(timezone.utc)
    elif isinstance(deadline, str):
        text = deadline[:-1] + "+00:00" if deadline.endswith(("Z", "z")) else deadline
        try:
            when = datetime.fromisoformat(text).astimezone(timezone.utc)
        except ValueError:
            raise ValueError(f"deadline is {deadline!r}; it is a time such as 2026-12-01T08:00:00+01:00") from None
    else:
        raise TypeError(
            f"deadline is {deadline!r}; it is a datetime, a timedelta from now, or text such as 2026-12-01T08:00Z"
        )
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _pausable(pausable: bool | Mapping[str, float]) -> object:
    if pausable is True:
        return True
    known = ("checkpoint_s", "idle_power_w", "min_pause_s", "min_run_s")
    if not isinstance(pausable, Mapping):
        raise TypeError(f"pausable is {pausable!r}; it is True, False or a dict with any of {', '.join(known)}")
    for key in pausable:
        if key not in known:
            raise ValueError(f"pausable has the key {key!r}; it may have {', '.join(known)}")
    return {key: number(f"pausable[{key!r}]", value, least=0.0) for key, value in pausable.items()}


def _gpus(gpus: Sequence[int | str] | None) -> tuple[int | str, ...] | None:
    if gpus is None:
        return None
    if isinstance(gpus, (str, bytes)) or not isinstance(gpus, Sequence):
        raise TypeError(f"gpus is {gpus!r}; it is a list of indices, UUIDs, PCI bus ids or devices such as 'cuda:0'")
    chosen: list[int | str] = []
    for gpu in gpus:
        if isinstance(gpu, str) and gpu:
            chosen.append(gpu)
        else:
            chosen.append(whole("an index in gpus", gpu, least=0))
    of_cuda = [gpu for gpu in chosen if isinstance(gpu, str) and gpu.startswith("cuda:")]
    if of_cuda and (len(of_cuda) < len(chosen) or not all(gpu[5:].isdigit() for gpu in of_cuda)):
        raise ValueError(f"gpus is {gpus!r}; give either devices such as 'cuda:0' alone, or none of them")
    if not chosen:
        raise ValueError("gpus is empty; leave it out for the GPUs that this process uses")
    return tuple(chosen)


def _tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    if tags is None:
        return {}
    if not isinstance(tags, Mapping):
        raise TypeError(f"tags is {tags!r}; it is a dict of text to text")
    for key, value in tags.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"tags has {key!r}: {value!r}; both are text")
    if len(tags) > MOST_TAGS:
        raise ValueError(f"tags has {len(tags)} tags; it may have {MOST_TAGS}")
    return dict(tags)
