"""A daemon on simulated GPUs, and unmodified scripts under `wattune run` beside one another, each on its own GPUs."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from listener import SCRIPTS, environment

SLOWDOWN = pathlib.Path(__file__).resolve().parent / "slowdown"
VENV = pathlib.Path(sys.prefix)

# Ten minutes in place of two for the Trainer, with its posts as they are.
LONG = bool(os.environ.get("FRAMEWORKS_LONG"))
LONGEST_S = 1500 if LONG else 500

# A short sweep, and limits that change at once.
SETTINGS = """
[gpus]
backend = "simulated"
[gpus.simulated]
boards = 8
[control]
tick_s = 0.2
interval_s = 5
[plan]
shortest_slot_s = 1
dwell_s = 0
better_by = 0
[profile]
step_w = 50
lowest_w = 150
settle_s = 0.5
standard_error = 0.1
reference_standard_error = 0.1
"""


@dataclasses.dataclass
class Run:
    """A script under `wattune run`, and what was seen of it meanwhile."""

    name: str
    command: list
    gpus: str
    source: str
    steps: int
    batch_size: int
    # Seconds per step at the maximum usable limit.
    step_s: float
    # What is said to `wattune run` besides.
    flags: list = dataclasses.field(default_factory=list)
    variables: dict = dataclasses.field(default_factory=dict)
    slowed: dict = dataclasses.field(default_factory=dict)
    # Steps at the end that its reports do not count.
    unsaid: int = 0
    phases: set = dataclasses.field(default_factory=set)
    planned_limits: set = dataclasses.field(default_factory=set)
    limits: set = dataclasses.field(default_factory=set)
    sources: set = dataclasses.field(default_factory=set)
    # What the daemon said about it, in order, for whoever reads a failure.
    story: list = dataclasses.field(default_factory=list)
    plain: subprocess.CompletedProcess = None
    code: int = None
    out: str = ""
    err: str = ""
    summary: dict = None
    failure: str = ""


def script(name, steps):
    return [sys.executable, str(SCRIPTS / name), str(steps)]


def runs():
    """Returns the runs: each takes two minutes at the maximum usable limit, or ten where posts come every 5 s."""
    torchrun = [str(VENV / "bin" / "torchrun"), "--nproc-per-node", "2", "--standalone"]
    ddp = [*torchrun, str(SCRIPTS / "ddp_loop.py"), "3000"]
    plain = Run("plain", script("plain_loop.py", 4000), "0", "optimizer_hook", 4000, 16, 0.03)
    torch_run = Run("torchrun", ddp, "1,2", "optimizer_hook", 3000, 32, 0.04)
    long = 5 if LONG else 1
    trainer = Run("trainer", script("hf_trainer.py", 1600 * long), "3", "trainer_status", 1600 * long, 4, 0.075)
    fit = Run("lightning", script("lightning_fit.py", 2400), "4", "lightning", 2400, 16, 0.05)
    keras = Run("keras", script("keras_fit.py", 3000), "5", "keras", 3000, 16, 0.04)
    for run in (plain, torch_run):
        run.flags = ["--total-samples", str(run.steps * run.batch_size)]
    keras.variables = {"KERAS_BACKEND": "torch"}
    # Windows of a job of two minutes are too short for posts every 5 s.
    trainer.slowed = {} if LONG else {"SLOWDOWN_POSTS_S": "1"}
    # The Trainer's last post says that it has ended, and not at which step.
    trainer.unsaid = round((5.5 if LONG else 1.5) / trainer.step_s)
    return {run.name: run for run in (plain, torch_run, trainer, fit, keras)}


class Scene:
    """Begins all runs at once, and answers with each when it has ended."""

    def __init__(self, folder, begin):
        self.folder, self.runs, self.threads = folder, runs() if begin else {}, {}
        self.daemon, self.address, self.ended = None, None, threading.Event()

    def __enter__(self):
        if self.runs:
            self._start_daemon()
            for run in self.runs.values():
                self.threads[run.name] = threading.Thread(target=self._guard, args=(run,), daemon=True)
                self.threads[run.name].start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        if self.daemon:
            self.daemon.terminate()
            self.daemon.wait(30)

    def get(self, path):
        """Asks the daemon."""
        with urllib.request.urlopen(self.address + path, timeout=10) as answer:
            return json.load(answer)

    def result(self, name):
        """Waits for a run's end."""
        self.threads[name].join(LONGEST_S)
        assert not self.threads[name].is_alive(), f"{name} has not ended"
        assert not self.runs[name].failure, self.runs[name].failure
        return self.runs[name]

    def _start_daemon(self):
        config, log = self.folder / "wattune.toml", self.folder / "log.txt"
        config.write_text(SETTINGS)
        command = [os.environ["WATTUNE_BINARY"], "serve", "--config", config, "--state-dir", self.folder / "state"]
        with open(log, "w", encoding="utf-8") as file:
            command += ["--listen", "127.0.0.1:0", "--socket", self.folder / "s"]
            self.daemon = subprocess.Popen(command, stdout=file, stderr=file, env=environment())
        until = time.monotonic() + 30
        while time.monotonic() < until:
            found = re.search(r"listening on (http://\S+)", log.read_text())
            if found:
                self.address = found[1]
                return
            time.sleep(0.1)
        raise RuntimeError(f"the daemon does not answer:\n{log.read_text()}")

    def _guard(self, run):
        try:
            self._execute(run)
        except Exception as error:  # shown by the test that waits for it
            run.failure = f"{run.name}: {error!r}"

    def _execute(self, run):
        variables = {
            "PYTHONPATH": str(SLOWDOWN),
            "WATTUNE_LISTEN": self.address.removeprefix("http://"),
            "WATTUNE_SOCKET": str(self.folder / "s"),
            "SLOWDOWN_DAEMON": self.address,
            "SLOWDOWN_GPU": run.gpus[0],
            "SLOWDOWN_STEP_S": str(run.step_s),
            **run.variables,
            **run.slowed,
        }
        summary = self.folder / f"{run.name}.json"
        flags = ["--name", run.name, "--gpus", run.gpus, "--batch-size", str(run.batch_size), "--max-slowdown", "0.9"]
        flags += ["--json", str(summary), *run.flags]
        command = [os.environ["WATTUNE_BINARY"], "run", *flags, "--", *run.command]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        child = subprocess.Popen(command, env=environment(**variables), **pipes)
        watcher = threading.Thread(target=self._watch, args=(run, child), daemon=True)
        watcher.start()
        run.out, run.err = child.communicate(timeout=LONGEST_S)
        run.code = child.returncode
        watcher.join(10)
        run.summary = json.loads(summary.read_text())
        plain = environment(**run.variables)
        run.plain = subprocess.run(run.command, env=plain, capture_output=True, text=True, timeout=LONGEST_S)

    def _watch(self, run, child):
        """Notes phases, sources and limits while the command runs."""
        while child.poll() is None and not self.ended.wait(0.25):
            try:
                job = next((job for job in self.get("/v1/jobs") if job["name"] == run.name), None)
                gpu = self.get(f"/v1/gpus/{run.gpus[0]}")
            except (OSError, urllib.error.HTTPError):
                continue
            if job:
                line = f"{job['phase']}, {gpu['power_limit_enforced_w']:.0f} W: {job.get('reason')}"
                if run.story[-1:] != [line]:
                    run.story.append(line)
                run.phases.add(job["phase"])
                run.sources.add(job.get("progress_source"))
                run.limits.add(gpu["power_limit_enforced_w"])
                if job["phase"] == "planned":
                    run.planned_limits.add(gpu["power_limit_enforced_w"])
