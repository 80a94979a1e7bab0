"""A training script that knows nothing of wattune: train.py SECONDS"""

import sys
import time

import torch

model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
steps, until = 0, time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    x = torch.randn(8192, 4096, device="cuda")
    loss = (model(x) - x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
    steps += 1
print("steps", steps)
