"""`wattune run` as a user, a shell, a container and a cluster meet it: terminal, signals, process 1, many runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from real_daemon import RealDaemon, required
from running import Terminal, environment, leftovers, python, run, start, state, wrapped
from test_job import until

# Counts a signal, and tells the count as its exit code, half a second after the first.
COUNT = """
import os, signal, sys, time
got = []
signal.signal(signal.{name}, lambda *_: got.append(time.monotonic()))
print("ready", os.getpid(), os.getppid(), flush=True)
while not got or time.monotonic() - got[0] < 0.5:
    time.sleep(0.02)
print("got", len(got), flush=True)
sys.exit(40 + len(got))
"""


@pytest.mark.parametrize(
    ("name", "act"),
    [
        ("SIGINT", lambda terminal: terminal.type("\x03")),
        ("SIGQUIT", lambda terminal: terminal.type("\x1c")),
        ("SIGWINCH", lambda terminal: terminal.resize(50, 132)),
    ],
)
def test_the_terminals_signals_come_once(
    real: RealDaemon, folder: Path, name: str, act: Callable[[Terminal], None]
) -> None:
    with Terminal(wrapped(real, *python(COUNT.format(name=name))), environment(folder)) as terminal:
        terminal.wait_for("ready")
        act(terminal)
        terminal.wait_for("got 1")
        assert terminal.code() == 41
    assert leftovers(folder) == []


@pytest.mark.parametrize(("key", "code"), [("\x03", 130), ("\x1c", 131)])
def test_a_key_ends_a_command_that_does_not_care(real: RealDaemon, folder: Path, key: str, code: int) -> None:
    command = wrapped(real, "sh", "-c", "ulimit -c 0; echo ready; exec sleep 100", flags=("--quiet",))
    with Terminal(command, environment(folder)) as terminal:
        terminal.wait_for("ready")
        time.sleep(0.2)
        terminal.type(key)
        assert terminal.code() == code
    assert leftovers(folder) == []


def test_job_control(real: RealDaemon, folder: Path) -> None:
    """Ctrl-Z stops the wrapper and the command; SIGCONT to the group continues both, and progress goes on."""
    script = "import os, time\nprint('ready', os.getpid(), os.getppid(), '.')\n"
    script += "print('read', input())\nprint('and', input())\nraise SystemExit(5)"
    with Terminal(wrapped(real, *python(script), flags=("--quiet",)), environment(folder)) as terminal:
        terminal.wait_for("ready ")
        child, wrapper = map(int, terminal.wait_for(" .").split())
        terminal.type("one\n")
        terminal.wait_for("read one")
        terminal.type("\x1a")
        terminal.wait_for(f"stopped by {int(signal.SIGTSTP)} group {wrapper}")
        until(lambda: (state(wrapper), state(child)) == ("T", "T"))
        terminal.type("\n")
        until(lambda: "T" not in (state(wrapper), state(child)))
        time.sleep(0.3)
        terminal.type("two\n")
        terminal.wait_for("and two")
        assert terminal.code() == 5


def test_the_terminal_is_the_commands(real: RealDaemon, folder: Path) -> None:
    script = "import os, sys\nprint([os.isatty(fd) for fd in range(3)], os.get_terminal_size().columns, '.')\n"
    script += "print(sys.stdin.read()[::-1])"
    with Terminal(wrapped(real, *python(script), flags=("--quiet",)), environment(folder)) as terminal:
        assert terminal.wait_for(" .").startswith("[True, True, True]")
        terminal.type("abc\n\x04")
        terminal.wait_for("\r\ncba\r\n")
        assert terminal.code() == 0


def test_a_closed_terminal_ends_the_command(real: RealDaemon, folder: Path) -> None:
    mark = folder / "hung-up"
    script = "import os, signal, time\ngot = []\nsignal.signal(signal.SIGHUP, lambda *_: got.append(1))\n"
    script += "print('ready')\nwhile not got: time.sleep(0.02)\ntime.sleep(0.5)\n"
    script += f"open({str(mark)!r}, 'w').write(str(len(got)))"
    with Terminal(wrapped(real, *python(script)), environment(folder)) as terminal:
        terminal.wait_for("ready\r\n")
    until(lambda: mark.exists() and mark.read_text() != "", 10.0)
    assert int(mark.read_text()) >= 1
    until(lambda: leftovers(folder) == [] and real.get("/v1/jobs") == [], 20.0)


def test_what_a_command_inherits(real: RealDaemon, folder: Path) -> None:
    """Signal dispositions, open files, limits, group and session are those that it has without the wrapper."""
    script = "grep -E '^(Sig(Blk|Ign|Cgt)|Groups|Umask)' /proc/self/status; ls /proc/self/fd; pwd; ulimit -a; "
    script += "cut -d' ' -f5,6 /proc/self/stat"

    def seen(command: list[str], extra: int) -> str:
        ended = subprocess.run(
            command,
            env=environment(folder),
            pass_fds=[extra],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        # glibc uses the signals 32 and 33, and leaves them as it likes.
        return re.sub(
            r"(Sig\w+:\s*)(\w{16})", lambda found: found[1] + f"{int(found[2], 16) & ~(3 << 31):x}", ended.stdout
        )

    with (folder / "extra").open("w") as extra:
        alone = seen(["sh", "-c", script], extra.fileno())
        assert seen(wrapped(real, "sh", "-c", script, flags=("--quiet",)), extra.fileno()) == alone


def test_nohup_stays_in_force(real: RealDaemon, folder: Path) -> None:
    script = "import os, signal, time\nprint(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)\n"
    script += "os.kill(os.getppid(), signal.SIGHUP)\ntime.sleep(0.5)\nprint('alive')\nraise SystemExit(6)"
    command = ["nohup", *wrapped(real, *python(script), flags=("--quiet",))]
    ended = subprocess.run(
        command, env=environment(folder), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert (ended.stdout, ended.returncode) == ("True\nalive\n", 6), ended


def needs_namespaces() -> None:
    """Skips the test where no namespace of process ids can be made; root must be able to."""
    tried = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode != 0:
        message = f"unshare makes no namespace of process ids here: {tried.stderr.strip()}"
        if required() and os.geteuid() == 0:
            pytest.fail(message)
        pytest.skip(message)


def test_as_process_1_orphans_are_reaped(real: RealDaemon, folder: Path) -> None:
    needs_namespaces()
    script = """
