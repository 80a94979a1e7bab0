"""Readings of the daemon's energy counters at an exact time, for measurements of a stretch of code."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _gpus
from ._daemon import Daemon
from ._http import Unreachable, addresses

# A daemon that does not say how old its readings are makes a new one at least this often.
_LONGEST_TICK_S = 1.5
_POLL_S = 0.01
_IN_VAIN_S = 0.02
J_PER_KWH = 3.6e6


@dataclass(frozen=True)
class Energy:
    """Energy of a device since the daemon started, and its present power."""

    joules: float
    watts: float


@dataclass(frozen=True)
class Reading:
    """The energy of all devices at one time.

    Attributes:
        at: The monotonic time to which the energies apply.
        gpus: GPUs by UUID.
        packages: CPU packages, in the daemon's order.
        dram: Memory by the number of its package.
        intensity_g_per_kwh: Carbon intensity now, or the one that the daemon plans with while that is unknown; None if
            there is neither.
        is_assumed: True if the intensity is the one that the daemon plans with.
        zone: Zone of the grid.
        daemon: What changes when the daemon restarts, and with it all energies.
    """

    at: float
    gpus: dict[str, Energy]
    packages: list[Energy] = field(default_factory=list)
    dram: dict[int, Energy] = field(default_factory=dict)
    intensity_g_per_kwh: float | None = None
    is_assumed: bool = False
    zone: str | None = None
    daemon: str = ""


class Meter:
    """Reads the daemon's counters. For use by several threads; readings are taken one after the other."""

    def __init__(self, socket: str | None = None, listen: str | None = None) -> None:
        self._daemon = Daemon(addresses(socket, listen))
        self._lock = threading.Lock()
        self._in_vain = False
        # For the child of a fork, which must not write on its parent's connection.
        self._pid = os.getpid()

    def gpus(self, timeout_s: float = 2.0) -> list[_gpus.Gpu]:
        """Returns the daemon's GPUs.

        Raises:
            Unreachable: If no daemon answers in time.
        """
        return _gpus.from_daemon(self._status(timeout_s)["gpus"])

    def read(self, timeout_s: float = 2.0) -> Reading:
        """Returns the energies at the time of the call.

        The daemon reads its devices several times a second: what they have used since then is added by their power.

        Raises:
            Unreachable: If no daemon answers in time.
        """
        begun = time.monotonic()
        status = self._status(timeout_s)
        # The daemon wrote its answer between the request and now.
        answered_in = (time.monotonic() - begun) / 2.0
        gpus = {gpu["uuid"]: _energy(gpu, _age(gpu) - answered_in) for gpu in status["gpus"]}
        if any("energy_age_s" not in gpu for gpu in status["gpus"]):
            gpus = self._at_next_tick(begun, status["gpus"], timeout_s)
        zones = (status.get("cpu") or {}).get("zones", [])
        packages = [zone for zone in zones if zone["kind"] == "package" and zone.get("energy_j") is not None]
        dram = {}
        for zone in zones:
            number = zone["zone"].rpartition("-")[2]
            if zone["kind"] == "dram" and zone.get("energy_j") is not None and number.isdigit():
                dram[int(number)] = _energy(zone, _age(zone) - answered_in)
        carbon = status.get("carbon") or {}
        intensity = carbon.get("intensity_g_per_kwh")
        assumed = carbon.get("planned_with_g_per_kwh") if intensity is None else None
        return Reading(
            at=begun,
            gpus=gpus,
            packages=[_energy(zone, _age(zone) - answered_in) for zone in packages],
            dram=dram,
            intensity_g_per_kwh=assumed if intensity is None else intensity,
            is_assumed=assumed is not None,
            zone=carbon.get("zone"),
            daemon=str(status.get("started_at", "")),
        )

    def _at_next_tick(self, begun: float, first: Sequence[Mapping[str, Any]], timeout_s: float) -> dict[str, Energy]:
        """Returns the GPUs' energies at the time `begun`, from a daemon that does not say how old its readings are.

        Waits for the next reading of each GPU, which is new when it is first seen, and goes back to `begun` by its
        power.
        """
        before = {gpu["uuid"]: float(gpu["energy_j"]) for gpu in first}
        found: dict[str, Energy] = {}
        while len(found) < len(before):
            asked = time.monotonic()
            listing = self._request("/v1/gpus", timeout_s)
            seen = (asked + time.monotonic()) / 2.0
            late = asked - begun > _LONGEST_TICK_S
            for gpu in listing:
                if gpu["uuid"] not in found and (late or float(gpu["energy_j"]) != before.get(gpu["uuid"])):
                    found[gpu["uuid"]] = _energy(gpu, begun - seen)
            if late:
                break
            time.sleep(_POLL_S)
        return found

    def _status(self, timeout_s: float) -> Any:
        status = self._request("/v1/status", timeout_s)
        if not isinstance(status, dict) or not isinstance(status.get("gpus"), list):
            raise Unreachable("what answers is not a wattune daemon")
        return status

    def _request(self, path: str, timeout_s: float) -> Any:
        if not self._lock.acquire(timeout=timeout_s):
            raise Unreachable("another thread waits for the daemon")
        try:
            if self._pid != os.getpid():
                self._daemon.close()
                self._pid = os.getpid()
            # Training has waited long enough for a daemon that was waited for in vain.
            self._in_vain, waited_in_vain = True, self._in_vain
            answer = self._daemon.request("GET", path, timeout_s=_IN_VAIN_S if waited_in_vain else timeout_s)
            self._in_vain = False
        finally:
            self._lock.release()
        if not answer.ok:
            raise Unreachable(f"the daemon answers {path} with {answer.detail}")
        return answer.body


