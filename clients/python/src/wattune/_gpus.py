"""Which of the node's GPUs a process uses, as UUIDs, by CUDA's variables and what the driver shows of the devices.

CUDA numbers the GPUs that a process sees anew, by default the fastest first; a container sees fewer than the node has.
UUIDs are the same everywhere. An index is translated only where its meaning is certain; otherwise `Unresolved` says
what would make it certain.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc/driver/nvidia/gpus")
_SURE = "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by UUID in gpus=[…] or CUDA_VISIBLE_DEVICES"


class Unresolved(Exception):
    """It is uncertain which GPUs the process uses; the text says why and what to do."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that the daemon knows; `index` is its place in the order of PCI bus ids, as NVML counts."""

    uuid: str
    index: int
    model: str
    pci_bus_id: str = ""
    simulated: bool = False


@dataclass(frozen=True)
class Visible:
    """A GPU that this process can see, as the driver tells it in /proc."""

    uuid: str
    pci_bus_id: str


@dataclass(frozen=True)
class Selection:
    """The GPUs of a job.

    Attributes:
        gpus: Their UUIDs, or what the user gave.
        shared: True if only a part (a MIG slice) of a GPU is used: then its limit is not the job's to set.
        ordered: True if they are in CUDA's order, so that the first ones are those of the first local ranks.
        origin: Where the selection came from, for people.
    """

    gpus: tuple[int | str, ...]
    shared: bool = False
    ordered: bool = True
    origin: str = ""


def from_daemon(listing: Any) -> list[Gpu]:
    """Returns the GPUs in the answer of `GET /v1/gpus`, by index."""
    gpus = [
        Gpu(
            uuid=str(entry["uuid"]),
            index=int(entry["index"]),
            model=str(entry.get("model", "")),
            pci_bus_id=str(entry.get("pci_bus_id", "")),
            simulated=bool(entry.get("simulated", False)),
        )
        for entry in listing
    ]
    return sorted(gpus, key=lambda gpu: gpu.index)


def visible_to_process(root: Path = _PROC, dev: Path = Path("/dev")) -> list[Visible] | None:
    """Returns the GPUs whose files the driver and the container runtime show to this process, by PCI bus id.

    Container runtimes show either the chosen GPUs' folders in /proc alone, or all folders but only the chosen GPUs'
    device files: a GPU counts if it has both. Empty if there is no NVIDIA driver; None if there are GPUs and this
    process has none of their device files, so that it can use none.
    """
    found = []
    try:
        folders = sorted(root.iterdir())
    except OSError:
        return []
    if folders and not any(re.fullmatch(r"nvidia\d+", name) for name in _names(dev)):
        return None
    for folder in folders:
        try:
            text = (folder / "information").read_text()
        except OSError:
            continue
        uuid = re.search(r"^GPU UUID:\s*(GPU-\S+)", text, re.MULTILINE)
        minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
        if uuid and (minor is None or (dev / f"nvidia{minor[1]}").exists()):
            found.append(Visible(uuid[1], folder.name))
    return found


def resolve(
    environ: Mapping[str, str],
    daemon: Sequence[Gpu],
    visible: Sequence[Visible] | None = (),
    framework: Sequence[str] | None = None,
    processes: int | None = 1,
) -> Selection:
    """Returns the GPUs that the process uses.

    Args:
        environ: The process's environment.
        daemon: All GPUs of the daemon, by index.
        visible: GPUs that the driver shows to this process, by PCI bus id; None if it shows that there are none.
        framework: UUIDs of CUDA's devices in CUDA's order, as an initialised framework tells them: the truth.
        processes: Number of the training's processes on this node; each is taken to use the GPU of its local rank.

    Raises:
        Unresolved: If the GPUs are uncertain, or the process uses none.
    """
    if not daemon:
        raise Unresolved("the daemon has no GPUs")
    known = {gpu.uuid for gpu in daemon}
    if framework and all(uuid in known for uuid in framework):
        return _of_ranks(Selection(tuple(framework), origin="the framework's devices"), environ, daemon, processes)
    candidates, origin = _candidates(environ, daemon, visible)
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        ordered = _in_cuda_order(environ, candidates)
        selection = Selection(tuple(gpu.uuid for gpu in candidates), ordered=ordered, origin=origin)
    else:
        selection = _chosen(wanted, environ, candidates, daemon)
    return _of_ranks(selection, environ, daemon, processes)


