#!/usr/bin/env python3
"""wattune beside zeusd on the same fake NVML library: requests per second, their 99th percentile, and streams.

    cargo install zeusd --version 0.5.0 --root /tmp/zeusd
    cargo build --release --bin wattune && cargo build --release --example fake_nvml
    benches/zeusd.py WATTUNE LIBRARY /tmp/zeusd/bin/zeusd [SECONDS [ROUNDS]]     # 5 5

Both run at the same time with directories of their own, and are loaded in turns, so that the noise of a shared machine
reaches both; figures are medians over the rounds. Both log warnings only. Needs `wrk`, and root, as zeusd does for control. The limits
alternate, so that each request changes one. With 16 connections more than eight writes wait, and wattune leaves out those that a later one
replaces (docs/src/explanation/zeus-protocols.md). wrk counts a pause as the requests that it would have sent meanwhile, so its 99th
percentile of one connection is the share of time in pauses rather than that of requests.
"""

import json
import os
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

SUBSCRIBERS = 50
SCRIPT = """
local count = 0
function request()
  count = count + 1
  local limit = count % 2 == 0 and 200000 or 250000
  return wrk.format("POST", "/gpu/set_power_limit?gpu_ids=0&block=true&power_limit_mw=" .. limit)
end
"""
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


class Server:
    """One of the two daemons, over a fake driver of its own."""

    def __init__(self, name, folder, library, command):
        self.name = name
        driver = folder / name
        driver.mkdir()
        # Power that varies: streams send only changes.
        gpu = {"initial_limit_w": 280, "demand_w": 250, "noise": 0.02, "update_ms": 0}
        (driver / "boards.json").write_text(json.dumps({"boards": [gpu, gpu]}))
        libraries = driver / "lib"
        libraries.mkdir()
        (libraries / "libnvidia-ml.so.1").symlink_to(library)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        environment = {**os.environ, "FAKE_NVML_DIR": str(driver), "LD_LIBRARY_PATH": str(libraries), "RUST_LOG": "warn"}
        self.log = (folder / f"{name}.log").open("w")
        command = [str(part).format(address=f"127.0.0.1:{self.port}", driver=driver) for part in command]
        self.process = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                time.sleep(0.05)
        sys.exit(f"{name} does not listen: {(folder / f'{name}.log').read_text()}")

    def load(self, connections, seconds, path, script=None):
        """Requests per second, and the 99th percentile of their latencies in milliseconds."""
        command = ["wrk", "--latency", "--threads", "1", "--connections", str(connections), "--duration", f"{seconds}s"]
        command += ["--script", script] if script else []
        answer = subprocess.run([*command, f"http://127.0.0.1:{self.port}{path}"], capture_output=True, text=True, check=True)
        if "Non-2xx" in answer.stdout:
            sys.exit(f"{self.name} refused: {answer.stdout}")
        rate = float(re.search(r"Requests/sec:\s+([\d.]+)", answer.stdout)[1])
        p99, unit = re.search(r"99%\s+([\d.]+)(us|ms|s)", answer.stdout).groups()
        return rate, float(p99) * UNITS[unit]

    def cpu_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def used(self, seconds):
        """CPU time over so many seconds, in percent of a core."""
        before, begun = self.cpu_s(), time.monotonic()
        time.sleep(seconds)
        return 100 * (self.cpu_s() - before) / (time.monotonic() - begun)

    def streams(self, seconds):
        """CPU time, in percent of a core: idle, and more than idle while subscribers receive the power of all GPUs. And
        events per second of one of them."""
        ends, counts = threading.Event(), []

        def listen():
            with socket.create_connection(("127.0.0.1", self.port)) as stream:
                stream.sendall(b"GET /gpu/stream_power HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n")
                stream.settimeout(0.2)
                count = 0
                while not ends.is_set():
                    try:
                        count += stream.recv(1 << 16).count(b"data:")
                    except TimeoutError:
                        pass
                counts.append(count)

        idle = self.used(seconds)
        listeners = [threading.Thread(target=listen) for _ in range(SUBSCRIBERS)]
        for listener in listeners:
            listener.start()
        time.sleep(1)
        used = self.used(seconds)
        ends.set()
        for listener in listeners:
            listener.join()
        if min(counts) == 0:
            sys.exit(f"{self.name}: a subscriber received nothing")
        return idle, used - idle, statistics.median(counts) / (seconds + 1)


def main(wattune, library, zeusd, seconds=5, rounds=5):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        script = folder / "alternate.lua"
        script.write_text(SCRIPT)
        config = folder / "wattune.toml"
        config.write_text('[log]\nlevel = "warn"\n[http]\nloopback_control = true\n[discovery]\nenabled = false\n')
        servers = [
            Server("wattune", folder, library, [wattune, "serve", "--config", config, "--gpus", "nvml", "--nvml-library",
                   library, "--state-dir", "{driver}/state-dir", "--listen", "{address}"]),
            Server("zeusd", folder, library, [zeusd, "serve", "--mode", "tcp", "--tcp-bind-address", "{address}",
                   "--enable", "gpu-control,gpu-read"]),
        ]
        try:
            time.sleep(2)
            loads = [(what, path, lua, connections) for what, path, lua in
                     (("get_power", "/gpu/get_power", None), ("set_power_limit", "/", script)) for connections in (1, 16)]
            print(f"{'':28}{'wattune':>22}{'zeusd':>22}{'ratio':>8}{'p99':>7}")
            for what, path, lua, connections in loads:
                found = {server.name: [] for server in servers}
                for _ in range(rounds):
                    for server in servers:
                        found[server.name].append(server.load(connections, seconds, path, lua))
                (ours, our_p99), (theirs, their_p99) = (
                    [statistics.median(column) for column in zip(*found[name])] for name in ("wattune", "zeusd"))
                print(f"{what + f', {connections} connections':28}{ours:10.0f}/s {our_p99:7.2f} ms{theirs:10.0f}/s {their_p99:7.2f} ms"
                      f"{ours / theirs:8.2f}{our_p99 / their_p99:7.2f}", flush=True)
            found = {server.name: [] for server in servers}
            for _ in range(rounds):
                for server in servers:
                    found[server.name].append(server.streams(seconds))
            for name, rows in found.items():
                idle, more, events = (statistics.median(column) for column in zip(*rows))
                print(f"{SUBSCRIBERS} streams: {name} {more:.1f} % of a core above {idle:.1f} % idle, {events:.1f} events/s each")
        finally:
            for server in servers:
                server.process.terminate()
                server.process.wait()
                server.log.close()


main(*(pathlib.Path(argument).resolve() for argument in sys.argv[1:4]), *map(int, sys.argv[4:6]))
