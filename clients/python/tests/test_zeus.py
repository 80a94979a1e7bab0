"""The drop-in for zeus.monitor.ZeusMonitor."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_daemon import FakeDaemon
from real_daemon import RealDaemon
from wattune.zeus import ZeusMonitor


def test_a_window_has_the_difference_of_counters(daemon: FakeDaemon, sock: str, folder: Path) -> None:
    daemon.power_w = 0.0
    log = folder / "logs" / "windows.csv"
    monitor = ZeusMonitor(gpu_indices=[1], log_file=log, socket=sock)
    assert (monitor.gpu_indices, monitor.cpu_indices) == ([1], [0])
    monitor.begin_window("a")
    monitor.begin_window("b")
    daemon.energy_j = [1000.0, 1250.0]
    time.sleep(0.1)
    b = monitor.end_window("b")
    daemon.energy_j = [1000.0, 1300.0]
    a = monitor.end_window("a")
    assert (b.gpu_energy, a.gpu_energy, a.total_energy) == ({1: 250.0}, {1: 300.0}, 300.0)
    assert b.time == pytest.approx(0.1, abs=0.05)
    assert a.cpu_energy is not None
    assert a.cpu_energy[0] == pytest.approx(0.0, abs=0.1)
    assert (a.dram_energy, a.soc_energy) == (None, None)
    lines = log.read_text().splitlines()
    assert lines[0] == "start_time,window_name,elapsed_time,gpu1_energy"
    assert [line.split(",")[1] for line in lines[1:]] == ["b", "a"]
    assert float(lines[2].split(",")[3]) == 300.0


def test_readings_are_brought_to_the_time_of_the_call(daemon: FakeDaemon, sock: str) -> None:
    monitor = ZeusMonitor(socket=sock)
    assert monitor.gpu_indices == [0, 1]
    monitor.begin_window("a")
    daemon.slow_s = 0.2
    with pytest.warns(UserWarning, match="energy is zero"):
        measured = monitor.end_window("a")
    # 100 W, and the counter has not moved: the answer came 0.1 s after the end of the window.
    assert measured.gpu_energy[0] == 0.0


def test_a_gpu_without_a_reading_is_no_error(daemon: FakeDaemon, sock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = daemon.gpus
    monkeypatch.setattr(daemon, "gpus", lambda: [{**gpu, "energy_age_s": None} for gpu in listed()])
    daemon.power_w = 0.0
    monitor = ZeusMonitor(socket=sock)
    monitor.begin_window("a")
    daemon.energy_j = [1020.0, 1010.0]
    assert monitor.end_window("a").gpu_energy == {0: 20.0, 1: 10.0}


def test_indices_count_what_cuda_sees(daemon: FakeDaemon, sock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.power_w = 0.0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monitor = ZeusMonitor([0], socket=sock)
    monitor.begin_window("a")
    daemon.energy_j = [5000.0, 1010.0]
    assert monitor.end_window("a").gpu_energy == {0: 10.0}
    with pytest.raises(ValueError, match="there is no GPU 1: this process sees 1"):
        ZeusMonitor([1], socket=sock)


def test_names_of_windows(daemon: FakeDaemon, sock: str) -> None:
    monitor = ZeusMonitor(socket=sock)
    monitor.begin_window("a")
    with pytest.raises(ValueError, match="already exists"):
        monitor.begin_window("a")
    monitor.begin_window("a", restart=True)
    assert monitor.end_window("a", cancel=True).total_energy == 0.0
    with pytest.raises(ValueError, match="does not exist"):
        monitor.end_window("a")
    monitor.begin_window("a")
    monitor.reset_windows()
    monitor.begin_window("a")


def test_a_window_without_energy(daemon: FakeDaemon, sock: str) -> None:
    daemon.power_w = 0.0
    monitor = ZeusMonitor(socket=sock)
    monitor.begin_window("a")
    with pytest.warns(UserWarning, match="energy is zero"):
        monitor.end_window("a")
    daemon.power_w = 100.0
    monitor = ZeusMonitor(approx_instant_energy=True, socket=sock)
    monitor.begin_window("a")
    time.sleep(0.05)
    daemon.energy_j = [0.0, 0.0]
    measured = monitor.end_window("a")
    assert measured.gpu_energy[0] == pytest.approx(100.0 * measured.time)


def test_without_a_daemon_energies_are_not_a_number(sock: str, caplog: pytest.LogCaptureFixture) -> None:
    monitor = ZeusMonitor([0], socket=sock)
    for _ in range(3):
        monitor.begin_window("a")
        assert math.isnan(monitor.end_window("a").total_energy)
    assert len(caplog.records) == 1
    daemon = FakeDaemon().serve_unix(sock)
    daemon.power_w = 0.0
    # On a busy machine, a daemon that has just begun may answer too late.
    for _ in range(20):
        monitor.begin_window("a")
        if not math.isnan(monitor.end_window("a").total_energy):
            break
    monitor.begin_window("a")
    daemon.energy_j = [1001.0, 0.0]
    assert monitor.end_window("a").total_energy == 1.0
    daemon.stop()


def test_a_frozen_daemon_is_waited_for_once(daemon: FakeDaemon, sock: str) -> None:
    monitor = ZeusMonitor([0], socket=sock)
    daemon.frozen.set()
    begun = time.monotonic()
    for _ in range(10):
        monitor.begin_window("a")
        assert math.isnan(monitor.end_window("a").total_energy)
    assert time.monotonic() - begun < 3.0
    daemon.frozen.clear()
    daemon.power_w = 0.0
    time.sleep(0.1)
    monitor.begin_window("a")
    daemon.energy_j[0] += 5.0
    assert monitor.end_window("a").total_energy == 5.0


# On the fake GPUs, whose own counter is the truth.


@pytest.fixture
def real(folder: Path) -> Iterator[RealDaemon]:
    """Returns the real daemon, ready."""
    daemon = RealDaemon(folder)
    daemon.start()
    try:
        daemon.await_ready()
        yield daemon
    finally:
        daemon.stop()


@pytest.mark.parametrize("length_s", [5.3, 10.1])
def test_a_window_is_right_to_half_a_percent(real: RealDaemon, length_s: float) -> None:
    """The draw changes within the window, and at its ends."""
    monitor = ZeusMonitor(socket=real.socket)
    real.script({"demand_w": 60}, {"demand_w": 200})
    time.sleep(1.7)
    begin = [real.counter_j(gpu) for gpu in range(2)]
    begun = time.monotonic()
    monitor.begin_window("a")
    real.script({"demand_w": 280}, {"demand_w": 200})
    time.sleep(length_s / 2)
    real.script({"demand_w": 140}, {"demand_w": 200})
    time.sleep(length_s / 2)
    end = [real.counter_j(gpu) for gpu in range(2)]
    ended = time.monotonic()
    measured = monitor.end_window("a")
    assert measured.time == pytest.approx(ended - begun, rel=1e-3)
    # A daemon that does not say how old its readings are leaves a tenth of a second at either end uncertain.
    aged = all("energy_age_s" in gpu for gpu in real.get("/v1/gpus"))
    allowed = 5e-3 if aged else 0.2 / length_s
    print([measured.gpu_energy[gpu] / (end[gpu] - begin[gpu]) - 1.0 for gpu in range(2)])
    for gpu in range(2):
        assert measured.gpu_energy[gpu] == pytest.approx(end[gpu] - begin[gpu], rel=allowed)
