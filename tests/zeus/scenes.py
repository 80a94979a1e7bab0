"""What programs do with Zeus's clients. Each scene is run as a process of its own: `scenes.py SCENE`."""

import logging
import os
import pathlib
import sys
import time

GPUS = 2
STATE = pathlib.Path(os.environ["FAKE_NVML_DIR"]) / "state"


def counter_j(gpu):
    """What the GPU has used, from the fake driver's own state: energy up to a time, and the draw since."""
    path = STATE / f"GPU-00000000-0000-0000-0000-{gpu:012}.txt"
    state = dict(line.split("=") for line in path.read_text().splitlines())
    since = (time.time_ns() - int(state["since_unix_ns"])) / 1e9
    return int(state["energy_uj"]) / 1e6 + int(state["draw_mw"]) / 1e3 * since


def close(measured, truth, share, what):
    print(f"{what}: {measured:.3f}, and in truth {truth:.3f}")
    if not abs(measured - truth) <= share * truth:
        sys.exit(f"{what} is off by more than {100 * share} %")


def monitor():
    """Windows of ZeusMonitor, and the same energy from the daemon."""
    from zeus.monitor import ZeusMonitor
    from zeus.utils.zeusd import ZeusdClient

    monitor, client = ZeusMonitor(), ZeusdClient()
    if len(monitor.gpu_indices) != GPUS:
        sys.exit(f"ZeusMonitor sees {monitor.gpu_indices}")
    for window in range(2):
        monitor.begin_window("window")
        before, served = [counter_j(gpu) for gpu in range(GPUS)], client.get_gpu_energy([0, 1])
        time.sleep(5)
        after, served_after = [counter_j(gpu) for gpu in range(GPUS)], client.get_gpu_energy([0, 1])
        measured = monitor.end_window("window")
        for gpu in range(GPUS):
            truth = after[gpu] - before[gpu]
            close(measured.gpu_energy[gpu], truth, 0.005, f"window {window}, GPU {gpu} in J")
            close((served_after[gpu] - served[gpu]) / 1000, truth, 0.005, f"window {window}, GPU {gpu} by the daemon in J")


def client():
    """Every method of ZeusdClient."""
    from zeus.exception import ZeusBaseError
    from zeus.utils.zeusd import ZeusdClient, require_capabilities

    client = ZeusdClient()
    require_capabilities(client, read_gpu=True, control_gpu=True, read_cpu=True, gpu_ids=[0, 1], cpu_ids=[0])
    assert client.gpu_ids == [0, 1] and client.cpu_ids == [0] and client.dram_available == [True], client.cpus
    assert [gpu.name for gpu in client.gpus] == ["NVIDIA Fake A40"] * GPUS
    assert client.auth_required == ("ZEUSD_TOKEN" in os.environ) and client.auth_error is None
    assert client.can_read_gpu and client.can_control_gpu and client.can_read_cpu
    assert set(client.get_gpu_energy([1])) == {1}
    power = client.get_gpu_power()
    assert set(power.power_mw) == {0, 1} and abs(power.timestamp_ms / 1000 - time.time()) < 5
    assert set(client.get_gpu_power([1]).power_mw) == {1}
    assert client.get_power_limit_constraints() == {0: (100_000, 300_000), 1: (100_000, 300_000)}
    assert client.get_power_limit([0]) == {0: 280_000}
    for block in (True, False):
        client.set_power_limit([0, 1], 200_000, block=block)
    assert client.get_power_limit() == {0: 200_000, 1: 200_000}
    for enabled in (False, True):
        client.set_persistence_mode([0, 1], enabled)
        assert client.get_persistence_mode() == {0: enabled, 1: enabled}
    client.set_gpu_locked_clocks([0, 1], 210, 1200)
    client.reset_gpu_locked_clocks([0, 1])
    client.set_mem_locked_clocks([0], 405, 405)
    client.reset_mem_locked_clocks([0])
    energy = client.get_cpu_energy()
    assert energy[0].cpu_energy_uj == 5_000_000 and energy[0].dram_energy_uj == 1_000_000, energy
    energy = client.get_cpu_energy([0], cpu=False)
    assert energy[0].cpu_energy_uj is None and energy[0].dram_energy_uj is not None, energy
    assert client.get_cpu_power().power_mw[0].cpu_mw == 0 and client.get_cpu_power([0]).power_mw[0].dram_mw == 0
    assert abs(client.get_time() - time.time()) < 5
    for wrong in (lambda: client.set_power_limit([0], 99_000), lambda: client.set_power_limit([7], 200_000),
                  lambda: client.get_gpu_power([7])):
        try:
            wrong()
        except ZeusBaseError as error:
            print(f"refused: {error}")
        else:
            sys.exit("a wrong request was accepted")
    print("every method of ZeusdClient works")


def stream():
    """PowerStreamingClient, as a snapshot and as an iterator."""
    from zeus.monitor.power_streaming import PowerStreamingClient
    from zeus.utils.zeusd import ZeusdConfig

    begun = time.monotonic()
    client = PowerStreamingClient(servers=[ZeusdConfig.from_env()])
    while time.monotonic() - begun < 30:
        (readings,) = client.get_power().values() or [None]
        if readings and set(readings.gpu_power_w) == {0, 1} and set(readings.cpu_power_w) == {0}:
            break
        time.sleep(0.1)
    else:
        sys.exit(f"not all devices were streamed: {client.get_power()}")
    assert readings.gpu_power_w[0] > 0 and abs(readings.timestamp_s - time.time()) < 30, readings
    client.stop()
    print(f"streamed: {readings}")


def optimizer():
    """GlobalPowerLimitOptimizer on a plain loop: two epochs over five limits."""
    logging.basicConfig(level=logging.WARNING)
    from zeus.monitor import ZeusMonitor
    from zeus.optimizer.power_limit import Energy, GlobalPowerLimitOptimizer

    monitor = ZeusMonitor(gpu_indices=[0, 1])
    optimizer = GlobalPowerLimitOptimizer(
        monitor, optimum_selector=Energy(), warmup_steps=1, profile_steps=3, pl_step=50
    )
    for _ in range(2):
        optimizer.on_epoch_begin()
        for _ in range(40):
            optimizer.on_step_begin()
            time.sleep(0.02)
            optimizer.on_step_end()
        optimizer.on_epoch_end()
    measured = {m.power_limit: round(m.energy, 2) for m in optimizer.measurements}
    print(f"energy by limit: {measured}, chosen {optimizer.state.optimal_power_limit / 1000} W")
    if sorted(measured) != [100, 150, 200, 250, 300] or optimizer.state.optimal_power_limit != 100_000:
        sys.exit("not every limit was profiled, or not the best one chosen")


def hold():
    """Lowers a limit and stays."""
    from zeus.utils.zeusd import ZeusdClient

    ZeusdClient().set_power_limit([0], 150_000)
    print("held", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
