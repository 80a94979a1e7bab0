#!/usr/bin/env python3
"""Builds the wheel, installs it where nothing else is, and runs the README's first Python example with it.

    clients/python/check_wheel.py                    builds with the cargo target directory in force
    clients/python/check_wheel.py --wheel FILE       checks a wheel that is built

Needs the package registry of pip for maturin, and nothing to install the wheel. A stand-in for PyTorch takes the place
of 3 GB; `--torch FOLDER` names a folder of packages with the real one, `--python` other interpreters to install with.
"""

from __future__ import annotations

import argparse
import email
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from pathlib import Path
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# The wheel had 10.8 MiB when this was written: whoever doubles it should notice.
LARGEST_MIB = 20
USUAL_SOCKET = Path("/run/wattune/wattune.sock")

# What the example needs of PyTorch. Any other name is an error, so that the example cannot do less than it says.
TORCH = """
import time
from types import SimpleNamespace


class Tensor:
    def to(self, device): return self
    def square(self): return self
    def mean(self): return self
    def backward(self): pass


class Linear(Tensor):
    def __init__(self, inputs, outputs): pass
    def __call__(self, inputs): return Tensor()
    def parameters(self): return [Tensor()]


class AdamW:
    def __init__(self, parameters): pass
    def zero_grad(self): pass
    def step(self): time.sleep(0.0005)


def randn(*shape, device): return Tensor()


nn, optim = SimpleNamespace(Linear=Linear), SimpleNamespace(AdamW=AdamW)
cuda = SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False)
"""


def fail(text: str) -> NoReturn:
    """Ends the check."""
    sys.exit(f"FAILED  {text}")


def run(*command: object, code: int = 0, **more: Any) -> str:
    """Returns what a command prints; fails unless it ends with this code, negative for a signal."""
    words = [str(word) for word in command]
    done: subprocess.CompletedProcess[str] = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=900, **more
    )
    if done.returncode != code:
        fail(f"{' '.join(words)}\nended with {done.returncode} instead of {code}:\n{done.stdout}{done.stderr}")
    return done.stdout


