"""The background thread: one for each process, for all of its jobs. It does all input and output.

A process that forks leaves the thread behind: in the child, the jobs of the parent are let go without a word to the
daemon. At the interpreter's exit, jobs that are still open are ended, within a bounded time.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ._daemon import Daemon
from ._http import Address

_log = logging.getLogger("wattune")

# The longest times for which the training thread waits: when it leaves a job, and when the interpreter exits. Together
# with all else they stay below 50 ms.
LEAVE_S = 0.025
EXIT_S = 0.015

# The wait before another attempt to serve a dialogue in which a fault occurred.
FAULT_S = 10.0


class Dialogue(Protocol):
    """What the thread serves."""

    ending: threading.Event
    done: threading.Event

    @property
    def answered_at(self) -> float | None:
        """Monotonic time of the daemon's last answer; None before the first."""

    def serve(self) -> float:
        """Takes a turn, and returns the seconds until the next one."""


class Worker:
    """The thread and what it serves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dialogues: dict[Dialogue, float] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._daemons: dict[tuple[Address, ...], Daemon] = {}
        self._in_vain_at: float | None = None
        self._has_failed = False

    def daemon(self, addresses: Sequence[Address]) -> Daemon:
        """Returns the daemon at these addresses, the same one for all jobs of the process."""
        key = tuple(addresses)
        with self._lock:
            return self._daemons.setdefault(key, Daemon(key))

    def add(self, dialogue: Dialogue) -> None:
        """Serves this dialogue from now on."""
        with self._lock:
            self._dialogues[dialogue] = 0.0
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="wattune", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    # The interpreter is about to exit, or the system allows no more threads.
                    _log.warning("wattune reports nothing from here on, because no thread can be started: %s", error)
                    del self._dialogues[dialogue]
                    dialogue.done.set()
                    return
                self._thread = thread
        self._wake.set()

    def dialogues(self) -> list[Dialogue]:
        """Returns what is served."""
        with self._lock:
            return list(self._dialogues)

    def kick(self, dialogue: Dialogue) -> None:
        """Serves this dialogue at once."""
        with self._lock:
            if dialogue in self._dialogues:
                self._dialogues[dialogue] = 0.0
        self._wake.set()

    def leave(self, dialogue: Dialogue, timeout_s: float) -> None:
        """Asks for the dialogue's end and waits for it, for a bounded time.

        After a wait in vain nobody waits any more until the daemon has answered again: a frozen daemon is waited for
        once, however many jobs a process has.
        """
        dialogue.ending.set()
        self.kick(dialogue)
        answered = dialogue.answered_at
        if self._in_vain_at is not None and (answered is None or answered <= self._in_vain_at):
            return
        self._in_vain_at = None if dialogue.done.wait(timeout_s) else time.monotonic()

    def end_all(self) -> None:
        """Asks for the end of all dialogues, and waits for them for a bounded time."""
        dialogues = self.dialogues()
        for dialogue in dialogues:
            dialogue.ending.set()
            self.kick(dialogue)
        deadline = time.monotonic() + EXIT_S
        for dialogue in dialogues:
            dialogue.done.wait(max(deadline - time.monotonic(), 0.0))

    def close(self) -> None:
        """Closes this process's copies of the sockets. Takes no lock: the fork may have caught it in any state."""
        for daemon in self._daemons.values():
            daemon.close()

    def _run(self) -> None:
        while True:
            self._wake.clear()
            now = time.monotonic()
            with self._lock:
                due = [dialogue for dialogue, at in self._dialogues.items() if at <= now]
            for dialogue in due:
                with self._lock:
                    self._dialogues[dialogue] = math.inf
                try:
                    delay = dialogue.serve()
                except Exception:  # noqa: BLE001
                    # One dialogue's fault must not silence the others, and a training must never see it.
                    if not self._has_failed:
                        _log.exception("a fault in wattune's background thread; it tries again every %g s", FAULT_S)
                    self._has_failed = True
                    delay = FAULT_S
                    if dialogue.ending.is_set():
                        dialogue.done.set()
                with self._lock:
                    if dialogue.done.is_set():
                        del self._dialogues[dialogue]
                    elif self._dialogues[dialogue] == math.inf:
                        # From the turn's beginning, so that a slow answer does not stretch the interval.
                        self._dialogues[dialogue] = max(now + delay, time.monotonic())
            with self._lock:
                first = min(self._dialogues.values(), default=None)
            self._wake.wait(None if first is None else max(first - time.monotonic(), 0.0))


_worker = Worker()
_on_fork: list[Callable[[], None]] = []


def worker() -> Worker:
    """Returns this process's worker."""
    return _worker


def on_fork(action: Callable[[], None]) -> None:
    """Has `action` called in each child process after a fork."""
    _on_fork.append(action)


def _after_fork_in_child() -> None:
    global _worker
    left, _worker = _worker, Worker()
    left.close()
    for action in _on_fork:
        action()


def _at_exit() -> None:
    _worker.end_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
