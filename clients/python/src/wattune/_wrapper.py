"""The side of `wattune run`, which may have started this process: what it expects of a script that uses the client."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Wrapper:
    """What `wattune run` has put into the environment.

    Attributes:
        progress_socket: The datagram socket at which it takes progress; None if it takes none.
        first_job_id: The job that it had registered when the command began; None if no daemon answered then.
    """

    progress_socket: str | None = None
    first_job_id: str | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Wrapper:
        """Returns what the environment says."""
        return cls(environ.get("WATTUNE_PROGRESS_SOCKET") or None, environ.get("WATTUNE_JOB_ID") or None)

    @property
    def job_id(self) -> str | None:
        """The job that it has registered last: a daemon that starts late or loses jobs makes it register again."""
        if self.progress_socket is None:
            return self.first_job_id
        try:
            return (Path(self.progress_socket).parent / "job").read_text().strip() or self.first_job_id
        except OSError:
            return self.first_job_id

    def announce(self, job_id: str) -> None:
        """Tells the wrapper that this process reports to the daemon by itself, for this job.

        Never waits. If the wrapper is gone or its socket is full, nothing is sent.
        """
        if self.progress_socket is None:
            return
        message = {"source": "python_client", "at_s": time.monotonic(), "pid": os.getpid(), "job_id": job_id}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto(json.dumps(message).encode(), self.progress_socket)
        except OSError:
            return
