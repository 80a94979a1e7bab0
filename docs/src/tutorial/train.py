#!/usr/bin/env python3
"""Stands in for a training loop: reports progress to wattune once a second, at the speed that the power limit allows.

    python3 train.py http://127.0.0.1:4938 JOB_ID [SAMPLES]

It works with the simulated GPUs of `wattune serve --config config/demo.toml`, which run 400 samples/s at 300 W.
A real job does the same three lines of HTTP after a step: see `report`.
"""

import json
import math
import sys
import time
import urllib.error
import urllib.request


def report(address, job, samples, at_s):
    """Reports cumulative samples and the job's own clock in seconds; returns the daemon's answer."""
    request = urllib.request.Request(
        f"{address}/v1/jobs/{job}/progress",
        data=json.dumps({"samples": samples, "at_s": at_s}).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def samples_per_s(limit_w):
    """Returns the throughput of the simulated load, which draws 70 W before it computes and 280 W at the most."""
    share = (min(limit_w, 280.0) - 70.0) / (280.0 - 70.0)
    return 400.0 * (1.0 - math.exp(-4.0 * share)) / (1.0 - math.exp(-4.0))


def main(address, job, total):
    begun, samples, limit_w, last = time.monotonic(), 0.0, 300.0, 0.0
    while samples < total:
        time.sleep(1.0)
        at_s = time.monotonic() - begun
        samples = min(total, samples + samples_per_s(limit_w) * (at_s - last))
        last = at_s
        try:
            answer = report(address, job, samples, at_s)
        except urllib.error.HTTPError as refused:
            print(f"{at_s:6.0f} s refused: {json.load(refused)['detail']}", file=sys.stderr, flush=True)
            if refused.code in (404, 409):  # there is no such job, or it has ended
                sys.exit(1)
            continue
        except OSError as gone:  # training goes on without the daemon
            print(f"{at_s:6.0f} s no answer: {getattr(gone, 'reason', gone)}", file=sys.stderr, flush=True)
            continue
        # Absent where wattune sets none: the GPU is then at its original limit.
        wanted_w = answer["power_limit_w"]
        limit_w = wanted_w or 300.0
        shown = f"{wanted_w:3.0f} W" if wanted_w else "    -"
        print(f"{at_s:6.0f} s {samples:9.0f} samples  {answer['phase']:9}  {shown}  {answer.get('reason') or ''}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 80000.0)
