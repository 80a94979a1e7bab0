"""A stand-in for the daemon that says when a command is to stop; the daemon itself decides that by a forecast of hours."""

import http.server
import json
import threading
import time


class Advisor:
    """A stand-in for the daemon that says when to stop; the daemon itself decides that by a forecast of hours."""

    def __init__(self):
        self.wanted, self.until, self.job, self.stops = "run", None, None, 0
        self.registrations, self.paths, self.most = [], [], 0
        advisor = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                gpu = {"index": 0, "uuid": "GPU-0", "model": "A", "pci_bus_id": None}
                self.reply(200, {"gpus": [gpu]} if self.path == "/v1/status" else [])

            def do_DELETE(self):
                advisor.paths.append("end")
                self.reply(200, {"name": "x"})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                advisor.paths.append(self.path.rsplit("/", 1)[1])
                advisor.most = max(advisor.most, body.get("samples", 0))
                if self.path == "/v1/jobs":
                    advisor.registrations.append(body)
                    advisor.job = {"job_id": f"job-{len(advisor.registrations)}", "lease_s": 60, "phase": "waiting", "gpus": ["GPU-0"], "control": True, "objective": {}}
                elif not advisor.job:
                    return self.reply(404, {"detail": "there is no such job"})
                elif self.path.endswith("/suspended"):
                    advisor.stops += advisor.job["phase"] != "suspended"
                    advisor.job["phase"] = "suspended"
                elif self.path.endswith("/begin"):
                    advisor.job["phase"] = "planned"
                until = advisor.until and time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(advisor.until))
                said = {"wanted": advisor.wanted, "until": until, "suspend": {"stops": advisor.stops}}
                return self.reply(201 if self.path == "/v1/jobs" else 200, advisor.job | said)

            def reply(self, status, body):
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def want(self, wanted, seconds):
        self.until = seconds and time.time() + seconds
        self.wanted = wanted

    def lapse(self):
        self.job = None

    def count(self, path):
        return self.paths.count(path)

    def end(self):
        self.server.shutdown()
