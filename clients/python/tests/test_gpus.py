"""Which GPUs a process uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattune._gpus import Gpu, Selection, Unresolved, Visible, _device_numbers, pick, resolve, visible_to_process
from wattune._ranks import Ranks, detect

SAME = [
    Gpu(f"GPU-{name}", index, "A40", f"00000000:0{index}:00.0")
    for index, name in enumerate(("aa1", "ab2", "ac3", "ad4"))
]
MIXED = [Gpu("GPU-t4", 0, "T4"), Gpu("GPU-h100", 1, "H100"), Gpu("GPU-t4b", 2, "T4")]
PCI = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("environment", "daemon", "expected"),
    [
        ({}, SAME, ["GPU-aa1", "GPU-ab2", "GPU-ac3", "GPU-ad4"]),
        ({}, MIXED, ["GPU-t4", "GPU-h100", "GPU-t4b"]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, SAME, ["GPU-ac3", "GPU-aa1"]),
        ({"CUDA_VISIBLE_DEVICES": " 1 , 3 "}, SAME, ["GPU-ab2", "GPU-ad4"]),
        ({"CUDA_VISIBLE_DEVICES": "1,-1,0"}, SAME, ["GPU-ab2"]),
        ({"CUDA_VISIBLE_DEVICES": "1,9,0"}, SAME, ["GPU-ab2"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-ac3,GPU-aa"}, SAME, ["GPU-ac3", "GPU-aa1"]),
        ({"CUDA_VISIBLE_DEVICES": "0,1", **PCI}, MIXED, ["GPU-t4", "GPU-h100"]),
        # All of them are the same set in any order.
        ({"CUDA_VISIBLE_DEVICES": "0,1,2"}, MIXED, ["GPU-t4", "GPU-h100", "GPU-t4b"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-h"}, MIXED, ["GPU-h100"]),
        # Containers.
        ({"NVIDIA_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "0"}, SAME, ["GPU-ac3"]),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-ad4"}, SAME, ["GPU-ad4"]),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, SAME, ["GPU-aa1", "GPU-ab2", "GPU-ac3", "GPU-ad4"]),
        # Slurm that confines its jobs: CUDA counts the job's GPUs.
        ({"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"}, SAME, ["GPU-ac3", "GPU-ad4"]),
        # Slurm that does not: the indices are the node's.
        ({"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "2,3"}, SAME, ["GPU-ac3", "GPU-ad4"]),
        ({"SLURM_JOB_GPUS": "0-1", "CUDA_VISIBLE_DEVICES": "1"}, SAME, ["GPU-ab2"]),
        ({"SLURM_JOB_GPUS": "1, 3", "CUDA_VISIBLE_DEVICES": "0"}, SAME, ["GPU-ab2"]),
        # What is no list, or names other GPUs than the daemon's, names none.
        ({"SLURM_JOB_GPUS": "MIG-3f2a,1", "CUDA_VISIBLE_DEVICES": "0"}, SAME, ["GPU-aa1"]),
        ({"SLURM_JOB_GPUS": "2-9", "CUDA_VISIBLE_DEVICES": "0"}, SAME, ["GPU-aa1"]),
    ],
)
def test_resolved(environment: dict[str, str], daemon: list[Gpu], expected: list[str]) -> None:
    assert list(resolve(environment, daemon).gpus) == expected


@pytest.mark.parametrize(
    ("environment", "daemon", "words"),
    [
        (
            {"CUDA_VISIBLE_DEVICES": "0"},
            MIXED,
            "2 models of GPUs, and CUDA counts the fastest first; set CUDA_DEVICE_ORDER",
        ),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, MIXED, "ambiguous"),
        ({"CUDA_VISIBLE_DEVICES": ""}, SAME, "leaves no GPU"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, SAME, "leaves no GPU"),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, SAME, "leaves no GPU"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a"}, SAME, "several GPUs' UUIDs"),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa1,GPU-aa1"}, SAME, "names a GPU twice"),
        ({"CUDA_VISIBLE_DEVICES": "0,GPU-aa1"}, SAME, "mixes"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-3f2a"}, SAME, "nvidia-smi -L"),
        ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-77/1/0"}, SAME, "does not know"),
        ({"SLURM_JOB_GPUS": "1,2", "CUDA_VISIBLE_DEVICES": "1"}, SAME, "either the node's GPUs or the job's"),
        ({}, [], "no GPUs"),
    ],
)
def test_never_guessed(environment: dict[str, str], daemon: list[Gpu], words: str) -> None:
    with pytest.raises(Unresolved, match=words):
        resolve(environment, daemon)


def test_slices_are_recorded_and_not_controlled() -> None:
    old = resolve({"CUDA_VISIBLE_DEVICES": "MIG-GPU-ab2/1/0"}, SAME)
    assert (old.gpus, old.shared) == (("GPU-ab2",), True)
    new = resolve({"CUDA_VISIBLE_DEVICES": "MIG-3f2a-77"}, SAME[:1])
    assert (new.gpus, new.shared) == (("GPU-aa1",), True)


def test_the_framework_knows() -> None:
    """PyTorch tells the UUIDs of its devices in CUDA's order, once it has begun."""
    assert resolve({"CUDA_VISIBLE_DEVICES": "0"}, MIXED, framework=["GPU-h100"]).gpus == ("GPU-h100",)
    with pytest.raises(Unresolved):
        resolve({"CUDA_VISIBLE_DEVICES": "0"}, MIXED, framework=["GPU-of-another-node"])


