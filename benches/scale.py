#!/usr/bin/env python3
"""How the daemon's CPU time grows with GPUs and jobs: 64 of each beside 8 of each.

    cargo build --release && benches/scale.py target/release/wattune [--settle 240] [--seconds 120]

Runs two daemons at once on simulated GPUs and a generated forecast, one job on each GPU with a progress report a second.
Prints the CPU time of each, from when the jobs have had --settle seconds to be profiled and planned, and their ratio.
Exits with 1 if the large daemon needs more than nine times what the small one needs.
"""

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

MOST = 9.0


class Daemon:
    def __init__(self, binary, folder, port, gpus):
        self.port, self.gpus, self.stop, self.failed = port, gpus, threading.Event(), 0
        state = os.path.join(folder, f"state-{gpus}")
        config = os.path.join(folder, f"{gpus}.toml")
        with open(config, "w") as file:
            file.write(f"[gpus.simulated]\nboards = {gpus}\n")
        command = [binary, "serve", "--gpus", "simulated", "--config", config, "--state-dir", state]
        command += ["--listen", f"127.0.0.1:{port}", "--carbon-file", os.path.join(folder, "carbon.csv")]
        self.log = open(os.path.join(folder, f"{gpus}.log"), "w")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def ask(self, connection, method, path, body=None):
        connection.request(method, path, body and json.dumps(body), {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or "null")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def begin(self):
        for _ in range(400):
            try:
                if self.ask(self.connect(), "GET", "/readyz")[0] == 200:
                    break
            except OSError:
                time.sleep(0.05)
        connection, self.jobs = self.connect(), []
        for gpu in range(self.gpus):
            job = {"name": f"job-{gpu}", "gpus": [gpu], "work": {"total_samples": 1e8}, "lease_s": 600}
            status, view = self.ask(connection, "POST", "/v1/jobs", job)
            assert status == 201, view
            self.jobs.append(view["job_id"])
        self.thread = threading.Thread(target=self.report)
        self.thread.start()

    def report(self):
        """Reports of all jobs once a second, spread over the second."""
        connection, begun, samples, speed = self.connect(), time.monotonic(), [0.0] * self.gpus, [500.0] * self.gpus
        last, turn = [0.0] * self.gpus, 0
        while not self.stop.wait(max(0.0, begun + turn / self.gpus - time.monotonic())):
            job, at = turn % self.gpus, time.monotonic() - begun
            samples[job] += speed[job] * (at - last[job])
            last[job] = at
            path, body = f"/v1/jobs/{self.jobs[job]}/progress", {"samples": samples[job], "at_s": at}
            status, view = self.ask(connection, "POST", path, body)
            self.failed += status != 200
            # Half as much power, four fifths of the speed.
            speed[job] = 500.0 * (0.6 + 0.4 * min(1.0, (view.get("power_limit_w") or 300.0) / 300.0))
            turn += 1

    def cpu_s(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            user, system = file.read().rsplit(")", 1)[1].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def phases(self):
        _, jobs = self.ask(self.connect(), "GET", "/v1/jobs")
        phases = [job["phase"] for job in jobs]
        return ", ".join(f"{phases.count(phase)} {phase}" for phase in sorted(set(phases)))

    def end(self):
        self.stop.set()
        self.thread.join()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--settle", type=float, default=240)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--port", type=int, default=4984)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o750)
        with open(os.path.join(folder, "carbon.csv"), "w") as file:
            print("timestamp,duration,value", file=file)
            begin = time.time() // 1800 * 1800
            for slot in range(-4, 96):
                at = time.strftime("%FT%TZ", time.gmtime(begin + 1800 * slot))
                print(f"{at},30,{300 + slot * 37 % 200}", file=file)
        daemons = [Daemon(options.binary, folder, options.port + i, gpus) for i, gpus in enumerate((8, 64))]
        try:
            for daemon in daemons:
                daemon.begin()
            time.sleep(options.settle)
            before = [daemon.cpu_s() for daemon in daemons]
            time.sleep(options.seconds)
            used = [daemon.cpu_s() - cpu for daemon, cpu in zip(daemons, before)]
            for daemon, cpu in zip(daemons, used):
                percent = 100 * cpu / options.seconds
                print(f"{daemon.gpus} GPUs and jobs: {percent:.2f} % of a core; {daemon.phases()}; {daemon.failed} failed")
        finally:
            for daemon in daemons:
                daemon.end()
    ratio = used[1] / used[0]
    print(f"ratio {ratio:.1f}, at most {MOST:.0f}")
    return int(ratio > MOST or any(daemon.failed for daemon in daemons))


if __name__ == "__main__":
    sys.exit(main())
