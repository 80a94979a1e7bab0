"""Tells `wattune run` how far training has come, without a change to the training script.

An import hook waits for the frameworks below and imports nothing before they are loaded. PyTorch's optimizers and
Keras are followed from there; Lightning loads its callback through the entry points in `wattune_hook-1.0.dist-info`.
Python 3.8 or later, standard library only. Nothing in here changes what training computes, prints or raises.
"""

import importlib
import os
import sys

# Modules to wait for, and the module of this package that is called when one has been loaded.
AWAITED = {
    "torch.optim.optimizer": "wattune_hook.optimizer",
    "keras.src.callbacks.callback_list": "wattune_hook.keras",
}


def progress_socket():
    """Returns the socket of the `wattune run` to which this process belongs, or None.

    `sbatch` passes the environment on to a job for which the command does not wait; `srun` starts a part of the
    command, also where `wattune run` itself runs outside of Slurm. `wattune run` and the Python client follow the same
    rule.
    """
    own, of_run = os.environ.get("SLURM_JOB_ID"), os.environ.get("WATTUNE_RUN_SLURM_JOB")
    is_other = own and of_run is not None and own != of_run
    if is_other and (of_run or os.environ.get("ENVIRONMENT") == "BATCH"):
        return None
    return os.environ.get("WATTUNE_PROGRESS_SOCKET") or None


def install():
    """Begins to wait for the frameworks. A second call, as under two nested `wattune run`, changes nothing."""
    if progress_socket() is None:
        _forget_posts()
        return
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    finder = _Finder(AWAITED)
    for name in [name for name in AWAITED if name in sys.modules]:
        finder.loaded(name, sys.modules[name])
    if finder.awaited:
        sys.meta_path.insert(0, finder)


def _forget_posts():
    """Keeps the status posts of a Slurm job from the `wattune run` whose variables it was passed."""
    socket, token = (os.environ.get(name, "") for name in ("WATTUNE_PROGRESS_SOCKET", "KUBEFLOW_TRAINER_SERVER_TOKEN"))
    if socket and os.path.dirname(token) == os.path.dirname(socket):
        for name in ("KUBEFLOW_TRAINER_SERVER_URL", "KUBEFLOW_TRAINER_SERVER_TOKEN"):
            os.environ.pop(name, None)


class _Finder:
    """A finder on `sys.meta_path` that finds nothing itself: it notices when an awaited module has been loaded."""

    def __init__(self, awaited):
        self.awaited = dict(awaited)

    def find_spec(self, name, path=None, target=None):
        if name not in self.awaited:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                self._watch(name, spec.loader)
                return spec
        return None

    def _watch(self, name, loader):
        """Puts a function in front of this one loader's `exec_module`, which takes itself away when it is called.

        The module keeps its own loader, so `inspect.getsource`, and with it TorchScript, work as ever.
        """
        try:
            execute = loader.exec_module

            def exec_module(module):
                del loader.exec_module
                execute(module)
                self.loaded(name, module)

            loader.exec_module = exec_module
        except Exception:
            pass  # a loader that takes no attribute: this framework is not followed

    def loaded(self, name, module):
        """Stops waiting for this module, tells the part that follows it, and leaves `sys.meta_path` after the last."""
        try:
            follower = self.awaited.pop(name, None)
            if not self.awaited and self in sys.meta_path:
                sys.meta_path.remove(self)
            if follower:
                importlib.import_module(follower).install(module)
        except Exception:
            pass  # a version of the framework that is made differently: it is not followed