def example() -> str:
    """Returns the README's first block of Python."""
    block = re.search(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return block[1] if block else fail("README.md has no block of Python")


def crate_version() -> str:
    """Returns the version in Cargo.toml."""
    found = re.search(r'\[workspace\.package\]\nversion = "(.+)"', (ROOT / "Cargo.toml").read_text())
    return found[1] if found else fail("Cargo.toml has no version of the workspace")


def build(scratch: Path) -> Path:
    """Builds the wheel as docs/src/how-to/install.md says, and returns its path."""
    run(sys.executable, "-m", "venv", scratch / "build")
    run(scratch / "build/bin/pip", "install", "--quiet", "--disable-pip-version-check", "maturin>=1.8,<2")
    run(scratch / "build/bin/maturin", "build", "--release", "--out", scratch / "wheel", cwd=HERE)
    (wheel,) = (scratch / "wheel").glob("*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    """Checks the wheel's files and what it says about itself."""
    version = crate_version()
    information, data = f"wattune-{version}.dist-info", f"wattune-{version}.data"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = email.message_from_bytes(archive.read(f"{information}/METADATA"))
    expected = {f"wattune/{path.relative_to(HERE / 'src/wattune')}" for path in (HERE / "src/wattune").rglob("*.py")}
    expected |= {"wattune/py.typed", f"{data}/scripts/wattune", f"{information}/licenses/LICENSE"}
    found = {name for name in names if not name.startswith(information) or "/licenses/" in name}
    if found != expected:
        fail(f"the wheel lacks {sorted(expected - found)} and has besides {sorted(found - expected)}")
    # Lightning would load callbacks that entry points name: installing must not register jobs.
    if f"{information}/entry_points.txt" in names:
        fail("the wheel has entry points")
    claims = [metadata[key] for key in ("Name", "Version", "License-Expression", "Requires-Python", "Requires-Dist")]
    if claims != ["wattune", version, "Apache-2.0", ">=3.9", None]:
        fail(f"the wheel's metadata says {claims}")
    size = wheel.stat().st_size / 2**20
    print(f"{wheel.name}: {size:.1f} MiB, {len(names)} files")
    if size > LARGEST_MIB:
        fail(f"the wheel is larger than {LARGEST_MIB} MiB")


def check_commands(folder: Path, environment: dict[str, str]) -> None:
    """Checks both ways to run the binary: its version, exit codes and signals."""
    for command in ([folder / "bin/wattune"], [folder / "bin/python", "-m", "wattune"]):
        shown = run(*command, "--version", env=environment).strip()
        if shown != f"wattune {crate_version()}":
            fail(f"{command} says {shown}")
        run(*command, "no-such-command", code=2, env=environment)
        # No daemon runs yet: the command runs all the same.
        run(*command, "run", "--", "sh", "-c", "exit 7", code=7, env=environment)
        hooks = "import wattune_hook, wattune; print(wattune.__file__)"
        origin = run(*command, "run", "--", folder / "bin/python", "-c", hooks, env=environment).strip()
        if not origin.startswith(str(folder)):
            fail(f"the package is imported from {origin}")
        check_signal([*command, "run", "--", "sh", "-c", "echo started; exec sleep 60"], environment)
    print("wattune and python -m wattune: version, exit codes, hooks, SIGTERM")


def check_signal(command: list[Any], environment: dict[str, str]) -> None:
    """Checks that SIGTERM reaches the command that `wattune run` has started."""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        try:
            code = process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            fail(f"{command} ignores SIGTERM")
    if code not in (128 + signal.SIGTERM, -signal.SIGTERM):
        fail(f"{command} ended with {code} after SIGTERM")


class Daemon:
    """The installed daemon on simulated GPUs."""

    def __init__(self, folder: Path, scratch: Path, environment: dict[str, str]) -> None:
        self.socket = scratch / "d.sock"
        log = scratch / "daemon.log"
        command: list[str | Path] = [
            folder / "bin/wattune",
            "serve",
            "--gpus",
            "simulated",
            "--state-dir",
            scratch / "state",
        ]
        command += ["--listen", "127.0.0.1:0", "--socket", self.socket]
        with log.open("w") as errors:
            self._process = subprocess.Popen(command, env=environment, stdout=errors, stderr=errors)
        deadline = time.monotonic() + 20
        while (found := re.search(r"listening on (http://\S+)", log.read_text())) is None or not self.socket.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._process.kill()
                fail(f"the daemon does not listen:\n{log.read_text()}")
            time.sleep(0.05)
        self._address = found[1]

    def get(self, path: str) -> Any:
        """Returns the daemon's answer."""
        with urllib.request.urlopen(self._address + path, timeout=10) as answer:
            return json.load(answer)

    def stop(self) -> None:
        """Ends the daemon; fails unless it ends as it should."""
        self._process.terminate()
        if self._process.wait(20) != 0:
            fail(f"the daemon ended with {self._process.returncode}")


def check_example(folder: Path, scratch: Path, packages: Path, environment: dict[str, str]) -> None:
    """Runs the example without a daemon and with one, and checks what the daemon knows of it."""
    script = scratch / "train.py"
    script.write_text(example())
    environment = {**environment, "PYTHONPATH": str(packages)}
    alone = run(folder / "bin/python", script, env=environment).strip()
    daemon = Daemon(folder, scratch, environment)
    try:
        printed = run(folder / "bin/python", script, env={**environment, "WATTUNE_SOCKET": str(daemon.socket)}).strip()
        jobs = [daemon.get(f"/v1/jobs?state={state}") for state in ("open", "ended")]
        if [len(listed) for listed in jobs] != [0, 1]:
            fail(f"open and ended jobs after the example: {jobs}")
        (job,) = jobs[1]
        account = daemon.get(f"/v1/jobs/{job['job_id']}/emissions")
    finally:
        daemon.stop()
    factors = re.findall(r"total_samples=([\d_ *]+)", script.read_text())[0].split("*")
    seen = (job["name"], job["progress_source"], account["samples"], job["reason"])
    print(f"without a daemon: {alone}\nwith one: {printed}\nthe daemon: {seen}")
    if seen[:3] != ("example", "python_client", float(math.prod(map(int, factors)))):
        fail(f"the daemon did not get the example's progress: {job}")
    if "kWh" not in printed or "kWh" in alone:
        fail("the summary must have energy with a daemon, and only then")


def main() -> None:
    """Checks a wheel with each interpreter."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--wheel", type=Path, help="a wheel that is built")
    parser.add_argument("--torch", type=Path, help="a folder of packages with PyTorch, for the interpreter")
    parser.add_argument("--python", action="append", help="an interpreter to install with; can be repeated")
    arguments = parser.parse_args()
    # Settings of whoever runs this are no part of what is checked.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WATTUNE_", "PYTHON"))}
    # Nor is a daemon that runs on this machine; the client tries this socket whatever the variables say.
    if USUAL_SOCKET.exists():
        fail(f"{USUAL_SOCKET} exists: stop the daemon of this machine, it would get the jobs of this check")
    environment.update(WATTUNE_SOCKET="/nonexistent/wattune.sock", WATTUNE_LISTEN="off")
    scratch = Path(tempfile.mkdtemp(prefix="wheel-"))
    try:
        wheel = arguments.wheel or build(scratch)
        check_contents(wheel)
        packages = arguments.torch or scratch / "packages"
        if arguments.torch is None:
            packages.mkdir()
            (packages / "torch.py").write_text(TORCH)
        for number, python in enumerate(arguments.python or [sys.executable]):
            print(run(python, "--version").strip())
            folder = scratch / str(number)
            folder.mkdir()
            run(python, "-m", "venv", folder / "venv")
            # Neither an index nor dependencies: the wheel brings everything.
            pip = [folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check"]
            run(*pip, "install", "--quiet", "--no-index", wheel)
            check_commands(folder / "venv", environment)
            check_example(folder / "venv", folder, packages.resolve(), environment)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
