"""A callback for Lightning's `Trainer`.

```python
from wattune.integrations.lightning import WattuneCallback

trainer = Trainer(max_epochs=10, callbacks=[WattuneCallback(max_slowdown=0.03)])
```
"""

from __future__ import annotations

import math
import os
from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:  # the package's older name
    from pytorch_lightning.callbacks import Callback

from .._factory import job
from .._job import Job
from .._summary import Summary
from ._promises import kept

__all__ = ["WattuneCallback"]


class WattuneCallback(Callback):
    """Registers each fit as a job, and counts the samples of its batches.

    Gradient accumulation, several optimizers, validation, early stopping and resumed fits need nothing.

    Attributes:
        job: The job of the fit; None before the first one.
    """

    def __init__(self, name: str | None = None, *, pause_every: int = 50, **arguments: Any) -> None:
        """Makes the callback.

        Args:
            name: Name of the job; by default the class of the module.
            pause_every: In a fit of several processes, the number of batches between two common decisions whether to
                pause; only with `pausable`.
            arguments: Arguments of `wattune.job`. `total_samples` and `batch_size` come from the Trainer; GPUs too,
                unless `gpus` is given.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If an argument's value is impossible.
        """
        super().__init__()
        # Wrong arguments raise here, and not when the fit begins.
        job(name or "lightning", total_samples=1, **arguments)
        self.job: Job | None = None
        self._name = name
        self._arguments = arguments
        self._pause_every = max(int(pause_every), 1)
        self._pauses = bool(arguments.get("pausable", False))
        self._samples_per_batch = 1
        self._batches = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Registers the job, with what is left of a resumed fit."""
        self._end()
        self._samples_per_batch = _batch_size(trainer) * max(int(trainer.world_size), 1)
        self._batches = 0
        if trainer.local_rank != 0:
            self.job = None
            return
        batches = _batches_left(trainer)
        total = None if batches is None else batches * self._samples_per_batch
        arguments = kept(self._arguments, total)
        devices = _cuda_devices(trainer)
        if devices:
            arguments.setdefault("gpus", devices)
        self.job = job(
            self._name or type(pl_module).__name__,
            total_samples=total,
            batch_size=self._samples_per_batch * max(int(trainer.accumulate_grad_batches), 1),
            # The count is that of all processes already.
            world_size=1,
            **arguments,
        ).start()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Counts a batch, and pauses if the daemon asks for it."""
        self._batches += 1
        if self.job is not None:
            self.job.step(self._samples_per_batch)
        if self._pauses and (trainer.world_size == 1 or self._batches % self._pause_every == 0):
            self._pause(trainer)

    def _pause(self, trainer: Any) -> None:
        agree = trainer.strategy.broadcast if trainer.world_size > 1 else None
        path = os.path.join(trainer.default_root_dir, "wattune-pause.ckpt")
        # Other ranks have no job, but wait and save with rank 0.
        waiting = self.job or job("another rank")
        waiting.wait_while_paused(save=lambda: trainer.save_checkpoint(path), agree=agree)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Ends the job."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Ends the job of a fit that has failed or was interrupted."""
        self._end()

    def summary(self, timeout_s: float = 0.0) -> Summary:
        """Returns the summary of the last fit; see `Job.summary`."""
        return Summary(unknown="no fit has begun on this rank") if self.job is None else self.job.summary(timeout_s)

    def _end(self) -> None:
        if self.job is not None:
            self.job.end()


def _batch_size(trainer: Any) -> int:
    """Returns the samples of a batch of one process; 1, so that batches count, where the loader does not say it."""
    for loader in (trainer.train_dataloader, getattr(trainer.fit_loop, "_combined_loader", None)):
        for candidate in (loader, getattr(loader, "batch_sampler", None)):
            size = getattr(candidate, "batch_size", None)
            if isinstance(size, int) and size > 0:
                return size
    return 1


def _batches_left(trainer: Any) -> int | None:
    """Returns the batches of one process that the fit has left; None if nobody knows."""
    left = math.inf
    per_epoch = trainer.num_training_batches
    if trainer.max_epochs is not None and trainer.max_epochs >= 0 and math.isfinite(per_epoch):
        progress = getattr(trainer.fit_loop.epoch_loop, "batch_progress", None)
        done = per_epoch * trainer.current_epoch if progress is None else progress.total.completed
        left = per_epoch * trainer.max_epochs - done
    if trainer.max_steps is not None and trainer.max_steps >= 0:
        steps = trainer.max_steps - trainer.global_step
        left = min(left, steps * max(int(trainer.accumulate_grad_batches), 1))
    return int(left) if math.isfinite(left) and left > 0 else None


def _cuda_devices(trainer: Any) -> list[str]:
    """Returns the CUDA devices of this node's processes; empty on other hardware."""
    strategy = trainer.strategy
    devices = getattr(strategy, "parallel_devices", None) or [getattr(strategy, "root_device", None)]
    return [f"cuda:{d.index or 0}" for d in devices if getattr(d, "type", None) == "cuda"]
