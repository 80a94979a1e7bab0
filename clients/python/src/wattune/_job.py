"""A training run, as a script sees it."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from . import _spec
from ._http import Address
from ._ranks import Ranks
from ._session import Session
from ._summary import Summary, summarise
from ._worker import LEAVE_S, on_fork, worker
from ._wrapper import Wrapper

_log = logging.getLogger("wattune")
# The longest time after the daemon's last answer for which a pause that it asked for still holds: without a daemon
# nobody would say when it is over.
_PAUSE_HOLDS_S = 30.0
_monotonic = time.monotonic
_this_thread = threading.get_ident


class Job:
    """A training run that is registered with the wattune daemon. Made by `wattune.job`.

    Use it in a `with` block, or call `start` and `end`. A background thread does all talking with the daemon: no method
    raises because of the daemon, and none waits for it, except where an argument says so.

    A job that was started and is not ended lasts until the process exits, also if the script keeps no reference to it.
    But it makes way for a later job of this process that is to control one of its GPUs: if nothing refers to it any
    more, or if it has the same name and the same thread has started it, as where a cell of a notebook runs again. A job
    in a `with` block ends with the block, also by an exception, and makes way for none.
    """

    def __init__(
        self, spec: _spec.Spec, where: Sequence[Address], ranks: Ranks, world_size: int | None, interval_s: float
    ) -> None:
        self._spec = spec
        self._where = tuple(where)
        self._ranks = ranks
        self._factor = ranks.world if world_size is None else world_size
        self._interval_s = interval_s
        # A lock costs more than all else in a step, so the thread that steps first counts without one, and all others
        # count together under one. A count and its time are replaced as a whole.
        self._thread: int | None = None
        self._own: tuple[float, float] = (0, _monotonic())
        self._others: tuple[float, float] = (0, 0.0)
        self._others_lock = threading.RLock()
        self._total = spec.total_samples
        self._session: Session | None = None
        self._inert: str | None = None
        self._odd_step_logged = False
        _jobs.add(self)

    def __repr__(self) -> str:
        state = self.phase or self.problem or "no phase"
        return f"<wattune.Job {self._spec.name!r} {self.id or 'not registered'}: {state}>"

    # Life.

    def start(self) -> Job:
        """Registers the job, in the background, and returns it. Does nothing if it runs already; a job runs once."""
        if self._session is not None and self._session.ending.is_set():
            _log.warning("job %s has ended and is not started again; make a new one with wattune.job", self._spec.name)
        if self._session is not None or self._inert is not None:
            return self
        if self._ranks.local_rank != 0:
            self._inert = f"rank {self._ranks.local_rank} of this node: local rank 0 reports for all"
        elif _is_spawn_import():
            self._inert = "this is a child process that only imports the main module"
        if self._inert is not None:
            return self
        self._own = (self._own[0], _monotonic())
        session = Session(
            self._spec,
            _Counted(self),
            worker().daemon(self._where),
            self._ranks,
            Wrapper.of(os.environ),
            self._interval_s,
            peers=worker().dialogues,
        )
        self._session = session
        worker().add(session)
        return self

    def end(self) -> None:
        """Ends the job: reports the last count and asks for the final account.

        Waits at most 25 ms. If the daemon takes longer, the background thread goes on with it, and if the process ends
        before, the daemon ends the job itself once its lease has run out.
        """
        session = self._session
        if session is not None and not session.ending.is_set():
            worker().leave(session, LEAVE_S)

    def __enter__(self) -> Job:
        self.start()
        if self._session is not None:
            self._session.is_in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.end()

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a copy needs, such as that of a data loader's process: it counts, and reports nothing."""
        own = ("_session", "_others_lock", "_inert")
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._session, self._inert = None, "this is a copy of the job that reports"
        self._others_lock = threading.RLock()

    def _let_go(self) -> None:
        """Makes this the copy of another process's job: it says nothing to the daemon, and its end ends nothing."""
        self._others_lock = threading.RLock()
        if self._session is not None:
            self._session, self._inert = None, "this is a child process of the one that reports"

    # Progress.

    def step(self, n: float = 1) -> None:
        """Counts `n` more samples, such as a batch, after the step that has processed them.

        `n` counts the samples of this process. In a distributed training it is multiplied by the number of processes
        (see `world_size` of `wattune.job`), so that the count, `total_samples` and `batch_size` are those of the whole
        training.

        Costs about a microsecond, and never raises: a count that is no number, or negative, is ignored and logged once.
        """
        if n.__class__ is int and n >= 0 and _this_thread() == self._thread:
            self._own = (self._own[0] + n * self._factor, _monotonic())
        else:
            self._step_other(n)

    def _step_other(self, n: Any) -> None:
        """Counts what is no plain int, such as NumPy's numbers, and the steps of other threads.

        Converting a number that lies on a GPU waits for the GPU.
        """
        try:
            count = n if n.__class__ is int else float(n)
        except Exception:  # noqa: BLE001 - whatever is wrong with it must not end the training
            count = math.nan
        if not 0.0 <= count < math.inf:
            if not self._odd_step_logged:
                self._odd_step_logged = True
                _log.warning("job %s: step(%.80r) is ignored: it takes a number of samples", self._spec.name, n)
            return
        with self._others_lock:
            if self._thread is None:
                self._thread = _this_thread()
            self._others = (self._others[0] + count * self._factor, _monotonic())

    @property
    def _count(self) -> tuple[float, float]:
        """Samples of all threads, and the time of the last step of any."""
        own, others = self._own, self._others
        return own[0] + others[0], max(own[1], others[1])

    @property
    def samples(self) -> float:
        """Samples counted so far, of the whole training."""
        return self._count[0]

    @property
    def total_samples(self) -> float | None:
        """Samples of the whole run; None if unknown. May be set later, when it is known or has changed."""
        return self._total

    @total_samples.setter
    def total_samples(self, total: float | None) -> None:
        self._total = None if total is None else _spec.number("total_samples", total, above=0.0)

    # What the daemon says.

    @property
    def name(self) -> str:
        """Name of the job."""
        return self._spec.name

    @property
    def id(self) -> str | None:
        """Id of the job at the daemon; None while it is not registered."""
        return self._session.view.job_id if self._session else None

    @property
    def gpus(self) -> tuple[str, ...]:
        """UUIDs of the job's GPUs; empty while it is not registered."""
        return self._session.view.gpus if self._session else ()

    @property
    def phase(self) -> str | None:
        """Phase: `waiting`, `profiling`, `planned`, `paused` or `observing`; None while it is unknown."""
        return self._session.view.phase if self._session else None

    @property
    def reason(self) -> str | None:
        """Reason for the phase, in one sentence; None while it is unknown."""
        return self._session.view.reason if self._session else None

    @property
    def power_limit_w(self) -> float | None:
        """Power limit that wattune wants on the job's first GPU, in watts; None if it wants none."""
        return self._session.view.power_limit_w if self._session else None

    @property
    def slowdown(self) -> float | None:
        """Slowdown so far, as a fraction; None while it is unknown."""
        return self._session.view.slowdown if self._session else None

    @property
    def resume_at(self) -> str | None:
        """Time at which a paused job is to resume, as RFC 3339 text; None unless it is to pause."""
        return self._session.view.resume_at if self._session else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of the daemon about the job, such as a promise that cannot be kept."""
        return self._session.view.warnings if self._session else ()

    @property
    def problem(self) -> str | None:
        """What is wrong now, and what to do, such as that no daemon answers; None if all is well.

        Also says why a copy of the job in another process does not report.
        """
        return self._session.view.problem if self._session else self._inert

    # Pausing.

    def should_pause(self) -> bool:
        """Returns True while the daemon asks the job to pause. Only a job made with `pausable` is asked.

        Returns False once the daemon has been silent for 30 s, because then nobody would say when the pause is over.
        """
        session = self._session
        if session is None:
            return False
        view = session.view
        silence = max(_PAUSE_HOLDS_S, 3.0 * self._interval_s)
        return view.phase == "paused" and view.answered_at is not None and _monotonic() - view.answered_at < silence

    def wait_while_paused(
        self, save: Callable[[], object] | None = None, *, agree: Callable[[bool], bool] | None = None
    ) -> float:
        """Waits while the daemon asks the job to pause, and goes on reporting; returns the seconds waited.

        Call it between two steps. Without a pause it returns at once.

        Args:
            save: Called once before the wait, to save a checkpoint. What it raises is passed on.
            agree: In a distributed training, turns the wish of this process into the common decision of all processes,
                for example by broadcasting that of rank 0; every process then calls this method after the same steps.
                Without it only this process waits, and others run into their time-outs.
        """
        wish = self.should_pause()
        if not (wish if agree is None else agree(wish)):
            return 0.0
        begun = _monotonic()
        if save is not None:
            save()
        while True:
            time.sleep(min(self._interval_s, 1.0))
            wish = self.should_pause()
            if not (wish if agree is None else agree(wish)):
                return _monotonic() - begun

    # Account.

    def summary(self, timeout_s: float = 0.0) -> Summary:
        """Returns energy, emissions and savings so far, or those of the whole job once it has ended.

        While the job runs, figures are up to ten seconds old.

        Args:
            timeout_s: The longest time to wait for the newest figures; by default it returns what is known.
        """
        session = self._session
        if session is None:
            return summarise((), self._inert or "the job was not started")
        if timeout_s > 0.0:
            self._await_account(session, timeout_s)
        return summarise(session.accounts, session.view.problem)

    def _await_account(self, session: Session, timeout_s: float) -> None:
        if session.ending.is_set():
            session.done.wait(timeout_s)
            return
        asked = _monotonic()
        session.account_wanted.set()
        worker().kick(session)
        while _monotonic() - asked < timeout_s:
            at = session.view.account_at
            if (at is not None and at >= asked) or session.done.is_set():
                return
            time.sleep(0.005)


class _Counted:
    """A job's count, for the background thread, without keeping the job alive."""

    def __init__(self, job: Job) -> None:
        self._job = weakref.ref(job)
        self._last: tuple[float, float] = job._count
        self._total = job._total

    @property
    def count(self) -> tuple[float, float]:
        job = self._job()
        if job is not None:
            self._last = job._count
        return self._last

    @property
    def total(self) -> float | None:
        job = self._job()
        if job is not None:
            self._total = job._total
        return self._total

    @property
    def is_left(self) -> bool:
        return self._job() is None


_jobs: weakref.WeakSet[Job] = weakref.WeakSet()


def _let_go_of_all() -> None:
    for job in list(_jobs):
        job._let_go()


on_fork(_let_go_of_all)


def _is_spawn_import() -> bool:
    """True while a spawned child process imports the main module, whose top level is not a training of its own."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return False
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))
