#!/usr/bin/env python3
"""How long requests take while a crowd holds connections (idle ones, slow heads, slow bodies) and sends heads and bodies of
10 MB and requests for another host.

    cargo build --release && sudo benches/crowd.py target/release/wattune

Starts a daemon on simulated GPUs and a job that reports twice a second with a lease of 5 s. For each scene (on TCP, on the
Unix socket, by another user and by the same; as root also both at once) a crowd opens its connections, again at once when
one is closed, while a client asks on both addresses, each time on a new connection. Beside it, another client keeps one
connection and asks every 3 s, and one follows the events. Prints milliseconds; exits with 1 if a request fails, the 99th
percentile is above --most, the job loses its lease, the events end, or a request for another host sets a limit. Needs root for the crowd of another user.
"""

import argparse
import http.client
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

NOBODY = 65534


def connect(address):
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    stream = socket.socket(family, socket.SOCK_STREAM)
    stream.settimeout(30)
    stream.connect(address)
    return stream


def ask(address, method, path, body=None):
    """Status of an answer on a new connection."""
    text = json.dumps(body) if body is not None else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    if body is not None:
        head += f"content-type: application/json\r\ncontent-length: {len(text)}\r\n"
    with connect(address) as stream:
        stream.sendall((head + "\r\n" + text).encode())
        answer = b""
        while chunk := stream.recv(65536):
            answer += chunk
    if not answer:
        raise ConnectionError("closed without an answer")
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), rest


