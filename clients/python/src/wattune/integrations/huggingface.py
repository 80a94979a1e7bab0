"""A callback for the `Trainer` of Hugging Face's transformers.

```python
from wattune.integrations.huggingface import WattuneCallback

trainer = Trainer(model, arguments, train_dataset=data, callbacks=[WattuneCallback(max_slowdown=0.03)])
```
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from .._factory import job
from .._job import Job
from .._summary import Summary
from ._distributed import of_rank_0
from ._promises import kept

__all__ = ["WattuneCallback"]


class WattuneCallback(TrainerCallback):
    """Registers each training as a job, and counts the samples of its optimizer steps.

    A resumed training counts from where it resumes. Evaluation, saving and early stopping need nothing. A job that may
    be paused is saved first, by the Trainer's own checkpoint.

    Attributes:
        job: The job of the training; None before the first one.
    """

    def __init__(self, name: str | None = None, *, pause_every: int = 50, **arguments: Any) -> None:
        """Makes the callback.

        Args:
            name: Name of the job; by default the run's name, otherwise the class of the model.
            pause_every: In a training of several processes, the number of steps between two common decisions whether
                to pause; only with `pausable`.
            arguments: Arguments of `wattune.job`. `total_samples` and `batch_size` come from the Trainer.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If an argument's value is impossible.
        """
        # Wrong arguments raise here, and not when the training begins.
        job(name or "huggingface", total_samples=1, **arguments)
        self.job: Job | None = None
        self._name = name
        self._arguments = arguments
        self._pause_every = max(int(pause_every), 1)
        self._pauses = bool(arguments.get("pausable", False))
        self._wants_pause = False
        self._processes = 1
        self._samples_per_step = 1
        self._step = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Registers the job, with what is left of a resumed training."""
        self._end()
        self._processes = max(int(args.world_size), 1)
        self._samples_per_step = args.train_batch_size * args.gradient_accumulation_steps * self._processes
        self._step = state.global_step
        steps = state.max_steps - state.global_step
        total = steps * self._samples_per_step if steps > 0 else None
        self.job = job(
            self._name or _name_of(args, kwargs.get("model")),
            total_samples=total,
            batch_size=self._samples_per_step,
            # The count is that of all processes already.
            world_size=1,
            **kept(self._arguments, total),
        ).start()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Counts the samples since the last step, and asks for a checkpoint before a pause."""
        if self.job is None:
            return control
        self.job.step(max(state.global_step - self._step, 0) * self._samples_per_step)
        self._step = state.global_step
        if self._pauses and (self._processes == 1 or state.global_step % self._pause_every == 0):
            self._wants_pause = of_rank_0(self.job.should_pause())
            control.should_save = control.should_save or self._wants_pause
        return control

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Waits, after the checkpoint, while the daemon asks for a pause."""
        if self._wants_pause and self.job is not None:
            self._wants_pause = False
            self.job.wait_while_paused(agree=of_rank_0 if self._processes > 1 else None)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends the job."""
        self._end()

    def summary(self, timeout_s: float = 0.0) -> Summary:
        """Returns the summary of the last training; see `Job.summary`."""
        return Summary(unknown="no training has begun") if self.job is None else self.job.summary(timeout_s)

    def _end(self) -> None:
        if self.job is not None:
            self.job.end()


def _name_of(args: Any, model: Any) -> str:
    """Returns the run's name if the user gave one, otherwise the class of the model."""
    run_name = getattr(args, "run_name", None)
    if run_name and run_name != args.output_dir:
        return str(run_name)[:128]
    return type(model).__name__ if model is not None else "huggingface"