def pick(selection: Selection, devices: Sequence[int]) -> Selection:
    """Returns the GPUs of these devices, as CUDA counts those of the selection.

    Raises:
        Unresolved: If there is no such device, or its place is uncertain.
    """
    count = len(selection.gpus)
    if any(device >= count for device in devices):
        raise Unresolved(f"there is no cuda:{max(devices)}: this process sees {count} GPUs ({selection.origin})")
    if not selection.ordered and len(set(devices)) < count:
        raise Unresolved(
            f"cuda:{devices[0]} is ambiguous: GPUs are of several models, and CUDA counts the fastest first; {_SURE}"
        )
    origin = f"{selection.origin}, cuda:{','.join(map(str, devices))}"
    return Selection(tuple(selection.gpus[device] for device in devices), shared=selection.shared, origin=origin)


def _candidates(
    environ: Mapping[str, str], daemon: Sequence[Gpu], visible: Sequence[Visible] | None
) -> tuple[list[Gpu], str]:
    """Returns the GPUs among which CUDA counts, in the order of PCI bus ids, and how they were found."""
    by_uuid = {gpu.uuid: gpu for gpu in daemon}
    shown = environ.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    simulated = all(gpu.simulated for gpu in daemon)
    if not simulated and (visible is None or (not visible and shown in ("void", "none"))):
        raise Unresolved("this process sees no GPU; name the job's GPUs in gpus=[…]")
    if visible and not simulated:
        seen = [by_uuid[gpu.uuid] for gpu in visible if gpu.uuid in by_uuid]
        if not seen:
            raise Unresolved(
                f"this process sees the GPU {visible[0].uuid}, which the daemon does not know; is it the daemon of "
                "another node?"
            )
        return seen, "the GPUs that this process sees"
    if shown in ("", "all", "void", "none"):
        return list(daemon), "all GPUs of the daemon"
    chosen = [gpu for gpu in daemon if any(_names_gpu(word, gpu) for word in shown.split(","))]
    if not chosen:
        return list(daemon), "all GPUs of the daemon"
    return chosen, f"NVIDIA_VISIBLE_DEVICES={shown}"


def _names_gpu(word: str, gpu: Gpu) -> bool:
    word = word.strip()
    return word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))


def _chosen(wanted: str, environ: Mapping[str, str], candidates: Sequence[Gpu], daemon: Sequence[Gpu]) -> Selection:
    """Returns what CUDA_VISIBLE_DEVICES chooses. As CUDA does, ends at the first word that names no device."""
    origin = f"CUDA_VISIBLE_DEVICES={wanted}"
    words = [word.strip() for word in wanted.split(",")]
    if words[0].startswith("MIG-"):
        return Selection((_mig_parent(words[0], candidates),), shared=True, origin=origin)
    uuids: list[str] = []
    indices: list[int] = []
    ordered = True
    for word in words:
        if word.startswith("GPU-"):
            matching = [gpu.uuid for gpu in candidates if gpu.uuid.lower().startswith(word.lower())]
            if len(matching) > 1:
                raise Unresolved(
                    f"{word} in CUDA_VISIBLE_DEVICES is the beginning of several GPUs' UUIDs; give more of it"
                )
            if not matching:
                break
            uuids.append(matching[0])
        elif word.isascii() and word.isdigit():
            indices.append(int(word))
        else:
            break
    if uuids and indices:
        raise Unresolved(f"{origin} mixes UUIDs and indices; use one of them")
    if indices:
        uuids = _by_index(indices, environ, candidates, daemon)
        ordered = _in_cuda_order(environ, candidates)
    if not uuids:
        raise Unresolved(f"{origin} leaves no GPU of the daemon to this process")
    if len(set(uuids)) < len(uuids):
        raise Unresolved(f"{origin} names a GPU twice, so CUDA uses none")
    return Selection(tuple(uuids), ordered=ordered, origin=origin)


def _in_cuda_order(environ: Mapping[str, str], candidates: Sequence[Gpu]) -> bool:
    """True if CUDA counts these GPUs by PCI bus id, as NVML does: equal ones always, others with CUDA_DEVICE_ORDER."""
    return environ.get("CUDA_DEVICE_ORDER", "") == "PCI_BUS_ID" or len({gpu.model for gpu in candidates}) <= 1


def _by_index(
    indices: Sequence[int], environ: Mapping[str, str], candidates: Sequence[Gpu], daemon: Sequence[Gpu]
) -> list[str]:
    """Returns the UUIDs of CUDA's indices among the candidates."""
    candidates = _of_slurm(indices, environ, candidates, daemon)
    taken: list[int] = []
    for index in indices:
        if index >= len(candidates):
            break
        taken.append(index)
    whole = len(set(taken)) == len(candidates)
    models = {gpu.model for gpu in candidates}
    if taken and not whole and not _in_cuda_order(environ, candidates):
        raise Unresolved(
            f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']} is ambiguous: this node has {len(models)} models "
            f"of GPUs, and CUDA counts the fastest first; {_SURE}"
        )
    return [candidates[index].uuid for index in taken]


