"""The drop-in for codecarbon.EmissionsTracker."""

from __future__ import annotations

import csv
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

import wattune.codecarbon
from fake_daemon import FakeDaemon
from real_daemon import RealDaemon
from wattune.codecarbon import EmissionsTracker, OfflineEmissionsTracker, TaskEmissionsTracker, track_emissions

# The header of emissions.csv as CodeCarbon 3.3.2 writes it.
COLUMNS = (
    "timestamp,project_name,run_id,experiment_id,duration,emissions,emissions_rate,cpu_power,gpu_power,ram_power,"
    "cpu_energy,gpu_energy,ram_energy,energy_consumed,water_consumed,country_name,country_iso_code,region,cloud_provider,"
    "cloud_region,os,python_version,codecarbon_version,cpu_count,cpu_model,gpu_count,gpu_model,longitude,latitude,"
    "ram_total_size,tracking_mode,cpu_utilization_percent,gpu_utilization_percent,ram_utilization_percent,ram_used_gb,"
    "on_cloud,pue,wue"
)


@pytest.fixture(autouse=True)
def _at_socket(daemon: FakeDaemon, sock: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTUNE_SOCKET", sock)
    monkeypatch.chdir(folder)
    daemon.power_w = 0.0


def rows(path: str = "emissions.csv") -> list[dict[str, Any]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_energy_and_emissions_are_the_daemons(daemon: FakeDaemon) -> None:
    tracker = EmissionsTracker(project_name="resnet50", measure_power_secs=1, pue=1.5, log_level="error")
    tracker.start()
    daemon.energy_j = [1000.0 + 7200.0, 1000.0]
    time.sleep(0.05)
    emissions = tracker.stop()
    # 7.2 kJ are 0.002 kWh, times 1.5, at 300 g/kWh.
    assert emissions == pytest.approx(0.0009, rel=1e-3)
    assert tracker.final_emissions == emissions
    data = tracker.final_emissions_data
    assert data is not None
    assert data.gpu_energy == pytest.approx(0.003)
    assert (data.gpu_count, data.gpu_model) == (2, "2 x NVIDIA A40")
    assert data.energy_consumed == pytest.approx(data.gpu_energy + data.cpu_energy + data.ram_energy)
    assert data.emissions is not None
    assert data.emissions_rate == pytest.approx(data.emissions / data.duration)
    with open("emissions.csv") as file:
        assert file.readline().strip() == COLUMNS
    (row,) = rows()
    assert row["project_name"] == "resnet50"
    assert float(row["emissions"]) == pytest.approx(0.0009, rel=1e-3)
    assert row["run_id"] == str(tracker.run_id)


def test_each_stretch_has_the_intensity_of_its_time(daemon: FakeDaemon) -> None:
    with EmissionsTracker(measure_power_secs=0.1, save_to_file=False) as tracker:
        daemon.energy_j = [1000.0 + 3.6e6, 1000.0]
        time.sleep(0.3)
        tracker.flush()
        daemon.intensity = 600.0
        daemon.energy_j[0] += 3.6e6
    assert tracker.final_emissions == pytest.approx(0.9, rel=1e-3)
    assert not os.path.exists("emissions.csv")


def test_an_unknown_intensity_is_the_planned_one(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.intensity, daemon.planned_with = None, 475.0
    with EmissionsTracker(measure_power_secs=0.1) as tracker:
        daemon.energy_j[0] += 3.6e6
        tracker.flush()
    assert tracker.final_emissions == pytest.approx(0.475, rel=1e-3)
    assert caplog.text.count("computed with the 475 g/kWh") == 1


def test_without_any_intensity_emissions_are_unknown(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.intensity = daemon.planned_with = None
    with EmissionsTracker() as tracker:
        daemon.energy_j[0] += 3.6e6
        tracker.flush()
        daemon.intensity = 300.0
        daemon.energy_j[0] += 3.6e6
    assert tracker.final_emissions is None
    data = tracker.final_emissions_data
    assert data is not None
    assert data.gpu_energy == pytest.approx(2.0)
    assert [(row["emissions"], row["emissions_rate"]) for row in rows()] == [("", "")] * 2
    assert caplog.text.count("emissions are unknown") == 1
    with EmissionsTracker(force_carbon_intensity_g_co2e_kwh=100.0, save_to_file=False) as forced:
        daemon.intensity = None
        daemon.energy_j[0] += 3.6e6
    assert forced.final_emissions == pytest.approx(0.1, rel=1e-3)


def test_the_file_is_appended_updated_and_kept(daemon: FakeDaemon) -> None:
    Path("emissions.csv").write_text("a,b\n1,2\n")
    for update in ("append", "append", "update"):
        with EmissionsTracker(on_csv_write=update) as tracker:
            tracker.flush()
    assert Path("emissions.csv.bak").read_text() == "a,b\n1,2\n"
    # Two rows for each of the runs that append, one for the one that updates.
    assert len(rows()) == 5
    assert rows()[-1]["run_id"] == str(tracker.run_id)


def test_tasks(daemon: FakeDaemon) -> None:
    tracker = EmissionsTracker(experiment_name="x")
    tracker.start_task("load")
    daemon.energy_j[0] += 3600.0
    load = tracker.stop_task()
    with TaskEmissionsTracker("train", tracker=tracker):
        daemon.energy_j[0] += 7200.0
    tracker.stop()
    assert load is not None
    assert load.gpu_energy == pytest.approx(0.001)
    tasks = {row["task_name"]: row for row in rows(f"emissions_x_{tracker.run_id}.csv")}
    assert float(tasks["train"]["gpu_energy"]) == pytest.approx(0.002)
    assert float(rows()[0]["gpu_energy"]) == pytest.approx(0.003)
    assert tracker.stop_task("no such task") is None


def test_the_decorator(daemon: FakeDaemon) -> None:
    @track_emissions(project_name="a", offline=True, country_iso_code="DEU")
    def train(x: int) -> int:
        daemon.energy_j[0] += 3600.0
        return 2 * x

    @track_emissions
    def fail() -> None:
        raise ValueError("of the training")

    assert train(4) == 8
    assert train.__name__ == "train"
    with pytest.raises(ValueError, match="of the training"):
        fail()
    assert [row["project_name"] for row in rows()] == ["a", "codecarbon"]


def test_arguments_are_accepted(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "wattune"):
        OfflineEmissionsTracker(
            "a", 5, country_iso_code="FRA", output_methods=["csv"], gpu_ids="0", api_key="k", save_to_api=None
        )
    assert "ignores api_key, country_iso_code" in caplog.text
    with pytest.raises(TypeError, match="projekt_name"):
        EmissionsTracker(projekt_name="a")
    with pytest.raises(OSError, match="doesn't exist"):
        EmissionsTracker(output_dir="nowhere")


def test_gpu_ids_choose(daemon: FakeDaemon) -> None:
    for ids in ([1], "1", ["GPU-1"]):
        tracker = EmissionsTracker(gpu_ids=ids, save_to_file=False, force_carbon_intensity_g_co2e_kwh=100.0)
        tracker.start()
        daemon.energy_j[0] += 1e9
        daemon.energy_j[1] += 3.6e6
        assert tracker.stop() == pytest.approx(0.1, rel=1e-3)


def test_without_a_daemon_nothing_is_known(daemon: FakeDaemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.stop()
    with EmissionsTracker(measure_power_secs=0.1) as tracker:
        time.sleep(0.3)
    assert tracker.final_emissions is None
    assert tracker.stop() is None
    assert not os.path.exists("emissions.csv")
    assert caplog.text.count("does not answer") == 1


def test_names_are_codecarbons() -> None:
    assert set(wattune.codecarbon.__all__) >= {
        "EmissionsTracker",
        "OfflineEmissionsTracker",
        "OutputMethod",
        "track_emissions",
    }


def test_energy_agrees_with_the_counters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the fake GPUs, whose own counter is the truth."""
    (folder / "real").mkdir()
    real = RealDaemon(folder / "real")
    real.start()
    try:
        real.await_ready()
        monkeypatch.setenv("WATTUNE_SOCKET", real.socket)
        real.script({"demand_w": 250}, {"demand_w": 100})
        time.sleep(1.5)
        before = sum(real.counter_j(gpu) for gpu in range(2))
        tracker = EmissionsTracker(measure_power_secs=1)
        tracker.start()
        time.sleep(6.0)
        after = sum(real.counter_j(gpu) for gpu in range(2))
        emissions = tracker.stop()
    finally:
        real.stop()
    kwh = (after - before) / 3.6e6
    assert tracker.final_emissions_data is not None
    assert tracker.final_emissions_data.gpu_energy == pytest.approx(kwh, rel=5e-3)
    assert emissions == pytest.approx(kwh * 0.3, rel=5e-3)
