"""Brings wattune's progress hook into each Python process of `wattune run`, then runs the user's own sitecustomize.

`wattune run` puts this folder in front of PYTHONPATH, so Python imports this file at its start. Without
WATTUNE_PROGRESS_SOCKET the file does nothing of its own, and in a job that the command has submitted to Slurm the hook
is not installed.
"""

import os
import sys


def _install():
    if not os.environ.get("WATTUNE_PROGRESS_SOCKET"):
        return
    try:
        import wattune_hook

        wattune_hook.install()
    except Exception:
        pass  # training never fails because of wattune


def _run_next():
    """Imports the sitecustomize that Python would have found without this folder.

    Its errors pass through: Python reports them as it would without wattune. It sees `sys.path` without this folder,
    so neither it nor another wrapper's sitecustomize comes back here.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    at = next((n for n, entry in enumerate(sys.path) if entry and os.path.abspath(entry) == here), None)
    if at is None:
        return
    entry = sys.path.pop(at)
    this = sys.modules.pop(__name__, None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
        sys.modules[__name__] = this  # there is none: what Python imported stays this file
    finally:
        sys.path.insert(min(at, len(sys.path)), entry)


_install()
if __name__ == "sitecustomize":
    _run_next()