def _of_slurm(
    indices: Sequence[int], environ: Mapping[str, str], candidates: Sequence[Gpu], daemon: Sequence[Gpu]
) -> Sequence[Gpu]:
    """Returns the GPUs among which CUDA counts in a Slurm job.

    SLURM_JOB_GPUS has the node's indices. Where Slurm confines a job to its devices, CUDA counts among these alone;
    where it does not, CUDA_VISIBLE_DEVICES has the node's indices too.
    """
    owned = _indices(environ.get("SLURM_JOB_GPUS", ""))
    if not owned or len(candidates) < len(daemon):
        return candidates
    by_index = {gpu.index: gpu for gpu in candidates}
    if not all(index in by_index for index in owned):
        return candidates
    confined = [by_index[index] for index in sorted(owned)]
    as_node = {candidates[i].uuid for i in indices if i < len(candidates)}
    as_confined = {confined[i].uuid for i in indices if i < len(confined)}
    allowed = {gpu.uuid for gpu in confined}
    if as_node == as_confined or any(index >= len(confined) for index in indices):
        return candidates
    if not as_node <= allowed:
        return confined
    raise Unresolved(
        f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']} is ambiguous with "
        f"SLURM_JOB_GPUS={environ['SLURM_JOB_GPUS']}: it counts either the node's GPUs or the job's; name the GPUs by "
        "UUID in gpus=[…]"
    )


def _of_ranks(
    selection: Selection, environ: Mapping[str, str], daemon: Sequence[Gpu], processes: int | None
) -> Selection:
    """Returns the GPUs of all of the training's processes on this node."""
    count = len(selection.gpus)
    if processes is None or processes <= 1 or selection.shared or processes == count:
        return selection
    if processes < count and not selection.ordered:
        raise Unresolved(
            f"{processes} processes use some of {count} GPUs of several models ({selection.origin}), and CUDA counts "
            f"the fastest first; {_SURE}"
        )
    if processes < count:
        gpus = selection.gpus[:processes]
        return Selection(gpus, origin=f"{selection.origin}, the first {processes} for {processes} processes")
    # Each process was given GPUs of its own: the scheduler knows those of the others.
    owned = _indices(environ.get("SLURM_JOB_GPUS", ""))
    of_job = [gpu.uuid for gpu in daemon if gpu.index in owned]
    if of_job and set(selection.gpus) <= set(of_job):
        return Selection(tuple(of_job), origin=f"SLURM_JOB_GPUS={environ['SLURM_JOB_GPUS']}")
    if count > 1 or len(daemon) == 1:
        return selection  # several processes share a GPU
    raise Unresolved(
        f"{processes} processes run on this node and this one sees one GPU ({selection.origin}); name the GPUs of all "
        "of them in gpus=[…]"
    )


def _mig_parent(word: str, candidates: Sequence[Gpu]) -> str:
    """Returns the GPU of a MIG slice: the older form of its id names it, otherwise there must be only one."""
    old = re.match(r"MIG-(GPU-[0-9a-fA-F-]+)/\d+/\d+$", word)
    if old:
        matching = [gpu.uuid for gpu in candidates if gpu.uuid.lower() == old[1].lower()]
        if matching:
            return matching[0]
        raise Unresolved(f"{word} is a slice of a GPU that the daemon does not know")
    if len(candidates) == 1:
        return candidates[0].uuid
    raise Unresolved(
        f"the GPU of the MIG slice {word} is unknown, with {len(candidates)} GPUs visible; name its UUID in gpus=[…], "
        "with control=False (nvidia-smi -L shows it)"
    )


def _indices(text: str) -> list[int]:
    """Returns the indices in a list such as `0,2-3`; empty if it is not one."""
    found: list[int] = []
    for part in filter(None, (word.strip() for word in text.split(","))):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            return []
        found.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def of_framework() -> list[str] | None:
    """Returns the UUIDs of the devices of PyTorch in this process, in CUDA's order; None while it has not begun.

    Never starts CUDA: that would take memory on the GPU, and break processes that fork afterwards.
    """
    import sys

    torch = sys.modules.get("torch")
    try:
        if torch is None or not torch.cuda.is_initialized():
            return None
        found = []
        for number in range(torch.cuda.device_count()):
            text = str(torch.cuda.get_device_properties(number).uuid)
            found.append(text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}")
        return found or None
    except Exception:  # noqa: BLE001 - a half-imported or unusual torch says nothing
        return None
