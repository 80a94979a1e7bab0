"""A drop-in for `zeus.monitor.ZeusMonitor`, with the energy that the wattune daemon measures.

```python
from wattune.zeus import ZeusMonitor  # instead of zeus.monitor

monitor = ZeusMonitor(gpu_indices=[0])
monitor.begin_window("epoch")
train()
print(monitor.end_window("epoch").total_energy)
```

Needs neither NVML nor root in this process. Each window costs two requests to the daemon, less than a millisecond each.
Without a daemon, energies are not a number (NaN): an energy of zero would look measured.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from ._gpus import Unresolved
from ._http import Unreachable
from ._meter import Energy, Meter, Reading, of_process

__all__ = ["Measurement", "ZeusMonitor"]

_log = logging.getLogger("wattune")
Framework = Literal["torch", "jax", "cupy"]


@dataclass
class Measurement:
    """Time and energy of a window.

    Attributes:
        time: Length of the window, in seconds.
        gpu_energy: Energy of each GPU in joules, by its index among the GPUs that this process sees.
        cpu_energy: Energy of each CPU package in joules, by its number; None if the daemon reads none.
        dram_energy: Energy of each package's memory in joules; None if the daemon reads none.
        soc_energy: Always None: the daemon reads no such chips.
    """

    time: float
    gpu_energy: dict[int, float]
    cpu_energy: dict[int, float] | None = None
    dram_energy: dict[int, float] | None = None
    soc_energy: None = None

    @property
    def total_energy(self) -> float:
        """Energy of all GPUs, in joules."""
        return sum(self.gpu_energy.values())


@dataclass
class _Window:
    began: float
    reading: Reading | None


class ZeusMonitor:
    """Measures time and energy between `begin_window` and `end_window`.

    Attributes:
        gpu_indices: Indices of the monitored GPUs, among those that this process sees.
        cpu_indices: Numbers of the monitored CPU packages.
    """

    def __init__(
        self,
        gpu_indices: list[int] | None = None,
        cpu_indices: list[int] | None = None,
        approx_instant_energy: bool = False,
        log_file: str | Path | None = None,
        sync_execution_with: Framework = "torch",
        *,
        socket: str | None = None,
        listen: str | None = None,
    ) -> None:
        """Makes a monitor.

        Args:
            gpu_indices: GPUs to monitor, counted as CUDA counts those of CUDA_VISIBLE_DEVICES; by default all of them.
            cpu_indices: CPU packages to monitor; by default all of them.
            approx_instant_energy: Where a window is too short for the GPU's counter and its energy would be zero,
                multiply power and time.
            log_file: Path of a CSV file that gets a line for each window.
            sync_execution_with: Framework whose work on the GPUs is awaited at both ends of a window.
            socket: The daemon's Unix socket, as for `wattune.job`.
            listen: The daemon's TCP address, as for `wattune.job`.

        Raises:
            ValueError: If an index names no GPU, or it is uncertain which GPU it names.
        """
        self.approx_instant_energy = approx_instant_energy
        self.sync_with: Framework = sync_execution_with
        self._meter = Meter(socket, listen)
        self._uuids: list[str] = []
        self._windows: dict[str, _Window] = {}
        self._warned = False
        self._chosen = gpu_indices
        self.gpu_indices: list[int] = list(gpu_indices or ())
        self.cpu_indices: list[int] = list(cpu_indices or ())
        reading = self._read()
        if reading is not None:
            self._find_gpus()
            if cpu_indices is None:
                self.cpu_indices = list(range(len(reading.packages)))
        self.log_file: IO[str] | None = None
        if log_file is not None:
            path = Path(log_file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.log_file = path.open("w")
            columns = ",".join(f"gpu{index}_energy" for index in self.gpu_indices)
            self.log_file.write(f"start_time,window_name,elapsed_time,{columns}\n")
            self.log_file.flush()

    def begin_window(self, key: str, sync_execution: bool = True, restart: bool = False) -> None:
        """Begins a window.

        Args:
            key: Name of the window, which must not be open.
            sync_execution: Whether to wait for the work that was given to the GPUs before.
            restart: Whether to drop an open window of that name.

        Raises:
            ValueError: If a window of that name is open.
        """
        if key in self._windows and not restart:
            raise ValueError(f"Measurement window '{key}' already exists")
        if sync_execution:
            self._synchronise()
        reading = self._read()
        if reading is not None and not self._uuids:
            try:
                self._find_gpus()
            except ValueError as error:
                _log.warning("energies are not a number: %s", error)
        self._windows[key] = _Window(time.time() if reading is None else _wall(reading.at), reading)

    def end_window(self, key: str, sync_execution: bool = True, cancel: bool = False) -> Measurement:
        """Ends a window and returns its time and energy.

        Args:
            key: Name of an open window.
            sync_execution: Whether to wait for the work that was given to the GPUs before.
            cancel: Whether to drop the window: the measurement is then zero, and not logged.

        Raises:
            ValueError: If no window of that name is open.
        """
        window = self._windows.pop(key, None)
        if window is None:
            raise ValueError(f"Measurement window '{key}' does not exist")
        if sync_execution:
            self._synchronise()
        if cancel:
            return Measurement(0.0, dict.fromkeys(self.gpu_indices, 0.0), dict.fromkeys(self.cpu_indices, 0.0))
        end = self._read()
        took = (time.time() if end is None else _wall(end.at)) - window.began
        measured = self._measure(window.reading, end, took)
        if self.log_file is not None:
            energies = ",".join(str(measured.gpu_energy[index]) for index in self.gpu_indices)
            self.log_file.write(f"{window.began},{key},{measured.time},{energies}\n")
            self.log_file.flush()
        return measured

    def reset_windows(self) -> None:
        """Drops all open windows."""
        self._windows.clear()

    def _find_gpus(self) -> None:
        """Finds out which GPUs the indices mean.

        Raises:
            ValueError: If that is uncertain, or there is no such GPU.
        """
        try:
            uuids = of_process(self._meter.gpus())
        except Unresolved as unresolved:
            raise ValueError(str(unresolved)) from None
        except Unreachable as error:
            self._warn(error)
            return
        for index in self._chosen or ():
            if not 0 <= index < len(uuids):
                raise ValueError(f"there is no GPU {index}: this process sees {len(uuids)}, counted from 0")
        self._uuids = uuids
        if self._chosen is None:
            self.gpu_indices = list(range(len(uuids)))

    def _measure(self, begin: Reading | None, end: Reading | None, took: float) -> Measurement:
        if begin is None or end is None:
            return Measurement(took, dict.fromkeys(self.gpu_indices, math.nan))
        if begin.daemon != end.daemon:
            _log.warning("the daemon was restarted in this window, so its energy is unknown")
            return Measurement(took, dict.fromkeys(self.gpu_indices, math.nan))
        gpus = {}
        for index in self.gpu_indices:
            uuid = self._uuids[index] if index < len(self._uuids) else ""
            gpus[index] = self._difference(begin.gpus.get(uuid), end.gpus.get(uuid), took)
        if any(energy == 0.0 for energy in gpus.values()):
            warnings.warn(
                "a GPU's energy is zero: the window was shorter than the interval of the GPU's counter; "
                "approx_instant_energy=True estimates it from the power",
                stacklevel=3,
            )
        packages = {}
        for index in self.cpu_indices:
            if index < len(begin.packages) and index < len(end.packages):
                packages[index] = end.packages[index].joules - begin.packages[index].joules
        dram = {
            i: end.dram[i].joules - begin.dram[i].joules for i in self.cpu_indices if i in begin.dram and i in end.dram
        }
        return Measurement(took, gpus, packages or None, dram or None)

    def _difference(self, begin: Energy | None, end: Energy | None, took: float) -> float:
        if begin is None or end is None:
            return math.nan
        # Extrapolation may undercut an earlier value by a hair.
        joules = max(end.joules - begin.joules, 0.0)
        return end.watts * took if joules == 0.0 and self.approx_instant_energy else joules

    def _read(self) -> Reading | None:
        try:
            return self._meter.read()
        except (Unreachable, KeyError, TypeError, ValueError) as error:
            self._warn(error)
            return None

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("no wattune daemon answers (%s); energies are not a number. `wattune serve` starts one", error)

    def _synchronise(self) -> None:
        """Waits for the work on the GPUs. A framework that this process does not use has none."""
        framework: Any = sys.modules.get(self.sync_with)
        if framework is None:
            return
        try:
            if self.sync_with == "torch" and framework.cuda.is_initialized():
                for index in self.gpu_indices:
                    framework.cuda.synchronize(index)
            elif self.sync_with == "jax":
                for device in framework.devices():
                    (framework.device_put(0.0, device) + 1).block_until_ready()
            elif self.sync_with == "cupy":
                for index in self.gpu_indices:
                    framework.cuda.Device(index).synchronize()
        except Exception as error:  # noqa: BLE001 - a framework without these devices has nothing to wait for
            _log.debug("%s in process %d does not synchronise: %s", self.sync_with, os.getpid(), error)


def _wall(monotonic: float) -> float:
    """Returns the Unix time of a monotonic time."""
    return time.time() - (time.monotonic() - monotonic)
