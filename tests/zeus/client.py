"""An environment with Zeus's Python client, and the daemon that it talks to."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ["zeus==0.16.0", "pydantic<2"]


def environment():
    """Returns the Python of an environment with Zeus's client, which is made where it is missing."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    home = target / "zeus-client"
    done = home / "installed.json"
    if not done.exists() or json.loads(done.read_text()) != PACKAGES:
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        install = [home / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *PACKAGES], check=True)
        done.write_text(json.dumps(PACKAGES))
    return home / "bin/python"


def run_inside(*arguments):
    """Runs the calling script again with the Python of the environment, unless it has that Python already."""
    python = environment()
    if pathlib.Path(sys.prefix).resolve() != python.parent.parent.resolve():
        sys.exit(subprocess.run([python, *arguments], check=False).returncode)


class Daemon:
    """`wattune serve` on a free port, with its state in a temporary folder."""

    def __init__(self, wattune, settings="", flags=("--gpus", "simulated"), environment=None):
        self.folder = tempfile.TemporaryDirectory(prefix="wattune-zeus-")
        self.path = pathlib.Path(self.folder.name)
        (self.path / "wattune.toml").write_text(settings)
        self.command = [wattune, "serve", "--config", self.path / "wattune.toml", "--state-dir", self.path / "state", *flags]
        self.environment = os.environ | (environment or {})
        self.process = None
        self.address = "127.0.0.1:0"
        self.start()

    def start(self):
        log = open(self.path / "log.txt", "a+b")
        begin = log.seek(0, os.SEEK_END)
        command = [*self.command, "--listen", self.address]
        self.process = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL, env=self.environment)
        for _ in range(300):
            log.seek(begin)
            found = [line.split("listening on http://")[1] for line in log.read().decode().splitlines() if "listening on http://" in line]
            if found:
                self.address = found[0].strip()
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        sys.exit(f"the daemon does not listen:\n{self.log()}")

    @property
    def url(self):
        return f"http://{self.address}"

    def log(self):
        return (self.path / "log.txt").read_text()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self.folder.cleanup()
