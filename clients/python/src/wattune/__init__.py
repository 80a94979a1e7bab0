"""The client of the wattune daemon, which shifts the power of GPU training to the clean hours of the grid.

```python
import wattune

with wattune.job("resnet50", total_samples=1_000_000, max_slowdown=0.03) as job:
    for images, labels in loader:
        train(images, labels)
        job.step(len(images))

print(job.summary())
```
"""

from __future__ import annotations

from ._factory import job
from ._job import Job
from ._recurring import Recurring, recurring
from ._summary import Interval, Summary
from ._when import Advice, when

__version__ = "0.1.0"

__all__ = ["Advice", "Interval", "Job", "Recurring", "Summary", "__version__", "job", "recurring", "when"]
