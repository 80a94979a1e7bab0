"""A common decision of all processes of a training with PyTorch."""

from __future__ import annotations

import sys
from typing import Any


def of_rank_0(wish: bool) -> bool:
    """Returns rank 0's wish in all processes; every process must make the same calls."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return wish
    box = [wish]
    torch.distributed.broadcast_object_list(box, src=0)
    return bool(box[0])
