#!/usr/bin/env python3
"""Zeus's own clients, unchanged, against wattune: over the Unix socket and over TCP, with and without tokens, on the
fake NVML library.

    tests/zeus/check.py WATTUNE LIBRARY

Installs Zeus from requirements.txt into a virtual environment, once: at ZEUS_VENV, by default ~/.cache/wattune-zeus.
Runs `python -m zeus.show_env` and the scenes of scenes.py. Afterwards every GPU has its original limit, clocks and mode,
and nothing was written to it in between that no client asked for.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
VENV = pathlib.Path(os.environ.get("ZEUS_VENV") or pathlib.Path.home() / ".cache" / "wattune-zeus")
ORIGINAL_MW = 280_000


def prepare():
    """Installs what is missing; a stamp in the environment says what it has."""
    wanted = (HERE / "requirements.txt").read_text()
    stamp = VENV / "requirements.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", VENV], check=True)
    install = [VENV / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--requirement", HERE / "requirements.txt"], check=True)
    stamp.write_text(wanted)


class World:
    """A daemon over two fake GPUs and one made-up CPU package, and what its clients need to find both."""

    def __init__(self, wattune, library, folder, transport, with_token):
        self.folder, self.transport = folder, transport
        self.driver = folder / "driver"
        self.driver.mkdir()
        self.boards([1])
        links = folder / "lib"
        links.mkdir()
        (links / "libnvidia-ml.so.1").symlink_to(library)
        for zone, name, energy in (("intel-rapl:0", "package-0", 5_000_000), ("intel-rapl:0:0", "dram", 1_000_000)):
            path = folder / "powercap" / zone
            path.mkdir(parents=True)
            for file, value in (("name", name), ("max_energy_range_uj", 262_143_328_850), ("energy_uj", energy)):
                (path / file).write_text(f"{value}\n")
        key = folder / "token.key"
        key.write_text("a key of at least thirty-two bytes, and a newline\n")
        key.chmod(0o600)
        # Over TCP, a client needs a token or a daemon that lets all programs on the machine control.
        access = f'token_keys = ["{key}"]\n' if with_token else "loopback_control = true\n"
        config = folder / "wattune.toml"
        config.write_text(
            f'[cpu]\npowercap_root = "{folder}/powercap"\n[discovery]\nenabled = false\n[zeus]\nunused_s = 2\n[http]\n{access}'
        )
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("WATTUNE_", "ZEUSD_"))}
        environment["FAKE_NVML_DIR"] = str(self.driver)
        socket = folder / "zeusd.sock"
        command = [wattune, "serve", "--config", config, "--gpus", "nvml", "--nvml-library", library, "--state-dir",
                   folder / "state", "--listen", "127.0.0.1:0", "--socket", socket]
        self.log = folder / "log.txt"
        with self.log.open("w") as log:
            self.daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        address = self.wait("the daemon", lambda: self.logged("listening on http://"))
        environment |= {"LD_LIBRARY_PATH": str(links), "PYTHONPATH": str(HERE / "stub")}
        if with_token:
            issue = [wattune, "token", "issue", "--key", key, "--user", "zeus", "--expires", "1h", "--scope",
                     "gpu-read,gpu-control,cpu-read"]
            environment["ZEUSD_TOKEN"] = subprocess.run(issue, check=True, capture_output=True, text=True).stdout.strip()
        environment |= {"ZEUSD_SOCK_PATH": str(socket)} if transport == "uds" else {"ZEUSD_HOST_PORT": address}
        self.environment = environment
        self.wait("the GPUs", lambda: all(self.state(gpu) for gpu in (0, 1)))

    def boards(self, processes):
        gpu = {"initial_limit_w": ORIGINAL_MW / 1000, "demand_w": 400, "update_ms": 0, "persistence": False,
               "process_ids": processes}
        new = self.driver / "boards.json.new"
        new.write_text(json.dumps({"boards": [gpu, gpu]}))
        new.rename(self.driver / "boards.json")

    def logged(self, text):
        lines = [line.split(text)[1].strip() for line in self.log.read_text().splitlines() if text in line]
        return lines[0] if lines else None

    def state(self, gpu):
        path = self.driver / "state" / f"GPU-00000000-0000-0000-0000-{gpu:012}.txt"
        return dict(line.split("=") for line in path.read_text().splitlines()) if path.exists() else {}

    def wait(self, what, found, patience=30):
        until = time.monotonic() + patience
        while time.monotonic() < until:
            if value := found():
                return value
            if self.daemon.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"{self.transport}: {what} did not come within {patience} s\n{self.log.read_text()}")

    def command(self, *arguments):
        return {"args": [VENV / "bin" / "python", *arguments], "env": self.environment, "cwd": HERE}

    def run(self, *arguments):
        done = subprocess.run(**self.command(*arguments), capture_output=True, text=True, timeout=120)
        print(f"--- {self.transport}: {' '.join(map(str, arguments))}\n{done.stdout}", end="", flush=True)
        if done.returncode != 0:
            sys.exit(f"{done.stderr}\n{self.log.read_text()}")
        return done.stdout

    def restored(self, after):
        """Waits until the GPUs are as they were before the first client."""
        if self.transport == "tcp":
            # Over TCP, what a client has set ends with the last process on the GPU.
            self.boards([])

        def is_restored():
            states = [self.state(gpu) for gpu in (0, 1)]
            locks = all(state["lock_mhz"] == "0" and state["memory_lock_mhz"] == "0" for state in states)
            return locks and all(int(s["limit_mw"]) == ORIGINAL_MW and s["persistence"] == "0" for s in states)

        self.wait(f"the original settings after {after}", is_restored, 20)
        self.boards([1])

    def limits(self):
        """The limits written so far, as (GPU, W); refused writes are left out."""
        written = []
        for line in (self.driver / "writes.log").read_text().splitlines():
            _, _, uuid, call, *argument, _, code = line.split()
            if call == "nvmlDeviceSetPowerManagementLimit" and code == "0":
                written.append((int(uuid[-12:]), int(argument[0]) / 1000))
        return written


def check(wattune, library, transport, with_token):
    print(f"=== {transport}, {'with' if with_token else 'without'} a token", flush=True)
    with tempfile.TemporaryDirectory(prefix="wattune-zeus-") as folder:
        world = World(wattune, library, pathlib.Path(folder), transport, with_token)
        try:
            shown = world.run("-m", "zeus.show_env")
            for part in ("can_read_gpu: True", "can_control_gpu: True", "can_read_cpu: True", "GPU 1 -> GPU 1", "Endpoint: "):
                if part not in shown:
                    sys.exit(f"show_env does not say {part!r}")
            world.run("scenes.py", "monitor")
            world.run("scenes.py", "client")
            world.restored("every method")
            world.run("scenes.py", "stream")
            before = len(world.limits())
            world.run("scenes.py", "optimizer")
            world.restored("the optimizer")
            # The maximum is above the original limit, which stands in for it; then each step; at the end the maximum.
            for gpu in (0, 1):
                written = [limit for which, limit in world.limits()[before:] if which == gpu]
                if written[:4] != [250.0, 200.0, 150.0, 100.0] or written[-1] != 280.0 or len(written) > 6:
                    sys.exit(f"GPU {gpu} was set to {written}")
            if transport == "uds" and not with_token:
                holder = subprocess.Popen(**world.command("scenes.py", "hold"), stdout=subprocess.PIPE, text=True)
                holder.stdout.readline()
                # Not waited for: its parent may be busy, and it stays as a zombie.
                holder.send_signal(signal.SIGKILL)
                begun = time.monotonic()
                world.wait("the original limit", lambda: int(world.state(0)["limit_mw"]) == ORIGINAL_MW, 5)
                print(f"--- a killed client's GPU was given back after {time.monotonic() - begun:.2f} s")
                holder.wait()
            world.daemon.send_signal(signal.SIGTERM)
            if world.daemon.wait(30) != 0:
                sys.exit(world.log.read_text())
        finally:
            world.daemon.kill()
            world.daemon.wait()


def main():
    if len(sys.argv) != 3 or not os.access(sys.argv[1], os.X_OK) or not os.path.exists(sys.argv[2]):
        sys.exit(__doc__)
    prepare()
    for transport, with_token in (("uds", False), ("tcp", False), ("uds", True), ("tcp", True)):
        check(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve(), transport, with_token)
    print("Zeus's clients work unchanged")


if __name__ == "__main__":
    main()
