"""Lightning and Keras followed by their callbacks."""

import json

from listener import SCRIPTS, run
from test_hook import script

LIGHTNING = """
import json, lightning, torch, warnings
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
torch.manual_seed(0)
class Module(lightning.LightningModule):
    def __init__(self): super().__init__(); self.net = torch.nn.Linear(4, 1)
    def training_step(self, batch, _):
        loss = self.net(batch[0]).pow(2).mean(); self.log("loss", loss); return loss
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters())
class Manual(Module):
    def __init__(self): super().__init__(); self.automatic_optimization = False
    def training_step(self, batch, _):
        for optimizer in self.optimizers():
            optimizer.zero_grad(); self.manual_backward(super().training_step(batch, _)); optimizer.step()
    def configure_optimizers(self):
        return [torch.optim.Adam(self.parameters()), torch.optim.SGD(self.parameters(), 0.1)]
def trainer(**more):
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
    return lightning.Trainer(accelerator="cpu", **{**quiet, **more})
batches = DataLoader(TensorDataset(torch.randn(120, 4)), batch_size=4)
"""

KERAS = """
import os; os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy
keras.utils.set_random_seed(0)
x = numpy.random.rand(160, 4); y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(1)])
"""


def counts(ran, source):
    """Returns the last count and total, once it is sure that nothing else was reported."""
    assert ran.code == 0, ran.err
    assert {m["source"] for m in ran.messages} == {source}, ran.messages
    steps = ran.last_steps(source)
    return steps, ran.messages[-1].get("total_steps")


def test_lightning_script(listener):
    """Same weights and output; the optimizer hook is silent."""
    ran, without = listener.run(SCRIPTS / "lightning_fit.py", 200), run(SCRIPTS / "lightning_fit.py", 200)
    assert (ran.code, ran.out, ran.err) == (0, without.stdout, without.stderr) and "weights" in ran.out
    assert counts(ran, "lightning") == (200, 200)
    assert ran.messages[-1]["detail"] == "global_step"


def test_lightning_resumed(listener, tmp_path):
    """A run that starts at step 40,000 reports from there, and its checkpoint holds nothing of wattune."""
    ran = listener.run(LIGHTNING + f"""
path = {str(tmp_path / "resumed.ckpt")!r}
first = trainer(max_steps=2); first.fit(Module(), batches); first.save_checkpoint(path)
print(first.callbacks, torch.load(path, weights_only=False)["callbacks"])
""")
    assert "Progress" in ran.out and ran.out.rstrip().endswith("{}"), ran.out
    listener.messages.clear()
    ran = listener.run(LIGHTNING + f"""
path = {str(tmp_path / "resumed.ckpt")!r}
saved = torch.load(path, weights_only=False)
saved["global_step"] = 40000
loop = saved["loops"]["fit_loop"]
loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["total"]["completed"] = 40000
torch.save(saved, path)
trainer(max_steps=40015).fit(Module(), batches, ckpt_path=path)
""")
    assert counts(ran, "lightning") == (40015, 40015)
    assert ran.messages[0]["steps"] == 40001


def test_lightning_several_optimizers(listener):
    """With manual optimization batches are counted, unless the script limits the optimizers' steps."""
    ran = listener.run(LIGHTNING + "trainer(max_epochs=2).fit(Manual(), batches)")
    assert counts(ran, "lightning") == (60, 60) and ran.messages[-1]["detail"] == "batches"
    listener.messages.clear()
    ran = listener.run(LIGHTNING + "trainer(max_steps=20).fit(Manual(), batches)")
    assert counts(ran, "lightning") == (20, 20) and ran.messages[-1]["detail"] == "global_step"


def test_lightning_early_and_unknown_ends(listener):
    """The total is the latest end, and absent where Lightning does not know it. A second fit goes on."""
    ran = listener.run(LIGHTNING + """
from lightning.pytorch.callbacks import EarlyStopping
stop = EarlyStopping("loss", stopping_threshold=1e9, check_on_train_epoch_end=True)
trainer(max_epochs=10, callbacks=[stop]).fit(Module(), batches)
""")
    assert counts(ran, "lightning") == (30, 300)
    listener.messages.clear()
    ran = listener.run(LIGHTNING + """
class Endless(IterableDataset):
    def __iter__(self): return iter(torch.randn(25, 4))
loader = DataLoader(Endless(), batch_size=1)
trainer(max_epochs=1).fit(Module(), loader)
trainer(max_epochs=1, accumulate_grad_batches=3).fit(Module(), loader)
""")
    assert counts(ran, "lightning") == (25 + 9, None)


