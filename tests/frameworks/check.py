#!/usr/bin/env python3
"""Unmodified training scripts of several frameworks under `wattune run`, and the hook that it brings into them.

    tests/frameworks/check.py WATTUNE [ARGUMENTS OF PYTEST]
    tests/frameworks/check.py --install     # only prepares

Installs the frameworks of requirements.txt into a virtual environment, once, and runs the tests of this folder with it
(pytest, since most of them are many small independent cases). The environment is at FRAMEWORKS_VENV, by default
~/.cache/wattune-frameworks; it takes 6 GB, since PyTorch's Linux wheel is CUDA's. Nothing here needs a GPU.

With FRAMEWORKS_LONG=1 the Trainer of Hugging Face runs for ten minutes, with its posts every 5 s as they are. Otherwise
the tests have it post every second, since two minutes are too short to learn from posts every 5 s.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
VENV = pathlib.Path(os.environ.get("FRAMEWORKS_VENV") or pathlib.Path.home() / ".cache" / "wattune-frameworks")


def prepare():
    """Installs what is missing; a stamp in the environment says what it has."""
    wanted = (HERE / "requirements.txt").read_text()
    stamp = VENV / "requirements.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    install = [VENV / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--requirement", HERE / "requirements.txt"], check=True)
    stamp.write_text(wanted)
    print(f"installed the frameworks into {VENV} in {time.monotonic() - begun:.0f} s", flush=True)


def main():
    if sys.argv[1:] == ["--install"]:
        return prepare()
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit(__doc__)
    prepare()
    python = VENV / "bin" / "python"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WATTUNE_")}
    environment["WATTUNE_BINARY"] = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as cache:
        arguments = [python, "-m", "pytest", "-o", f"cache_dir={cache}", "--durations=8", HERE, *sys.argv[2:]]
        code = subprocess.run(arguments, env=environment, cwd=HERE).returncode
        if code == 1:
            # On a busy machine steps take so unevenly long that wattune rightly lowers no limit.
            print("what failed is run once more, alone", flush=True)
            code = subprocess.run([*arguments, "--last-failed"], env=environment, cwd=HERE).returncode
    sys.exit(code)


if __name__ == "__main__":
    main()