import glob, os, subprocess, time
assert os.getppid() == 1, os.getppid()
for _ in range(20):
    subprocess.run(["sh", "-c", "(sleep 0.2; exit 3) & (sleep 0.3 & exec sleep 0.25) &"])
time.sleep(1.5)
left = [open(path).read().split(")")[1].split()[0] for path in glob.glob("/proc/[0-9]*/stat")]
print(len(left), left.count("Z"))
raise SystemExit(7)
"""
    command = ["unshare", "--pid", "--fork", "--mount-proc", *wrapped(real, *python(script))]
    ended = subprocess.run(command, env=environment(folder), capture_output=True, text=True, check=False, timeout=30)
    assert (ended.stdout, ended.returncode) == ("2 0\n", 7), ended
    assert "ran" in ended.stderr, "the summary is printed"
    assert real.get("/v1/jobs") == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_process_1_passes_signals_on(real: RealDaemon, folder: Path, number: signal.Signals) -> None:
    """As when a container is stopped: the runtime sends the signal from outside of the namespace."""
    needs_namespaces()
    script = COUNT.format(name=number.name)
    command = ["unshare", "--pid", "--fork", "--mount-proc", *wrapped(real, *python(script), flags=("--quiet",))]
    with subprocess.Popen(command, env=environment(folder), stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        said = outer.stdout.readline()
        (wrapper,) = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        os.kill(int(wrapper), number)
        outer.stdout.read()
    assert outer.returncode == 41
    assert re.fullmatch(r"ready \d+ 1\n", said)


def test_many_runs_leave_nothing(real: RealDaemon, folder: Path, request: pytest.FixtureRequest) -> None:
    """One after another, at a rate of a thousand in a minute: no job, folder, descriptor or thread is left."""
    runs = int(request.config.getoption("--runs"))
    assert run(real, folder, "true", flags=("--quiet",)).returncode == 0
    time.sleep(1.0)

    def used() -> tuple[int, int]:
        proc = Path(f"/proc/{real.pid}")
        return len(list((proc / "fd").iterdir())), len(list((proc / "task").iterdir()))

    before, jobs_before = used(), len(real.get("/v1/jobs?state=ended&limit=1000"))
    command, env = wrapped(real, "true", flags=("--quiet",)), environment(folder)
    begun = time.monotonic()
    for _ in range(runs):
        assert subprocess.run(command, env=env, check=False).returncode == 0
    took_s = time.monotonic() - begun
    assert real.get("/v1/jobs") == []
    assert leftovers(folder) == []
    until(lambda: all(abs(now - then) <= 2 for now, then in zip(used(), before)), 15.0)
    print(f"\n{runs} runs in {took_s:.1f} s; files and threads of the daemon: {before} before, {used()} after")
    assert took_s < max(60.0 * runs / 1000.0, 30.0)
    if runs < 900:
        assert len(real.get("/v1/jobs?state=ended&limit=1000")) - jobs_before == runs, "each had a job"


def test_parallel_runs_end_their_jobs(real: RealDaemon, folder: Path) -> None:
    running = [start(real, folder, "sleep", "0.3", flags=("--quiet", "--gpus", str(n % 2))) for n in range(16)]
    assert [process.wait(60) for process in running] == [0] * 16
    assert real.get("/v1/jobs") == []
    assert leftovers(folder) == []


def test_a_pipe_that_closes_ends_the_command_as_without_the_wrapper(real: RealDaemon, folder: Path) -> None:
    for flags in ((), ("--log-progress",)):
        line = " ".join(wrapped(real, "yes", flags=("--quiet", *flags)))
        ended = subprocess.run(
            ["bash", "-c", f"{line} | head -1; echo ${{PIPESTATUS[0]}}"],
            env=environment(folder),
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert re.fullmatch(r"y\n141\n", ended.stdout), (flags, ended)
