"""A Lightning module that saves when it is interrupted and resumes: lightning_resume.py STEPS FOLDER"""

import os
import sys
import time

import lightning
import torch
from digest import digest
from lightning.pytorch.callbacks import OnExceptionCheckpoint


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def training_step(self, batch, _):
        time.sleep(0.02)
        return (self.net(batch[0]) - batch[0].sum(1, keepdim=True)).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Resumable(torch.utils.data.DataLoader):
    """A loader that goes on within an epoch; PyTorch's own begins the epoch again."""

    first = position = 0

    def __iter__(self):
        first, self.first = self.first, 0
        for self.position, batch in enumerate(super().__iter__(), 1):
            if self.position > first:
                yield batch

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.first = state["position"]


lightning.seed_everything(1, verbose=False)
steps, folder = int(sys.argv[1]), sys.argv[2]
loader = Resumable(torch.utils.data.TensorDataset(torch.randn(steps * 8, 16)), batch_size=8)
model = Regression()
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=1,
    logger=False,
    enable_checkpointing=True,
    callbacks=[OnExceptionCheckpoint(folder, "stopped")],
    default_root_dir=folder,
    enable_progress_bar=False,
    enable_model_summary=False,
)
last = os.path.join(folder, "stopped.ckpt")
last = last if os.path.exists(last) else None
print("resumes", last is not None, flush=True)
trainer.fit(model, loader, ckpt_path=last)
print("weights", digest(p.detach().numpy() for p in model.parameters()))
