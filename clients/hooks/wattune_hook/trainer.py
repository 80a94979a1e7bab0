"""Reports how far a Lightning Trainer has come."""

import math

from wattune_hook.report import Reporter, unseen

_reporter = Reporter("lightning")


class TrainerProgress:
    """The methods of a Lightning callback that reports progress. It has no state, so checkpoints have none of it."""

    @unseen
    def on_train_start(self, trainer, module):
        """Begins at the count that a resumed run has already."""
        _reporter.begin(steps(trainer, module))

    @unseen
    def on_train_batch_end(self, trainer, module, *_):
        """Reports the batch if the optimizers have stepped."""
        if trainer.local_rank == 0 and _reporter.step(steps(trainer, module)):
            _reporter.send(total_steps(trainer, module), unit(trainer, module))

    @unseen
    def on_train_end(self, trainer, module):
        """Reports the last steps."""
        _reporter.finish(total_steps(trainer, module), unit(trainer, module))


def counts_batches(trainer, module):
    """Returns whether batches are counted, not steps of optimizers.

    With manual optimization `global_step` adds up the steps of all optimizers while the total is in batches, unless the
    script limits `global_step` itself.
    """
    return not module.automatic_optimization and trainer.max_steps == -1


def steps(trainer, module):
    """Returns the steps so far, with those before a resumed run's start."""
    if counts_batches(trainer, module):
        return trainer.fit_loop.epoch_loop.batch_progress.total.ready
    return trainer.global_step


def total_steps(trainer, module):
    """Returns the steps at which training ends at the latest, or None if Lightning does not know."""
    if not module.automatic_optimization and trainer.max_steps != -1:
        return trainer.max_steps if trainer.max_epochs == -1 else None
    # Once training has begun this reads what is known and loads no data.
    total = trainer.estimated_stepping_batches
    return int(total) if math.isfinite(total) and total > 0 else None


def unit(trainer, module):
    """Returns what is counted, for people."""
    return "batches" if counts_batches(trainer, module) else "global_step"
