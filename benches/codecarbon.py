"""wattune against CodeCarbon on the same boards: energy, CPU time, memory. Called by codecarbon.sh.

The boards draw nothing before both watch and after the load has ended, so that both see all of the same energy, and
what the boards' counters gained is the truth for both.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BOARDS = 2
# Watts of each board by the part of the time that has passed: steps, a spike, rest.
LOAD = [(0.0, (260, 120)), (0.2, (90, 280)), (0.4, (300, 300)), (0.45, (30, 30)), (0.6, (210, 30)), (0.9, (150, 150))]

# Energy may differ by this part; CodeCarbon's memory must be this many times wattune's.
ENERGY_WITHIN = 0.01
MEMORY_TIMES = 3.0

TRACKER = """
import sys
from codecarbon import OfflineEmissionsTracker
tracker = OfflineEmissionsTracker(country_iso_code="DEU", measure_power_secs=1, output_methods=[], log_level="error",
                                  allow_multiple_runs=True)
tracker.start()
print("watching", flush=True)
sys.stdin.readline()
tracker.stop()
print(tracker.final_emissions_data.gpu_energy, flush=True)
"""


class Process:
    """One of the two, with what the kernel says of it."""

    def __init__(self, command, **options):
        self.child = subprocess.Popen(command, **options)

    def cpu_s(self):
        """CPU time of all its threads, and of children that have ended."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self):
        """Resident memory now."""
        lines = Path(f"/proc/{self.child.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def script(driver, watts):
    boards = [{"demand_w": demand, "idle_w": 0, "processes": 1} for demand in watts]
    new = driver / "boards.new"
    new.write_text(json.dumps({"boards": boards}))
    new.rename(driver / "boards.json")


def counters_j(driver):
    """What the boards have used, from the library's own memory, while nothing is drawn."""
    total = 0.0
    for path in (driver / "state").glob("*.txt"):
        memory = dict(line.split("=", 1) for line in path.read_text().splitlines())
        if memory["draw_mw"] != "0":
            sys.exit(f"{path.name} still draws power")
        total += int(memory["energy_uj"]) / 1e6
    return total


def await_line(stream, wanted, what):
    for line in stream:
        if wanted in line:
            return line
    sys.exit(f"{what} ended before it said {wanted!r}")


def main(wattune, library, python, seconds):
    scratch = Path(tempfile.mkdtemp())
    driver, state = scratch / "driver", scratch / "state"
    driver.mkdir()
    script(driver, [0] * BOARDS)
    # CodeCarbon looks for the driver's library by its name alone, and for GPUs only where there is an nvidia-smi.
    libraries = scratch / "lib"
    libraries.mkdir()
    (libraries / "libnvidia-ml.so.1").symlink_to(library)
    smi = libraries / "nvidia-smi"
    smi.write_text("#!/bin/sh\n")
    smi.chmod(0o755)
    settings = scratch / "wattune.toml"
    settings.write_text("[control]\nsample_s = 1\ntick_s = 1\n")
    environment = {**os.environ, "FAKE_NVML_DIR": str(driver), "LD_LIBRARY_PATH": str(libraries),
                   "PATH": f"{libraries}:{os.environ['PATH']}"}

    ours = Process(
        [wattune, "serve", "--config", settings, "--gpus", "nvml", "--nvml-library", library, "--observe",
         "--state-dir", state, "--listen", "127.0.0.1:0"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    await_line(ours.child.stderr, "listening on http://", "wattune")
    theirs = Process([python, "-c", TRACKER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                     cwd=scratch)
    await_line(theirs.child.stdout, "watching", "CodeCarbon")
    time.sleep(3)

    before = {"wattune": ours.cpu_s(), "CodeCarbon": theirs.cpu_s()}
    begun = time.monotonic()
    for part, watts in LOAD:
        time.sleep(max(0.0, begun + part * seconds - time.monotonic()))
        script(driver, watts)
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    script(driver, [0] * BOARDS)
    span = time.monotonic() - begun
    rows = {}
    for name, process in (("wattune", ours), ("CodeCarbon", theirs)):
        cpu = process.cpu_s()
        rows[name] = {"cpu": 100 * (cpu - before[name]) / span, "cpu_all": cpu, "memory": process.memory_mib()}
    time.sleep(3)

    answer, _ = theirs.child.communicate("\n", timeout=60)
    rows["CodeCarbon"]["energy"] = float(answer.split()[-1]) * 3.6e6
    ours.child.send_signal(signal.SIGTERM)
    # The pipe must be read to its end, or what is logged last could not be written.
    _, log = ours.child.communicate(timeout=60)
    if ours.child.returncode != 0:
        sys.exit(f"wattune failed: {log}")
    with sqlite3.connect(state / "wattune.db") as ledger:
        (energy,) = ledger.execute("SELECT SUM(energy_mj) FROM intervals WHERE device LIKE 'GPU-%'").fetchone()
    rows["wattune"]["energy"] = energy / 1e3
    truth = counters_j(driver)

    print(f"{BOARDS} boards, {span:.0f} s, once a second; the boards used {truth:.1f} J")
    print(f"{'':12}{'energy J':>12}{'of truth':>11}{'CPU of a core':>15}{'CPU with start':>16}{'memory':>11}")
    for name, row in rows.items():
        print(f"{name:12}{row['energy']:12.1f}{row['energy'] / truth - 1:+11.4%}{row['cpu']:13.3f} %{row['cpu_all']:14.2f} s"
              f"{row['memory']:7.1f} MiB")
    ours_, theirs_ = rows["wattune"], rows["CodeCarbon"]
    missed = []
    # Written so that a value that is no number fails too.
    for name, row in rows.items():
        if not abs(row["energy"] / truth - 1) <= ENERGY_WITHIN:
            missed.append(f"{name}'s energy is off by more than {ENERGY_WITHIN:.0%}")
    if not theirs_["memory"] >= MEMORY_TIMES * ours_["memory"]:
        missed.append(f"wattune's memory is more than 1/{MEMORY_TIMES:g} of CodeCarbon's")
    print("wattune's CPU time is", "no more" if ours_["cpu"] <= theirs_["cpu"] else "MORE", "than CodeCarbon's")
    if missed:
        sys.exit("; ".join(missed))


if __name__ == "__main__":
    main(*sys.argv[1:4], float(sys.argv[4]))
