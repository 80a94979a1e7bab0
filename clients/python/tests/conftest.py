"""What tests share: a fake daemon at a socket, an environment without traces of the machine, the real daemon."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_daemon import FakeDaemon

_VARIABLES = ("WATTUNE_", "CUDA_", "NVIDIA_", "SLURM_", "OMPI_", "MV2_", "MPI_", "PMI_", "TORCHELASTIC_")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the duration of the chaos test."""
    parser.addoption("--chaos-s", type=float, default=20.0, help="seconds of a daemon killed, frozen and restarted")


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(_VARIABLES) or name in ("LOCAL_RANK", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            monkeypatch.delenv(name)
    monkeypatch.setattr("wattune._http.DEFAULT_SOCKET", "/nonexistent/wattune.sock")
    # A port at which nothing listens, whatever runs on the machine.
    monkeypatch.setattr("wattune._http.DEFAULT_LISTEN", "127.0.0.1:9")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Returns a folder with a short path: a socket's path has at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="wt"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def sock(folder: Path) -> str:
    """Returns the path of the daemon's socket."""
    return str(folder / "d.sock")


@pytest.fixture
def daemon(sock: str) -> Iterator[FakeDaemon]:
    """Returns a fake daemon that answers at `sock`."""
    fake = FakeDaemon().serve_unix(sock)
    yield fake
    fake.stop()
