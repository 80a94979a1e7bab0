"""Reports how far `Model.fit` of Keras 3 has come, whatever its backend.

Keras has no entry point for callbacks and does not step PyTorch's optimizers, so one callback is added to each list of
callbacks as Keras makes it.
"""

import collections
import functools

from keras.src.callbacks.callback import Callback

from wattune_hook.report import Reporter, unseen

_reporter = Reporter("keras")


def install(module):
    """Has each `CallbackList` of this module end with the callback."""
    make = module.CallbackList.__init__

    @functools.wraps(make)
    def make_with_progress(self, *arguments, **named):
        make(self, *arguments, **named)
        try:
            self.callbacks.append(Progress(self.params))
        except Exception:
            pass  # a version that is made differently: fit goes on without it

    module.CallbackList.__init__ = make_with_progress


class Progress(Callback):
    """Counts batches, which Keras knows on the host; its optimizer's own counter may be on a device.

    Keras may call `on_train_batch_end` from other threads and out of order, so batches are reported when the next one
    begins, an evaluation begins, or the epoch ends.
    """

    def __init__(self, params):
        super().__init__()
        self.first_epoch, self.start, self.before = None, 0, 0
        # More than the threads that may overtake one another.
        self.ended = collections.deque([0], maxlen=128)
        self.set_params(params)

    def set_model(self, model):
        """Keeps no reference to the model."""

    def set_params(self, params):
        """Takes the number of epochs and, where it is known, of batches in each."""
        params = params or {}
        self.epochs, self.per_epoch = params.get("epochs"), params.get("steps")

    @unseen
    def on_epoch_begin(self, epoch, logs=None):
        """Begins an epoch. In a resumed fit the first one is a later one."""
        self.before += max(self.ended)
        self.ended.clear()
        self.ended.append(0)
        if self.first_epoch is None:
            self.first_epoch = epoch
            self.start = self.before = epoch * (self.per_epoch or 0)
            _reporter.begin(self.start)

    @unseen
    def on_train_batch_begin(self, batch, logs=None):
        """Reports the batches before this one."""
        self._report(batch)

    @unseen
    def on_train_batch_end(self, batch, logs=None):
        """Notes the batch. It is the last one of several if they were run as one."""
        self.ended.append(batch + 1)

    @unseen
    def on_test_begin(self, logs=None):
        """Reports all batches before an evaluation within a fit."""
        if self.first_epoch is not None:
            self._report(max(self.ended))

    @unseen
    def on_epoch_end(self, epoch, logs=None):
        """Reports the epoch, and learns the length of epochs where Keras did not know it."""
        self._report(max(self.ended))
        self.per_epoch = self.per_epoch or max(self.ended)

    @unseen
    def on_train_end(self, logs=None):
        """Reports the last batches."""
        _reporter.finish(self._total(), "batches")

    def _report(self, batches):
        if _reporter.step(self.before + batches):
            _reporter.send(self._total(), "batches")

    def _total(self):
        if not self.epochs or not self.per_epoch:
            return None
        return self.start + (self.epochs - self.first_epoch) * self.per_epoch
