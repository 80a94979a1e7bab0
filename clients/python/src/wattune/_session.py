"""A job's dialogue with the daemon: registers, reports, registers again where the daemon has lost the job, and ends it.

Runs on the background thread alone. It shares three things with the training thread, none of them under a lock that
either side holds while it waits: the count (one tuple, replaced as a whole), the flags `ending` and `done`, and the
view (one object, replaced as a whole).
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from . import _gpus
from ._daemon import Daemon, Refused, describe
from ._http import Answer, Unreachable
from ._ranks import Ranks
from ._spec import MOST_TAGS, Spec
from ._view import Counted, View, advice, unix
from ._worker import Dialogue
from ._wrapper import Wrapper

_log = logging.getLogger("wattune")

REQUEST_TIMEOUT_S = 5.0
# The account costs the daemon more than a report; nobody reads it every second.
ACCOUNT_EVERY_S = 10.0
ANNOUNCE_EVERY_S = 10.0
# Between two attempts to control GPUs that another job controls.
CONTROL_EVERY_S = 10.0
LONGEST_RETRY_S = 15.0


class Session:
    """The dialogue about one job. `serve` takes one turn in it and returns when the next one is due."""

    def __init__(
        self,
        spec: Spec,
        counted: Counted,
        daemon: Daemon,
        ranks: Ranks,
        wrapper: Wrapper,
        interval_s: float = 1.0,
        environ: dict[str, str] | None = None,
        peers: Callable[[], Sequence[Dialogue]] = tuple,
    ) -> None:
        self.spec = spec
        self.interval_s = interval_s
        self.view = View()
        self.ending = threading.Event()
        self.done = threading.Event()
        self.account_wanted = threading.Event()
        self.accounts: list[dict[str, Any]] = []
        self.is_in_block = False
        # Not its number, which a later thread may get.
        self.thread = threading.current_thread()
        self._counted = counted
        self._daemon = daemon
        self._ranks = ranks
        self._wrapper = wrapper
        self._environ = dict(os.environ) if environ is None else environ
        # The other dialogues of this process, which the same thread serves.
        self._peers = peers
        self._job: str | None = None
        self._sent: tuple[float, float] | None = None
        self._sent_total: float | None = None
        self._joined_at = self._renewed_at = 0.0
        self._account_at = 0.0
        self._announced_at = 0.0
        self._failures = 0
        self._end_before: float | None = None
        # When an attempt to register began whose answer was lost: the daemon may have the job all the same.
        self._unanswered_since: float | None = None
        self._with_pids = True
        # The registration with control, while another job controls one of the GPUs, and the time of the last attempt.
        self._uncontrolled: dict[str, Any] | None = None
        self._control_asked_at = 0.0
        self._logged: set[str] = set()
        self._was_unreachable = False

    @property
    def answered_at(self) -> float | None:
        """Monotonic time of the daemon's last answer about the job; None before the first."""
        return self.view.answered_at

    # The turn.

    def serve(self) -> float:
        """Takes a turn, and returns the seconds until the next one. Never raises."""
        if self.done.is_set():
            return self.interval_s
        try:
            if self.ending.is_set():
                self._end()
            elif self._job is None:
                self._join()
            else:
                self._report()
        except Unreachable as error:
            return self._absent(error)
        except Exception as error:  # noqa: BLE001 - a bug here must not end the thread that serves all jobs
            self._problem(f"wattune's client failed ({type(error).__name__}: {error}); please report this")
            _log.debug("failed", exc_info=True)
            return self._later()
        if self._was_unreachable:
            self._was_unreachable = False
            self._logged -= {"absent", "refused"}
            _log.info("job %s: the wattune daemon answers", self.spec.name)
        if self._job is None and not self.done.is_set():
            return self._later()
        self._failures = 0
        return self.interval_s

    def _absent(self, error: Unreachable) -> float:
        """Notes that no daemon answers, or that it refuses access; training goes on, and the job joins later."""
        self._was_unreachable = True
        text = f"{describe(error)}; training goes on without it"
        self.view = replace(self.view, problem=text)
        kind, until = "refused", "the daemon accepts its requests"
        if not isinstance(error, Refused):
            kind = "absent"
            until = "one does. `wattune serve` starts one; WATTUNE_SOCKET or WATTUNE_LISTEN names another address"
        if kind not in self._logged:
            self._logged.add(kind)
            _log.warning("job %s: %s, and the job joins as soon as %s", self.spec.name, text, until)
        if self.ending.is_set() and self._job is None:
            self.done.set()
        elif self.ending.is_set():
            self._give_up_late()
        return self._later()

    def _later(self) -> float:
        """Returns a growing delay: a daemon that is away is asked less and less often, at least every 15 s."""
        self._failures = min(self._failures + 1, 10)
        return min(self.interval_s * 2.0 ** (self._failures - 1), max(self.interval_s, LONGEST_RETRY_S))

    # Joining.

    def _join(self) -> None:
        status = self._daemon.look()
        replaced = self._job_of_run()
        framework = _gpus.of_framework()
        try:
            selection = self._selection(status, framework, replaced)
        except _gpus.Unresolved as unresolved:
            self._problem(f"not registered: {unresolved}")
            return
        self._register(selection, replaced)

    def _job_of_run(self) -> dict[str, Any] | None:
        """Returns the open job that `wattune run` or Slurm's Prolog has registered for this command, if there is one.

        The script's job replaces it. A second job of the same command finds it ended, and is a job beside the first.
        """
        job = self._wrapper.job_id
        if job is None:
            return None
        found = self._request("GET", f"/v1/jobs/{job}")
        is_open = found.ok and found.body.get("ended_at") is None
        return found.body if is_open and self._wrapper.may_replace(found.body) else None

    def _selection(
        self, status: Any, framework: list[str] | None, replaced: dict[str, Any] | None = None
    ) -> _gpus.Selection:
        chosen = self.spec.gpus
        if chosen is not None and not str(chosen[0]).startswith("cuda:"):
            return _gpus.Selection(chosen, origin="gpus=[…]")
        allocated = None
        if chosen is None and replaced is not None:
            allocated = _gpus.Selection(tuple(replaced["gpus"]), origin="the GPUs of the job that this one replaces")
            if self._wrapper.progress_socket is not None:
                return allocated
        known, seen = _gpus.from_daemon(status["gpus"]), _gpus.visible_to_process()
        if chosen is None:
            try:
                own = _gpus.resolve(
                    self._environ, known, seen, framework, self._ranks.local_world, self._ranks.own_gpus
                )
            except _gpus.Unresolved:
                if allocated is None:
                    raise
                return allocated
            # Where Slurm does not confine its jobs, a process may see more GPUs than those of its job.
            return own if allocated is None or set(own.gpus) <= set(allocated.gpus) else allocated
        return _gpus.pick(_gpus.resolve(self._environ, known, seen, framework), [int(str(gpu)[5:]) for gpu in chosen])

    def _register(self, selection: _gpus.Selection, replaced: dict[str, Any] | None) -> None:
        control = self.spec.control and not selection.shared
        body = self.spec.registration(selection.gpus, self._counted.total, control, replaced)
        if replaced is not None and self._wrapper.progress_socket is not None:
            # `wattune run` keeps the lease of the script's job in the rhythm of its own job's lease. Slurm's Prolog
            # keeps none: with its long lease, a killed job would hold on to the GPUs.
            body["lease_s"] = replaced.get("lease_s") or self.spec.lease_s
        if not body.keys() & {"pids", "cgroup"} and self._daemon.shares_pids():
            body["pids"] = [os.getpid()]
        if not self._with_pids:
            body.pop("pids", None)
        slurm_job, tags = self._wrapper.slurm_job, body.get("tags", {})
        if slurm_job is not None and slurm_job.isdigit() and len(tags) < MOST_TAGS:
            # By this tag Slurm's Epilog ends the job of a process that was killed.
            body["tags"] = {"slurm_job_id": slurm_job, **tags}
        self._uncontrolled = None
        self._daemon.fresh()
        unanswered_since = self._unanswered_since
        self._unanswered_since = unanswered_since or time.time()
        answer = self._request("POST", "/v1/jobs", body)
        self._unanswered_since = unanswered_since
        if answer.status == 409 and unanswered_since is not None and self._find_own(unanswered_since, selection):
            return
        while _is_about_control(answer) and self._end_blocking(answer):
            answer = self._request("POST", "/v1/jobs", body)
        if _is_about_control(answer) and replaced is not None and not replaced.get("control", True):
            # The job that this one replaces is not controlled for the same reason.
            self._uncontrolled, self._control_asked_at = dict(body), time.monotonic()
            self._problem(f"not controlled: {answer.detail}")
            body["control"] = False
            answer = self._request("POST", "/v1/jobs", body)
        if "pids" in body and answer.status in (403, 409, 422) and answer.detail.startswith("pids"):
            # The daemon itself runs below this process, counts these processes for another job of this command, or sees
            # them as another user's.
            self._with_pids = False
            del body["pids"]
            answer = self._request("POST", "/v1/jobs", body)
        if body.get("control", True) and answer.status == 403 and answer.detail.startswith("control"):
            # Only other users' processes run on one of the GPUs.
            self._problem(f"not controlled: {answer.detail}")
            body["control"] = False
            answer = self._request("POST", "/v1/jobs", body)
        if "replaces" in body and answer.status in (404, 409):
            # It has ended since it was looked up, or another job of this command has replaced it.
            del body["replaces"]
            answer = self._request("POST", "/v1/jobs", body)
        if not answer.ok:
            self._problem(f"not registered: {advice(answer)}")
            return
        self._adopt(answer.body)
        _log.info(
            "job %s registered as %s on %s (%s)", self.spec.name, self._job, list(self.view.gpus), selection.origin
        )

    def _end_blocking(self, refusal: Answer) -> bool:
        """Ends the job that a refusal names, if this process has left it without an end; returns whether it did."""
        for peer in self._peers():
            if not isinstance(peer, Session) or peer is self or peer._job is None or peer._job not in refusal.detail:
                continue
            # The end of a job that is done was refused.
            if peer.done.is_set() or not peer._makes_way_for(self):
                return False
            _log.warning("job %s (%s) was not ended, and ends now: a new job uses its GPUs", peer.spec.name, peer._job)
            peer.ending.set()
            peer.serve()
            peer.view = replace(peer.view, problem="ended, because a new job of this process uses its GPUs")
            return peer.done.is_set()
        return False

    def _makes_way_for(self, later: Session) -> bool:
        """Returns whether this job was left without an end: see `Job`."""
        is_same = self.spec.name == later.spec.name and self.thread is later.thread
        return self._counted.is_left or (is_same and not self.is_in_block)

    def _retry_control(self) -> None:
        """Registers the job with control once the job that controlled its GPUs is gone."""
        now = time.monotonic()
        if self._uncontrolled is None or now - self._control_asked_at < CONTROL_EVERY_S:
            return
        self._control_asked_at, self._unanswered_since = now, time.time()
        self._daemon.fresh()
        body = {**self._uncontrolled, "replaces": self._job}
        if not self._with_pids:
            body.pop("pids", None)
        answer = self._request("POST", "/v1/jobs", body)
        self._unanswered_since = None
        if answer.ok:
            replaced, self._uncontrolled = self._job, None
            self._adopt(answer.body)
            self._keep_account(replaced)

    def _find_own(self, since: float, selection: _gpus.Selection) -> bool:
        """Finds the job of an earlier attempt to register whose answer was lost."""
        listing = self._request("GET", "/v1/jobs")
        for job in listing.body if listing.ok else ():
            same = job["name"] == self.spec.name and job.get("samples") is None
            same = same and self._may_be_own(job, selection)
            if same and unix(job["registered_at"]) >= since - 1.0:
                self._adopt(job)
                return True
        return False

    def _may_be_own(self, job: dict[str, Any], selection: _gpus.Selection) -> bool:
        """Returns False for a job of other GPUs or of another process, such as another run of a sweep."""
        pids = (job.get("processes") or {}).get("pids")
        if pids and self._daemon.shares_pids() and os.getpid() not in pids:
            return False
        uuids = [gpu for gpu in selection.gpus if isinstance(gpu, str) and gpu.startswith("GPU-")]
        named = all(any(known.startswith(gpu) for known in job["gpus"]) for gpu in uuids)
        return named and len(job["gpus"]) == len(selection.gpus)

    def _adopt(self, job: dict[str, Any]) -> None:
        """Makes a job of the daemon this session's."""
        self._job, self._unanswered_since = str(job["job_id"]), None
        self._sent = self._sent_total = None
        self._joined_at = self._renewed_at = self._account_at = time.monotonic()
        self.view = replace(self.view, job_id=self._job, gpus=tuple(job.get("gpus", ())), problem=None)
        self._note(job)
        self._announce()

    def _announce(self) -> None:
        if self._job is not None:
            self._announced_at = time.monotonic()
            self._wrapper.announce(self._job)

    # Reporting.

    def _report(self) -> None:
        now = time.monotonic()
        if now - self._announced_at > ANNOUNCE_EVERY_S:
            self._announce()
        self._retry_control()
        samples, at_s = self._counted.count
        paused = self.view.phase == "paused"
        if paused and (self._sent is None or samples == self._sent[0]):
            # The work done up to now, in a pause that the daemon has asked for.
            at_s = now
        answer = self._progress(samples, at_s) if self._is_new(samples, at_s) else self._renew(now)
        if answer is None:
            return
        if answer.ok:
            self._note(answer.body)
        elif answer.status in (404, 409):
            self._lost(answer)
            return
        else:
            self._problem(f"the daemon refuses a report: {answer.detail}")
        if self.account_wanted.is_set() or now - self._account_at > ACCOUNT_EVERY_S:
            self._fetch_account()

    def _is_new(self, samples: float, at_s: float) -> bool:
        """True if the daemon does not know this count. The first one that it gets begins its measurement.

        So that one is not of a time before the registration, in which nobody measured, and not before the first step,
        since compiling and loading are no measure of the work.
        """
        if self._sent is not None:
            return at_s > self._sent[1]
        return samples > 0.0 and at_s > self._joined_at - max(self.interval_s, 1.0)

    def _progress(self, samples: float, at_s: float) -> Answer:
        body: dict[str, Any] = {"samples": samples, "at_s": at_s, "source": "python_client"}
        total = self._counted.total
        if total is not None and total != self._sent_total:
            body["total_samples"] = total
        answer = self._request("POST", f"/v1/jobs/{self._job}/progress", body)
        if answer.ok or answer.status == 422:
            # A refused report is refused again: the next one has a new count.
            self._sent, self._sent_total, self._renewed_at = (samples, at_s), total, time.monotonic()
        return answer

    def _renew(self, now: float) -> Answer | None:
        """Renews the lease of a job that has counted nothing new; returns None while that is not due.

        Steps may take longer than the interval, so nothing new is no news: reporting an old count at a new time would
        say that the job stands still.
        """
        paused = self.view.phase == "paused"
        if not paused and now - self._renewed_at < min(self.spec.lease_s / 4.0, 10.0):
            return None
        self._renewed_at = now
        return self._request("POST", f"/v1/jobs/{self._job}/lease", {})

    def _lost(self, answer: Answer) -> None:
        """Registers anew after the daemon has ended or forgotten the job."""
        lost, self._job = self._job, None
        _log.warning(
            "job %s: the daemon has no open job %s any more (%s); registering anew", self.spec.name, lost, answer.detail
        )
        self._keep_account(lost)
        self.view = replace(self.view, job_id=None, phase=None, power_limit_w=None, resume_at=None)
        self._join()

    def _keep_account(self, job: str | None) -> None:
        """Stores the account of a job that is not this session's any more."""
        try:
            account = self._request("GET", f"/v1/jobs/{job}/emissions")
        except Unreachable:
            return
        if account.ok and isinstance(account.body, dict):
            self._put_account(account.body)

    # The end.

    def _end(self) -> None:
        if self._job is None:
            self.done.set()
            return
        samples, at_s = self._counted.count
        if self._is_new(samples, at_s):
            self._progress(samples, at_s)
        answer = self._request("DELETE", f"/v1/jobs/{self._job}")
        if answer.ok and isinstance(answer.body, dict):
            self._put_account(answer.body)
        elif answer.status == 409:
            self._fetch_account()
        elif answer.status != 404:
            self._problem(f"the job's end is refused: {answer.detail}")
        self.view = replace(self.view, phase=None, power_limit_w=None, resume_at=None)
        self.done.set()

    def _give_up_late(self) -> None:
        """Stops trying to end a job whose lease has run out: the daemon has ended it, or will when it starts."""
        self._end_before = self._end_before or time.monotonic() + 2.0 * self.spec.lease_s
        if time.monotonic() > self._end_before:
            self.done.set()

    # What the answers say.

    def _request(self, method: str, path: str, body: object = None) -> Answer:
        return self._daemon.request(method, path, body, REQUEST_TIMEOUT_S)

    def _fetch_account(self) -> None:
        self._account_at = time.monotonic()
        answer = self._request("GET", f"/v1/jobs/{self._job}/emissions")
        if answer.ok and isinstance(answer.body, dict):
            self._put_account(answer.body)
        self.account_wanted.clear()

    def _put_account(self, account: dict[str, Any]) -> None:
        """Stores the newest account of a registration of this job; a summary adds up all of them."""
        others = [a for a in self.accounts if a.get("job_id") != account.get("job_id")]
        self.accounts = [*others, account]
        self.view = replace(self.view, account_at=time.monotonic())

    def _note(self, answer: Any) -> None:
        self.view = replace(
            self.view,
            phase=answer.get("phase"),
            reason=answer.get("reason"),
            power_limit_w=answer.get("power_limit_w"),
            slowdown=answer.get("slowdown"),
            resume_at=answer.get("resume_at"),
            warnings=tuple(answer.get("warnings", ())),
            problem=None,
            answered_at=time.monotonic(),
        )

    def _problem(self, text: str) -> None:
        """Records what is wrong, and logs it the first time, whatever numbers it names."""
        self.view = replace(self.view, problem=text)
        kind = re.sub(r"\S*\d\S*", "#", text)
        if kind not in self._logged:
            self._logged.add(kind)
            _log.warning("job %s: %s", self.spec.name, text)


def _is_about_control(answer: Answer) -> bool:
    """True if a registration is refused because another job controls one of the GPUs."""
    return answer.status == 409 and "is controlled by job" in answer.detail