class Totals:
    """Energy and emissions so far. Energy without a carbon intensity (`unknown_kwh`) has no emissions."""

    def __init__(self) -> None:
        self.gpu_kwh = self.cpu_kwh = self.dram_kwh = 0.0
        self.unknown_kwh = 0.0
        self._known_kg = 0.0

    @property
    def kg(self) -> float | None:
        """Emissions of all the energy; None if the carbon intensity of some of it is unknown."""
        return self._known_kg if self.unknown_kwh == 0.0 else None

    def add(self, last: Reading, now: Reading, gpus: list[str], pue: float, forced: float | None) -> None:
        """Adds the energy between two readings.

        The counters of a daemon that was restarted begin anew: the time in between is filled in from the power.
        """
        same = last.daemon == now.daemon
        seconds = now.at - last.at

        def between(a: Energy | None, b: Energy | None) -> float:
            if a is None or b is None:
                return 0.0
            joules = b.joules - a.joules if same else (a.watts + b.watts) / 2.0 * seconds
            return max(joules, 0.0) / J_PER_KWH * pue

        gpu = sum(between(last.gpus.get(uuid), now.gpus.get(uuid)) for uuid in gpus)
        cpu = sum(between(a, b) for a, b in zip(last.packages, now.packages))
        dram = sum(between(last.dram.get(i), energy) for i, energy in now.dram.items())
        self.gpu_kwh += gpu
        self.cpu_kwh += cpu
        self.dram_kwh += dram
        intensity = now.intensity_g_per_kwh if forced is None else forced
        if intensity is None:
            self.unknown_kwh += gpu + cpu + dram
        else:
            self._known_kg += (gpu + cpu + dram) * intensity / 1000.0


def _age(device: Mapping[str, Any]) -> float:
    """Returns the seconds since a device's reading; zero if there was none yet."""
    return float(device.get("energy_age_s") or 0.0)


def _energy(device: Mapping[str, Any], later_s: float) -> Energy:
    """Returns a device's energy some time after its reading; negative times are before it."""
    watts = float(device.get("power_w") or 0.0)
    return Energy(float(device["energy_j"]) + watts * later_s, watts)


def of_process(known: Sequence[_gpus.Gpu]) -> list[str]:
    """Returns the UUIDs of the GPUs that this process sees, in CUDA's order.

    Raises:
        Unresolved: If they are uncertain.
    """
    selection = _gpus.resolve(os.environ, known, _gpus.visible_to_process(), _gpus.of_framework())
    return [str(gpu) for gpu in selection.gpus]
