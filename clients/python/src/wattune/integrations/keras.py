"""A callback for Keras.

```python
from wattune.integrations.keras import WattuneCallback

model.fit(x, y, batch_size=64, epochs=10, callbacks=[WattuneCallback("mnist", batch_size=64, max_slowdown=0.03)])
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras.callbacks import Callback

from .._factory import job
from .._job import Job
from .._summary import Summary
from ._promises import kept

__all__ = ["WattuneCallback"]


class WattuneCallback(Callback):
    """Registers each `fit` as a job, and counts the samples of its batches.

    Keras does not tell callbacks the batch size: without `batch_size`, batches are counted in place of samples.

    Attributes:
        job: The job of the fit; None before the first one.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        batch_size: int | None = None,
        initial_epoch: int = 0,
        save: Callable[[], object] | None = None,
        **arguments: Any,
    ) -> None:
        """Makes the callback.

        Args:
            name: Name of the job; by default that of the model.
            batch_size: Samples of a batch, as given to `fit` or to the data set.
            initial_epoch: The epoch at which a resumed `fit` begins, as given to it.
            save: Called before a pause, to save a checkpoint; only with `pausable`.
            arguments: Arguments of `wattune.job`. `total_samples` comes from Keras.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If an argument's value is impossible.
        """
        super().__init__()
        # Wrong arguments raise here, and not when the training begins.
        job(name or "keras", batch_size=batch_size, total_samples=1, **arguments)
        self.job: Job | None = None
        self._name = name
        self._batch_size = batch_size
        self._initial_epoch = initial_epoch
        self._arguments = arguments
        self._save = save
        self._batch = -1

    def on_train_begin(self, logs: Any = None) -> None:
        """Registers the job."""
        self._end()
        self._batch = -1
        total = self._total()
        self.job = job(
            self._name or str(getattr(self.model, "name", None) or "keras")[:128],
            total_samples=total,
            batch_size=self._batch_size,
            **kept(self._arguments, total),
        ).start()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begins to count the epoch's batches anew."""
        self._batch = -1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts the batches since the last call, of which there may be several (`steps_per_execution`)."""
        if self.job is not None:
            self.job.step((batch - self._batch) * (self._batch_size or 1))
            self._batch = batch
            self.job.wait_while_paused(self._save)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Learns the number of batches from the first epoch of a data set of unknown length."""
        if self.job is not None and self.job.total_samples is None:
            epochs = (self.params or {}).get("epochs")
            if epochs and self._batch >= 0:
                done = epoch + 1 - self._initial_epoch
                if done > 0 and epochs > self._initial_epoch:
                    self.job.total_samples = self.job.samples / done * (epochs - self._initial_epoch)

    def on_train_end(self, logs: Any = None) -> None:
        """Ends the job."""
        self._end()

    def summary(self, timeout_s: float = 0.0) -> Summary:
        """Returns the summary of the last `fit`; see `Job.summary`."""
        return Summary(unknown="no training has begun") if self.job is None else self.job.summary(timeout_s)

    def _total(self) -> int | None:
        """Returns the samples of the whole training; None while the length of an epoch is unknown."""
        parameters = self.params or {}
        steps, epochs = parameters.get("steps"), parameters.get("epochs")
        if not steps or not epochs or epochs <= self._initial_epoch:
            return None
        return int(steps) * (int(epochs) - self._initial_epoch) * (self._batch_size or 1)

    def _end(self) -> None:
        if self.job is not None:
            self.job.end()
