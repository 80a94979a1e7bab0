"""What a job has used, emitted and saved, from the daemon's accounts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class Summary:
    """A job's energy, emissions and savings. A figure that is unknown is None, never zero.

    Savings compare with the same work at the GPUs' original power limits, those in force before wattune's first write.

    Attributes:
        final: True once the job has ended and this is its final account.
        energy_j: Energy recorded for the job, in joules.
        energy_by_device_j: The energy by kind of device: `gpu`, `cpu`, `dram`.
        energy_estimated_j: Part of the energy that was not read from a counter while it was watched.
        carbon_g: Emissions, in grams of CO2 equivalent.
        saved_g: Emissions saved, in grams of CO2 equivalent.
        saved_pct: Emissions saved, in percent.
        time_s: Time spent training, without the job's own pauses.
        time_lost_s: Time lost to lower power limits.
        time_lost_pct: Time lost, in percent.
        samples: Samples that the daemon has counted.
        simulated: True if the GPUs are simulated: then nothing was measured.
        unknown: Reason why the savings are unknown; None if they are known.
        warnings: The daemon's warnings about the job.
    """

    final: bool = False
    energy_j: float | None = None
    energy_by_device_j: dict[str, float] = field(default_factory=dict)
    energy_estimated_j: float | None = None
    carbon_g: float | None = None
    saved_g: Interval | None = None
    saved_pct: Interval | None = None
    time_s: float | None = None
    time_lost_s: Interval | None = None
    time_lost_pct: Interval | None = None
    samples: float | None = None
    simulated: bool = False
    unknown: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def energy_kwh(self) -> float | None:
        """Energy in kilowatt-hours."""
        return None if self.energy_j is None else self.energy_j / 3.6e6

    def __str__(self) -> str:
        if self.energy_kwh is None:
            return f"energy unknown: {self.unknown or 'no account yet'}"
        parts = [f"{self.energy_kwh:.4g} kWh"]
        parts.append("carbon unknown" if self.carbon_g is None else f"{self.carbon_g:.4g} gCO2e")
        if self.saved_pct is not None and self.saved_g is not None:
            parts.append(f"saved {self.saved_g} gCO2e, {self.saved_pct} %")
        if self.time_lost_s is not None and self.time_lost_pct is not None:
            parts.append(f"time lost {self.time_lost_s.mean:.3g} s ({self.time_lost_pct.mean:.3g} %)")
        if self.saved_g is None:
            parts.append(f"savings unknown: {self.unknown}")
        return ", ".join(parts) + (" [simulated GPUs]" if self.simulated else "") + ("" if self.final else " so far")


def summarise(accounts: Sequence[dict[str, Any]], why_none: str | None = None) -> Summary:
    """Returns the summary of the accounts of one job: several, if the daemon lost it and it registered again."""
    if not accounts:
        return Summary(unknown=why_none or "no account yet")
    devices: dict[str, float] = {}
    for account in accounts:
        for device, joules in account.get("energy_by_device_j", {}).items():
            devices[device] = devices.get(device, 0.0) + joules
    comparisons = [account.get("savings", {}).get("against_original", {}) for account in accounts]
    unknown = next(
        (str(c.get("unknown", "the daemon gives none")) for c in comparisons if "carbon_reduction_g" not in c), None
    )
    saved_g = saved_pct = lost_s = lost_pct = None
    if unknown is None:
        saved_g = _sum([_interval(c["carbon_reduction_g"]) for c in comparisons])
        saved_pct = _relative(
            saved_g, sum(c["carbon_at_reference_g"] for c in comparisons), comparisons, "carbon_reduction_pct"
        )
        lost_s = _sum([_part(_interval(c["time_increase_pct"]), c["time_at_reference_s"]) for c in comparisons])
        lost_pct = _relative(
            lost_s, sum(c["time_at_reference_s"] for c in comparisons), comparisons, "time_increase_pct"
        )
    return Summary(
        final=accounts[-1].get("ended_at") is not None,
        energy_j=_total(accounts, "energy_j"),
        energy_by_device_j=devices,
        energy_estimated_j=_total(accounts, "energy_estimated_j"),
        carbon_g=_total(accounts, "carbon_g"),
        saved_g=saved_g,
        saved_pct=saved_pct,
        time_s=_total(accounts, "time_s"),
        time_lost_s=lost_s,
        time_lost_pct=lost_pct,
        samples=accounts[-1].get("samples"),
        simulated=any(account.get("simulated", False) for account in accounts),
        unknown=unknown,
        warnings=tuple(warning for account in accounts for warning in account.get("warnings", ())),
    )


def _total(accounts: Sequence[dict[str, Any]], name: str) -> float | None:
    """Returns the sum of a field; None if one of the accounts lacks it, since a part is not the whole."""
    values = [account.get(name) for account in accounts]
    return (
        None if any(value is None for value in values) else float(sum(value for value in values if value is not None))
    )


def _interval(value: dict[str, float]) -> Interval:
    return Interval(float(value["mean"]), float(value["low"]), float(value["high"]))


def _part(percent: Interval, whole: float) -> Interval:
    return Interval(*(figure / 100.0 * whole for figure in (percent.mean, percent.low, percent.high)))


def _sum(intervals: Sequence[Interval]) -> Interval:
    """Returns the sum; its ends are those of the parts, as if their errors were the same: never too narrow."""
    return Interval(sum(i.mean for i in intervals), sum(i.low for i in intervals), sum(i.high for i in intervals))


def _relative(figure: Interval, whole: float, comparisons: Sequence[dict[str, Any]], name: str) -> Interval | None:
    """Returns a figure in percent of the whole; the daemon's own percentages where there is one account.

    The error of the sensors cancels in the daemon's percentages, but not in a quotient of its grams.
    """
    if len(comparisons) == 1:
        return _interval(comparisons[0][name])
    if whole <= 0.0:
        return None
    return Interval(*(part / whole * 100.0 for part in (figure.mean, figure.low, figure.high)))
