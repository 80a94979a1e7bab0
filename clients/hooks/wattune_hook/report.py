"""Sends progress to `wattune run`: one datagram a second at most, and one when the process ends."""

import functools
import os
import sys
from time import monotonic

from wattune_hook import progress_socket

INTERVAL_S = 1.0

_SOCKET = progress_socket()
_reporters = []
# The process that sends its last steps when it ends.
_ending = None


class Reporter:
    """Reports the steps of one source. They may start anywhere; the count that is sent never goes backwards.

    A `subordinate` reporter is silent once a training has begun that another one of this process reports.
    """

    __slots__ = ("source", "subordinate", "begun", "steps", "base", "at_s", "due_s", "sent", "total_steps", "detail")

    def __init__(self, source, subordinate=False):
        self.source, self.subordinate = source, subordinate
        self.forget()
        if not _reporters:
            os.register_at_fork(after_in_child=_forget_all)
        _reporters.append(self)

    def forget(self):
        """Starts anew. A forked child must: the steps so far are its parent's."""
        self.begun, self.steps, self.base, self.at_s, self.due_s = False, 0, 0, None, 0.0
        self.sent, self.total_steps, self.detail = None, None, None

    def begin(self, steps):
        """Says that a training begins at this count. A second one in this process goes on from the first one's end."""
        if self.at_s is not None:
            self.base += self.steps - steps
        self.begun, self.steps, self.total_steps = True, steps, None

    def step(self, steps):
        """Takes the cumulative count right after a step. Returns whether it is time to send it."""
        if steps <= self.steps:
            return False
        self.steps, self.at_s = steps, monotonic()
        return self.at_s >= self.due_s

    def send(self, total_steps=None, detail=None):
        """Sends the count and the time of the last step, with the count at the end if it is known."""
        _finish_at_the_end()
        self.due_s, self.sent = self.at_s + INTERVAL_S, self.base + self.steps
        self.total_steps, self.detail = total_steps, detail
        if self.subordinate and any(other.begun for other in _reporters):
            return
        if not is_reporting_rank():
            return
        message = {"source": self.source, "at_s": self.at_s, "steps": self.sent, "pid": os.getpid()}
        if total_steps is not None:
            message["total_steps"] = self.base + total_steps
        if detail is not None:
            message["detail"] = detail
        send(message)

    def finish(self, total_steps=None, detail=None):
        """Sends the last steps if no message had them."""
        if self.at_s is not None and self.base + self.steps != self.sent:
            self.send(total_steps or self.total_steps, detail or self.detail)


def is_reporting_rank():
    """Returns whether this process reports: of several ranks on a node only the first does.

    torchrun, accelerate, Lightning and Ray Train set LOCAL_RANK, some of them after the process has started. A user may
    set WATTUNE_LOCAL_RANK to the rank that reports in addition to the first; nothing in wattune sets it.
    """
    rank = os.environ.get("LOCAL_RANK", "0")
    return rank in ("0", "") or rank == os.environ.get("WATTUNE_LOCAL_RANK")


def send(message):
    """Sends a message without waiting, and drops it if that fails.

    No socket is kept: a script that closes all descriptors or forks must not meet one of ours.
    """
    import json
    import socket

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto(json.dumps(message).encode(), _SOCKET)
    except (OSError, TypeError, ValueError):
        pass  # the wrapper is gone or busy: the next message has what this one had


def unseen(method):
    """Keeps every error of a callback's method from training."""

    @functools.wraps(method)
    def guarded(*arguments, **named):
        try:
            method(*arguments, **named)
        except Exception:
            pass

    return guarded


def _finish_all():
    for reporter in _reporters:
        try:
            reporter.finish()
        except Exception:
            pass  # training has ended; nothing of wattune may show


def _forget_all():
    for reporter in _reporters:
        reporter.forget()


def _finish_at_the_end():
    """Has the last steps sent when this process ends. Forked children of multiprocessing skip `atexit`."""
    global _ending
    if _ending == os.getpid():
        return
    if _ending is None:
        import atexit

        atexit.register(_finish_all)
    _ending = os.getpid()
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, _finish_all, exitpriority=0)
