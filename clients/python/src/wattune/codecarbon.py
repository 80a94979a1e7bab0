"""A drop-in for `codecarbon.EmissionsTracker`, with the energy that the wattune daemon measures.

```python
from wattune.codecarbon import EmissionsTracker  # instead of codecarbon

with EmissionsTracker(project_name="resnet50") as tracker:
    train()
print(tracker.final_emissions)
```

GPUs, CPU packages and memory are read from the daemon, and each stretch of energy is multiplied by the carbon intensity
of the grid at that time. Arguments that concern other ways to measure, or other services, are accepted and ignored; the
log says which. Without a daemon, or without any carbon intensity, `stop` returns None, as CodeCarbon's does where it
fails.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar, cast, overload

from . import __version__
from ._codecarbon_output import EmissionsData, OutputMethod, TaskEmissionsData, append_row, write_tasks
from ._gpus import Gpu, Unresolved
from ._http import Unreachable
from ._meter import J_PER_KWH, Meter, Reading, Totals, of_process
from ._worker import worker

__all__ = [
    "EmissionsData",
    "EmissionsTracker",
    "OfflineEmissionsTracker",
    "OutputMethod",
    "TaskEmissionsTracker",
    "track_emissions",
]

_log = logging.getLogger("wattune")
_F = TypeVar("_F", bound=Callable[..., Any])
# Arguments of CodeCarbon that have no meaning here.
_IGNORED = frozenset(
    {
        "api_call_interval",
        "api_endpoint",
        "api_key",
        "save_to_api",
        "save_to_logger",
        "logging_logger",
        "save_to_prometheus",
        "save_to_logfire",
        "prometheus_url",
        "emissions_endpoint",
        "electricitymaps_api_token",
        "co2_signal_api_token",
        "tracking_mode",
        "log_level",
        "logger_preamble",
        "force_cpu_power",
        "force_ram_power",
        "force_mode_cpu_load",
        "allow_multiple_runs",
        "rapl_include_dram",
        "rapl_prefer_psys",
        "metadata",
        "country_iso_code",
        "region",
        "cloud_provider",
        "cloud_region",
        "country_2letter_iso_code",
    }
)
# Those that many scripts give, and that change nothing that anybody would miss.
_SILENT = frozenset({"tracking_mode", "log_level", "logger_preamble", "allow_multiple_runs", "rapl_include_dram"})


class EmissionsTracker:
    """Measures energy and emissions between `start` and `stop`.

    Attributes:
        final_emissions: Emissions in kilograms of CO2 equivalent, once stopped.
        final_emissions_data: All figures, once stopped.
        run_id: Id of this run.
    """

    def __init__(
        self,
        project_name: str | None = "codecarbon",
        measure_power_secs: float | None = 15,
        *,
        output_dir: str | None = ".",
        output_file: str | None = "emissions.csv",
        output_methods: Iterable[OutputMethod | str] | str | None = None,
        save_to_file: bool | None = True,
        output_handlers: list[Any] | None = None,
        gpu_ids: Iterable[int | str] | str | None = None,
        experiment_id: str | None = None,
        experiment_name: str | None = "base",
        on_csv_write: str | None = "append",
        pue: float | None = 1.0,
        wue: float | None = 0.0,
        force_carbon_intensity_g_co2e_kwh: float | None = None,
        socket: str | None = None,
        listen: str | None = None,
        **others: Any,
    ) -> None:
        """Makes a tracker.

        Args:
            project_name: Name of the run in the file.
            measure_power_secs: Seconds between two readings, each with the carbon intensity of its time.
            output_dir: Folder of the file.
            output_file: Name of the file.
            output_methods: `csv` for the file; other methods are ignored. Replaces `save_to_file`.
            save_to_file: Whether `stop` and `flush` write a row to the file.
            output_handlers: Objects whose `out(total, delta)` is called by `stop` and `flush`.
            gpu_ids: GPUs to measure, by index or the beginning of a UUID; by default those that this process sees.
            experiment_id: Id for the file.
            experiment_name: Part of the name of the file of tasks.
            on_csv_write: `append`, or `update` to replace the row of this run.
            pue: Factor for the data centre's other energy.
            wue: Litres of water for each kilowatt-hour.
            force_carbon_intensity_g_co2e_kwh: Carbon intensity to use in place of the daemon's.
            socket: The daemon's Unix socket, as for `wattune.job`.
            listen: The daemon's TCP address, as for `wattune.job`.
            others: Arguments of CodeCarbon that have no meaning here.

        Raises:
            TypeError: If an argument is not one of CodeCarbon's.
            ValueError: If `on_csv_write` is neither `append` nor `update`.
            OSError: If the folder does not exist.
        """
        unknown = sorted(set(others) - _IGNORED)
        if unknown:
            raise TypeError(f"EmissionsTracker() got an unexpected keyword argument {unknown[0]!r}")
        ignored = sorted(name for name, value in others.items() if value is not None and name not in _SILENT)
        if ignored:
            _log.info(
                "wattune's EmissionsTracker ignores %s: energy and intensity come from the daemon", ", ".join(ignored)
            )
        if on_csv_write not in ("append", "update"):
            raise ValueError(f"on_csv_write is {on_csv_write!r}; it is 'append' or 'update'")
        self._writes = bool(save_to_file) if output_methods is None else "csv" in _methods(output_methods)
        self._path = os.path.join(output_dir or ".", output_file or "emissions.csv")
        if self._writes and not os.path.isdir(output_dir or "."):
            raise OSError(f"Folder '{output_dir}' doesn't exist !")
        self.run_id = uuid.uuid4()
        self.final_emissions: float | None = None
        self.final_emissions_data: EmissionsData | None = None
        self.ending, self.done = threading.Event(), threading.Event()
        self.answered_at: float | None = None
        self._project_name = project_name or "codecarbon"
        self._experiment_id = experiment_id or "5b0fa12a-3dd7-45bb-9766-cc326314d9f1"
        self._experiment_name = experiment_name or "base"
        self._update = on_csv_write == "update"
        self._handlers = list(output_handlers or ())
        self._gpu_ids = gpu_ids
        self._interval_s = max(float(measure_power_secs or 15), 0.1)
        self._pue, self._wue = float(pue or 1.0), float(wue or 0.0)
        self._forced = force_carbon_intensity_g_co2e_kwh
        self._meter = Meter(socket, listen)
        self._lock = threading.Lock()
        self._totals = Totals()
        self._gpus: list[Gpu] = []
        self._last: Reading | None = None
        self._started: float | None = None
        self._tasks: dict[str, _Task] = {}
        self._active_task: str | None = None
        self._previous: EmissionsData | None = None
        self._warned = self._warned_of_intensity = False

    # As in CodeCarbon.

    def start(self) -> None:
        """Starts to measure. Does nothing if that has begun already."""
        if self._started is not None:
            _log.warning("Already started tracking")
            return
        self._started = time.monotonic()
        self._measure()
        self.ending.clear()
        self.done.clear()
        worker().add(self)

    def stop(self) -> float | None:
        """Stops, writes the row, and returns the emissions in kilograms; None if they are unknown."""
        if self._started is None:
            _log.warning("Tracker already stopped or never started.")
            return self.final_emissions
        self.ending.set()
        worker().kick(self)
        for name in [name for name, task in self._tasks.items() if task.data is None]:
            self.stop_task(name)
        self._measure()
        data = self._data()
        self._write(data)
        self._started = None
        if data is not None:
            self.final_emissions_data, self.final_emissions = data, data.emissions
        return self.final_emissions

    def flush(self) -> float | None:
        """Writes a row and goes on; returns the emissions so far in kilograms, None if they are unknown."""
        if self._started is None:
            _log.error("You first need to start the tracker.")
            return None
        self._measure()
        data = self._data()
        self._write(data)
        return None if data is None else data.emissions

    def start_task(self, task_name: str | None = None) -> None:
        """Starts to measure a task. Starts the tracker too, if it does not run."""
        if self._active_task is not None:
            _log.warning("A task is already under measure")
            return
        if self._started is None:
            self.start()
        else:
            self._measure()
        name = task_name or str(uuid.uuid4())
        if name in self._tasks:
            name += f"_{uuid.uuid4()}"
        self._tasks[name] = _Task(time.monotonic(), self._data())
        self._active_task = name

    def stop_task(self, task_name: str | None = None) -> EmissionsData | None:
        """Ends a task and returns its figures; None if there is no such task, or they are unknown."""
        name = task_name or self._active_task
        task = self._tasks.get(name or "")
        if task is None or task.data is not None:
            _log.warning("stop_task : No active task to stop.")
            return None
        self._measure()
        data = self._data()
        self._active_task = None
        if data is None or task.at_start is None:
            del self._tasks[name or ""]
            return None
        task.data = data.minus(task.at_start, time.monotonic() - task.began)
        return task.data

    def __enter__(self) -> EmissionsTracker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def service_shutdown(self, signum: int, frame: object) -> None:
        """Stops the tracker, as a signal handler."""
        self.stop()

    # Measuring.

    def serve(self) -> float:
        """Takes a reading on the background thread; returns the seconds until the next one."""
        if self.ending.is_set():
            self.done.set()
        else:
            self._measure()
        return self._interval_s

    def _measure(self) -> None:
        """Takes a reading, and adds the energy since the last one at the carbon intensity of now."""
        with self._lock:
            try:
                if not self._gpus:
                    self._gpus = self._find_gpus()
                reading = self._meter.read()
            except (Unreachable, Unresolved, KeyError, TypeError, ValueError) as error:
                if not self._warned:
                    self._warned = True
                    _log.warning("emissions are unknown while the wattune daemon does not answer: %s", error)
                return
            self.answered_at = reading.at
            self._warn_of_intensity(reading)
            if self._last is not None:
                self._totals.add(self._last, reading, [gpu.uuid for gpu in self._gpus], self._pue, self._forced)
            self._last = reading

    def _warn_of_intensity(self, reading: Reading) -> None:
        """Logs once that the carbon intensity is unknown, and what is used instead."""
        is_known = reading.intensity_g_per_kwh is not None and not reading.is_assumed
        if self._warned_of_intensity or self._forced is not None or is_known:
            return
        self._warned_of_intensity = True
        if reading.intensity_g_per_kwh is None:
            _log.warning("emissions are unknown: the wattune daemon knows no carbon intensity")
        else:
            _log.warning(
                "the carbon intensity is unknown: emissions are computed with the %g g/kWh that wattune plans with",
                reading.intensity_g_per_kwh,
            )

    def _find_gpus(self) -> list[Gpu]:
        known = self._meter.gpus()
        if self._gpu_ids is None:
            seen = of_process(known)
            return [gpu for gpu in known if gpu.uuid in seen]
        ids = self._gpu_ids.split(",") if isinstance(self._gpu_ids, str) else self._gpu_ids
        wanted = [str(gpu).strip() for gpu in ids]
        return [
            g for g in known if any(w == str(g.index) or (not w.isdigit() and g.uuid.startswith(w)) for w in wanted)
        ]

    def _data(self) -> EmissionsData | None:
        """Returns the figures so far; None without two readings."""
        if self._last is None or self._started is None:
            return None
        totals = self._totals
        duration = max(time.monotonic() - self._started, 1e-9)
        models = sorted({gpu.model for gpu in self._gpus})
        counts = [f"{sum(gpu.model == model for gpu in self._gpus)} x {model}" for model in models]
        kwh = totals.gpu_kwh + totals.cpu_kwh + totals.dram_kwh
        return EmissionsData(
            timestamp=datetime.now().strftime("%Y-%m-%dT%H:%M:%S"),
            project_name=self._project_name,
            run_id=str(self.run_id),
            experiment_id=self._experiment_id,
            duration=duration,
            emissions=totals.kg,
            emissions_rate=None if totals.kg is None else totals.kg / duration,
            cpu_power=totals.cpu_kwh * J_PER_KWH / duration,
            gpu_power=totals.gpu_kwh * J_PER_KWH / duration,
            ram_power=totals.dram_kwh * J_PER_KWH / duration,
            cpu_energy=totals.cpu_kwh,
            gpu_energy=totals.gpu_kwh,
            ram_energy=totals.dram_kwh,
            energy_consumed=kwh,
            water_consumed=kwh * self._wue,
            region=self._last.zone or "",
            os=platform.platform(),
            python_version=platform.python_version(),
            codecarbon_version=f"wattune {__version__}",
            cpu_count=os.cpu_count() or 0,
            gpu_count=len(self._gpus),
            gpu_model=", ".join(counts),
            pue=self._pue,
            wue=self._wue,
        )

    def _write(self, data: EmissionsData | None) -> None:
        if data is None:
            _log.warning("no row is written to %s, because no wattune daemon has answered", self._path)
            return
        delta = data if self._previous is None else data.minus(self._previous, data.duration - self._previous.duration)
        self._previous = replace(data)
        tasks = [TaskEmissionsData.of(name, t.data) for name, t in self._tasks.items() if t.data is not None]
        try:
            if self._writes:
                append_row(self._path, data, self._update)
                if tasks:
                    name = f"emissions_{self._experiment_name}_{self.run_id}.csv"
                    write_tasks(os.path.join(os.path.dirname(self._path), name), tasks)
            for handler in self._handlers:
                handler.out(data, delta)
                if tasks and hasattr(handler, "task_out"):
                    handler.task_out(tasks, self._experiment_name)
        except Exception as error:  # noqa: BLE001 - CodeCarbon lets no output end the training either
            _log.warning("emissions are not written: %s: %s", type(error).__name__, error)


class OfflineEmissionsTracker(EmissionsTracker):
    """The same tracker: the daemon knows its grid, so a country is neither needed nor used."""


class TaskEmissionsTracker:
    """Measures a task in a `with` block."""

    def __init__(self, task_name: str, tracker: EmissionsTracker | None = None) -> None:
        """Makes the block for a task of this tracker, or of a new one."""
        self._owns = tracker is None
        self.tracker = tracker or EmissionsTracker()
        self.task_name = task_name

    def __enter__(self) -> TaskEmissionsTracker:
        self.tracker.start_task(self.task_name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.tracker.stop_task()
        if self._owns:
            self.tracker.stop()


@overload
def track_emissions(fn: _F) -> _F: ...
@overload
def track_emissions(fn: None = None, **arguments: Any) -> Callable[[_F], _F]: ...
def track_emissions(fn: _F | None = None, **arguments: Any) -> _F | Callable[[_F], _F]:
    """Decorates a function so that each call is measured; takes the arguments of `EmissionsTracker`."""
    arguments.pop("offline", None)

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def measured(*args: Any, **kwargs: Any) -> Any:
            with EmissionsTracker(**arguments):
                return function(*args, **kwargs)

        return cast(_F, measured)

    return decorate if fn is None else decorate(fn)


class _Task:
    def __init__(self, began: float, at_start: EmissionsData | None) -> None:
        self.began = began
        self.at_start = at_start
        self.data: EmissionsData | None = None


def _methods(methods: Iterable[OutputMethod | str] | str) -> set[str]:
    words = methods.split(",") if isinstance(methods, str) else methods
    return {(word.value if isinstance(word, OutputMethod) else str(word)).strip().lower() for word in words}
