"""Scripts that save on SIGTERM under `wattune run --suspend`: stopped, resumed, and their weights are the same."""

import json
import os
import pathlib
import subprocess
import sys
import time

import pytest
from listener import SCRIPTS, environment

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from advisor import Advisor  # noqa: E402

# Script, steps, and the part of them that is reported. The Trainer reports every 5 s, so it needs more of them, and its
# last post has no count.
CASES = {
    "plain": ("plain_resume.py", 300, 0.9),
    "hf": ("hf_trainer.py", 900, 0.5),
    "lightning": ("lightning_resume.py", 300, 0.9),
}


def wait_for(what, condition, seconds=240):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return
        time.sleep(0.1)
    raise AssertionError(f"{what} did not happen within {seconds} s")


def weights(printed):
    return [line for line in printed.splitlines() if line.startswith("weights")][-1]


@pytest.mark.parametrize("name", CASES)
def test_result_is_the_same(tmp_path, name):
    script, steps, reported = CASES[name]
    script = [sys.executable, str(SCRIPTS / script), str(steps)]
    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    whole = subprocess.run([*script, str(tmp_path / "whole")], capture_output=True, text=True, env=environment())
    assert whole.returncode == 0, whole.stderr

    advisor = Advisor()
    summary = tmp_path / "summary.json"
    flags = ["--listen", f"127.0.0.1:{advisor.port}", "--suspend=SIGTERM,5,5", "--json", str(summary)]
    flags += ["--log-progress"] if name == "plain" else []
    command = [os.environ["WATTUNE_BINARY"], "run", *flags, "--", *script, str(tmp_path / "parts")]
    with open(tmp_path / "out", "w+") as out, open(tmp_path / "err", "w+") as err:
        child = subprocess.Popen(command, stdout=out, stderr=err, env=environment())
        try:
            wait_for("progress", lambda: advisor.count("progress") >= 2)
            advisor.want("suspend", 3600)
            wait_for("the stop", lambda: advisor.count("suspended") >= 1)
            advisor.want("run", None)
            code = child.wait(240)
        finally:
            child.kill()
            advisor.end()
    printed, said = (tmp_path / "out").read_text(), (tmp_path / "err").read_text()
    assert code == 0, said
    assert printed.count("resumes False") == 1 and printed.count("resumes True") == 1, printed
    assert weights(printed) == weights(whole.stdout), printed
    waits = json.loads(summary.read_text())["waits"]
    assert len(waits["stops"]) == 1 and waits["stops"][0]["resumed_at"], waits
    assert len(advisor.registrations) == 1, "one job"
    # The count goes on over the stop, to the end.
    assert steps * reported <= advisor.most <= steps * 1.02, advisor.most
