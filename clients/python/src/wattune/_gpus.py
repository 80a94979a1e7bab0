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
# A node's largest number of GPUs; a range with more is a mistake.
_MOST_DEVICES = 1024
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
    """A GPU that this process can see, as the driver tells it in /proc; its file is `/dev/nvidia<minor>`."""

    uuid: str
    pci_bus_id: str
    minor: int | None = None


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
            found.append(Visible(uuid[1], folder.name, int(minor[1]) if minor else None))
    return found


def resolve(
    environ: Mapping[str, str],
    daemon: Sequence[Gpu],
    visible: Sequence[Visible] | None = (),
    framework: Sequence[str] | None = None,
    processes: int | None = 1,
    own_gpus: bool = False,
) -> Selection:
    """Returns the GPUs that the process uses.

    Args:
        environ: The process's environment.
        daemon: All GPUs of the daemon, by index.
        visible: GPUs that the driver shows to this process, by PCI bus id; None if it shows that there are none.
        framework: UUIDs of CUDA's devices in CUDA's order, as an initialised framework tells them: the truth.
        processes: Number of the training's processes on this node; each is taken to use the GPU of its local rank.
        own_gpus: True if each of these processes was given GPUs of its own.

    Raises:
        Unresolved: If the GPUs are uncertain, or the process uses none.
    """
    if not daemon:
        raise Unresolved("the daemon has no GPUs")
    known = {gpu.uuid for gpu in daemon}
    of_job = _of_slurm_job(environ, daemon, visible or ())
    if framework and all(uuid in known for uuid in framework):
        selection = Selection(tuple(framework), origin="the framework's devices")
        return _of_ranks(selection, environ, daemon, of_job, processes, own_gpus)
    candidates, origin = _candidates(environ, daemon, visible)
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        ordered = _in_cuda_order(environ, candidates)
        selection = Selection(tuple(gpu.uuid for gpu in candidates), ordered=ordered, origin=origin)
    else:
        # Where a container shows only some of the GPUs, CUDA counts among these.
        selection = _chosen(wanted, environ, candidates, of_job if len(candidates) == len(daemon) else [])
    return _of_ranks(selection, environ, daemon, of_job, processes, own_gpus)


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


def _chosen(wanted: str, environ: Mapping[str, str], candidates: Sequence[Gpu], of_job: Sequence[Gpu]) -> Selection:
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
        uuids = _by_index(indices, environ, candidates, of_job)
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
    indices: Sequence[int], environ: Mapping[str, str], candidates: Sequence[Gpu], of_job: Sequence[Gpu]
) -> list[str]:
    """Returns the UUIDs of CUDA's indices among the candidates."""
    candidates = _counted_in_slurm(indices, environ, candidates, of_job)
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


def _of_slurm_job(environ: Mapping[str, str], daemon: Sequence[Gpu], visible: Sequence[Visible]) -> list[Gpu]:
    """Returns the GPUs that Slurm gave to the job, by index; empty if it names none, or others than the daemon's.

    SLURM_JOB_GPUS is a list of numbers and ranges, such as `0,2-3`; other text names no GPU. A number is that of a
    device file: 3 is `/dev/nvidia3`. The driver says which GPU has that file; its index may be another. Only where the
    driver does not list the file, the number is taken for the index. The daemon's binary follows the same rules
    (src/cli/slurm/job_gpus.rs).
    """
    # The driver shows question marks before it has initialised a GPU.
    uuids = {gpu.minor: gpu.uuid for gpu in visible if gpu.minor is not None and "?" not in gpu.uuid}
    by_uuid, by_index = {gpu.uuid: gpu for gpu in daemon}, {gpu.index: gpu for gpu in daemon}
    numbers = _device_numbers(environ.get("SLURM_JOB_GPUS", ""))
    found = [by_uuid.get(uuids[number]) if number in uuids else by_index.get(number) for number in numbers]
    known = [gpu for gpu in found if gpu is not None]
    return sorted(known, key=lambda gpu: gpu.index) if len(known) == len(numbers) else []


def _counted_in_slurm(
    indices: Sequence[int], environ: Mapping[str, str], candidates: Sequence[Gpu], of_job: Sequence[Gpu]
) -> Sequence[Gpu]:
    """Returns the GPUs among which CUDA counts in a Slurm job that has these GPUs.

    Where Slurm confines a job to its devices, CUDA counts among these alone; where it does not, CUDA_VISIBLE_DEVICES
    has the node's indices.
    """
    if not of_job:
        return candidates
    as_node = {candidates[i].uuid for i in indices if i < len(candidates)}
    as_confined = {of_job[i].uuid for i in indices if i < len(of_job)}
    allowed = {gpu.uuid for gpu in of_job}
    if as_node == as_confined or any(index >= len(of_job) for index in indices):
        return candidates
    if not as_node <= allowed:
        return of_job
    raise Unresolved(
        f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']} is ambiguous with "
        f"SLURM_JOB_GPUS={environ['SLURM_JOB_GPUS']}: it counts either the node's GPUs or the job's; name the GPUs by "
        "UUID in gpus=[…]"
    )


def _of_ranks(
    selection: Selection,
    environ: Mapping[str, str],
    daemon: Sequence[Gpu],
    of_job: Sequence[Gpu],
    processes: int | None,
    own_gpus: bool,
) -> Selection:
    """Returns the GPUs of all of the training's processes on this node."""
    count = len(selection.gpus)
    if processes is None or processes <= 1 or selection.shared or (processes == count and not own_gpus):
        return selection
    if processes < count and not own_gpus:
        if not selection.ordered:
            raise Unresolved(
                f"{processes} processes use some of {count} GPUs of several models ({selection.origin}), and CUDA "
                f"counts the fastest first; {_SURE}"
            )
        gpus = selection.gpus[:processes]
        return Selection(gpus, origin=f"{selection.origin}, the first {processes} for {processes} processes")
    # Each process was given GPUs of its own: the scheduler knows those of the others.
    all_gpus = tuple(gpu.uuid for gpu in of_job)
    if all_gpus and set(selection.gpus) <= set(all_gpus):
        return Selection(all_gpus, origin=f"SLURM_JOB_GPUS={environ['SLURM_JOB_GPUS']}")
    if len(daemon) == 1 or (count > 1 and not own_gpus):
        return selection  # several processes share a GPU
    seen = "one GPU" if count == 1 else f"{count} GPUs"
    raise Unresolved(
        f"{processes} processes run on this node and this one sees {seen} ({selection.origin}); name the GPUs of all "
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


def _device_numbers(text: str) -> list[int]:
    """Returns the numbers in a list such as `0,2-3`, each once and in order; empty if it is not one."""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part, re.ASCII)
        if match is None:
            return []
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < _MOST_DEVICES:
            return []
        found.update(range(first, last + 1))
    return sorted(found)


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
