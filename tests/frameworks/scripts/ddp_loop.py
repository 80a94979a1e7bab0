"""Data-parallel training for torchrun: ddp_loop.py STEPS"""

import sys
import time

import torch
import torch.distributed as dist
from digest import digest
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(int(sys.argv[1])):
    x = torch.randn(16, 16, generator=generator)
    loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if dist.get_rank() == 0:
    print("weights", digest(p.detach().numpy() for p in model.parameters()))
dist.destroy_process_group()

# PyTorch aborts if one of Gloo's threads drops the last gradients while Python ends (pytorch/pytorch#179291). These
# threads live on after the process group is destroyed, so give them time.
time.sleep(1)
