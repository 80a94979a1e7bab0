#!/usr/bin/env python3
"""The daemon and `wattune run --within 12h --suspend` together: a training waits, stops, goes on, and its result is the same.

    tests/held/check.py WATTUNE [CASE ...]

Simulated: the GPUs, the grid, and the daemon's clock, on which an hour takes ten seconds. Real: both processes, the
signals, and a small training on the CPU. Each case has a daemon of its own, which is killed (-9) and started again, or
frozen (SIGSTOP), at one stage of the job; all cases run at the same time. Beside other work, steps take so unevenly long
that a job may be profiled again and not be stopped: such a case runs once more, alone.
"""

import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from simulated import FLAGS, Simulated, environment, steps  # noqa: E402

ONCE, SCRIPT = HERE / "once.py", HERE.parent / "frameworks" / "scripts" / "plain_resume.py"
SPEED = 360
STEPS = steps(SPEED)
# Hours within which the first start must lie: the clean window begins at 1.5 h.
FIRST = (1.4, 2.5)
LATEST_H = 12
# The stages, and what `wattune run` says at each of them.
STAGES = {
    "held": "held until",
    "begun": None,
    "asked": "asks the command to save and exit",
    "suspended": "suspended until",
    "resumed": "resumes the command",
}
# What `wattune run` says, or the number of starts, with which the daemon comes back.
UNTIL = {"held": 1, "begun": None, "asked": "suspended until", "suspended": 2, "resumed": None}
PATIENCE = 300


class Failed(Exception):
    pass


class Unstopped(Failed):
    """The daemon asked for no stop."""


def wait_for(what, condition, alive):
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        if alive.poll() is not None:
            raise (Failed if alive.returncode else Unstopped)(f"it ended with {alive.returncode} before {what}")
        time.sleep(0.05)
    raise Failed(f"{what} did not happen within {PATIENCE} s")


def read(path):
    return path.read_text(errors="replace") if path.exists() else ""


class Case:
    """A daemon, and a training that it may hold and stop."""

    def __init__(self, wattune, folder, name):
        self.wattune, self.folder, self.name = wattune, folder, name
        self.how, _, self.stage = name.partition("-")
        (folder / "training").mkdir(parents=True)
        self.daemon = Simulated(wattune, folder, SPEED)
        self.said, self.log, self.out = folder / "said", folder / "log", folder / "out"
        self.result, self.error = None, None

    def starts(self):
        lines = [line.split() for line in read(self.log).splitlines()]
        if any(line[0] == "twice" for line in lines):
            raise Failed("the command ran twice at a time")
        return [float(line[1]) for line in lines]

    def says(self, part):
        return part in read(self.said)

    def run(self):
        self.daemon.start()
        wait_for("an answer", lambda: self.daemon.ask("/v1/status"), self.daemon.process)
        command = [
            self.wattune, "run", "--socket", self.daemon.socket, *FLAGS, "--deadline", self.daemon.deadline(),
            "--total-samples", str(STEPS), "--key", self.name, "--json", self.folder / "summary.json", "--",
            sys.executable, ONCE, self.log, SCRIPT, str(STEPS), self.folder / "training",
        ]  # fmt: skip
        with open(self.said, "w") as said, open(self.out, "w") as out:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=said, env=environment())
        try:
            if self.stage:
                self.disturb(child)
            code = child.wait(PATIENCE)
        finally:
            child.kill()
            child.wait()
        if code != 0:
            raise Failed(f"exit code {code}")
        return self.judge()

    def disturb(self, child):
        part, until = STAGES[self.stage], UNTIL[self.stage]
        wait_for(self.stage, lambda: self.says(part) if part else self.starts(), child)
        if self.stage in ("begun", "resumed"):
            # Some progress has arrived.
            time.sleep(2)
        process = self.daemon.process
        process.send_signal(signal.SIGKILL if self.how == "killed" else signal.SIGSTOP)
        try:
            if until is None:
                time.sleep(3)
            elif isinstance(until, int):
                wait_for("the start without the daemon", lambda: len(self.starts()) >= until, child)
            else:
                wait_for(until, lambda: self.says(until), child)
        finally:
            if self.how == "killed":
                process.wait()
                self.daemon.start()
            else:
                process.send_signal(signal.SIGCONT)

    def judge(self):
        """Checks the starts, the result and the account, and returns a line about them."""
        summary = json.loads(read(self.folder / "summary.json"))
        starts, stops = self.starts(), summary["waits"]["stops"]
        if not stops and len(starts) == 1:
            raise Unstopped("it was not asked to stop")
        if not stops or len(starts) != len(stops) + 1 or any(not stop["resumed_at"] for stop in stops):
            raise Failed(f"{len(starts)} starts and the stops {stops}")
        first = self.daemon.hours(starts[0])
        if not FIRST[0] <= first <= FIRST[1]:
            raise Failed(f"it starts after {first:.2f} h")
        if len(summary["job_ids"]) != 1:
            raise Failed(f"it has {len(summary['job_ids'])} jobs")
        account = summary["account"]
        if not account or account["simulated"] is not True or account["energy_j"] <= 0:
            raise Failed(f"its account: {account}")
        self.daemon.end()
        verified = self.daemon.report("verify")
        if verified.returncode:
            raise Failed(f"its ledger: {verified.stdout}{verified.stderr}")
        gone = [self.daemon.hours(parse(stop["resumed_at"])) - self.daemon.hours(parse(stop["stopped_at"])) for stop in stops]
        line = f"starts after {first:.2f} h, stops for {' and '.join(f'{each:.2f} h' for each in gone)}"
        return f"{line}, {effects(account['savings']['against_original'])}"

    def try_run(self):
        try:
            self.result = self.run()
        except (Failed, subprocess.TimeoutExpired, OSError, ValueError, KeyError) as error:
            self.error = error
        finally:
            self.daemon.end()