def test_a_container_sees_some_of_the_gpus() -> None:
    seen = [Visible("GPU-ab2", ""), Visible("GPU-ad4", "")]
    assert resolve({}, SAME, seen).gpus == ("GPU-ab2", "GPU-ad4")
    assert resolve({"CUDA_VISIBLE_DEVICES": "1"}, SAME, seen).gpus == ("GPU-ad4",)
    with pytest.raises(Unresolved, match="another node"):
        resolve({}, SAME, [Visible("GPU-zz", "")])
    # Simulated GPUs are not in /proc.
    simulated = [Gpu("SIM-0", 0, "simulated", simulated=True)]
    assert resolve({}, simulated, seen).gpus == ("SIM-0",)


def test_the_driver_shows_gpus(folder: Path) -> None:
    proc, dev = folder / "proc", folder / "dev"
    for minor, name in enumerate(("GPU-aa1", "GPU-ab2")):
        gpu = proc / f"0000:0{minor}:00.0"
        gpu.mkdir(parents=True)
        (gpu / "information").write_text(f"Model: \t\t A40\nGPU UUID: \t {name}\nDevice Minor: \t {minor}\n")
    dev.mkdir()
    (dev / "nvidiactl").touch()
    assert visible_to_process(proc, dev) is None
    (dev / "nvidia1").touch()
    assert visible_to_process(proc, dev) == [Visible("GPU-ab2", "0000:01:00.0", 1)]
    (dev / "nvidia0").touch()
    assert visible_to_process(proc, dev) == [
        Visible("GPU-aa1", "0000:00:00.0", 0),
        Visible("GPU-ab2", "0000:01:00.0", 1),
    ]
    assert visible_to_process(folder / "none", dev) == []


def test_a_process_without_gpus_has_none() -> None:
    for environment, seen in (
        ({}, None),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, []),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, []),
    ):
        with pytest.raises(Unresolved, match="this process sees no GPU"):
            resolve(environment, SAME, seen)
        assert resolve(environment, SAME, seen, framework=["GPU-ab2"]).gpus == ("GPU-ab2",)
        simulated = [Gpu("SIM-0", 0, "simulated", simulated=True)]
        assert resolve(environment, simulated, seen).gpus == ("SIM-0",)
    # A device plugin may name GPUs by other means than the variable.
    assert resolve({"NVIDIA_VISIBLE_DEVICES": "void"}, SAME, [Visible("GPU-ab2", "")]).gpus == ("GPU-ab2",)


