"""Unmodified scripts under `wattune run`: profiled, planned, controlled, accounted, and their weights are the same."""

import pytest


def untimed(printed):
    """Returns the lines that do not depend on speed."""
    return [line for line in printed.splitlines() if "train_runtime" not in line]


NAMES = ["plain", "torchrun", "keras", "lightning", "trainer"]


@pytest.mark.parametrize("name", NAMES)
def test_run(scene, name):
    run = scene.result(name)
    assert run.code == 0, run.err
    assert run.plain.returncode == 0, run.plain.stderr

    # It computed and printed what it does without wattune, but for Hugging Face's own timing.
    assert "weights" in run.plain.stdout
    assert untimed(run.out) == untimed(run.plain.stdout), (run.out, run.plain.stdout)

    # Seen by the daemon while it ran.
    assert run.sources - {None} == {run.source}, run.sources
    assert {"profiling", "planned"} <= run.phases, "\n".join(run.story)
    assert len(run.limits) >= 3, "\n".join(run.story)
    assert min(run.planned_limits) < 300.0, "\n".join(run.story)

    # Accounted, and summed up for people and programs.
    summary, account = run.summary, run.summary["account"]
    assert summary["exit_code"] == 0 and summary["progress_source"] == run.source, summary
    most = run.steps * run.batch_size
    assert most - run.unsaid * run.batch_size <= account["samples"] <= most, account["samples"]
    assert account["energy_j"] > 0 and account["energy_by_device_j"]["gpu"] > 0
    for word in (f"{run.name} ran", "energy", "carbon", "saved", "time lost"):
        assert word in run.err, run.err

    # Without the job the GPU has its own limit again.
    for gpu in run.gpus.split(","):
        assert scene.get(f"/v1/gpus/{gpu}")["power_limit_enforced_w"] == 300.0
