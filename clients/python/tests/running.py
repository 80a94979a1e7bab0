"""Commands under `wattune run`, with and without a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import wattune
from real_daemon import RealDaemon, binary

# What a shell does for job control: starts the command in a process group of its own that has the terminal, takes the
# terminal back when the command stops, and continues it when a line comes. Prints the exit code of a shell.
SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    _, status = os.waitpid(pid, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        break
    print("shell: stopped by", os.WSTOPSIG(status), "group", pid, flush=True)
    sys.stdin.readline()
    os.tcsetpgrp(0, pid)
    os.killpg(pid, signal.SIGCONT)
code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
print("shell: code", code, flush=True)
"""


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Returns the environment of a command whose wrapper has its folder below this one."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KUBEFLOW_")}
    kept.pop("XDG_RUNTIME_DIR", None)
    source = str(Path(wattune.__file__).parent.parent)
    return {**kept, "TMPDIR": str(folder), "PYTHONPATH": source, **more}


def wrapped(daemon: RealDaemon, *command: str, flags: tuple[str, ...] = ()) -> list[str]:
    """Returns the command under `wattune run`."""
    return [binary(), "run", "--socket", daemon.socket, *flags, "--", *command]


def python(script: str) -> list[str]:
    """Returns the command that runs a script."""
    return [sys.executable, "-u", "-c", script]


def leftovers(folder: Path) -> list[str]:
    """Returns the names of the wrappers' folders that are left."""
    return [path.name for path in folder.iterdir() if path.name.startswith("wattune-run")]


def run(daemon: RealDaemon, folder: Path, *command: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Runs the command under `wattune run` and waits for its end."""
    flags = more.pop("flags", ())
    env = environment(folder, **more.pop("env", {}))
    return subprocess.run(
        wrapped(daemon, *command, flags=flags), env=env, capture_output=True, text=True, check=False, timeout=60, **more
    )


class Running(subprocess.Popen[str]):
    """A command under `wattune run`, which ends at the latest with its `with` block."""

    def __exit__(self, *error: Any) -> None:
        if self.poll() is None:
            for child in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)
            self.kill()
        super().__exit__(*error)


def start(daemon: RealDaemon, folder: Path, *command: str, **more: Any) -> Running:
    """Starts the command under `wattune run`, with a pipe for its output."""
    flags = more.pop("flags", ("--quiet",))
    env = environment(folder, **more.pop("env", {}))
    return Running(wrapped(daemon, *command, flags=flags), env=env, stdout=subprocess.PIPE, text=True, **more)


def ended_with(process: subprocess.Popen[str]) -> Any:
    """Returns what the command printed as JSON in its last line, after an end without error."""
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return json.loads(output.splitlines()[-1])


class Terminal:
    """A terminal in which a command runs under the shell above."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.output = ""
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, [sys.executable, "-c", SHELL, *command], env)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The processes of the terminal get a hang-up.
        os.close(self._fd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)

    def type(self, text: str) -> None:
        """Types at the keyboard."""
        os.write(self._fd, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        """Changes the size of the window."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, text: str, timeout_s: float = 30.0) -> str:
        """Waits until the text has been printed since the last wait; returns all that came up to it."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output:
            ready, _, _ = select.select([self._fd], [], [], max(deadline - time.monotonic(), 0.0))
            try:
                if not ready:
                    raise AssertionError(f"{text!r} did not come: {self.output!r}")
                self.output += os.read(self._fd, 4096).decode()
            except OSError:
                raise AssertionError(f"the terminal closed before {text!r} came: {self.output!r}") from None
        before, _, self.output = self.output.partition(text)
        return before

    def code(self) -> int:
        """Waits for the command's end and returns its exit code."""
        self.wait_for("shell: code ")
        return int(self.wait_for("\r\n"))


def state(pid: int) -> str:
    """Returns the state of a process, as one letter: S sleeps, T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
