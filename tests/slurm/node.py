"""A node with Slurm and the daemon, for `check.py`: installs Slurm, starts all daemons in a folder, and ends them."""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

LEASE_S = 6
DRAW_W = 260
ROOT = pathlib.Path(__file__).resolve().parents[2]


def fail(text):
    sys.exit(f"FAILED: {text}")


def check(holds, text):
    if not holds:
        fail(text)
    print(f"  {text}")


def install():
    wanted = {"slurmctld": "slurmctld", "slurmd": "slurmd", "sbatch": "slurm-client", "munged": "munge"}
    missing = [package for command, package in wanted.items() if not shutil.which(command)]
    if not missing:
        return
    # Without it, Debian starts the daemons of what it installs.
    policy = pathlib.Path("/usr/sbin/policy-rc.d")
    is_ours = not policy.exists()
    if is_ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run(["apt-get", "update", "-q"], check=True, stdout=subprocess.DEVNULL, env=environment)
        command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    finally:
        if is_ours:
            policy.unlink()


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(what, condition, seconds=30):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    fail(f"{what} did not happen within {seconds} s")


class Node:
    """A node with Slurm and the daemon."""

    def __init__(self, folder, wattune, library):
        self.folder, self.wattune, self.library = folder, wattune, library
        self.daemons, self.commands = {}, {}
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        for name in ("run", "state", "spool", "log", "wattune", "driver"):
            (folder / name).mkdir()
        # What the jobs' users write.
        (folder / "out").mkdir(mode=0o777)
        (folder / "out").chmod(0o777)
        folder.chmod(0o755)

    def start(self, name, *command, **variables):
        with open(self.folder / "log" / f"{name}.log", "ab") as log:
            environment = self.environment | variables
            self.daemons[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )
        self.commands[name] = (command, variables)

    def restart(self, name):
        command, variables = self.commands[name]
        self.start(name, *command, **variables)

    def log(self, name):
        return (self.folder / "log" / f"{name}.log").read_text(errors="replace")

    def run(self, *command, user=None):
        if user:
            command = ("setpriv", f"--reuid={user}", "--regid=nogroup", "--clear-groups", *command)
        ended = subprocess.run(command, capture_output=True, text=True, env=self.environment, cwd=self.folder / "out")
        if ended.returncode:
            fail(f"{' '.join(command)}: {ended.stdout}{ended.stderr}")
        return ended.stdout.strip()

    def submit(self, user, account, name, script, *options):
        out = self.folder / "out"
        command = ("sbatch", "--parsable", "-A", account, "-J", name, "-n", "1", "-D", out, "-o", out / "%j.txt", *options)
        return int(self.run(*map(str, command), "--wrap", script, user=user).split(";")[0])

    def begin(self):
        folder, (controller, node) = self.folder, free_ports(2)
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        for device in ("gpu0", "gpu1"):
            os.mknod(folder / device, 0o666 | 0o020000, os.makedev(1, 3))
            os.chmod(folder / device, 0o666)
        (folder / "gres.conf").write_text(f"AutoDetect=off\nName=gpu File={folder}/gpu[0-1]\n")
        (folder / "defaults").write_text(
            f"WATTUNE={self.wattune}\nWATTUNE_SOCKET={folder}/run/wattune.sock\n"
            f'WATTUNE_LISTEN=127.0.0.1:1\nWATTUNE_PROLOG_OPTIONS="--lease {LEASE_S}"\n'
        )
        for script in ("prolog", "epilog", "task_prolog"):
            path = folder / f"{script}.sh"
            shipped = ROOT / "deploy" / "slurm" / f"{script}.sh"
            # The TaskProlog runs as a job's user, who may not write there.
            log = "/dev/null" if script == "task_prolog" else folder / "log" / f"{script}.log"
            path.write_text(f"#!/bin/sh\nexport WATTUNE_SLURM_DEFAULTS={folder}/defaults\nexec {shipped} 2>>{log}\n")
            path.chmod(0o755)
        host = socket.gethostname().split(".")[0]
        (folder / "slurm.conf").write_text(f"""\
ClusterName=check
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=10
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
GresTypes=gpu
Prolog={folder}/prolog.sh
Epilog={folder}/epilog.sh
TaskProlog={folder}/task_prolog.sh
PrologFlags=Alloc,Contain
KillWait=2
SlurmdTimeout=300
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8
""")
        run = folder / "run"
        self.start(
            "munged", "munged", "--foreground", f"--key-file={folder}/munge.key", f"--socket={run}/munge.sock",
            f"--pid-file={run}/munged.pid", f"--log-file={run}/munged.log", f"--seed-file={run}/munge.seed", "--force",
        )
        wait_for("munge", (run / "munge.sock").exists)
        boards = {"boards": [{"demand_w": DRAW_W}, {"demand_w": DRAW_W}]}
        (folder / "driver" / "boards.json").write_text(json.dumps(boards))
        self.start(
            "wattune", self.wattune, "serve", "--gpus", "nvml", "--nvml-library", self.library, "--state-dir",
            str(folder / "wattune"), "--listen", "127.0.0.1:0", "--socket", str(folder / "run" / "wattune.sock"),
            FAKE_NVML_DIR=str(folder / "driver"),
        )
        lines = wait_for("the daemon", lambda: [line for line in self.log("wattune").splitlines() if "listening on http://" in line])
        self.base = "http://" + lines[0].split("listening on http://")[1].strip()
        # Tasks run as users, who may use the socket here.
        (folder / "run" / "wattune.sock").chmod(0o666)
        self.start("slurmctld", "slurmctld", "-D")
        self.start("slurmd", "slurmd", "-D")
        wait_for("an idle node", lambda: "idle" in subprocess.run(["sinfo", "-h", "-o", "%t"], capture_output=True, text=True, env=self.environment).stdout)

    def end(self):
        for name in ("slurmctld", "slurmd", "wattune", "munged"):
            process = self.daemons.get(name)
            if process and process.poll() is None:
                process.terminate()
        for name, process in self.daemons.items():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                print(f"{name} did not end and is killed")
                process.kill()
        for pid in self.step_daemons():
            os.kill(pid, signal.SIGKILL)

    def step_daemons(self, job=None):
        """Ids of this Slurm's step daemons: those that have its configuration."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                title = (entry / "cmdline").read_bytes().decode(errors="replace")
                environ = (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            is_it = title.startswith(f"slurmstepd: [{job}.") if job else title.startswith("slurmstepd: [")
            if entry.name.isdigit() and is_it and (job or str(self.folder) in environ):
                found.append(int(entry.name))
        return found

    def ask(self, path):
        with urllib.request.urlopen(f"{self.base}{path}", timeout=10) as answer:
            return json.load(answer)

    def open_job(self, slurm):
        of_it = [job for job in self.ask("/v1/jobs") if (job["processes"] or {}).get("slurm_job_id") == slurm]
        return of_it[0] if of_it else None

    def running(self, slurm):
        job = self.open_job(slurm)
        return job["processes"]["running"] if job else 0

    def ended_jobs(self, slurm):
        return [job for job in self.ask("/v1/jobs?state=ended&limit=1000") if job["tags"].get("slurm_job_id") == str(slurm)]

    def wait_ended(self, slurm, count=1, seconds=30):
        return wait_for(f"the end of Slurm job {slurm}", lambda: (found := self.ended_jobs(slurm)) and len(found) >= count and found, seconds)

    def report(self, by):
        text = self.run(self.wattune, "report", "--state-dir", str(self.folder / "wattune"), "--by", by, "--format", "json")
        return {row["key"]: row for row in json.loads(text)["rows"]}


def descendants(pid):
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, unseen = [], [pid]
    while unseen:
        below = children.get(unseen.pop(), [])
        found += below
        unseen += below
    return found