def test_lightning_spawned_ranks(listener):
    """Ranks that Lightning spawns get the callback by pickle; the first one reports."""
    path = listener.hooks.parent / "script.py"
    path.write_text(LIGHTNING + """
if __name__ == "__main__":
    trainer(max_epochs=1, strategy="ddp_spawn", devices=2).fit(Module(), batches)
""")
    assert counts(listener.run(path), "lightning") == (15, 15)


def test_fabric(listener):
    """Fabric has no loop of its own: its optimizers are PyTorch's."""
    ran = listener.run(script("""
        import lightning
        fabric = lightning.Fabric(accelerator="cpu"); fabric.launch()
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(12):
            fabric.backward(model(torch.ones(2, 4)).sum()); optimizer.step()
    """))
    assert counts(ran, "optimizer_hook") == (12, None)


def test_accelerate(listener):
    """Accelerate's optimizer skips the steps that only accumulate."""
    ran = listener.run(script("""
        import accelerate
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=4)
        data = torch.utils.data.DataLoader(torch.randn(48, 4), batch_size=1)
        model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), data)
        for row in data:
            with accelerator.accumulate(model):
                accelerator.backward(model(row).sum()); optimizer.step(); optimizer.zero_grad()
    """))
    assert counts(ran, "optimizer_hook") == (12, None)


def test_keras_script(listener):
    ran, without = listener.run(SCRIPTS / "keras_fit.py", 400), run(SCRIPTS / "keras_fit.py", 400)
    assert (ran.code, ran.out, ran.err) == (0, without.stdout, without.stderr) and "weights" in ran.out
    assert counts(ran, "keras") == (400, 400)


def test_keras_resumed(listener):
    """A fit that begins with a later epoch begins at step 40,000."""
    ran = listener.run(KERAS + """
model.compile(optimizer="adam", loss="mse")
history = model.fit(x, y, batch_size=16, epochs=4003, initial_epoch=4000, verbose=0, validation_split=0.0)
print(list(history.history), int(model.optimizer.iterations))
""")
    assert counts(ran, "keras") == (40030, 40030)
    assert ran.messages[0]["steps"] == 40001
    assert ran.out == "['loss'] 30\n"


def test_keras_ends(listener):
    """Early stopping, epochs of unknown length, several fits in a process."""
    ran = listener.run(KERAS + """
model.compile(optimizer="adam", loss="mse")
stop = keras.callbacks.EarlyStopping("loss", min_delta=1e9)
model.fit(x, y, batch_size=16, epochs=50, verbose=0, callbacks=[stop])
""")
    assert counts(ran, "keras") == (20, 500)
    listener.messages.clear()
    ran = listener.run(KERAS + """
model.compile(optimizer="adam", loss="mse")
class Rows(keras.utils.PyDataset):
    def __len__(self): return 7
    def __getitem__(self, index): return x[:4], y[:4]
def rows():
    while True: yield x[:4], y[:4]
model.fit(Rows(), epochs=2, verbose=0)
model.evaluate(Rows(), verbose=0); model.predict(x, verbose=0)
model.fit(rows(), epochs=3, steps_per_epoch=5, verbose=0)
""")
    assert counts(ran, "keras") == (14 + 15, 14 + 15)
    listener.messages.clear()
    ran = listener.run(KERAS + """
import time
model.compile(optimizer="adam", loss="mse")
def rows():
    for _ in range(6): time.sleep(0.2); yield x[:4], y[:4]
model.fit((row for _ in range(1) for row in rows()), epochs=1, verbose=0)
print([c.__class__.__name__ for c in keras.callbacks.CallbackList(model=model).callbacks])
""")
    steps, _ = counts(ran, "keras")
    assert steps == 6 and json.dumps(ran.messages[0]).find("total") == -1 and ran.out == "['Progress']\n"
