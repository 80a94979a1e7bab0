"""A Lightning module, with gradient accumulation and validation: lightning_fit.py STEPS"""

import sys

import lightning
import torch
from digest import digest


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def loss(self, batch):
        return (self.net(batch[0]) - batch[0].sum(1, keepdim=True)).pow(2).mean()

    def training_step(self, batch, _):
        return self.loss(batch)

    def validation_step(self, batch, _):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


lightning.seed_everything(1, verbose=False)
steps = int(sys.argv[1])
samples = torch.utils.data.TensorDataset(torch.randn(steps // 10 * 2 * 8, 16))
loader = torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True)
few = torch.utils.data.DataLoader(torch.utils.data.Subset(samples, range(16)), batch_size=8)
model = Regression()
trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=10,
    accumulate_grad_batches=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader, few)
print("weights", digest(p.detach().numpy() for p in model.parameters()))
