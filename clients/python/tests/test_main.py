"""`python -m wattune`: finds the binary wherever installers put it, and becomes it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import wattune

ROOT = Path(__file__).resolve().parents[3]

# Stands in for the binary.
BINARY = """#!/bin/sh
case $1 in
code) exit "$2" ;;
signal) kill -"$2" $$ ;;
ignored) grep SigIgn /proc/$$/status ;;
pid) echo $$ ;;
*) printf '%s|' "$@" ;;
esac
"""


class Installed:
    """The package as an installer leaves it in `folder`, with a stand-in for the binary at `binary`."""

    def __init__(self, folder: Path, binary: str, record: str | None) -> None:
        self.site = folder / "lib" / "site"
        shutil.copytree(Path(wattune.__file__).parent, self.site / "wattune")
        self.binary = folder / binary
        self.binary.parent.mkdir(parents=True, exist_ok=True)
        self.binary.write_text(BINARY)
        self.binary.chmod(0o755)
        if record is not None:
            information = self.site / "wattune-0.1.0.dist-info"
            information.mkdir()
            (information / "METADATA").write_text("Metadata-Version: 2.1\nName: wattune\nVersion: 0.1.0\n")
            (information / "RECORD").write_text(f"wattune/__init__.py,,\n{record},,\n")

    def start(self, *arguments: str | bytes) -> subprocess.Popen[bytes]:
        """Starts `python -m wattune` with these arguments."""
        command: list[str | bytes] = [sys.executable, "-m", "wattune", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.site)}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, *arguments: str | bytes) -> tuple[int, bytes, str]:
        """Returns the exit code, negative for a signal, and what was printed."""
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=30)
        return process.returncode, output, errors.decode()


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    """Returns an installation as in a virtual environment."""
    return Installed(tmp_path, "bin/wattune", record="../../bin/wattune")


def test_arguments_reach_the_binary_as_they_are(installed: Installed) -> None:
    assert installed.run("run", "--", "a b", "", b"\xff\xfe") == (0, b"run|--|a b||\xff\xfe|", "")


@pytest.mark.parametrize("code", [0, 1, 2, 130, 255])
def test_the_exit_code_is_the_binarys(installed: Installed, code: int) -> None:
    assert installed.run("code", str(code)) == (code, b"", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGKILL])
def test_a_signal_ends_the_binary_as_it_would_without_python(installed: Installed, number: signal.Signals) -> None:
    assert installed.run("signal", str(int(number)))[0] == -number


def test_the_binary_takes_the_place_of_the_process(installed: Installed) -> None:
    process = installed.start("pid")
    output, _ = process.communicate(timeout=30)
    assert int(output) == process.pid


def test_the_binary_ignores_no_signal_that_python_ignores(installed: Installed) -> None:
    pythons = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    own = re.findall(r"SigIgn:\s*(\w+)", Path("/proc/self/status").read_text())[0]
    assert int(own, 16) & pythons == pythons, "this Python leaves nothing to undo"
    assert int(installed.run("ignored")[1].split()[1], 16) & pythons == 0


@pytest.mark.parametrize(
    ("binary", "record"),
    [
        ("lib/site/bin/wattune", "../../bin/wattune"),  # pip install --target
        ("lib/site/bin/wattune", None),
        ("local/bin/wattune", "../../local/bin/wattune"),  # another prefix for scripts, as on Debian
    ],
)
def test_the_binary_is_found_where_installers_put_it(tmp_path: Path, binary: str, record: str | None) -> None:
    assert Installed(tmp_path, binary, record).run("found") == (0, b"found|", "")


def test_a_missing_binary_is_named(installed: Installed) -> None:
    installed.binary.unlink()
    code, output, errors = installed.run("status")
    assert (code, output) == (127, b"")
    assert errors.startswith("wattune: the binary is not at ")
    assert str(installed.site / "bin" / "wattune") in errors
    assert "`pip install --force-reinstall wattune`" in errors


def test_a_binary_for_another_machine_is_named(installed: Installed) -> None:
    installed.binary.write_bytes(b"\x7fELF of another machine")
    code, _, errors = installed.run("status")
    assert code == 126
    assert errors == f"wattune: {installed.binary} cannot be executed: Exec format error\n"


def test_the_version_is_the_crates() -> None:
    manifest = (ROOT / "Cargo.toml").read_text()
    version = re.search(r'\[workspace\.package\]\nversion = "(.+)"', manifest)
    assert version is not None
    assert wattune.__version__ == version[1]
