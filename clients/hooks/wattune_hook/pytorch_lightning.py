"""The callback for the package `pytorch_lightning`, which is `lightning` under its older name."""

from pytorch_lightning.callbacks import Callback

from wattune_hook.trainer import TrainerProgress


class Progress(TrainerProgress, Callback):
    """Reports how far a Trainer's fit has come."""
