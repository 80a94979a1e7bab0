"""Whether jobs keep the slowdown that they allow, in real time: a daemon with the fake NVML library, eight GPUs, and jobs
whose speed follows the limits that the library has. Called with the daemon, the library, minutes and rounds:

    python3 benches/promises_realtime.py target/release/wattune target/debug/examples/libfake_nvml.so 2 6

Every round runs one job on each of the eight GPUs at once, under names of its own for each GPU, so that later rounds know
what earlier ones learned. True slowdown is against the same draws of noise at the original limit. Fails where fewer than
99 % of the runs keep their budget within half a point, or one exceeds it by two points.
"""

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

GPUS = 8
# ResNet-50 at batch size 128 on an A40: limit in watts and speed relative to that at 300 W.
CURVE = [(100, 0.34), (125, 0.44), (150, 0.608), (175, 0.82), (200, 0.937), (225, 0.966), (250, 0.983), (275, 0.995), (300, 1.0)]
DEMAND_W = 290
# Noise, seconds between reports, budget: one for each GPU and round, in turn.
NOISES, SPACINGS, BUDGETS = [0.0, 0.02, 0.05, 0.10], [1, 5, 10, 30], [0.01, 0.03, 0.10]
SAMPLES_PER_S = 100.0
STEP_S = 0.05
REDRAWN_S = 0.5
WITHIN, NEVER = 0.005, 0.02


def speed(limit):
    for (low, slow), (high, fast) in zip(CURVE, CURVE[1:]):
        if limit <= high:
            return slow + (fast - slow) * max(0.0, limit - low) / (high - low)
    return 1.0


class Gpu:
    """One GPU's limit, as the library remembers it."""

    def __init__(self, driver, index):
        self.path = driver / "state" / f"GPU-00000000-0000-0000-0000-{index:012d}.txt"

    def limit(self):
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return 300.0
        for line in lines:
            if line.startswith("limit_mw="):
                return int(line.split("=")[1]) / 1000
        return 300.0


def call(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, body=None if body is None else json.dumps(body), headers={"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"{method} {path}: {answer.status} {text.decode()}")
    return json.loads(text) if text else None


def train(port, gpu, index, case, seconds, seed, rows):
    """One run: works in small steps at the speed that the limit allows, and reports."""
    noise, spacing, budget, pauses = case
    draws = random.Random(seed)
    total = seconds * SAMPLES_PER_S
    job = call(port, "POST", "/v1/jobs", {
        "name": f"job{index}-{noise}-{spacing}-{budget}-{pauses}", "gpus": [index], "work": {"total_samples": total},
        "objective": {"max_slowdown": budget}, "lease_s": 120})["job_id"]
    done, base, piece, draw = 0.0, 0.0, 0.0, 1.0
    paused_until, next_pause, warned = 0.0, 30 * SAMPLES_PER_S, False
    begun = last = time.monotonic()
    due = begun
    while done < total:
        if time.monotonic() >= due:
            due += spacing
            # Time may have passed since the last step: the report is of then.
            answer = call(port, "POST", f"/v1/jobs/{job}/progress", {"samples": done})
            warned |= bool(answer["warnings"])
        time.sleep(STEP_S)
        now = time.monotonic()
        span, last = now - last, now
        if now < paused_until:
            base += span
            continue
        able = span * speed(gpu.limit()) * SAMPLES_PER_S
        while able > 0 and done < total:
            if piece <= 0:
                piece, draw = REDRAWN_S * SAMPLES_PER_S, 1 + noise * draws.uniform(-1, 1)
            part = min(able * draw, piece, total - done)
            done, piece, able, base = done + part, piece - part, able - part / draw, base + part / (draw * SAMPLES_PER_S)
        if pauses and done >= next_pause:
            next_pause += 30 * SAMPLES_PER_S
            paused_until = now + 8
    ended = last - able / (speed(gpu.limit()) * SAMPLES_PER_S)
    answer = call(port, "POST", f"/v1/jobs/{job}/progress", {"samples": done})
    call(port, "DELETE", f"/v1/jobs/{job}")
    rows.append((case, (ended - begun) / base - 1, answer["slowdown"], warned or bool(answer["warnings"])))


def main(wattune, library, minutes, rounds):
    scratch = Path(tempfile.mkdtemp())
    driver = scratch / "driver"
    driver.mkdir()
    gpus = [{"demand_w": DEMAND_W, "processes": 1} for _ in range(GPUS)]
    (driver / "boards.json").write_text(json.dumps({"boards": gpus}))
    log = open(scratch / "log", "w+")
    daemon = subprocess.Popen(
        [wattune, "serve", "--gpus", "nvml", "--nvml-library", library, "--state-dir", scratch / "state", "--listen",
         "127.0.0.1:0"], env={**os.environ, "FAKE_NVML_DIR": str(driver)}, stdout=subprocess.DEVNULL, stderr=log)
    port = None
    for _ in range(200):
        time.sleep(0.1)
        for line in Path(scratch / "log").read_text().splitlines():
            if "listening on http://" in line:
                port = int(line.rsplit(":", 1)[1].split()[0].strip("/"))
        if port:
            break
    else:
        sys.exit("the daemon does not listen: " + Path(scratch / "log").read_text())
    rows, seed = [], 0
    for turn in range(rounds):
        threads = []
        for index in range(GPUS):
            # Each case comes twice before the next: a first and a second run.
            place = (turn // 2) * GPUS + index
            case = (NOISES[place % 4], SPACINGS[(place // 4) % 4], BUDGETS[(place // 2) % 3], place % 2 == 1)
            seed += 1
            thread = threading.Thread(target=train, args=(port, Gpu(driver, index), index, case, 60 * minutes, seed, rows))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
        print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(timeout=60)
    if len(rows) != GPUS * rounds:
        sys.exit(f"{GPUS * rounds - len(rows)} runs failed")
    over = sorted(truth - case[2] for case, truth, _, _ in rows)
    kept = sum(by <= WITHIN for by in over) / len(over)
    for case, truth, reported, warned in rows:
        if truth - case[2] > WITHIN:
            print(f"over: noise {case[0]}, reports each {case[1]} s, budget {case[2]}, pauses {case[3]}: true {100 * truth:.2f} %, "
                  f"reported {reported}, warned {warned}")
    print(f"{len(rows)} runs of {minutes} minutes: {100 * kept:.1f} % within half a point of the budget, worst {100 * over[-1]:+.2f} points")
    # Written so that a value that is no number fails too.
    if not (kept >= 0.99 and over[-1] <= NEVER):
        sys.exit("a promise about slowdown is not kept as often or as nearly as it should be")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
