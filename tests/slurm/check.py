#!/usr/bin/env python3
"""A real Slurm on this machine, and the daemon beside it on the fake NVML library: every job is in the report.

    tests/slurm/check.py WATTUNE LIBFAKE_NVML

Needs root and Debian (or Ubuntu): it installs slurmctld, slurmd, slurm-client and munge where they are missing. All
daemons run in the foreground with their files in a temporary folder, and are ended with it. Slurm's GPUs are copies of
the device /dev/null, because slurmd takes no plain files. Processes are tracked by `proctrack/linuxproc`, so that the
test runs where cgroup v2 is not the main hierarchy: the daemon then knows a job's processes by their step daemon.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import simulated  # noqa: E402
from advisor import Advisor  # noqa: E402
from node import DRAW_W, LEASE_S, ROOT, Node, check, descendants, fail, install, wait_for  # noqa: E402

USER, OTHER = "nobody", "daemon"


BEGUN = time.monotonic()


def header(text):
    print(f"{text}   [{time.monotonic() - BEGUN:.0f} s]")


def scenario(site):
    header("a batch job that outlasts its lease without a report")
    plain = site.submit(USER, "vision", "resnet", f"echo $WATTUNE_JOB_ID; sleep {2 * LEASE_S}", "--gres=gpu:1")
    registered = wait_for("the registration", lambda: site.open_job(plain))
    tags = registered["tags"]
    check(registered["name"] == "resnet", "it goes by Slurm's name")
    check((tags["user"], tags["account"]) == (USER, "vision"), "user and account are Slurm's")
    check(len(registered["gpus"]) == 1, "it has the one GPU that Slurm gave it")

    header("beside it, srun with two tasks, asked for by a name that looks like an account")
    two = site.submit(OTHER, "lang", "x Account=rich | UserId=root(0)", "srun -n2 --overlap sh -c 'echo $WATTUNE_JOB_ID; sleep 3'", "--gres=gpu:1", "-n2", "--overcommit")
    other = wait_for("the registration", lambda: site.open_job(two))
    check((other["tags"]["user"], other["tags"]["account"]) == (OTHER, "lang"), "no name passes for an account")
    check(set(other["gpus"]).isdisjoint(registered["gpus"]), "it has the other GPU")
    wait_for("its processes", lambda: site.running(two) >= 4)
    ended = site.wait_ended(two)
    lines = (site.folder / "out" / f"{two}.txt").read_text().split()
    check(lines == [other["job_id"]] * 2, "both tasks know the job's id")

    header("an array of two")
    array = site.submit(USER, "vision", "sweep", "sleep 3", "--gres=gpu:1", "--array=1-2")
    rows = wait_for("both tasks", lambda: (found := [job for job in site.ask("/v1/jobs?state=ended&limit=100") if job["tags"].get("slurm_array_job_id") == str(array)]) and len(found) == 2 and found)
    check({job["tags"]["slurm_array_task_id"] for job in rows} == {"1", "2"}, "each task is a job with its place in the array")
    array_ids = {job["tags"]["slurm_job_id"] for job in rows}

    ended = site.wait_ended(plain)
    check(ended[0]["job_id"] == registered["job_id"] and "lease" not in ended[0]["reason"], "the first job lived until Slurm ended it")
    check((site.folder / "out" / f"{plain}.txt").read_text().split() == [registered["job_id"]], "its script knew the job's id")
    account = site.ask(f"/v1/jobs/{registered['job_id']}/emissions")
    seconds = account["energy_j"] / DRAW_W
    check(2 * LEASE_S - 1 <= seconds <= 2 * LEASE_S + 6, f"its energy is {DRAW_W} W for {seconds:.1f} s")

    header("a requeued job, and one that is cancelled")
    again = site.submit(USER, "vision", "again", "sleep 600", "--gres=gpu:1", "--requeue")
    cancelled = site.submit(OTHER, "lang", "cancelled", "sleep 600", "--gres=gpu:1")
    first = wait_for("the registration", lambda: site.open_job(again))
    wait_for("the registration", lambda: site.open_job(cancelled))
    time.sleep(2)
    site.run("scontrol", "requeue", str(again))
    site.run("scancel", str(cancelled))
    site.wait_ended(again)
    site.wait_ended(cancelled)

    header("a job, its step daemon and Slurm's node daemon are killed (-9)")
    killed = site.submit(USER, "vision", "killed", "sleep 600", "--gres=gpu:1")
    wait_for("the registration", lambda: site.open_job(killed))
    wait_for("its processes", lambda: site.running(killed) >= 3)
    site.daemons["slurmd"].kill()
    site.daemons["slurmd"].wait()
    steps = site.step_daemons(killed)
    below = [pid for step in steps for pid in descendants(step)]
    at = time.monotonic()
    for pid in steps + below:
        os.kill(pid, signal.SIGKILL)
    ended = site.wait_ended(killed, seconds=3 * LEASE_S)
    took = time.monotonic() - at
    check(took <= LEASE_S + 3, f"its registration ended {took:.1f} s later, with a lease of {LEASE_S} s")
    check("lease" in ended[0]["reason"], f"the reason: {ended[0]['reason']}")
    site.restart("slurmd")

    header("the requeued job runs again")
    second = wait_for("the second run", lambda: site.open_job(again), 60)
    check(second["job_id"] != first["job_id"], "its second run is a job of its own")
    check(second["tags"]["slurm_restart_count"] == "1", "which counts the restart")
    time.sleep(2)
    site.run("scancel", str(again))
    site.wait_ended(again, 2)

    header("a frozen daemon holds no job up")
    site.daemons["wattune"].send_signal(signal.SIGSTOP)
    at = time.monotonic()
    frozen = site.submit(USER, "vision", "frozen", "echo ran", "--gres=gpu:1")
    try:
        wait_for("the job", lambda: (site.folder / "out" / f"{frozen}.txt").exists() and "ran" in (site.folder / "out" / f"{frozen}.txt").read_text(), 20)
    finally:
        site.daemons["wattune"].send_signal(signal.SIGCONT)
    check(time.monotonic() - at < 12, f"it ran within {time.monotonic() - at:.1f} s")
    check(site.run("sinfo", "-h", "-o", "%t") in ("idle", "mix", "alloc", "comp"), "the node is not drained")

    starts_and_stops(site)
    parts_of_one_job(site)

    header("the report")
    wait_for("no open job", lambda: not site.ask("/v1/jobs"))
    by_job, by_user, by_account = (site.report(f"tag:{tag}") for tag in ("slurm_job_id", "user", "account"))
    for slurm in (plain, two, again, cancelled, killed, *array_ids):
        row = by_job.get(str(slurm))
        check(row and row["energy_j"] > 0, f"Slurm job {slurm}: {row and row['energy_j']:.0f} J")
    mine = sum(by_job[str(slurm)]["energy_j"] for slurm in (plain, again, killed, *array_ids))
    others = sum(by_job[str(slurm)]["energy_j"] for slurm in (two, cancelled))
    for tag, rows, parts in (("user", by_user, {USER: mine, OTHER: others}), ("account", by_account, {"vision": mine, "lang": others})):
        for key, energy in parts.items():
            check(abs(rows[key]["energy_j"] - energy) < 0.5 + by_job.get(str(frozen), {"energy_j": 0})["energy_j"], f"{tag} {key}: {rows[key]['energy_j']:.0f} J, the sum of its jobs")
    print(f"done in {time.monotonic() - BEGUN:.0f} s")


def clients(site):
    """Jobs that `wattune run` registers within Slurm jobs: of several tasks, of a killed wrapper, and of a submitted job."""
    out = site.folder / "out"
    run = f"{site.wattune} run -q --socket {site.folder}/run/wattune.sock"

    def of_clients(slurm):
        tagged = [job for job in site.ask("/v1/jobs") if job["tags"].get("slurm_job_id") == str(slurm)]
        return [job for job in tagged if not (job["processes"] or {}).get("slurm_job_id")]

    header("srun with two tasks that are each `wattune run`")
    tasks = site.submit(USER, "vision", "tasks", f"srun -n2 --overlap {run} --key tasks -- sh -c 'echo ran; sleep 6'", "--gres=gpu:2", "-n2", "--overcommit")
    (job,) = wait_for("the registration", lambda: of_clients(tasks))
    check(len(job["gpus"]) == 2, "their job has the GPUs of both")
    time.sleep(2)
    check([job["job_id"] for job in of_clients(tasks)] == [job["job_id"]], "one of them has registered it")
    site.wait_ended(tasks, 2)
    check((out / f"{tasks}.txt").read_text().split() == ["ran"] * 2, "both have run")

    header("a killed `wattune run` ends with its Slurm job, before its lease")
    left = site.submit(USER, "vision", "left", f"{run} --lease-s 600 -- sleep 600 & sleep 4; kill -9 $!", "--gres=gpu:1")
    wait_for("the registration", lambda: of_clients(left))
    ended = site.wait_ended(left, 2)
    check({job["end_reason"].split()[0] for job in ended} == {"ended", "replaced"}, "the Epilog ended it")

    header("a job that a command under `wattune run` submits has a job of its own")
    (out / "inner.sh").write_text(f"#!/bin/sh\nexec {run} -- sleep 2\n")
    submit = f"sbatch --parsable -A vision -J inner -n1 --gres=gpu:1 -D {out} -o {out}/inner.txt {out}/inner.sh >{out}/inner.id"
    outer = site.submit(USER, "vision", "outer", f"{run} -- sh -c '{submit}; sleep 12'", "--gres=gpu:1")
    wait_for("the submission", lambda: (out / "inner.id").exists() and (out / "inner.id").read_text().strip())
    inner = int((out / "inner.id").read_text())
    site.wait_ended(inner, 2)
    check(len(of_clients(outer)) == 1, "the job of the command goes on")
    site.wait_ended(outer, 2)


# It counts steps in a file, saves on SIGTERM, and goes on from there.
TRAINING = """\
import os, signal, sys, time
stop = False
def ask(*_):
    global stop
    stop = True
