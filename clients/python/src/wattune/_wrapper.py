"""The side of `wattune run`, which may have started this process: what it expects of a script that uses the client."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Wrapper:
    """What `wattune run` has put into the environment.

    Attributes:
        progress_socket: The datagram socket at which it takes progress; None if it takes none.
        first_job_id: The job that it had registered when the command began; None if no daemon answered then. In a Slurm
            job it may also be the job of Slurm's Prolog.
        slurm_job: The Slurm job of this process; None outside of Slurm.
        is_of_another_job: True if `wattune run` ran in another Slurm job, whose command has submitted this one.
    """

    progress_socket: str | None = None
    first_job_id: str | None = None
    slurm_job: str | None = None
    is_of_another_job: bool = False

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Wrapper:
        """Returns what the environment says."""
        socket, job = environ.get("WATTUNE_PROGRESS_SOCKET") or None, environ.get("WATTUNE_JOB_ID") or None
        is_of_another_job = _is_of_another_job(environ)
        return cls(None if is_of_another_job else socket, job, environ.get("SLURM_JOB_ID") or None, is_of_another_job)

    @property
    def job_id(self) -> str | None:
        """The job that it has registered last: a daemon that starts late or loses jobs makes it register again."""
        if self.progress_socket is None:
            return self.first_job_id
        try:
            return (Path(self.progress_socket).parent / "job").read_text().strip() or self.first_job_id
        except OSError:
            return self.first_job_id

    def may_replace(self, job: Mapping[str, Any]) -> bool:
        """Returns whether this process's job replaces this job of the daemon, which the environment names.

        `sbatch` passes the variables on: a job of another Slurm job goes on.
        """
        if self.slurm_job is None:
            return True
        of_job = (job.get("tags") or {}).get("slurm_job_id")
        return not self.is_of_another_job if of_job is None else bool(of_job == self.slurm_job)

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


def _is_of_another_job(environ: Mapping[str, str]) -> bool:
    """Returns whether the variables of `wattune run` come from a run to which this Slurm job does not belong.

    `sbatch` passes the environment on to a job for which the command does not wait; `srun` starts a part of the
    command, also where `wattune run` itself runs outside of Slurm. `wattune run` and its hook for Python follow the
    same rule.
    """
    own, of_run = environ.get("SLURM_JOB_ID"), environ.get("WATTUNE_RUN_SLURM_JOB")
    if not own or of_run is None or own == of_run:
        return False
    return of_run != "" or environ.get("ENVIRONMENT") == "BATCH"
