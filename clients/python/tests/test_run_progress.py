"""Progress under `wattune run`: a script that uses the client, status posts, hostile messages, lines of output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from real_daemon import UUIDS, RealDaemon
from running import ended_with, environment, leftovers, python, run, start, wrapped
from test_job import until

# A script that uses the client: trains for some seconds, then goes on without a job.
SCRIPT = """
import sys, time, wattune
name, train_s, after_s = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
with wattune.job(name, total_samples=10_000, batch_size=8, interval_s=0.1) as job:
    end = time.monotonic() + train_s
    while job.id is None or time.monotonic() < end:
        time.sleep(0.01)
        job.step(8)
print(job.id, job.samples, job.summary(timeout_s=5.0).final, flush=True)
time.sleep(after_s)
"""


@pytest.fixture
def script(folder: Path) -> str:
    """Returns the path of the script."""
    (folder / "script.py").write_text(SCRIPT)
    return str(folder / "script.py")


def training(script: str, name: str, train_s: float = 1.5, after_s: float = 0.0) -> list[str]:
    """Returns the command that runs the script."""
    return [*python("")[:1], script, name, str(train_s), str(after_s)]


def open_job(real: RealDaemon, name: str) -> dict[str, Any]:
    """Waits for the open job of this name to report, and returns it; there is no other one."""

    def found() -> list[dict[str, Any]]:
        jobs = real.get("/v1/jobs")
        assert len(jobs) <= 1, jobs
        return [job for job in jobs if job["name"] == name and job["samples"] is not None]

    until(found, 20.0)
    return found()[0]


def test_the_job_of_a_script_replaces_that_of_the_run(real: RealDaemon, folder: Path, script: str) -> None:
    flags = ("--gpus", "1", "--tag", "team=a", "--max-slowdown", "0.05", "--json", str(folder / "summary.json"))
    with start(real, folder, *training(script, "resnet50"), flags=flags, stderr=subprocess.PIPE) as running:
        view = open_job(real, "resnet50")
        output, errors = running.communicate(timeout=60)
    assert running.returncode == 0, errors
    assert view["progress_source"] == "python_client"
    assert (view["gpus"], view["tags"], view["control"]) == ([UUIDS[1]], {"team": "a"}, True)
    assert (view["objective"]["max_slowdown"], view["total_samples"], view["batch_size"]) == (0.05, 10_000, 8)
    job, samples, final = output.split()
    assert (job, final) == (view["job_id"], "True")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["progress_source"] == "python_client"
    first, last = summary["job_ids"]
    assert (last, summary["account"]["job_id"], summary["account"]["samples"]) == (job, job, float(samples))
    assert real.get(f"/v1/jobs/{first}")["end_reason"] == f"replaced by job {job}"
    assert "wattune: resnet50 ran" in errors
    assert "from the Python package wattune" in errors
    assert real.get("/v1/jobs") == []


def test_scripts_one_after_another_have_a_job_each(real: RealDaemon, folder: Path, script: str) -> None:
    both = " && ".join(" ".join(training(script, name)) for name in ("one", "two"))
    with start(real, folder, "sh", "-c", both, flags=("--quiet", "--json", str(folder / "summary.json"))) as running:
        first = open_job(real, "one")["job_id"]
        second = open_job(real, "two")["job_id"]
        output, _ = running.communicate(timeout=60)
    assert [line.split()[0] for line in output.splitlines()] == [first, second]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["job_ids"][1:] == [first, second]
    assert summary["account"]["job_id"] == second
    assert real.get("/v1/jobs") == []


def test_what_follows_a_script_has_a_job(real: RealDaemon, folder: Path, script: str) -> None:
    """The tail of the script itself is not part of its job and has none, but another program of the command has."""
    command = " ".join(training(script, "one", after_s=3.0)) + "; sleep 100"
    flags = ("--quiet", "--lease-s", "2", "--name", "whole", "--json", str(folder / "summary.json"))
    with start(real, folder, "sh", "-c", command, flags=flags) as running:
        first = open_job(real, "one")["job_id"]
        until(lambda: real.get(f"/v1/jobs/{first}")["ended_at"] is not None, 20.0)
        time.sleep(2.5)
        assert real.get("/v1/jobs") == [], "the script still runs"
        until(lambda: [job["name"] for job in real.get("/v1/jobs")] == ["whole"], 30.0)
        running.terminate()
        assert running.wait(20) == 143
    assert len(json.loads((folder / "summary.json").read_text())["job_ids"]) == 3
    assert real.get("/v1/jobs") == []


def test_the_wrapper_ends_the_job_of_a_killed_script(real: RealDaemon, folder: Path, script: str) -> None:
    with start(real, folder, *training(script, "killed", 100.0), flags=("--quiet", "--lease-s", "600")) as running:
        job = open_job(real, "killed")
        (child,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        assert running.wait(20) == 137
    assert real.get(f"/v1/jobs/{job['job_id']}")["end_reason"] == "ended by its owner"


def test_a_daemon_that_starts_late_gets_one_job(folder: Path, script: str) -> None:
    """The wrapper and the client both look for it; whoever comes first, the script's job is the one that stays."""
    late = RealDaemon(folder)
    with start(late, folder, *training(script, "late", 12.0), stderr=subprocess.PIPE) as running:
        time.sleep(2.0)
        late.start()
        try:
            late.await_ready()
            assert open_job(late, "late")["gpus"] == UUIDS
            _, errors = running.communicate(timeout=60)
            assert running.returncode == 0, errors
            assert late.get("/v1/jobs") == []
        finally:
            late.stop()