@pytest.mark.parametrize(
    ("environment", "daemon", "processes", "expected"),
    [
        # torchrun: every process sees all GPUs and takes that of its local rank.
        ({}, SAME, 2, ["GPU-aa1", "GPU-ab2"]),
        ({"CUDA_VISIBLE_DEVICES": "3,2,1"}, SAME, 2, ["GPU-ad4", "GPU-ac3"]),
        ({}, SAME, None, ["GPU-aa1", "GPU-ab2", "GPU-ac3", "GPU-ad4"]),
        # Several processes share each GPU.
        ({"CUDA_VISIBLE_DEVICES": "1,2"}, SAME, 4, ["GPU-ab2", "GPU-ac3"]),
        ({}, SAME[:1], 4, ["GPU-aa1"]),
        # srun gives each task its own GPU.
        ({"SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "2"}, SAME, 2, ["GPU-ac3", "GPU-ad4"]),
        ({"SLURM_JOB_GPUS": "2-3", "CUDA_VISIBLE_DEVICES": "3"}, SAME, 2, ["GPU-ac3", "GPU-ad4"]),
    ],
)
def test_the_job_has_the_gpus_of_all_its_processes(
    environment: dict[str, str], daemon: list[Gpu], processes: int | None, expected: list[str]
) -> None:
    assert list(resolve(environment, daemon, processes=processes).gpus) == expected


def test_slurm_counts_device_files() -> None:
    """/dev/nvidia0 and /dev/nvidia1 are the second two GPUs for NVML, and in the order of PCI bus ids."""
    seen = [Visible(gpu.uuid, gpu.pci_bus_id, minor) for gpu, minor in zip(SAME, (2, 3, 1, 0))]
    for environment, processes, expected in (
        ({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"}, 1, ["GPU-ad4"]),
        ({"SLURM_JOB_GPUS": "0,2", "CUDA_VISIBLE_DEVICES": "1"}, 1, ["GPU-ad4"]),
        ({"SLURM_JOB_GPUS": "0-1", "CUDA_VISIBLE_DEVICES": "GPU-ac3"}, 2, ["GPU-ac3", "GPU-ad4"]),
    ):
        assert list(resolve(environment, SAME, seen, processes=processes).gpus) == expected, environment
    # A GPU that the driver has not initialised has no UUID yet, and the index serves.
    early = [Visible("GPU-????????", "", 0), *(Visible(gpu.uuid, "", gpu.index) for gpu in SAME)]
    found = resolve({"SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0"}, SAME, early)
    assert found.gpus == ("GPU-aa1",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", [0]),
        ("1,0", [0, 1]),
        ("0,2-4", [0, 2, 3, 4]),
        ("1-2,2", [1, 2]),
        ("", []),
        ("0,", []),
        ("3-1", []),
        ("0-99999", []),
        ("GPU-1", []),
        ("gpu:0", []),
    ],
)
def test_lists_of_devices(text: str, expected: list[int]) -> None:
    assert _device_numbers(text) == expected


def test_processes_with_several_gpus_each() -> None:
    """Slurm was asked for two GPUs per task: those of the other task are the job's, too."""
    own = {"CUDA_VISIBLE_DEVICES": "0,1"}
    found = resolve({**own, "SLURM_JOB_GPUS": "0-3"}, SAME, processes=2, own_gpus=True)
    assert found.gpus == tuple(gpu.uuid for gpu in SAME)
    with pytest.raises(Unresolved, match="this one sees 2 GPUs"):
        resolve(own, SAME, processes=2, own_gpus=True)


def test_processes_on_uncertain_gpus() -> None:
    with pytest.raises(Unresolved, match="name the GPUs of all of them"):
        resolve({"CUDA_VISIBLE_DEVICES": "1"}, SAME, processes=2)
    with pytest.raises(Unresolved, match="fastest first"):
        resolve({}, MIXED, processes=2)
    assert resolve(PCI, MIXED, processes=2).gpus == ("GPU-t4", "GPU-h100")


def test_devices_of_cuda_are_picked() -> None:
    assert pick(resolve({"CUDA_VISIBLE_DEVICES": "2,3"}, SAME), [1]).gpus == ("GPU-ad4",)
    with pytest.raises(Unresolved, match="there is no cuda:2"):
        pick(resolve({"CUDA_VISIBLE_DEVICES": "2,3"}, SAME), [2])
    with pytest.raises(Unresolved, match="fastest first"):
        pick(resolve({}, MIXED), [0])
    assert pick(Selection(("GPU-a", "GPU-b"), ordered=False), [1, 0]).gpus == ("GPU-b", "GPU-a")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Ranks()),
        (
            {"LOCAL_RANK": "1", "RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "SLURM_LOCALID": "0"},
            Ranks(1, 4, 8, "torchrun"),
        ),
        (
            {"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
            Ranks(2, 4, 4, "Open MPI"),
        ),
        # A batch script's own process is one, whatever the script asks for.
        ({"SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "4"}, Ranks()),
        (
            {
                "SLURM_LOCALID": "1",
                "SLURM_STEP_NUM_TASKS": "5",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
                "SLURM_NODEID": "1",
            },
            Ranks(1, 2, 5, "Slurm"),
        ),
        (
            {
                "SLURM_LOCALID": "0",
                "SLURM_STEP_NUM_TASKS": "5",
                "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
                "SLURM_NODEID": "2",
            },
            Ranks(0, 1, 5, "Slurm"),
        ),
        ({"SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}, Ranks(0, 2, 2, "Slurm")),
        (
            {
                "SLURM_LOCALID": "1",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_STEP_NUM_NODES": "1",
                "SLURM_GPUS_PER_TASK": "a100:2",
            },
            Ranks(1, 2, 2, "Slurm", own_gpus=True),
        ),
        ({"MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_SIZE": "4"}, Ranks(1, 2, 4, "MPI")),
        ({"MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_LOCAL_SIZE": "2"}, Ranks(1, 2, 1, "MVAPICH")),
        ({"SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "2"}, Ranks(0, None, 2, "Slurm")),
        ({"LOCAL_RANK": "first"}, Ranks()),
    ],
)
def test_ranks(environment: dict[str, str], expected: Ranks) -> None:
    assert detect(environment) == expected
