"""A daemon for tests: answers on a Unix socket or TCP, and can be slow, frozen, broken, or gone."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler
from typing import Any


class FakeDaemon:
    """What the daemon would know, and how it misbehaves.

    Attributes:
        requests: All requests in order, as (method, path, body).
        slow_s: Delay of each answer.
        frozen: While set, nothing is answered.
        fail_with: Status of all answers; None for right ones.
    """

    def __init__(self, gpus: int = 2, models: list[str] | None = None) -> None:
        self.requests: list[tuple[str, str, Any]] = []
        self.jobs: dict[str, dict[str, Any]] = {}
        self.trials: list[dict[str, Any]] = []
        self.recurring: dict[str, dict[str, Any]] = {}
        self.verdict: dict[str, Any] = {"stop": False, "reached": False, "reason": "goes on"}
        self.models = models or ["NVIDIA A40"] * gpus
        self.phase = "planned"
        self.slow_s = 0.0
        self.frozen = threading.Event()
        self.fail_with: int | None = None
        self.refuse: dict[tuple[str, str], tuple[int, dict[str, Any]]] = {}
        self.pid_namespace = 1
        self.energy_j = [1000.0] * len(self.models)
        self.power_w = 100.0
        self.intensity: float | None = 300.0
        self.planned_with: float | None = 310.0
        self.lose_next_answer = False
        self.when: Any = {}
        self._server: socketserver.BaseServer | None = None
        self._connections: list[Any] = []

    # Serving.

    def serve_unix(self, path: str) -> FakeDaemon:
        self._start(type("Unix", (_Threading, socketserver.UnixStreamServer), {})(path, _handler(self)))
        return self

    def serve_tcp(self) -> str:
        server = type("Tcp", (_Threading, socketserver.TCPServer), {"allow_reuse_address": True})(
            ("127.0.0.1", 0), _handler(self)
        )
        self._start(server)
        return f"127.0.0.1:{server.server_address[1]}"

    def _start(self, server: socketserver.BaseServer) -> None:
        self._server = server
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Stops like a killed daemon: the socket's file stays, and connections break."""
        self.frozen.clear()
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(2)
        self._connections.clear()

    # For tests.

    def wait_for(self, method: str, path: str, count: int = 1, timeout_s: float = 5.0) -> list[Any]:
        """Waits for so many requests whose path ends so; returns their bodies."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.bodies(method, path)
            if len(found) >= count:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"{len(found)} of {count} {method} …{path}; came: {[r[:2] for r in self.requests]}"
                )
            time.sleep(0.005)

    def bodies(self, method: str, path: str) -> list[Any]:
        return [body for m, p, body in list(self.requests) if m == method and p.endswith(path)]

    # The routes.

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        for (refused, ending), result in self.refuse.items():
            if refused == method and path.endswith(ending):
                return result
        parts = path.strip("/").split("/")[1:]
        if parts == ["status"]:
            carbon = {"intensity_g_per_kwh": self.intensity, "planned_with_g_per_kwh": self.planned_with, "zone": "DE"}
            return 200, {
                "gpus": self.gpus(),
                "jobs": [],
                "cpu": self.cpu(),
                "carbon": carbon,
                "started_at": "x",
                "pid_namespace": self.pid_namespace,
            }
        if parts == ["gpus"]:
            return 200, self.gpus()
        if parts == ["when"]:
            return 200, self.when
        if parts[0] == "recurring":
            return self.answer_recurring(method, parts[1:], body)
        if parts == ["jobs"]:
            return (
                self.register(body) if method == "POST" else (200, [j for j in self.jobs.values() if not j["ended_at"]])
            )
        job = self.jobs.get(parts[1])
        if job is None:
            return 404, {"detail": "there is no such job"}
        if parts[2:] == ["emissions"]:
            return 200, self.account(job)
        if method == "GET":
            return 200, job
        if job["ended_at"]:
            return 409, {"detail": "the job has ended"}
        if method == "DELETE":
            job["ended_at"] = "2026-01-01T00:00:00Z"
            return 200, self.account(job)
        if parts[2:] == ["lease"]:
            return 200, self.progress_view()
        if parts[2:] == ["progress"]:
            unknown = set(body) - {"samples", "at_s", "source", "total_samples"}
            if unknown:
                return 422, {"detail": f"unknown field `{unknown.pop()}`"}
            if job["samples"] is not None and body["samples"] < job["samples"]:
                return 422, {"detail": "is less than reported before", "field": "samples"}
            job["samples"] = body["samples"]
            return 200, self.progress_view()
        return 405, {"detail": "not allowed"}

    def answer_recurring(self, method: str, parts: list[str], body: Any) -> tuple[int, Any]:
        name = parts[0]
        if len(parts) == 1 and method == "PUT":
            if "number_of_gpus" in body and "gpu_model" not in body:
                return 422, {"detail": "requires gpu_model; give both or none", "field": "number_of_gpus"}
            known = self.recurring.setdefault(name, body)
            if known != body:
                return 409, {"detail": f"recurring job {name} has another specification"}
            return 201, {"spec": known}
        if name not in self.recurring:
            return 404, {"detail": "no such recurring job"}
        if len(parts) == 1:
            return 200, {"spec": self.recurring[name]}
        if len(parts) == 2:
            trial = {
                "number": len(self.trials) + 1,
                "batch_size": self.recurring[name]["batch_sizes"][-1],
                "max_epochs": 9,
            }
            self.trials.append(trial)
            return 201, trial
        if parts[3] == "end":
            return 200, {**self.trials[-1], "state": "withdrawn"}
        return 200, {"number": int(parts[2]), "max_epochs": 7, "lease_s": 60.0, "warnings": [], **self.verdict}

    def register(self, body: dict[str, Any]) -> tuple[int, Any]:
        replaced = None
        if "replaces" in body:
            replaced = self.jobs.get(body["replaces"])
            if replaced is None:
                return 404, {"detail": "there is no such job"}
            if replaced["ended_at"]:
                return 409, {"detail": "the job has ended"}
        busy = [j for j in self.jobs.values() if not j["ended_at"] and set(j["gpus"]) & set(self.uuids(body["gpus"]))]
        busy = [j for j in busy if j is not replaced]
        if busy and body.get("control", True):
            return 409, {"detail": f"GPU 0 is controlled by job {busy[0]['job_id']}"}
        if replaced is not None:
            replaced["ended_at"] = "2026-01-01T00:00:00Z"
        job = {
            "lease_s": 60.0,
            **body,
            "job_id": str(uuid.uuid4()),
            "gpus": self.uuids(body["gpus"]),
            "samples": None,
            "ended_at": None,
            "registered_at": time.strftime("%Y-%m-%dT%H:%M:%S.000000001Z", time.gmtime()),
            **self.progress_view("waiting"),
        }
        self.jobs[job["job_id"]] = job
        return 201, job

    def uuids(self, gpus: list[Any]) -> list[str]:
        return [f"GPU-{gpu}" if isinstance(gpu, int) else gpu for gpu in gpus]

    def gpus(self) -> list[dict[str, Any]]:
        return [
            {
                "uuid": f"GPU-{i}",
                "index": i,
                "model": model,
                "simulated": False,
                "energy_j": self.energy_j[i],
                "energy_age_s": 0.0,
                "power_w": self.power_w,
                "power_limit_max_w": 300.0,
            }
            for i, model in enumerate(self.models)
        ]

    def cpu(self) -> dict[str, Any]:
        return {"zones": [{"kind": "package", "zone": "package-0", "energy_j": 10.0, "power_w": 5.0}]}

    def progress_view(self, phase: str | None = None) -> dict[str, Any]:
        phase = phase or self.phase
        resume = "2100-01-01T00:00:00Z" if phase == "paused" else None
        return {
            "phase": phase,
            "reason": "so",
            "power_limit_w": 225.0,
            "slowdown": 0.01,
            "resume_at": resume,
            "warnings": [],
        }

    def account(self, job: dict[str, Any]) -> dict[str, Any]:
        ci = {"mean": 10.0, "low": 9.0, "high": 11.0}
        figures = {
            "carbon_reduction_g": ci,
            "carbon_reduction_pct": ci,
            "time_increase_pct": {"mean": 2.0, "low": 1.0, "high": 3.0},
            "carbon_at_reference_g": 100.0,
            "time_at_reference_s": 1000.0,
        }
        return {
            "job_id": job["job_id"],
            "energy_j": 3600.0,
            "energy_by_device_j": {"gpu": 3600.0},
            "energy_estimated_j": 0.0,
            "carbon_g": 90.0,
            "time_s": 1020.0,
            "samples": job["samples"],
            "ended_at": job["ended_at"],
            "warnings": [],
            "simulated": False,
            "savings": {"against_original": figures, "against_max": {"unknown": "why"}},
        }


class _Threading(socketserver.ThreadingMixIn):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing: tests break connections."""


def _handler(daemon: FakeDaemon) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            daemon._connections.append(self.connection)

        def answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            while daemon.frozen.is_set():
                time.sleep(0.01)
            daemon.requests.append((self.command, self.path, body))
            time.sleep(daemon.slow_s)
            if daemon.fail_with is not None:
                status, result = daemon.fail_with, {"detail": "it is broken"}
            else:
                status, result = daemon.answer(self.command, self.path.partition("?")[0], body)
            if daemon.lose_next_answer and self.command == "POST":
                daemon.lose_next_answer = False
                self.connection.shutdown(2)
                return
            data = json.dumps(result).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = answer

        def address_string(self) -> str:
            return "test"

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
