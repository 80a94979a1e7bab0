"""The callback for the package `lightning`. A module's own class, so that spawned ranks can unpickle it."""

from lightning.pytorch.callbacks import Callback

from wattune_hook.trainer import TrainerProgress


class Progress(TrainerProgress, Callback):
    """Reports how far a Trainer's fit has come."""