OPENINGS = {
    "idle": b"",
    "head": b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\nx-slow: ",
    "body": b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 60000\r\n\r\n{",
}

LIMIT = b'{"power_limit_w":150,"ttl_s":600}'
PUT = b"PUT /v1/gpus/1/power-limit HTTP/1.1\r\ncontent-type: application/json\r\n"
# Refused at once; sent again and again.
REFUSED = {
    "large head": b"GET /v1/status HTTP/1.1\r\nhost: localhost\r\nx-large: " + b"x" * 10_000_000,
    "large body": PUT + b"host: localhost\r\ncontent-length: 10000000\r\n\r\n" + b" " * 10_000_000,
    "foreign host": PUT + b"host: evil.example\r\ncontent-length: %d\r\n\r\n" % len(LIMIT) + LIMIT,
    "foreign origin": PUT + b"host: localhost\r\norigin: http://evil.example\r\ncontent-length: %d\r\n\r\n" % len(LIMIT) + LIMIT,
}


def be_refused(address, kind):
    with connect(address) as stream:
        try:
            stream.sendall(REFUSED[kind])
            stream.recv(4096)
        except OSError:
            pass


def crowd(address, kinds, again):
    """Holds connections, and drips a byte into the slow ones each second, until it is killed."""
    poll, held = select.epoll(), {}

    def begin(kind):
        if kind in REFUSED:
            be_refused(address, kind)
            return False
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        stream = socket.socket(family, socket.SOCK_STREAM)
        stream.settimeout(5)
        try:
            stream.connect(address)
            stream.sendall(OPENINGS[kind])
        except OSError:
            stream.close()
            return False
        stream.setblocking(False)
        held[stream.fileno()] = (stream, kind)
        poll.register(stream.fileno(), select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR)
        return True

    missing = [kind for kind, count in kinds.items() for _ in range(count)]
    drip = time.monotonic()
    while True:
        for _ in range(min(len(missing), 64)):
            kind = missing.pop(0)
            if not begin(kind):
                missing.append(kind)
                time.sleep(0.01)
        for number, _ in poll.poll(0 if missing else 0.2):
            stream, kind = held.pop(number)
            poll.unregister(number)
            stream.close()
            missing.append(kind)
            if again > 0:
                time.sleep(again)
        if time.monotonic() - drip > 1:
            drip = time.monotonic()
            for stream, kind in held.values():
                if kind != "idle":
                    try:
                        stream.send(b"x")
                    except OSError:
                        pass


def fork_crowd(address, kinds, user, again):
    child = os.fork()
    if child:
        return child
    try:
        if user is not None:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        crowd(address, kinds, again)
    except KeyboardInterrupt:
        pass
    finally:
        os._exit(0)


class Daemon:
    def __init__(self, binary, directory, other):
        os.chmod(directory, 0o711)
        path = os.path.join(directory, "wattune.sock")
        config = os.path.join(directory, "wattune.toml")
        group = f"socket_group = \"{NOBODY}\"\n" if other else ""
        with open(config, "w", encoding="utf-8") as file:
            file.write(f"state_dir = \"{directory}/state\"\n[gpus]\nbackend = \"simulated\"\n")
            file.write(f"[http]\nlisten = \"127.0.0.1:0\"\nsocket = \"{path}\"\n{group}")
        self.log = open(os.path.join(directory, "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen([binary, "serve", "--config", config], stderr=self.log)
        self.tcp, self.unix = None, path
        for _ in range(300):
            time.sleep(0.1)
            for line in open(self.log.name, encoding="utf-8"):
                if "listening on http://" in line:
                    host, port = line.split("http://")[1].strip().split(":")
                    self.tcp = (host, int(port))
            if self.tcp and os.path.exists(path):
                return
        raise SystemExit("it does not start: " + open(self.log.name, encoding="utf-8").read())

    def memory_mib(self):
        for line in open(f"/proc/{self.process.pid}/status", encoding="utf-8"):
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
        return 0

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


class Job(threading.Thread):
    """Reports over TCP, each time on a new connection, and learns whether its lease was lost."""

    def __init__(self, daemon):
        super().__init__(daemon=True)
        self.daemon_, self.failures, self.lost, self.done = daemon, 0, False, False
        body = {"name": "trained", "gpus": [0], "lease_s": 5}
        status, answer = ask(daemon.tcp, "POST", "/v1/jobs", body)
        assert status == 201, answer
        self.id = json.loads(answer)["job_id"]

    def run(self):
        samples = 0
        while not self.done:
            samples += 100
            try:
                status, _ = ask(self.daemon_.tcp, "POST", f"/v1/jobs/{self.id}/progress", {"samples": samples})
                self.lost |= status in (404, 409)
            except OSError:
                self.failures += 1
            time.sleep(0.5)


class Kept(threading.Thread):
    """Asks every 3 s on one connection; counts how often it has to make another."""

    def __init__(self, daemon):
        super().__init__(daemon=True)
        self.address, self.cut, self.done = daemon.tcp, -1, False

    def run(self):
        connection = None
        while not self.done:
            try:
                if connection is None:
                    self.cut += 1
                    connection = http.client.HTTPConnection(*self.address, timeout=30)
                connection.request("GET", "/healthz")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection = None
                continue
            time.sleep(3)


class Events(threading.Thread):
    """Follows the events; they must not end."""

    def __init__(self, daemon):
        super().__init__(daemon=True)
        self.ended, self.done = False, False
        self.stream = connect(daemon.tcp)
        self.stream.sendall(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n\r\n")

    def run(self):
        try:
            while self.stream.recv(65536):
                pass
        except OSError:
            pass
        self.ended = not self.done


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def measure(daemon, seconds):
    took, failures = {"tcp": [], "unix": []}, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for name, address in (("tcp", daemon.tcp), ("unix", daemon.unix)):
            begin = time.monotonic()
            try:
                status, _ = ask(address, "GET", "/v1/status")
                failures += status != 200
            except OSError:
                failures += 1
            took[name].append((time.monotonic() - begin) * 1000)
            time.sleep(0.01)
    return took, failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--seconds", type=float, default=15, help="of each scene")
    parser.add_argument("--most", type=float, default=50, help="the 99th percentile in ms that is still good")
    parser.add_argument("--idle", type=int, default=2000)
    parser.add_argument("--heads", type=int, default=500)
    parser.add_argument("--bodies", type=int, default=500)
    parser.add_argument("--refused", type=int, default=2, help="senders of each kind of refused requests")
    parser.add_argument("--again", type=float, default=0, help="seconds between a connection's end and the next one")
    parser.add_argument("--only", help="scenes whose name contains this")
    arguments = parser.parse_args()
    other = os.geteuid() == 0
    try:
        import resource
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        # The daemon starts with what a login usually has; the crowd takes what it can get.
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    except ValueError:
        before = None
    kinds = {"idle": arguments.idle, "head": arguments.heads, "body": arguments.bodies}
    kinds |= {kind: arguments.refused for kind in REFUSED}
    good = True
    with tempfile.TemporaryDirectory() as directory:
        daemon = Daemon(arguments.binary, directory, other)
        if before:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        job, kept, events = Job(daemon), Kept(daemon), Events(daemon)
        for thread in (job, kept, events):
            thread.start()
        users = [("same user", None)] + ([("another user", NOBODY)] if other else [])
        scenes = [("nobody", [])]
        for who, user in users:
            scenes += [(f"tcp, {who}", [(daemon.tcp, user)]), (f"unix, {who}", [(daemon.unix, user)])]
        if other:
            scenes.append(("both, both users", [(a, u) for a in (daemon.tcp, daemon.unix) for u in (None, NOBODY)]))
        print(f"{'crowd':<20} {'address':<8} {'requests':>8} {'p50':>8} {'p99':>8} {'most':>8} {'failed':>7}")
        for scene, attacks in scenes:
            if arguments.only and arguments.only not in scene:
                continue
            children = [fork_crowd(address, kinds, user, arguments.again) for address, user in attacks]
            # Opening them all is part of it.
            took, failures = measure(daemon, arguments.seconds)
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            for name, values in took.items():
                p99 = percentile(values, 0.99)
                good &= p99 <= arguments.most
                print(f"{scene:<20} {name:<8} {len(values):>8} {percentile(values, 0.5):>8.1f} {p99:>8.1f} "
                      f"{max(values):>8.1f} {failures:>7}", flush=True)
            good &= failures == 0
            time.sleep(1)
        for thread in (job, kept, events):
            thread.done = True
        untouched = json.loads(ask(daemon.tcp, "GET", "/v1/gpus/1")[1])
        good &= untouched.get("override_by") is None
        print(f"GPU 1 has {untouched['power_limit_requested_w']} W, set by {untouched.get('override_by') or 'no override'}")
        print(f"the job's lease {'was LOST' if job.lost else 'held'}, {job.failures} reports failed; the kept connection was "
              f"cut {max(kept.cut, 0)} times; the events {'ENDED' if events.ended else 'went on'}; at most "
              f"{daemon.memory_mib():.0f} MiB of memory")
        good &= not job.lost and job.failures == 0 and not events.ended
        good &= daemon.stop() == 0
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
