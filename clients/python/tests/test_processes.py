"""Jobs in processes that fork, spawn, exit and are interrupted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_daemon import FakeDaemon


def run_script(sock: str, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script whose daemon is at `sock`; its main module is a file, as spawn needs."""
    path = Path(sock).parent / "script.py"
    path.write_text(text)
    environment = {**os.environ, "WATTUNE_SOCKET": sock, "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_forked_child_neither_reports_nor_ends(daemon: FakeDaemon, sock: str) -> None:
    done = run_script(
        sock,
        """
import os, sys, time, wattune
job = wattune.job("a", interval_s=0.05).start()
while job.id is None: time.sleep(0.01)
for how in ("exit", "end"):
    child = os.fork()
    if child == 0:
        job.step(1000)
        if how == "end":
            job.end()
        assert "child" in job.problem, job.problem
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
time.sleep(0.2)
job.step(1)
time.sleep(0.2)
print(job.samples, job.problem, job.id is not None)
""",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 None True\n", "")
    assert [body["samples"] for body in daemon.bodies("POST", "/progress")] == [1]
    assert len(daemon.bodies("POST", "/v1/jobs")) == 1
    assert len(daemon.wait_for("DELETE", "")) == 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_data_loader_workers_register_nothing(daemon: FakeDaemon, sock: str, method: str) -> None:
    """The job is made at the top level of a script, which each spawned worker imports."""
    done = run_script(
        sock,
        """
import multiprocessing, sys, time, wattune
job = wattune.job("a", interval_s=0.05).start()

def work(n):
    job.step(1000)
    return n

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        assert pool.map(work, range(4)) == [0, 1, 2, 3]
    job.step(1)
    time.sleep(0.2)
""",
        method,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(daemon.bodies("POST", "/v1/jobs")) == 1
    assert [body["samples"] for body in daemon.bodies("POST", "/progress")] == [1]
    assert len(daemon.wait_for("DELETE", "")) == 1


@pytest.mark.parametrize(
    "ending", ["pass", "raise ValueError('x')", "sys.exit(3)", "os.kill(os.getpid(), signal.SIGINT)"]
)
def test_the_exit_ends_a_job_that_was_only_started(daemon: FakeDaemon, sock: str, ending: str) -> None:
    done = run_script(
        sock,
        f"""
import os, signal, sys, time, wattune
job = wattune.job("a", interval_s=0.05).start()
while job.id is None: time.sleep(0.01)
job.step(7)
{ending}
""",
    )
    assert len(daemon.wait_for("DELETE", "")) == 1
    assert daemon.bodies("POST", "/progress")[-1]["samples"] == 7
    assert done.returncode == {"pass": 0, "raise ValueError('x')": 1, "sys.exit(3)": 3}.get(ending, -2)


def test_a_job_without_a_reference_lasts_until_the_exit(daemon: FakeDaemon, sock: str) -> None:
    done = run_script(
        sock,
        """
import gc, time, wattune
wattune.job("a", interval_s=0.05, lease_s=1).start()
gc.collect()
time.sleep(1.5)
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    requests = [method for method, path, _ in daemon.requests if path.startswith("/v1/jobs/")]
    assert requests.count("DELETE") == 1
    assert requests[-1] == "DELETE"
    assert len(requests) > 3


def test_a_frozen_daemon_does_not_hold_the_exit_up(daemon: FakeDaemon, sock: str) -> None:
    daemon.frozen.set()
    text = "import wattune, time\nwith wattune.job('a') as job:\n    job.step(1)\n    time.sleep(0.1)\n"
    run_script(sock, text)
    begun = time.monotonic()
    with_job = run_script(sock, text)
    took = time.monotonic() - begun
    begun = time.monotonic()
    run_script(sock, "import wattune, time\ntime.sleep(0.1)")
    assert took - (time.monotonic() - begun) < 0.2
    assert (with_job.returncode, with_job.stderr) == (0, "")
