"""A daemon on simulated GPUs with a fast clock and a generated grid, on which waiting and stopping a job pay."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import time

# Hours from the beginning at which the grid changes, and the intensity from then on. The best start of a training of
# five hours is at 1.5 h; at 4.5 h two hours of it are left, which are best done from 7.5 h on.
GRID = [(0, 800), (1.5, 210), (4.5, 600), (7.5, 300), (10.5, 800), (72, 800)]
# Days before, in which the forecast was right and no day like another: so it is trusted.
PAST_DAYS = 21
# Flags of `wattune run` for that training.
FLAGS = ["--within", "12h", "--duration", "5h", "--power", "280", "--suspend=SIGTERM,1200,600", "--log-progress", "--lease-s", "86400"]
DEADLINE_H = 16


def environment():
    """Returns an environment without settings of whoever runs this."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("WATTUNE_", "SLURM_"))}


def utc(at):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def steps(speed):
    """Returns the steps of 20 ms that take five hours of the daemon's clock."""
    return 5 * 3600 * 50 // speed


class OverSocket(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=10)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Simulated:
    """A daemon on whose clock `speed` seconds pass in a real one."""

    def __init__(self, wattune, folder, speed):
        self.wattune, self.folder, self.speed = wattune, folder, speed
        self.socket, self.state, self.log = folder / "socket", folder / "state", folder / "serve.log"
        self.process, self.begin = None, None

    def hours(self, at):
        """Returns the hours of the daemon's clock from its beginning to a real time."""
        return (at - self.begin) * self.speed / 3600

    def deadline(self):
        return utc(self.begin + 3600 * DEADLINE_H)

    def start(self):
        if self.begin is None:
            self.begin = int(time.time())
            self.write_settings()
        with open(self.log, "a") as log:
            command = [self.wattune, "serve", "--config", self.folder / "wattune.toml"]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment())

    def write_settings(self):
        source = random.Random(1)
        past = [(hour, source.randint(210, 800)) for hour in range(-24 * PAST_DAYS, 0, 3)]
        changes, rows = past + GRID, []
        for (hour, value), (until, _) in zip(changes, changes[1:]):
            halves = range(int((until - hour) * 2))
            rows += [f"{utc(self.begin + 3600 * (hour + half / 2))},{value},{value}" for half in halves]
        (self.folder / "grid.csv").write_text("timestamp,forecast,actual\n" + "\n".join(rows) + "\n")
        (self.folder / "wattune.toml").write_text(f"""\
state_dir = "{self.state}"
[gpus]
backend = "simulated"
[gpus.simulated]
boards = 1
clock_speed = {self.speed}
clock_start = "{utc(self.begin)}"
[control]
tick_s = 0.2
[profile]
step_w = 100.0
[http]
listen = "off"
socket = "{self.socket}"
[carbon]
source = "file"
[carbon.file]
path = "{self.folder}/grid.csv"
kind = "average"
scope = "lifecycle"
origin = "synthetic"
""")

    def ask(self, path):
        """Returns the answer to a request; `None` if the daemon does not answer."""
        connection = OverSocket(self.socket)
        try:
            connection.request("GET", path)
            return json.load(connection.getresponse())
        except OSError:
            return None
        finally:
            connection.close()

    def report(self, *arguments):
        command = [self.wattune, "report", *arguments, "--state-dir", self.state]
        return subprocess.run(command, capture_output=True, text=True, env=environment())

    def end(self):
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
