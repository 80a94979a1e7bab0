"""A training that runs again and again, whose batch size the daemon chooses from what earlier runs have cost."""

from __future__ import annotations

import logging
import math
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

from . import _gpus, _spec
from ._daemon import Daemon, describe
from ._factory import job
from ._http import Answer, Unreachable, addresses
from ._job import Job
from ._ranks import detect

_log = logging.getLogger("wattune")
_T = TypeVar("_T")
# The highest power of a GPU that the daemon accepts, where the GPU does not say its own.
_MOST_W = 5000.0
# After a wait in vain, the time that a report waits: training has waited long enough for this daemon.
_IN_VAIN_S = 0.02
_OUTCOMES = ("withdrawn", "not_reached")


class Recurring:
    """One run of a recurring job: a trial of a batch size. Made by `wattune.recurring`.

    Attributes:
        batch_size: Batch size to train with, over all GPUs.
        max_epochs: Largest number of epochs.
        should_stop: True once the run must stop: it has reached its target, or going on costs more than it is worth.
        reached: True once the run has reached its target.
        reason: The daemon's reason for all this, in words.
        problem: What is wrong, and what to do; None if all is well.
        number: Number of the trial; None without one.
        job: The run's job, which records its energy. Call `step` after each batch: without progress, no power limit is
            planned.
    """

    def __init__(
        self,
        name: str,
        spec: dict[str, Any],
        gpus: Sequence[int | str] | None,
        daemon: Daemon,
        key: str,
        wait_s: float,
        make_job: Callable[[int], Job],
        agree: Callable[[Any], Any] | None,
        is_leader: bool,
    ) -> None:
        self.name = name
        self.max_epochs: int = spec["max_epochs"]
        self.should_stop = False
        self.reached = False
        self.reason: str | None = None
        self.problem: str | None = None
        self.number: int | None = None
        self._spec = spec
        self._gpus = gpus
        self._daemon = daemon
        self._key = key
        self._wait_s = wait_s
        self._agree = agree
        self._is_leader = is_leader
        self._over = False
        self._in_vain = False
        self._energy_by_account = False
        self._logged: set[str] = set()
        batch_size = spec["default_batch_size"]
        if is_leader:
            batch_size = self._attempt(self._begin) or batch_size
        self.batch_size: int = self._agreed(batch_size)
        self._begun = time.monotonic()
        self.job = make_job(self.batch_size)

    # Life.

    def __enter__(self) -> Recurring:
        # As in a block of its own: the job makes way for no other before `end`.
        self.job.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A batch size that does not fit into memory will not fit the next time either.
        out_of_memory = kind is not None and (issubclass(kind, MemoryError) or kind.__name__ == "OutOfMemoryError")
        self.end("not_reached" if out_of_memory else "withdrawn")

    def step(self, n: float = 1) -> None:
        """Counts `n` more samples of this process; see `Job.step`."""
        self.job.step(n)

    def report(self, epoch: int, metric: float | None) -> bool:
        """Reports that an epoch is done, and returns `should_stop`.

        Args:
            epoch: Number of the epoch, from 0, as `for epoch in range(run.max_epochs)` counts.
            metric: The metric after this epoch; None, or not a number, if it was not measured.
        """
        if self._is_leader and self.number is not None and not self._over:
            self._attempt(lambda: self._report(int(epoch) + 1, _finite(metric)))
        self.should_stop, self.reached = self._agreed((self.should_stop, self.reached))
        return self.should_stop

    def end(self, outcome: str = "withdrawn") -> None:
        """Ends the run. Does nothing more if the daemon has ended it, for example because it has reached its target.

        Args:
            outcome: `withdrawn` if the run says nothing about its batch size, such as after an interruption;
                `not_reached` if the batch size does not work, for example because training diverges.

        Raises:
            ValueError: If the outcome is another one.
        """
        if outcome not in _OUTCOMES:
            raise ValueError(f"outcome is {outcome!r}; it is one of {', '.join(_OUTCOMES)}")
        if self._is_leader and self.number is not None and not self._over:
            self._over = True
            self._attempt(lambda: self._end(outcome))
        self.job.end()

    # The dialogue.

    def _begin(self) -> int | None:
        """Begins the trial and returns its batch size; None if the daemon refuses it."""
        status = self._daemon.look(self._wait_s)
        body = {**self._spec, **_of_gpus(self._spec, _used(status["gpus"], self._gpus))}
        created = self._request("PUT", "", body)
        if created.status == 409:
            known = self._request("GET", "")
            if not self._is_same(known, body):
                # Without a recurring job of this name, the refusal has another reason, such as that there are too many.
                remedy = "change the specification back, take another name, or delete the recurring job"
                self._refused(created, remedy if known.ok else "")
                return None
        elif not created.ok:
            self._refused(created)
            return None
        trial = self._request("POST", "/trials", {"key": self._key})
        if not trial.ok:
            self._refused(trial)
            return None
        self.number = int(trial.body["number"])
        self.max_epochs = int(trial.body.get("max_epochs") or self.max_epochs)
        self.reason = trial.body.get("reason")
        return int(trial.body["batch_size"])

    def _is_same(self, known: Answer, body: dict[str, Any]) -> bool:
        """True if the daemon's recurring job of this name has what the user asked for.

        What is taken from the GPUs may differ from that of the first run: then the first run's holds.
        """
        return known.ok and all(known.body["spec"].get(field) == body[field] for field in self._spec)

    def _report(self, epochs: int, metric: float | None) -> None:
        report: dict[str, Any] = {"epochs": epochs, "metric": metric, "time_s": time.monotonic() - self._begun}
        if self.job.id is None and not self._energy_by_account:
            why = self.job.problem or "its job is not registered yet"
            self._note(f"an epoch is not reported, because the run's energy is unknown: {why}")
            return
        verdict = Answer(422, None)
        if not self._energy_by_account:
            of_job = {**report, "job_id": self.job.id}
            verdict = self._request("POST", f"/trials/{self.number}/progress", of_job)
            # Refused is a job that counts for another trial, and a job registered anew after the trial's end.
            self._energy_by_account = verdict.status in (409, 422) and "job" in verdict.detail
        if self._energy_by_account:
            # A trial's cost counts GPUs alone. The sum has the accounts of all jobs that this run has registered.
            devices = self.job.summary(timeout_s=min(self._wait_s, 1.0)).energy_by_device_j
            report["energy_j"] = devices.get("gpu")
            verdict = self._request("POST", f"/trials/{self.number}/progress", report)
        if not verdict.ok:
            self._over = verdict.status in (404, 410)
            self._refused(verdict)
            return
        self.problem = None
        self.should_stop = bool(verdict.body["stop"])
        self.reached = bool(verdict.body["reached"])
        self.max_epochs = int(verdict.body["max_epochs"])
        self.reason = verdict.body.get("reason")
        self._over = self.should_stop

    def _end(self, outcome: str) -> None:
        ended = self._request("POST", f"/trials/{self.number}/end", {"outcome": outcome})
        if not ended.ok and ended.status not in (404, 409, 410):
            self._refused(ended)

    def _request(self, method: str, path: str, body: object = None) -> Answer:
        timeout_s = _IN_VAIN_S if self._in_vain else self._wait_s
        answer = self._daemon.request(method, f"/v1/recurring/{quote(self.name, safe='')}{path}", body, timeout_s)
        self._in_vain = False
        return answer

    def _attempt(self, action: Callable[[], _T]) -> _T | None:
        """Returns what the action returns; None if no daemon answers. Never raises: training goes on."""
        try:
            return action()
        except Unreachable as error:
            self._in_vain = True
            self._daemon.close()
            self._note(f"{describe(error)}; the run goes on with batch size {self._size()}, and nothing stops it early")
        except Exception as error:  # noqa: BLE001 - nothing here may end the training
            self._note(f"wattune's client failed ({type(error).__name__}: {error}); please report this")
            _log.debug("failed", exc_info=True)
        return None

    def _size(self) -> int:
        return int(getattr(self, "batch_size", self._spec["default_batch_size"]))

    def _refused(self, answer: Answer, advice: str = "") -> None:
        self._note(f"the daemon refuses: {answer.detail}" + (f"; {advice}" if advice else ""))

    def _note(self, text: str) -> None:
        """Records what is wrong, and logs it the first time."""
        self.problem = text
        kind = re.sub(r"\S*\d\S*", "#", text)
        if kind not in self._logged:
            self._logged.add(kind)
            _log.warning("recurring job %s: %s", self.name, text)

    def _agreed(self, value: Any) -> Any:
        return value if self._agree is None else self._agree(value)


