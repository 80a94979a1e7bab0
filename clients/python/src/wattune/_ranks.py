"""Which of several processes of one training this is, by the variables of the program that started them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ranks:
    """The place of this process among the processes of its training.

    Attributes:
        local_rank: Number of this process on its node, from 0.
        local_world: Number of processes on this node, or None if the launcher does not say it.
        world: Number of processes on all nodes.
        launcher: Name of the launcher whose variables were read; None for a process on its own.
        own_gpus: True if each process was given GPUs of its own, which may be several.
    """

    local_rank: int = 0
    local_world: int | None = 1
    world: int = 1
    launcher: str | None = None
    own_gpus: bool = False


def detect(environ: Mapping[str, str]) -> Ranks:
    """Returns this process's place by the variables of torchrun, MPI or Slurm, in this order.

    torchrun comes first because it may itself run under MPI or Slurm, one per node. Slurm's variables count only within
    a job step: in a batch script one process runs, however many tasks the script asked for. `wattune run` follows the
    same rules (src/cli/run/ranks.rs).
    """
    local = _number(environ, "LOCAL_RANK")
    if local is not None:
        world = _number(environ, "WORLD_SIZE")
        return Ranks(local, _number(environ, "LOCAL_WORLD_SIZE"), world or 1, "torchrun")
    for launcher, prefix in (("Open MPI", "OMPI_COMM_WORLD_"), ("MVAPICH", "MV2_COMM_WORLD_")):
        local = _number(environ, f"{prefix}LOCAL_RANK")
        if local is not None:
            size = _number(environ, f"{prefix}SIZE")
            return Ranks(local, _number(environ, f"{prefix}LOCAL_SIZE"), size or 1, launcher)
    local = _number(environ, "MPI_LOCALRANKID")
    if local is not None:
        size = _number(environ, "PMI_SIZE")
        return Ranks(local, _number(environ, "MPI_LOCALNRANKS"), size or 1, "MPI")
    local, tasks = _number(environ, "SLURM_LOCALID"), _number(environ, "SLURM_STEP_NUM_TASKS")
    if local is not None and tasks is not None:
        own_gpus = environ.get("SLURM_GPUS_PER_TASK", "").strip() not in ("", "0")
        return Ranks(local, _slurm_tasks_here(environ, tasks), tasks, "Slurm", own_gpus)
    return Ranks()


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "").strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _slurm_tasks_here(environ: Mapping[str, str], tasks: int) -> int | None:
    """Returns the tasks on this node from a list such as `2(x3),1`, which means 2, 2, 2 and 1."""
    node, counts = _number(environ, "SLURM_NODEID"), environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    if not counts:
        return tasks if _number(environ, "SLURM_STEP_NUM_NODES") == 1 else None
    first = 0
    for part in counts.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None or node is None:
            return None
        first += int(match[2] or 1)
        if node < first:
            return int(match[1])
    return None
