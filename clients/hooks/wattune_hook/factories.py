"""What the entry points name: Lightning calls these when a Trainer is made, and adds the callbacks they return."""

from wattune_hook import progress_socket


class _Unlogged(list):
    """A list of callbacks that Lightning adds without a line in the script's log, as it does for an empty one."""

    def __bool__(self):
        return False


def lightning():
    """Returns the callback for the package `lightning`."""
    return _callbacks("wattune_hook.lightning")


def pytorch_lightning():
    """Returns the callback for the package `pytorch_lightning`."""
    return _callbacks("wattune_hook.pytorch_lightning")


def _callbacks(module):
    if progress_socket() is None:
        return []
    try:
        import importlib

        return _Unlogged([importlib.import_module(module).Progress()])
    except Exception:
        return []  # a version that is made differently: the optimizer hook follows it