def effects(saving):
    """Describes a saving; its effects must add up to it."""
    if "unknown" in saving:
        return f"saving unknown: {saving['unknown']}"
    names = ("start", "suspension", "energy", "timing")
    parts = [saving[f"{name}_effect_pct"] for name in names]
    whole = saving["carbon_reduction_pct"]["mean"]
    if not all(parts):
        return f"{whole:.1f} % less carbon, without its parts"
    if abs(sum(part["mean"] for part in parts) - whole) > 1e-6:
        raise Failed(f"its effects do not add up: {saving}")
    each = ", ".join(f"{name} {part['mean']:.1f}" for name, part in zip(names, parts))
    return f"{whole:.1f} % less carbon ({each})"


def parse(text):
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    wattune = os.path.abspath(sys.argv[1])
    names = sys.argv[2:] or ["alone", *(f"{how}-{stage}" for how in ("killed", "frozen") for stage in STAGES)]
    # So that what runs is ended and removed also when the gate stops.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = pathlib.Path(tempfile.mkdtemp(prefix="wattune-held-"))
    cases = [Case(wattune, folder / name, name) for name in names]
    try:
        (folder / "whole").mkdir()
        command = [sys.executable, ONCE, folder / "whole.log", SCRIPT, str(STEPS), folder / "whole"]
        whole = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
        threads = [threading.Thread(target=case.try_run, daemon=True) for case in cases]
        for thread in threads:
            thread.start()
        expected = weights(whole.communicate()[0])
        for thread in threads:
            thread.join()
        for i, case in enumerate(cases):
            if isinstance(case.error, Unstopped):
                print(f"  {case.name}: {case.error}; again, alone")
                cases[i] = Case(wattune, folder / f"{case.name}-alone", case.name)
                cases[i].try_run()
        has_failed = not expected
        for case in cases:
            error = case.error
            if not error and weights(read(case.out)) != expected:
                error = f"its result is {weights(read(case.out))}, not {expected}"
            print(f"  {case.name}: {f'FAILED: {error}' if error else case.result}")
            if error:
                has_failed = True
                for path in (case.said, case.daemon.log, case.log):
                    print(f"--- {path.name}\n{read(path)[-2500:]}")
        if has_failed:
            sys.exit("FAILED")
        print(f"  each ends with the {expected[0]}, as a training that was left alone does")
    finally:
        for case in cases:
            case.daemon.end()
        shutil.rmtree(folder, ignore_errors=True)


def weights(printed):
    return [line for line in printed.splitlines() if line.startswith("weights")]


main()
