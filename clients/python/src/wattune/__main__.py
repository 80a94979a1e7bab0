"""Runs the binary of this package: `python -m wattune …` does what `wattune …` does."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NoReturn

# Exit codes of a shell for a command that is missing, and for one that cannot be executed.
_MISSING = 127
_NOT_EXECUTABLE = 126


def main() -> None:
    """Replaces this process by the binary: signals and the exit code are then the binary's own."""
    places = list(dict.fromkeys(_places()))
    binary = next((place for place in places if place.is_file()), None)
    if binary is None:
        looked = " and ".join(str(place) for place in places)
        _fail(
            f"the binary is not at {looked}; `pip install --force-reinstall wattune` installs it with this package",
            _MISSING,
        )
    # Python ignores these two signals, and a process keeps what is ignored when it is replaced.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(binary, [str(binary), *sys.argv[1:]])  # noqa: S606 - no shell is wanted
    except OSError as error:
        _fail(f"{binary} cannot be executed: {error.strerror}", _NOT_EXECUTABLE)


def _places() -> Iterator[Path]:
    """Yields the paths at which installers put the binary, the most certain one first."""
    try:
        files = metadata.files("wattune") or []
    except metadata.PackageNotFoundError:
        files = []  # a checkout on PYTHONPATH
    for file in files:
        if file.parts[-2:] == ("bin", "wattune"):
            yield Path(os.path.normpath(file.locate()))
    # `pip install --target` moves the binary after it has recorded its place.
    yield Path(__file__).resolve().parents[1] / "bin" / "wattune"
    # Some distributors remove the record.
    yield Path(sysconfig.get_path("scripts")) / "wattune"


def _fail(message: str, code: int) -> NoReturn:
    sys.stderr.write(f"wattune: {message}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
