"""Promises of a training whose length is not known when it begins."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

_log = logging.getLogger("wattune")


def kept(arguments: Mapping[str, Any], total_samples: float | None) -> dict[str, Any]:
    """Returns the arguments of `wattune.job` without those that need to know the work, if it is unknown.

    A callback must not raise once the training has begun, so this warns instead.
    """
    named = dict(arguments)
    if total_samples is not None:
        return named
    for key in ("deadline", "carbon_budget_g"):
        if named.pop(key, None) is not None:
            _log.warning("%s is not promised: the length of this training is unknown", key)
    if named.get("pausable") and named.get("max_slowdown") is None:
        named["pausable"] = False
    return named