def _finite(metric: float | None) -> float | None:
    """Returns the metric as a number; None if it is none, as after a divergence."""
    try:
        number = math.nan if metric is None else float(metric)
    except Exception:  # noqa: BLE001 - whatever was given must not end the training
        number = math.nan
    return number if math.isfinite(number) else None


def _of_gpus(spec: dict[str, Any], gpus: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the fields of the specification that the user left to the GPUs.

    Their number goes with their model alone: power profiles, which both select, are those of one model.
    """
    found: dict[str, Any] = {}
    if "max_power_w" not in spec:
        found["max_power_w"] = sum(float(gpu.get("power_limit_max_w") or _MOST_W) for gpu in gpus)
    models = {gpu["model"] for gpu in gpus}
    if len(models) == 1:
        found.update(gpu_model=models.pop(), number_of_gpus=len(gpus))
    return found


def _used(gpus: list[dict[str, Any]], chosen: Sequence[int | str] | None) -> list[dict[str, Any]]:
    """Returns the daemon's GPUs that the run uses; all of them where that is uncertain."""
    if chosen is None:
        try:
            known, seen, ranks = _gpus.from_daemon(gpus), _gpus.visible_to_process(), detect(os.environ)
            framework = _gpus.of_framework()
            chosen = _gpus.resolve(os.environ, known, seen, framework, ranks.local_world, ranks.own_gpus).gpus
        except _gpus.Unresolved:
            return gpus
    ids = ("index", "uuid", "pci_bus_id")
    return [gpu for gpu in gpus if any(gpu.get(field) in chosen for field in ids)] or gpus


def recurring(
    name: str,
    *,
    batch_sizes: Sequence[int],
    target: float,
    default: int | None = None,
    higher_is_better: bool = True,
    max_epochs: int = 100,
    eta: float = 0.5,
    beta: float | None = 2.0,
    max_power_w: float | None = None,
    gpus: Sequence[int | str] | None = None,
    lease_s: float = 14400.0,
    total_samples: float | None = None,
    max_slowdown: float | None = None,
    tags: Mapping[str, str] | None = None,
    key: str | None = None,
    agree: Callable[[Any], Any] | None = None,
    wait_s: float = 5.0,
    socket: str | os.PathLike[str] | None = None,
    listen: str | None = None,
) -> Recurring:
    """Begins a run of a recurring job, and returns it with the batch size to use.

    ```python
    with wattune.recurring("nightly", batch_sizes=[32, 64, 128], target=0.75, max_epochs=40) as run:
        loader = DataLoader(data, batch_size=run.batch_size)
        for epoch in range(run.max_epochs):
            train_epoch(loader, on_batch=run.step)
            if run.report(epoch, validate()):
                break
    ```

    Waits for the daemon's answer, for at most `wait_s`. Without a daemon the run uses the default batch size, says so
    once, and is never stopped early.

    Args:
        name: Name that all runs share.
        batch_sizes: Batch sizes to choose from, over all GPUs.
        target: Value of the metric at which a run is done.
        default: Batch size of the first run, and without a daemon; by default the middle one.
        higher_is_better: False if a lower metric is better, such as a loss.
        max_epochs: Largest number of epochs of a run.
        eta: Weight of energy against time: 1 is energy alone, 0 is time alone.
        beta: A run is stopped when it costs more than this multiple of the cheapest one; None to stop at `max_epochs`.
        max_power_w: Largest power of the run's GPUs together; by default the sum of their maximum limits.
        gpus: GPUs, as for `wattune.job`.
        lease_s: Silence after which the daemon takes the run for lost; longer than an epoch.
        total_samples: Samples of the whole run, if they are known, for the run's job.
        max_slowdown: Promise of the run's job, as for `wattune.job`.
        tags: Labels of the run's job.
        key: Name of this run; a run that asks again with the same key gets the same trial. By default a new one.
        agree: In a distributed training, returns rank 0's value in all processes, for example by
            `torch.distributed.broadcast_object_list`; every process then makes the same calls.
        wait_s: Longest wait for an answer. Once a wait was in vain, later ones are short until the daemon answers.
        socket: The daemon's Unix socket, as for `wattune.job`.
        listen: The daemon's TCP address, as for `wattune.job`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument's value is impossible, or a distributed training gives no `agree`.
    """
    sizes = [_spec.whole("a batch size", size, least=1) for size in batch_sizes]
    if not sizes or len(set(sizes)) < len(sizes):
        raise ValueError(f"batch_sizes is {batch_sizes!r}; it has at least one batch size, each once")
    first = sorted(sizes)[len(sizes) // 2] if default is None else _spec.whole("default", default, least=1)
    if first not in sizes:
        raise ValueError(f"default is {first}; it is one of batch_sizes, {sizes}")
    if not isinstance(higher_is_better, bool):
        raise TypeError(f"higher_is_better is {higher_is_better!r}; it is True or False")
    spec: dict[str, Any] = {
        "batch_sizes": sorted(sizes),
        "default_batch_size": first,
        "target_metric": _spec.number("target", target),
        "higher_is_better": higher_is_better,
        "max_epochs": _spec.whole("max_epochs", max_epochs, least=1),
        "eta": _spec.number("eta", eta, least=0.0, most=1.0),
        "beta": None if beta is None else _spec.number("beta", beta, above=1.0),
        "lease_s": _spec.number("lease_s", lease_s, least=1.0, most=604800.0),
    }
    if max_power_w is not None:
        spec["max_power_w"] = _spec.number("max_power_w", max_power_w, above=0.0)
    ranks = detect(os.environ)
    if ranks.world > 1 and agree is None:
        raise ValueError(
            f"{ranks.launcher} runs {ranks.world} processes, which must all use the same batch size; give agree=, a "
            "function that returns rank 0's value in all of them"
        )
    is_leader = ranks.world == 1 or _is_rank_0()

    def make_job(batch_size: int) -> Job:
        return job(
            name,
            batch_size=batch_size,
            total_samples=total_samples,
            max_slowdown=max_slowdown,
            gpus=gpus,
            tags=tags,
            socket=socket,
            listen=listen,
        )

    make_job(first)  # wrong arguments raise before a trial begins
    return Recurring(
        name,
        spec,
        gpus,
        Daemon(addresses(None if socket is None else os.fspath(socket), listen)),
        key or f"{os.uname().nodename[:64]}-{uuid.uuid4()}",
        float(_spec.number("wait_s", wait_s, least=0.0)),
        make_job,
        agree,
        is_leader,
    )


def _is_rank_0() -> bool:
    """True in the first process of all nodes."""
    for variable in ("RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        if variable in os.environ:
            return os.environ[variable] == "0"
    return True