signal.signal(signal.SIGTERM, ask)
state = sys.argv[1]
done = int(open(state).read()) if os.path.exists(state) else 0
print("start", done, os.environ.get("WATTUNE_RESUMED"), flush=True)
while done < 600:
    time.sleep(0.1)
    done += 1
    print(f"step {done}/600", flush=True)
    if stop:
        open(state, "w").write(str(done))
        print("saved", done, flush=True)
        sys.exit(143)
    if os.path.exists(state + ".finish"):
        break
print("done", done, flush=True)
"""


def starts_and_stops(site):
    """A batch job that begins at an advised time, and one that wattune stops, Slurm requeues, and wattune resumes."""
    out = site.folder / "out"
    header("a job begins at the time that `sbatch --begin` has")
    at = time.time() + 8
    begun = site.submit(USER, "vision", "begun", "date +%s", "--begin=" + time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at)))
    wait_for("the job", lambda: (out / f"{begun}.txt").exists() and (out / f"{begun}.txt").read_text().strip(), 60)
    check(int((out / f"{begun}.txt").read_text()) >= int(at), "it did not begin before")

    header("a job that offers it is stopped, requeued with its StartTime, and resumed")
    (out / "train.py").write_text(TRAINING)
    state, advisor = out / "state", Advisor()
    script = (
        f"WATTUNE_JOB_ID= {site.wattune} run --listen 127.0.0.1:{advisor.port} --suspend=SIGTERM,5,5 --key slurm-$SLURM_JOB_ID "
        f"--log-progress -- python3 {out}/train.py {state}"
    )
    text = out / "stopped.txt"
    slurm = site.submit(USER, "vision", "stopped", script, "--requeue", "--open-mode=append", "-o", text)
    wait_for("progress", lambda: advisor.count("progress") >= 2, 60)
    advisor.want("suspend", 40)
    wait_for("the stop", lambda: "saved" in text.read_text(), 60)
    shown = wait_for(
        "the queue",
        lambda: (shown := site.run("scontrol", "show", "job", "-o", str(slurm))) and "JobState=PENDING" in shown and "StartTime=20" in shown and shown,
        60,
    )
    fields = dict(part.split("=", 1) for part in shown.split() if "=" in part)
    start = time.mktime(time.strptime(fields["StartTime"], "%Y-%m-%dT%H:%M:%S"))
    check(fields["Restarts"] == "1", "Slurm has requeued it once")
    check(20 <= start - time.time() <= 45, f"it starts again in {start - time.time():.0f} s, when the plan says so")
    check(advisor.count("suspended") >= 1, "the daemon knows that it is gone")
    # Its lease runs out without a renewal.
    advisor.lapse()
    advisor.want("run", None)
    wait_for("the resumption", lambda: text.read_text().count("start ") == 2, 180)
    check(time.time() >= start - 1, "it did not resume before")
    lines = [line for line in text.read_text().splitlines() if line.split()[0] in ("start", "saved", "done")]
    check(lines[0] == "start 0 None" and lines[1].startswith("saved"), f"its first part: {lines[0]}, {lines[1]}")
    check(lines[2] == f"start {lines[1].split()[1]} 1", f"it goes on from its checkpoint: {lines[2]}")
    check(len({body["key"] for body in advisor.registrations}) == 1, "both parts have one key")
    pathlib.Path(f"{state}.finish").touch()
    wait_for("the end", lambda: "done" in text.read_text(), 60)
    advisor.end()


# Seconds of a simulated daemon's clock in a real one: a wait of three hours is long enough for Slurm to use it.
SPEED = 120


def parts_of_one_job(site):
    """A real daemon holds, stops and resumes a batch job, which Slurm requeues meanwhile: its parts are one job."""
    header("a real daemon on simulated GPUs and a fast clock decides, Slurm requeues, and the parts are one job")
    out, folder, steps = site.folder / "out", site.folder / "simulated", simulated.steps(SPEED)
    folder.mkdir(mode=0o755)
    for script in ("held/once.py", "frameworks/scripts/plain_resume.py"):
        shutil.copy(ROOT / "tests" / script, out)
    for name in ("whole", "parts"):
        (out / name).mkdir()
        (out / name).chmod(0o777)
    train = f"python3 {out}/once.py {out}/{{0}}.log {out}/plain_resume.py {steps} {out}/{{0}}"
    whole = subprocess.Popen(train.format("whole").split(), stdout=subprocess.PIPE, text=True)
    daemon = simulated.Simulated(site.wattune, folder, SPEED)
    daemon.start()
    try:
        wait_for("the daemon", lambda: daemon.ask("/v1/status"))
        daemon.socket.chmod(0o666)
        flags = " ".join(simulated.FLAGS)
        script = (
            f"WATTUNE_JOB_ID= {site.wattune} run --socket {daemon.socket} {flags} --deadline {daemon.deadline()} "
            f"--total-samples {steps} --key parts-$SLURM_JOB_ID --json {out}/parts.json -- {train.format('parts')}"
        )
        text = out / "parts.txt"
        slurm = site.submit(USER, "vision", "parts", script, "--requeue", "--open-mode=append", "-o", text)
        wait_for("the end", lambda: text.exists() and "weights" in text.read_text(), 600)
        wait_for("the summary", lambda: (out / "parts.json").exists() and json.loads((out / "parts.json").read_text())["account"])
        printed = text.read_text()
        restarts = printed.count("starts again in")
        check(restarts >= 2, f"Slurm has requeued it {restarts} times: for its start, and for its stop")
        starts = [line.split() for line in (out / "parts.log").read_text().splitlines()]
        check(len(starts) == 2 and all(line[0] == "start" for line in starts), "the command has run twice, one after the other")
        first = daemon.hours(float(starts[0][1]))
        check(1 <= first <= 3.5, f"it starts after {first:.2f} h, in the clean window")
        result = [line for line in printed.splitlines() if line.startswith("weights")]
        check(result == whole.communicate()[0].splitlines()[-1:], "its result is that of a training that was left alone")
        account = json.loads((out / "parts.json").read_text())["account"]
        parts = account["with_earlier_parts"]
        energies = [daemon.ask(f"/v1/jobs/{job}/emissions")["energy_j"] for job in parts["job_ids"]]
        check(len([energy for energy in energies if energy > 0]) >= 2, f"its parts have {' and '.join(f'{e:.0f}' for e in energies)} J")
        check(abs(parts["energy_j"] - sum(energies)) < 1, f"its account has the sum, {parts['energy_j']:.0f} J")
        rows = daemon.ask("/v1/report?by=job")["rows"]
        rows = [row for row in rows if row["job_id"]]
        check(len(rows) == 1 and rows[0]["jobs"] == 1, "the report has one job")
        check(abs(rows[0]["energy_j"] - parts["energy_j"]) < 1, "with the energy of all parts")
    finally:
        whole.kill()
        daemon.end()
        if not (out / "parts.json").exists():
            print(daemon.log.read_text(errors="replace")[-3000:])


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    wattune, library = (os.path.abspath(path) for path in sys.argv[1:])
    if os.geteuid() != 0:
        fail("needs root: slurmd runs jobs as their users")
    install()
    # So that what runs is ended and removed also when the gate stops.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # The report of the scenario has no other jobs.
    for part in (clients, scenario):
        on_a_node(wattune, library, part)


def on_a_node(wattune, library, part):
    """Runs a part of the check on a node of its own; prints the node's logs if the part fails."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="wattune-slurm-"))
    site = Node(folder, wattune, library)
    is_done = False
    try:
        site.begin()
        part(site)
        is_done = True
    finally:
        site.end()
        if not is_done:
            for log in sorted([*(folder / "log").iterdir(), *(folder / "out").iterdir()]):
                if log.is_file():
                    print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
        shutil.rmtree(folder, ignore_errors=True)


main()