# Posts as the Hugging Face Trainer does, and prints how long the answers took.
TRAINER = """
import json, os, sys, time, urllib.request
url, file = os.environ["KUBEFLOW_TRAINER_SERVER_URL"], os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]
posts, pause_s = int(sys.argv[1]), float(sys.argv[2])
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
took = []
print("ready", flush=True)
for post in range(posts):
    metrics = [{"name": "total_steps", "value": str(posts)}, {"name": "loss", "value": "2.\\u00e41"}]
    if 0 < post < posts - 1:
        metrics.insert(0, {"name": "current_step", "value": str(post)})
    status = {"lastUpdatedTime": "2026-11-25T00:00:00+00:00", "progressPercentage": 100 * post // posts,
              "estimatedRemainingSeconds": posts - post, "metrics": metrics, "unknown": {"to": ["us"]}}
    body = json.dumps({"trainerStatus": status}, indent=post % 3 or None, ensure_ascii=False).encode()
    headers = {"Authorization": "Bearer " + open(file).read(), "Content-Type": "application/json"}
    begun = time.monotonic()
    with opener.open(urllib.request.Request(url, body, headers), timeout=5) as answer:
        assert answer.status == 200
    took.append(time.monotonic() - begun)
    with open(sys.argv[3], "ab") as log:
        log.write(body + b"\\0")
    time.sleep(pause_s)
print(json.dumps(took))
"""


class TrainJob:
    """The server of a Kubeflow TrainJob, which may fail for a while."""

    def __init__(self) -> None:
        self.received: list[tuple[str, str, str, bytes]] = []
        self.failed = 0
        self.fail_with: int | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if outer.fail_with is not None:
                    outer.failed += 1
                    self.send_response(outer.fail_with)
                else:
                    headers = self.headers
                    outer.received.append((self.path, headers["authorization"], headers["content-type"], body))
                    self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/apis/x/namespaces/a/trainjobs/b/status?v=1"


@pytest.fixture
def train_job() -> Iterator[TrainJob]:
    """Returns the server of a TrainJob."""
    job = TrainJob()
    yield job
    job.server.shutdown()
    job.server.server_close()


@pytest.mark.parametrize("failing_s", [0.0, 3.0])
def test_posts_reach_the_train_job_unchanged(
    real: RealDaemon, folder: Path, train_job: TrainJob, failing_s: float
) -> None:
    (folder / "its-token").write_text("the first token\n")
    log = folder / "posts"
    env = {"KUBEFLOW_TRAINER_SERVER_URL": train_job.url, "KUBEFLOW_TRAINER_SERVER_TOKEN": str(folder / "its-token")}
    trainer = [*python(TRAINER), "20", "0.1", str(log)]
    train_job.fail_with = 503 if failing_s else None
    with start(real, folder, *trainer, env=env) as running:
        until(lambda: train_job.failed if failing_s else len(train_job.received) > 3, 20.0)
        time.sleep(failing_s)
        # Kubernetes renews the token in its file.
        (folder / "its-token").write_text("the second token\n")
        train_job.fail_with = None
        ended_with(running)
    posted = log.read_bytes().split(b"\0")[:-1]
    assert len(posted) == 20
    assert [body for _, _, _, body in train_job.received] == posted
    assert {path for path, _, _, _ in train_job.received} == {"/apis/x/namespaces/a/trainjobs/b/status?v=1"}
    assert {kind for _, _, kind, _ in train_job.received} == {"application/json"}
    tokens = [token for _, token, _, _ in train_job.received]
    assert tokens[-1] == "Bearer the second token"
    assert tokens == sorted(tokens)
    if not failing_s:
        assert tokens[0] == "Bearer the first token"
    assert leftovers(folder) == []


def test_posts_and_steps_do_not_wait_for_a_frozen_daemon(real: RealDaemon, folder: Path) -> None:
    trainer = [*python(TRAINER), "40", "0.1", str(folder / "posts")]
    with start(real, folder, *trainer) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        time.sleep(0.5)
        real.signal(signal.SIGSTOP)
        try:
            time.sleep(3.0)
        finally:
            real.signal(signal.SIGCONT)
        took = ended_with(running)
    assert len(took) == 40
    assert max(took) < 0.05, took
    until(lambda: real.get("/v1/jobs") == [], 20.0)


