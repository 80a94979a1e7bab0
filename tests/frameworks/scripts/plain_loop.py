"""A plain PyTorch loop: plain_loop.py STEPS"""

import random
import sys

import torch
from digest import digest

random.seed(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=int(sys.argv[1]))
for _ in range(int(sys.argv[1])):
    x = torch.randn(16, 16)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
print("weights", digest(p.detach().numpy() for p in model.parameters()))
print("random", random.random(), torch.randint(1 << 30, (1,)).item())
