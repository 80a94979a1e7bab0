"""What CodeCarbon's tracker returns and writes, column by column."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from typing import Any


class OutputMethod(str, Enum):
    """Ways to put figures out; only `CSV` has an effect here."""

    CSV = "csv"
    API = "api"
    LOGGER = "logger"
    PROMETHEUS = "prometheus"
    LOGFIRE = "logfire"
    BOAMPS = "boamps"


@dataclass
class EmissionsData:
    """Figures of a run. Energies are in kilowatt-hours, powers are means in watts, emissions in kilograms.

    What the daemon does not tell is empty or zero: the country, the place, and how busy devices were. If the carbon
    intensity of some of the energy is unknown, emissions are None, and empty in a file.
    """

    timestamp: str = ""
    project_name: str = ""
    run_id: str = ""
    experiment_id: str = ""
    duration: float = 0.0
    emissions: float | None = 0.0
    emissions_rate: float | None = 0.0
    cpu_power: float = 0.0
    gpu_power: float = 0.0
    ram_power: float = 0.0
    cpu_energy: float = 0.0
    gpu_energy: float = 0.0
    ram_energy: float = 0.0
    energy_consumed: float = 0.0
    water_consumed: float = 0.0
    country_name: str = ""
    country_iso_code: str = ""
    region: str = ""
    cloud_provider: str = ""
    cloud_region: str = ""
    os: str = ""
    python_version: str = ""
    codecarbon_version: str = ""
    cpu_count: float = 0
    cpu_model: str = ""
    gpu_count: float = 0
    gpu_model: str = ""
    longitude: float | None = None
    latitude: float | None = None
    ram_total_size: float | None = None
    tracking_mode: str = "machine"
    cpu_utilization_percent: float = 0.0
    gpu_utilization_percent: float = 0.0
    ram_utilization_percent: float = 0.0
    ram_used_gb: float = 0.0
    on_cloud: str = "N"
    pue: float = 1.0
    wue: float = 0.0

    @property
    def values(self) -> dict[str, Any]:
        """Figures by their names."""
        return asdict(self)

    def minus(self, earlier: EmissionsData, duration: float) -> EmissionsData:
        """Returns the figures of the time since `earlier`, which took so long."""
        parts = ("cpu_energy", "gpu_energy", "ram_energy", "energy_consumed", "water_consumed")
        left = replace(
            self, duration=duration, **{name: getattr(self, name) - getattr(earlier, name) for name in parts}
        )
        seconds = max(duration, 1e-9)
        left.emissions = left.emissions_rate = None
        if self.emissions is not None and earlier.emissions is not None:
            left.emissions = self.emissions - earlier.emissions
            left.emissions_rate = left.emissions / seconds
        for device in ("cpu", "gpu", "ram"):
            setattr(left, f"{device}_power", getattr(left, f"{device}_energy") * 3.6e6 / seconds)
        return left


# Columns of a run that a task's row does not have.
_NOT_OF_TASKS = ("experiment_id", "pue", "wue")


@dataclass
class TaskEmissionsData:
    """Figures of a task."""

    task_name: str
    data: EmissionsData

    @classmethod
    def of(cls, task_name: str, data: EmissionsData) -> TaskEmissionsData:
        """Returns the figures of a task of this name."""
        return cls(task_name, data)

    @property
    def values(self) -> dict[str, Any]:
        """Figures by their names, the task's name first."""
        return {"task_name": self.task_name, **{k: v for k, v in self.data.values.items() if k not in _NOT_OF_TASKS}}


def append_row(path: str, data: EmissionsData, update: bool) -> None:
    """Adds a run's row to a file, or replaces the row of the same run.

    A file with other columns is kept aside as `….bak`.
    """
    names = [field.name for field in fields(EmissionsData)]
    rows: list[dict[str, Any]] = []
    header: list[str] = []
    with contextlib.suppress(FileNotFoundError), open(path, newline="") as file:
        reader = csv.DictReader(file)
        header = list(reader.fieldnames or ())
        rows = list(reader) if update and header else []
    if header and sorted(header) != sorted(names):
        os.replace(path, _free(path))
        header, rows = [], []
    if update and header:
        rows = [row for row in rows if row["run_id"] != data.run_id]
        with open(f"{path}.new", "w", newline="") as file:
            writer = csv.DictWriter(file, header)
            writer.writeheader()
            writer.writerows([*rows, data.values])
        os.replace(f"{path}.new", path)
        return
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, header or names)
        if not header:
            writer.writeheader()
        writer.writerow(data.values)


def write_tasks(path: str, tasks: Sequence[TaskEmissionsData]) -> None:
    """Writes the rows of a run's tasks."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(tasks[0].values))
        writer.writeheader()
        writer.writerows(task.values for task in tasks)


def _free(path: str) -> str:
    """Returns a name for a backup that does not exist yet."""
    backup, number = f"{path}.bak", 0
    while os.path.exists(backup):
        number += 1
        backup = f"{path}_{number}.bak"
    return backup
