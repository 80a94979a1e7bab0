"""Makes jobs: checks everything that a script gives, before anything starts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from . import _spec
from ._http import addresses
from ._job import Job
from ._ranks import detect


def job(
    name: str,
    *,
    total_samples: float | None = None,
    batch_size: int | None = None,
    max_slowdown: float | None = None,
    deadline: _spec.Deadline | None = None,
    carbon_budget_g: float | None = None,
    eta: float | None = None,
    price_weight: float | None = None,
    pausable: bool | Mapping[str, float] = False,
    gpus: Sequence[int | str] | None = None,
    tags: Mapping[str, str] | None = None,
    control: bool = True,
    priority: int = 0,
    lease_s: float = 60.0,
    interval_s: float = 1.0,
    world_size: int | None = None,
    socket: str | os.PathLike[str] | None = None,
    listen: str | None = None,
) -> Job:
    """Makes a job, which registers with the wattune daemon when it is started or entered.

    ```python
    with wattune.job("resnet50", total_samples=epochs * len(data), max_slowdown=0.03) as job:
        for images, labels in loader:
            train(images, labels)
            job.step(len(images))
    ```

    Nothing here needs a daemon: without one, training goes on as if this package were not used, and the job joins when
    a daemon starts. Wrong arguments raise at once.

    Args:
        name: Name of the job. Runs with the same name, batch size and GPU models share what the daemon has learned.
        total_samples: Samples of the whole run; None if unknown.
        batch_size: Samples of a step, over all GPUs.
        max_slowdown: Largest increase of the duration, as a fraction; without any promise, the daemon takes 0.03.
        deadline: Time by which the work is to be done: a datetime, a timedelta from now, or RFC 3339 text.
        carbon_budget_g: Largest emissions of the whole run, in grams of CO2 equivalent.
        eta: Weight of carbon against time: 1 is carbon alone, 0 is time alone.
        price_weight: Weight of the electricity price against carbon, 0 to 1.
        pausable: True, or the costs of a pause, if the daemon may ask the job to pause; see `Job.wait_while_paused`.
        gpus: GPUs by index at the daemon, UUID or PCI bus id, or all of them as `cuda:0` and so on, as CUDA counts in
            this process. By default those that CUDA_VISIBLE_DEVICES leaves to this process, for each process of the
            node one of them.
        tags: Labels for reports.
        control: False to have energy recorded only, and limits left alone.
        priority: Priority under the node's power cap, -1000 to 1000. More than 0 needs the right to control GPUs.
        lease_s: Silence after which the daemon takes the job for dead.
        interval_s: Seconds between two reports.
        world_size: Factor from this process's samples to those of all; by default the number of processes that
            torchrun, MPI or Slurm has started. Give 1 to count the samples of all processes yourself, and the number
            of data-parallel groups where several processes share a batch.
        socket: The daemon's Unix socket; by default WATTUNE_SOCKET, then /run/wattune/wattune.sock.
        listen: The daemon's TCP address; by default WATTUNE_LISTEN, then 127.0.0.1:4938.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument's value is impossible.
    """
    spec = _spec.check(
        name,
        total_samples=total_samples,
        batch_size=batch_size,
        max_slowdown=max_slowdown,
        deadline=deadline,
        carbon_budget_g=carbon_budget_g,
        eta=eta,
        price_weight=price_weight,
        pausable=pausable,
        gpus=gpus,
        tags=tags,
        control=control,
        priority=priority,
        lease_s=lease_s,
    )
    interval = float(_spec.number("interval_s", interval_s, least=0.05, most=lease_s / 2.0))
    factor = None if world_size is None else _spec.whole("world_size", world_size, least=1)
    where = addresses(None if socket is None else os.fspath(socket), listen)
    return Job(spec, where, detect(os.environ), factor, interval)