# Floods the socket for progress, in between with a true count.
FLOOD = """
import json, os, random, socket, threading, time
path = os.environ["WATTUNE_PROGRESS_SOCKET"]
dice = random.Random(1)
odd = [b"", b"{}", b"[" * 8000, b"\\xff" * 60_000, b'{"source":"log_line"}', b"x" * 200_000, bytes(8192),
       b"null", b'{"source":"keras","job_id":"../../x","at_s":"now"}', b'{"source":"http","at_s":1,"job_id":7}',
       b'{"source":"optimizer_hook","at_s":1e999,"steps":-1e308}', b'{"source":"none","at_s":1,"steps":1}',
       b'{"source":"optimizer_hook","at_s":null,"steps":"many"}', b'{"source":"log_line","at_s":-5,"steps":5}',
       json.dumps({"source": "optimizer_hook", "at_s": 1.0, "steps": 1, "pid": 2**40}).encode()]
sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sock.setblocking(False)
sent = dropped = 0
begun = last = time.monotonic()
steps = 0
while time.monotonic() - begun < 6.0:
    try:
        sock.sendto(dice.choice(odd), path)
        sent += 1
    except OSError:
        dropped += 1
    now = time.monotonic()
    if now - last > 0.02:
        last, steps = now, steps + 1
        message = {"source": "optimizer_hook", "at_s": now, "steps": steps, "pid": os.getpid()}
        sock.settimeout(5.0)
        sock.sendto(json.dumps(message).encode(), path)
        sock.setblocking(False)
print(json.dumps([sent, dropped, steps]))
"""


def test_a_hostile_command_floods_the_socket_in_vain(real: RealDaemon, folder: Path) -> None:
    with start(real, folder, *python(FLOOD)) as running:
        until(lambda: any((job["samples"] or 0) > 20 for job in real.get("/v1/jobs")), 20.0)
        memory = Path(f"/proc/{running.pid}/status").read_text()
        sent, dropped, steps = ended_with(running)
    resident_mb = int(memory.partition("VmRSS:")[2].split()[0]) / 1024.0
    ended = real.get("/v1/jobs?state=ended&limit=1")[0]
    print(f"\n{sent} datagrams, {dropped} dropped; {ended['samples']} of {steps} steps; {resident_mb:.0f} MB")
    assert sent > 1000
    assert ended["progress_source"] == "optimizer_hook"
    assert 0.8 * steps < ended["samples"] <= steps
    assert resident_mb < 100.0
    assert real.get("/v1/jobs") == []


def test_every_byte_of_the_output_passes(real: RealDaemon, folder: Path) -> None:
    """A hundred megabytes with lines of all lengths, and progress in between."""
    script = """
import hashlib, random, sys
dice, digest, out = random.Random(2), hashlib.sha256(), sys.stdout.buffer
junk = dice.randbytes(1 << 20)
size = 0
for step in range(1, 101):
    part = junk + b"\\n" + b"step %d/100 loss 2.1\\r" % step
    for data in (part, *[b"a line of text\\n"] * 2000):
        digest.update(data)
        out.write(data)
        size += len(data)
out.flush()
print(digest.hexdigest(), size, file=sys.stderr)
"""
    took = {}
    for flags in (("--quiet",), ("--quiet", "--log-progress")):
        command = wrapped(real, *python(script)[:1], "-c", script, flags=flags)
        begun = time.monotonic()
        with subprocess.Popen(
            command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            digest, size = _digest(running.stdout)
            said = running.stderr.read().decode().split()
        took[flags[-1]] = time.monotonic() - begun
        assert running.returncode == 0
        assert said == [digest, str(size)]
        assert size > 100_000_000
    ended = real.get("/v1/jobs?state=ended&limit=1")[0]
    assert (ended["samples"], ended["total_samples"], ended["progress_source"]) == (100.0, 100.0, "log_line")
    print(
        f"\n{size / 1e6:.0f} MB in {took['--quiet']:.2f} s directly, {took['--log-progress']:.2f} s through the wrapper"
    )


def _digest(stream: Any) -> tuple[str, int]:
    import hashlib

    digest, size = hashlib.sha256(), 0
    while data := stream.read(1 << 16):
        digest.update(data)
        size += len(data)
    return digest.hexdigest(), size


def test_output_of_a_command_that_leaves_a_process_behind(real: RealDaemon, folder: Path) -> None:
    """The wrapper does not wait for a process that outlives the command and holds its output."""
    begun = time.monotonic()
    script = "sleep 30 & echo step 1/2; exit 3"
    with start(real, folder, "sh", "-c", script, flags=("--quiet", "--log-progress")) as running:
        assert running.wait(20) == 3
    assert time.monotonic() - begun < 15.0
    assert run(real, folder, "true").returncode == 0
