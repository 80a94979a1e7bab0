"""What tests share: a fake daemon at a socket, an environment without traces of the machine, the real daemon."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_daemon import FakeDaemon
from real_daemon import RealDaemon

_VARIABLES = ("WATTUNE_", "CUDA_", "NVIDIA_", "SLURM_", "OMPI_", "MV2_", "MPI_", "PMI_", "TORCHELASTIC_")


for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    # nohup and the background jobs of a shell ignore these, and so would all commands that tests start.
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the lengths of the longest tests."""
    parser.addoption("--chaos-s", type=float, default=20.0, help="seconds of a daemon killed, frozen and restarted")
    parser.addoption("--runs", type=int, default=200, help="number of commands that are run one after another")


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


@pytest.fixture(scope="module")
def real() -> Iterator[RealDaemon]:
    """Returns the real daemon, ready, with two GPUs that draw 250 W and 100 W."""
    path = Path(tempfile.mkdtemp(prefix="wt"))
    try:
        daemon = RealDaemon(path)
        daemon.script({"demand_w": 250}, {"demand_w": 100})
        daemon.start()
        try:
            daemon.await_ready()
            yield daemon
        finally:
            daemon.stop()
    finally:
        shutil.rmtree(path, ignore_errors=True)
