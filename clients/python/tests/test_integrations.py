"""Callbacks in the frameworks themselves; a framework that is not installed is skipped."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from fake_daemon import FakeDaemon
from test_job import until
from wattune.integrations._promises import kept

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _at_socket(sock: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTUNE_SOCKET", sock)
    monkeypatch.chdir(folder)


def registered(daemon: FakeDaemon, number: int = 0) -> dict[str, Any]:
    body: dict[str, Any] = daemon.wait_for("POST", "/v1/jobs", number + 1)[number]
    return body


def ended_with(daemon: FakeDaemon, samples: float) -> None:
    """Checks that all jobs are ended, the last one with this count."""
    until(lambda: all(job["ended_at"] for job in daemon.jobs.values()))
    assert list(daemon.jobs.values())[-1]["samples"] == samples


def test_promises_that_need_the_work_are_dropped_where_it_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    given = {"deadline": "2030-01-01T00:00:00Z", "carbon_budget_g": 5.0, "pausable": True, "eta": 0.5}
    assert kept(given, 10.0) == given
    assert kept(given, None) == {"pausable": False, "eta": 0.5}
    assert kept({**given, "max_slowdown": 0.1}, None) == {"pausable": True, "eta": 0.5, "max_slowdown": 0.1}
    assert "deadline is not promised" in caplog.text


# Hugging Face.


def trainer(folder: Path, callback: Any, **arguments: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.BertConfig(
        vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=2
    )
    tokens = torch.randint(0, 16, (64, 4))
    data = [{"input_ids": row, "labels": row.sum() % 2} for row in tokens]
    options = {
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "per_device_train_batch_size": 4,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        **arguments,
    }
    return transformers.Trainer(
        transformers.BertForSequenceClassification(config),
        transformers.TrainingArguments(**options),
        train_dataset=data,
        eval_dataset=data[:8],
        callbacks=[callback, _Slow(transformers)],
    )


def _Slow(transformers: Any, seconds: float = 0.02) -> Any:
    """Returns a callback that makes each step take a while, so that reports come in between."""

    class Slow(transformers.TrainerCallback):  # type: ignore[misc, name-defined, unused-ignore]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            time.sleep(seconds)

    return Slow()


def test_hugging_face(daemon: FakeDaemon, folder: Path) -> None:
    pytest.importorskip("transformers")
    from wattune.integrations.huggingface import WattuneCallback

    callback = WattuneCallback(max_slowdown=0.05, interval_s=0.05)
    trainer(folder, callback, max_steps=10, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=5).train()
    job = registered(daemon)
    assert (job["name"], job["batch_size"]) == ("BertForSequenceClassification", 8)
    assert job["work"] == {"total_samples": 80}
    ended_with(daemon, 80)
    assert callback.summary(timeout_s=5.0).final


def test_hugging_face_resumed(daemon: FakeDaemon, folder: Path) -> None:
    pytest.importorskip("transformers")
    from wattune.integrations.huggingface import WattuneCallback

    trainer(folder, WattuneCallback("a", interval_s=0.05), max_steps=6, save_strategy="steps", save_steps=3).train()
    ended_with(daemon, 24)
    resumed = trainer(folder, WattuneCallback("b", interval_s=0.05), max_steps=10)
    resumed.train(resume_from_checkpoint=str(folder / "out" / "checkpoint-6"))
    assert registered(daemon, 1)["work"] == {"total_samples": 16}
    ended_with(daemon, 16)


def test_hugging_face_pauses_after_a_checkpoint(daemon: FakeDaemon, folder: Path) -> None:
    pytest.importorskip("transformers")
    from wattune.integrations.huggingface import WattuneCallback

    callback = WattuneCallback(max_slowdown=0.5, pausable=True, interval_s=0.05)
    daemon.phase = "paused"
    threading.Timer(1.5, lambda: setattr(daemon, "phase", "planned")).start()
    begun = time.monotonic()
    trainer(folder, callback, max_steps=40).train()
    assert time.monotonic() - begun > 1.4
    assert list((folder / "out").glob("checkpoint-*"))
    ended_with(daemon, 160)


def test_hugging_face_stopped_early(daemon: FakeDaemon, folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from wattune.integrations.huggingface import WattuneCallback

    class Stop(transformers.TrainerCallback):  # type: ignore[misc, name-defined, unused-ignore]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = state.global_step >= 7
            return control

    stopped = trainer(folder, WattuneCallback("a", interval_s=0.05), max_steps=100)
    stopped.add_callback(Stop())
    stopped.train()
    ended_with(daemon, 28)


# Lightning.


def module() -> Any:
    lightning = pytest.importorskip("lightning")
    torch = pytest.importorskip("torch")

    class Regression(lightning.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            time.sleep(0.01)
            return self.net(batch[0]).pow(2).mean()

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_loss", self.net(batch[0]).pow(2).mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    return Regression()


def fit(callback: Any, folder: Path, resume: str | None = None, more: tuple[Any, ...] = (), **arguments: Any) -> Any:
    import lightning
    import torch

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(80, 4)), batch_size=8)
    options = {"max_epochs": 3, "accelerator": "cpu", "logger": False, "enable_progress_bar": False, **arguments}
    fitting = lightning.Trainer(
        callbacks=[callback, *more], default_root_dir=folder, enable_model_summary=False, **options
    )
    fitting.fit(module(), loader, loader, ckpt_path=resume)
    return fitting


@pytest.mark.filterwarnings("ignore")
def test_lightning(daemon: FakeDaemon, folder: Path) -> None:
    pytest.importorskip("lightning")
    from wattune.integrations.lightning import WattuneCallback

    callback = WattuneCallback(max_slowdown=0.05, interval_s=0.05)
    fitting = fit(callback, folder, accumulate_grad_batches=2)
    job = registered(daemon)
    assert (job["name"], job["batch_size"], job["work"]) == ("Regression", 16, {"total_samples": 240})
    ended_with(daemon, 240)
    fitting.save_checkpoint(folder / "last.ckpt")
    fit(WattuneCallback("b", interval_s=0.05), folder, resume=str(folder / "last.ckpt"), max_epochs=5)
    assert registered(daemon, 1)["work"] == {"total_samples": 160}
    ended_with(daemon, 160)
    fit(WattuneCallback("c", interval_s=0.05), folder, max_epochs=-1, max_steps=7)
    assert registered(daemon, 2)["work"] == {"total_samples": 56}
    ended_with(daemon, 56)


@pytest.mark.filterwarnings("ignore")
def test_lightning_ends_the_job_of_a_failed_fit(daemon: FakeDaemon, folder: Path) -> None:
    lightning = pytest.importorskip("lightning")
    from wattune.integrations.lightning import WattuneCallback

    class Fail(lightning.Callback):  # type: ignore[misc, name-defined, unused-ignore]
        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            until(lambda: daemon.jobs != {})
            raise RuntimeError("of the training")

    with pytest.raises(RuntimeError, match="of the training"):
        fit(WattuneCallback("a", interval_s=0.05), folder, more=(Fail(),))
    until(lambda: all(job["ended_at"] for job in daemon.jobs.values()))


@pytest.mark.filterwarnings("ignore")
def test_lightning_pauses_after_a_checkpoint(daemon: FakeDaemon, folder: Path) -> None:
    pytest.importorskip("lightning")
    from wattune.integrations.lightning import WattuneCallback

    daemon.phase = "paused"
    threading.Timer(1.5, lambda: setattr(daemon, "phase", "planned")).start()
    begun = time.monotonic()
    fit(WattuneCallback("a", max_slowdown=0.5, pausable=True, interval_s=0.05), folder)
    assert time.monotonic() - begun > 1.4
    assert (folder / "wattune-pause.ckpt").exists()
    ended_with(daemon, 240)


# Keras.


def test_keras(daemon: FakeDaemon) -> None:
    keras = pytest.importorskip("keras")
    import numpy

    from wattune.integrations.keras import WattuneCallback

    class Slow(keras.callbacks.Callback):  # type: ignore[misc, name-defined, unused-ignore]
        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            time.sleep(0.01)

    x = numpy.random.rand(80, 4)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    callback = WattuneCallback("mnist", batch_size=8, interval_s=0.05)
    for number in range(2):
        data = (x, x.sum(1))
        model.fit(*data, batch_size=8, epochs=3, verbose=0, validation_data=data, callbacks=[callback, Slow()])
        job = registered(daemon, number)
        assert (job["name"], job["batch_size"], job["work"]) == ("mnist", 8, {"total_samples": 240})
        ended_with(daemon, 240)
        assert callback.summary(timeout_s=5.0).final


def test_keras_may_report_several_batches_at_once(daemon: FakeDaemon) -> None:
    """Backends with `steps_per_execution` call with the number of the last batch."""
    pytest.importorskip("keras")
    from wattune.integrations.keras import WattuneCallback

    callback = WattuneCallback("mnist", batch_size=8, interval_s=0.05)
    callback.set_params({"steps": 10, "epochs": 2})
    callback.on_train_begin()
    registered(daemon)
    for epoch in range(2):
        callback.on_epoch_begin(epoch)
        callback.on_train_batch_end(4)
        callback.on_train_batch_end(9)
    callback.on_train_end()
    ended_with(daemon, 160)


def test_keras_learns_the_length_of_an_epoch(daemon: FakeDaemon) -> None:
    keras = pytest.importorskip("keras")
    import numpy
    import torch

    from wattune.integrations.keras import WattuneCallback

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined, unused-ignore]
        def __iter__(self) -> Any:
            for _ in range(40):
                time.sleep(0.005)
                yield numpy.ones(4, "float32"), numpy.ones(1, "float32")

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    callback = WattuneCallback(batch_size=8, interval_s=0.05)
    model.fit(torch.utils.data.DataLoader(Stream(), batch_size=8), epochs=3, verbose=0, callbacks=[callback])
    assert "work" not in registered(daemon)
    assert callback.job is not None
    assert callback.job.total_samples == 120
    assert {b["total_samples"] for b in daemon.bodies("POST", "/progress") if "total_samples" in b} == {120}
    ended_with(daemon, 120)


@pytest.mark.parametrize("name", ["huggingface", "lightning", "keras"])
def test_wrong_arguments_raise_at_once(name: str) -> None:
    pytest.importorskip({"huggingface": "transformers"}.get(name, name))
    import importlib

    callback = importlib.import_module(f"wattune.integrations.{name}").WattuneCallback
    with pytest.raises(ValueError, match="3 % is"):
        callback(max_slowdown=3)
    with pytest.raises(TypeError, match="max_slow"):
        callback(max_slow=3)
