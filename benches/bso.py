#!/usr/bin/env python3
"""Cycles per second of a recurring job of Zeus's clients: next batch size, and three reports, each one durable.

    cargo build --release --bin wattune
    benches/bso.py [SECONDS [ROUNDS]]     # 10 3

Measures the daemon and Zeus's own server in turns, with one client on one connection, and prints the ratio of the
medians. Zeus's server is installed into an environment below the target folder; it has its database in SQLite, on the
same disk. Without a network it is left out.
"""

import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
SECONDS, ROUNDS = (int(a) for a in (sys.argv[1:] + ["10", "3"][len(sys.argv) - 1:]))
SERVER = ["zeus[bso-server]==0.16.0", "pydantic<2", "fastapi==0.125.*", "aiosqlite", "greenlet", "uvicorn", "httptools", "uvloop"]
TABLES = """
import asyncio, os
from sqlalchemy.ext.asyncio import create_async_engine
from zeus.optimizer.batch_size.server.database.schema import Base

async def create():
    engine = create_async_engine(os.environ["ZEUS_BSO_DATABASE_URL"])
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)

asyncio.run(create())
"""


class Client:
    """Requests on one connection, by hand: an HTTP library would take longer than the daemon."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, method, path, body=None):
        text = b"" if body is None else json.dumps(body).encode()
        length = "" if body is None else f"content-length: {len(text)}\r\n"
        self.socket.sendall(f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{length}\r\n".encode() + text)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.socket.recv(1 << 16)
        head, _, rest = answer.partition(b"\r\n\r\n")
        lines = head.decode().lower().split("\r\n")
        missing = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:")) - len(rest)
        while missing > 0:
            got = self.socket.recv(1 << 16)
            rest, missing = rest + got, missing - len(got)
        if not lines[0].split()[1].startswith("2"):
            sys.exit(f"{method} {path}: {lines[0]} {rest.decode()}")
        return json.loads(rest)


def cycles(port, job):
    """Cycles per second over `SECONDS`, of a job with six batch sizes."""
    client = Client(port)
    sizes = [8 << i for i in range(6)]
    client.ask("POST", "/jobs", {"job_id": job, "job_id_prefix": job, "max_power": 1200, "number_of_gpus": 4, "gpu_model": "A100",
                                 "batch_sizes": sizes, "default_batch_size": 64, "mab_seed": 1})
    begun, done = time.perf_counter(), 0
    while time.perf_counter() < begun + SECONDS:
        trial = client.ask("GET", f"/jobs/batch_size?job_id={job}")
        each = 1000 + abs(trial["batch_size"] - 64) + done * 7 % 11
        for epoch in (1, 2, 3):
            report = {"time": 10 * epoch, "energy": each * epoch, "metric": 0.2 * epoch, "current_epoch": epoch}
            answer = client.ask("POST", "/report", trial | report)
        if not answer["converged"]:
            sys.exit(f"unexpected: {answer}")
        done += 1
    return done / (time.perf_counter() - begun)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(command, port, environment=None):
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | (environment or {}))
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return process
        except OSError:
            time.sleep(0.1)
    sys.exit(f"{command[0]} does not listen")


def reference(folder):
    """Starts Zeus's server; returns the process and its port. `None` if it cannot be installed."""
    home = TARGET / "zeus-server"
    if not (home / "installed").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        if subprocess.run([home / "bin/python", "-m", "pip", "install", "--quiet", *SERVER]).returncode != 0:
            return None
        (home / "installed").touch()
    environment = {"ZEUS_BSO_DATABASE_URL": f"sqlite+aiosqlite:///{folder}/zeus.db", "ZEUS_BSO_LOG_LEVEL": "ERROR"}
    subprocess.run([home / "bin/python", "-c", TABLES], check=True, env=os.environ | environment)
    port = free_port()
    command = [home / "bin/uvicorn", "zeus.optimizer.batch_size.server.router:app", "--port", str(port), "--log-level", "error"]
    return start(command, port, environment), port


def main():
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        serve = [TARGET / "release/wattune", "serve", "--gpus", "simulated", "--state-dir", folder, "--listen", f"127.0.0.1:{port}"]
        servers = {"wattune": (start(serve, port), port)}
        zeus = reference(folder)
        if zeus:
            servers["zeus"] = zeus
        else:
            print("Zeus's server cannot be installed here")
        try:
            rates = {name: [] for name in servers}
            for i in range(ROUNDS):
                for name, (_, port) in servers.items():
                    rates[name].append(cycles(port, f"bench-{i}"))
                    print(f"{name}: {rates[name][-1]:.1f} cycles/s", flush=True)
            medians = {name: statistics.median(found) for name, found in rates.items()}
            print(f"wattune: {medians['wattune']:.1f} cycles/s (median)")
            if zeus:
                print(f"zeus: {medians['zeus']:.1f} cycles/s (median); ratio {medians['wattune'] / medians['zeus']:.1f}")
        finally:
            for process, _ in servers.values():
                process.terminate()
                process.wait()


if __name__ == "__main__":
    main()
