#!/usr/bin/env python3
"""What thousands of jobs on one GPU cost that are recorded and not controlled: room for the ledger, and time for reports.

    cargo build --release && benches/guests.py target/release/wattune [--guests 2000] [--settle 8] [--minutes 8.4]

Starts a daemon on simulated GPUs, registers the guests on the first one, each with a report a minute, and a job that
reports four times a second, each time on a new connection. Prints how long the registrations took, the 50th, 99th and
last percentile of the job's reports in milliseconds once all are there, and what the database grew by, as it would be in
an hour: from when each guest's profile and first interval are there (--settle, in minutes), over whole turns of the GPU's
ledger (an eighth of a second for each guest). Exits with 1 if that is more than 20 MB or the 99th percentile is above 20 ms.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, json.dumps(body) if body is not None else None, {"content-type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, json.loads(text) if text else None


def size(folder):
    """Bytes of the database, with what of it is still in the write-ahead log, which is written over and over."""
    with contextlib.closing(sqlite3.connect(f"file:{folder}/wattune.db?mode=ro", uri=True)) as database:
        (pages,), (page,) = (database.execute(f"PRAGMA {of}").fetchone() for of in ("page_count", "page_size"))
    return pages * page


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--guests", type=int, default=2000)
    parser.add_argument("--settle", type=float, default=8)
    parser.add_argument("--minutes", type=float, default=8.4)
    parser.add_argument("--port", type=int, default=4981)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o750)
        config = os.path.join(folder, "wattune.toml")
        with open(config, "w") as file:
            file.write("[control]\nmost_jobs = 4000\nmost_jobs_per_gpu = 4000\n")
        state = os.path.join(folder, "state")
        command = [options.binary, "serve", "--gpus", "simulated", "--config", config, "--state-dir", state]
        command += ["--listen", f"127.0.0.1:{options.port}"]
        with open(os.path.join(folder, "log.txt"), "w") as log:
            daemon = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            return run(options, state)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()


def run(options, state):
    port = options.port
    for _ in range(200):
        try:
            if ask(port, "GET", "/readyz")[0] == 200:
                break
        except OSError:
            pass
        time.sleep(0.1)
    job = {"name": "owner", "gpus": [0], "work": {"total_samples": 1e9}, "lease_s": 60}
    status, view = ask(port, "POST", "/v1/jobs", job)
    assert status == 201, view
    owner, times, stop = view["job_id"], [], threading.Event()

    def report():
        begun = time.monotonic()
        while not stop.wait(0.25):
            at = time.monotonic() - begun
            asked = time.monotonic()
            status, _ = ask(port, "POST", f"/v1/jobs/{owner}/progress", {"samples": 100 * at, "at_s": at})
            times.append((time.monotonic() - asked) * 1e3)
            assert status == 200, status

    reporter = threading.Thread(target=report)
    reporter.start()
    begun, guests = time.monotonic(), []
    for number in range(options.guests):
        guest = {"name": f"guest-{number}", "gpus": [0], "control": False, "lease_s": 3600}
        status, view = ask(port, "POST", "/v1/jobs", guest)
        assert status == 201, (number, view)
        guests.append(view["job_id"])
    came = time.monotonic() - begun
    while_coming, first = sorted(times), len(times)

    def pass_on(minutes):
        begun = time.monotonic()
        while time.monotonic() - begun < minutes * 60:
            ask(port, "POST", f"/v1/jobs/{random.choice(guests)}/progress", {"samples": time.monotonic() - start})
            time.sleep(60 / len(guests))

    start = time.monotonic()
    pass_on(options.settle)
    before, begun = size(state), time.monotonic()
    pass_on(options.minutes)
    hours = (time.monotonic() - begun) / 3600
    stop.set()
    reporter.join()
    rest = sorted(times[first:])
    at = lambda all_times, part: all_times[min(len(all_times) - 1, int(part * len(all_times)))] if all_times else 0.0
    grown = (size(state) - before) / 1e6 / hours
    print(f"{options.guests} guests came in {came:.1f} s; reports meanwhile p99 {at(while_coming, 0.99):.1f} ms")
    print(f"reports: p50 {at(rest, 0.5):.1f} ms, p99 {at(rest, 0.99):.1f} ms, last {rest[-1]:.1f} ms, of {len(rest)}")
    print(f"database: {before / 1e6:.1f} MB, then {grown:.1f} MB an hour")
    return int(grown > 20 or at(rest, 0.99) > 20)


if __name__ == "__main__":
    sys.exit(main())
