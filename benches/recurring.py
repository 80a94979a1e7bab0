#!/usr/bin/env python3
"""What recurring jobs cost the daemon: start-up, memory, and how long a trial's batch size takes over HTTP.

    cargo build --release --bin wattune
    benches/recurring.py [JOBS [TRIALS [REQUESTS]]]     # 10000 200 5000

The database is filled directly, each job as one that was put over HTTP; every third of the requests is a report.
GET /healthz touches no database: what it takes is the floor of this machine, its network stack and this client.
"""

import gc
import json
import os
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time

JOBS, TRIALS, REQUESTS = (int(a) for a in (sys.argv[1:] + ["10000", "200", "5000"][len(sys.argv) - 1:]))
TARGET = os.environ.get("CARGO_TARGET_DIR", "target")
SIZES = [8 << i for i in range(8)]
COLUMNS = ("job number batch_size kind state cost_j epochs epoch_cost_j energy_j time_s metric first_epochs first_cost_j "
           "begun_us lease_us ended_us reason").split()


class Daemon:
    def __init__(self, state):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        begun = time.perf_counter()
        command = [f"{TARGET}/release/wattune", "serve", "--gpus", "simulated", "--state-dir", state,
                   "--listen", f"127.0.0.1:{port}"]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port))
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.ask("GET", "/readyz")[0] == 200:
                    break
            except OSError:
                pass
            time.sleep(0.002)
        self.started = time.perf_counter() - begun

    def ask(self, method, path, body=None):
        """One request on the one connection, by hand: http.client would take longer than the daemon."""
        text = b"" if body is None else json.dumps(body).encode()
        kind = "" if body is None else f"content-type: application/json\r\ncontent-length: {len(text)}\r\n"
        begun = time.perf_counter()
        self.socket.sendall(f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n{kind}\r\n".encode() + text)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.read()
        head, _, rest = answer.partition(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        while len(rest) < length:
            rest += self.read()
        self.took = time.perf_counter() - begun
        return int(lines[0].split()[1]), json.loads(rest)

    def read(self):
        got = self.socket.recv(1 << 16)
        if not got:
            raise OSError("the daemon closed the connection")
        return got

    def cpu(self):
        """Seconds of CPU so far."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            kib = {line.split(":")[0]: line.split()[1] for line in status if line.startswith(("VmRSS", "VmHWM"))}
        return int(kib["VmRSS"]) / 1024, int(kib["VmHWM"]) / 1024

    def stop(self):
        self.process.terminate()
        self.process.wait()


def fill(state):
    """Copies the two jobs that were put, with a history of trials for each copy."""
    database = sqlite3.connect(os.path.join(state, "wattune.db"))
    specs = database.execute("SELECT terms, generator, owners, members FROM recurring_jobs ORDER BY name").fetchall()
    database.execute("DELETE FROM recurring_jobs")
    now = int(time.time() * 1e6)
    jobs = [(i, f"job{i}", *specs[i % 2], now) for i in range(JOBS)]
    database.executemany(
        "INSERT INTO recurring_jobs (id, name, terms, generator, owners, members, created_us) VALUES (?, ?, ?, ?, ?, ?, ?)",
        jobs,
    )

    def rows():
        for job in range(JOBS):
            for number in range(1, TRIALS + 1):
                size = SIZES[(number - 1) % 8] if number <= 16 else random.choice(SIZES[3:6])
                epochs, each = random.randint(10, 14), 1000.0 + size
                energy = epochs * each
                yield (job, number, size, "exploration" if number <= 16 else "regular", "reached", energy, epochs, each,
                       energy, epochs * 10.0, 0.61, 1, each, now, now, now, f"it reached its target after {epochs} epochs")

    marks = ", ".join("?" * len(COLUMNS))
    database.executemany(f"INSERT INTO recurring_trials ({', '.join(COLUMNS)}) VALUES ({marks})", rows())
    database.commit()
    database.close()


def show(what, seconds):
    seconds.sort()
    at = lambda part: 1000 * seconds[min(len(seconds) - 1, int(part * len(seconds)))]
    print(f"{what:24} p50 {at(0.5):6.2f} ms   p99 {at(0.99):6.2f} ms   most {1000 * seconds[-1]:6.2f} ms   ({len(seconds)})")


def main():
    random.seed(1)
    with tempfile.TemporaryDirectory() as state:
        daemon = Daemon(state)
        spec = {"batch_sizes": SIZES, "default_batch_size": 64, "max_epochs": 100, "target_metric": 0.6,
                "max_power_w": 300}
        for policy in ("wattune", "zeus"):
            status, answer = daemon.ask("PUT", f"/v1/recurring/{policy}", {**spec, "policy": policy})
            assert status == 201, answer
        daemon.stop()
        fill(state)
        size = os.path.getsize(os.path.join(state, "wattune.db"))
        print(f"{JOBS} recurring jobs with {TRIALS} trials each: {size / 2**20:.0f} MiB")
        daemon = Daemon(state)
        print(f"start to ready           {1000 * daemon.started:.0f} ms")
        asked = {"GET /healthz (floor)": [], "next batch size": [], "report": [], "the job": []}

        def ask(what, expected, *request):
            status, answer = daemon.ask(*request)
            assert status == expected, answer
            asked[what].append(daemon.took)
            return answer

        gc.disable()
        spent = daemon.cpu()
        for i in range(REQUESTS):
            job = f"/v1/recurring/job{random.randrange(JOBS)}"
            ask("GET /healthz (floor)", 200, "GET", "/healthz")
            number = ask("next batch size", 201, "POST", f"{job}/trials", {})["number"]
            if i % 2 == 0:
                report = {"epochs": 1, "energy_j": 1100, "time_s": 10, "metric": 0.1}
                ask("report", 200, "POST", f"{job}/trials/{number}/progress", report)
            if i % 50 == 0:
                ask("the job", 200, "GET", job)
        spent = daemon.cpu() - spent
        for what, seconds in asked.items():
            show(what, seconds)
        print(f"CPU of the daemon        {1000 * spent / REQUESTS:.2f} ms for a turn of all these")
        print("resident                 %.1f MiB (peak %.1f MiB)" % daemon.memory())
        daemon.stop()


main()
