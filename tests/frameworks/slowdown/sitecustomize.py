"""A user's own sitecustomize, which makes training as slow as the power limit in force would.

The simulated GPUs always draw what a busy GPU draws at its limit. This makes the steps agree with them: after each one
it sleeps, so that steps/s follow the curve of the simulated load. It asks the daemon for the limit, so it shows what a
training run feels and not what the daemon wanted.
"""

import json
import math
import os
import sys
import time
import urllib.request

# Set by the tests: the daemon's address, the GPU to look at, seconds per step at the maximum usable limit, and the seconds
# between two posts of Hugging Face's Trainer if not its own.
ADDRESS = os.environ.get("SLOWDOWN_DAEMON")
GPU = os.environ.get("SLOWDOWN_GPU")
STEP_S = float(os.environ.get("SLOWDOWN_STEP_S", "0"))
POSTS_S = os.environ.get("SLOWDOWN_POSTS_S")
ASK_EVERY_S = 0.1


class Slowdown:
    def __init__(self):
        self.asked_s, self.speed, self.next_s = 0.0, 1.0, 0.0

    def __call__(self, *_):
        now = time.monotonic()
        if now >= self.asked_s + ASK_EVERY_S:
            self.asked_s, self.speed = now, self.ask()
        # A step that was late is made up for, so that the mean is as it should be on a busy machine too.
        self.next_s = max(self.next_s, now - 1.0) + STEP_S / self.speed
        time.sleep(max(0.0, self.next_s - time.monotonic()))

    def ask(self):
        try:
            with urllib.request.urlopen(f"{ADDRESS}/v1/gpus/{GPU}", timeout=1) as answer:
                limit = json.load(answer)["power_limit_enforced_w"]
        except OSError:
            return 1.0
        share = (min(limit, 280.0) - 70.0) / (280.0 - 70.0)
        return (1.0 - math.exp(-4.0 * share)) / (1.0 - math.exp(-4.0))


def slow_down():
    import torch.optim  # noqa: F401

    slowdown = Slowdown()
    sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(slowdown)
    if os.environ.get("KERAS_BACKEND"):
        from keras.src.optimizers import base_optimizer

        apply = base_optimizer.BaseOptimizer.apply

        def apply_slowly(self, *arguments, **named):
            apply(self, *arguments, **named)
            slowdown()

        base_optimizer.BaseOptimizer.apply = apply_slowly
    if POSTS_S:
        from transformers.integrations import integration_utils

        integration_utils.KubeflowCallback._MIN_UPDATE_INTERVAL = float(POSTS_S)


if ADDRESS:
    slow_down()
