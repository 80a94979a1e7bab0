"""The real daemon on fake GPUs (tests/fake_nvml), for tests that may kill, freeze and restart it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from wattune._http import Connection, UnixAddress

ROOT = Path(__file__).resolve().parents[3]
UUIDS = [f"GPU-00000000-0000-0000-0000-00000000000{i}" for i in range(2)]

SETTINGS = """
state_dir = "{folder}/state"
[control]
interval_s = 1.0
checkpoint_s = 0.5
[carbon]
source = "fixed"
[carbon.fixed]
g_per_kwh = 300.0
[http]
listen = "off"
socket = "{folder}/d.sock"
"""


def required() -> bool:
    """True if a test that cannot run here is to fail, and not to be skipped."""
    return _ENVIRONMENT.get("WATTUNE_REQUIRE") == "1"


def binary() -> str:
    """Returns the daemon's binary; skips the test if the environment names none, unless it must."""
    return _named("WATTUNE", "the daemon's binary, as built by `cargo build`")


def library() -> str:
    """Returns the library of fake GPUs, beside the binary unless the environment names another."""
    beside = Path(binary()).parent / "examples" / "libfake_nvml.so"
    return _named("WATTUNE_FAKE_NVML", "the library that `cargo build --examples` builds", beside)


def _named(name: str, what: str, default: Path | None = None) -> str:
    found = _ENVIRONMENT.get(name) or (str(default) if default is not None and default.exists() else None)
    if found is not None and Path(found).exists():
        return found
    message = f"{name} names no file; set it to {what}"
    if required():
        pytest.fail(message)
    pytest.skip(message)
    raise AssertionError


# A fixture clears the environment of each test.
_ENVIRONMENT = dict(os.environ)


class RealDaemon:
    """A daemon on two fake GPUs, whose files lie in `folder`."""

    def __init__(self, folder: Path, simulated: bool = False) -> None:
        self.folder = folder
        self.socket = str(folder / "d.sock")
        self.gpus = folder / "gpus"
        self.log = folder / "daemon.log"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "state").mkdir()
        self.gpus.mkdir()
        (folder / "wattune.toml").write_text(SETTINGS.format(folder=folder))
        if simulated:
            self._command = [binary(), "serve", "--gpus", "simulated"]
        else:
            shutil.copy(library(), self.gpus / "libnvidia-ml.so.1")
            self._command = [
                binary(),
                "serve",
                "--gpus",
                "nvml",
                "--nvml-library",
                str(self.gpus / "libnvidia-ml.so.1"),
            ]
        self._command += ["--config", str(folder / "wattune.toml")]
        self.script({"idle": True, "idle_w": 0}, {"idle": True, "idle_w": 0})

    def script(self, *boards: dict[str, Any]) -> None:
        """Makes the GPUs draw what the boards say."""
        new = self.gpus / "new.json"
        new.write_text(json.dumps({"boards": list(boards)}))
        new.replace(self.gpus / "boards.json")

    def start(self) -> None:
        """Starts the daemon, and returns at once."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("WATTUNE_")}
        environment["FAKE_NVML_DIR"] = str(self.gpus)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log)

    def await_ready(self, timeout_s: float = 30.0) -> None:
        """Waits until the daemon answers."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                if self.get("/readyz") is not None:
                    return
            except Exception as error:
                if time.monotonic() > deadline:
                    raise AssertionError(self.log.read_text()[-3000:]) from error
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        assert self._process is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        """Sends the daemon a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kills the daemon and waits until it is gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ends the daemon, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def get(self, path: str) -> Any:
        """Returns the daemon's answer."""
        connection = Connection(UnixAddress(self.socket))
        try:
            answer = connection.request("GET", path, timeout_s=10.0)
        finally:
            connection.close()
        assert answer.ok, answer
        return answer.body

    def counter_j(self, gpu: int) -> float:
        """Returns the GPU's own energy counter, from the driver's state."""
        text = (self.gpus / "state" / f"{UUIDS[gpu]}.txt").read_text()
        values = dict(line.split("=", 1) for line in text.split())
        since_s = (time.time_ns() - int(values["since_unix_ns"])) / 1e9
        return (float(values["energy_uj"]) + float(values["draw_mw"]) * 1e3 * since_s) / 1e6
