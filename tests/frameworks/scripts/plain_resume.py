"""A regression in plain Python that saves on SIGTERM and resumes: plain_resume.py STEPS FOLDER"""

import hashlib
import os
import pickle
import random
import signal
import sys
import time

steps, path = int(sys.argv[1]), os.path.join(sys.argv[2], "state")
stop = False


def ask(*_):
    global stop
    stop = True


signal.signal(signal.SIGTERM, ask)
done, weights, source = 0, [0.0] * 8, random.Random(1)
if os.path.exists(path):
    with open(path, "rb") as file:
        done, weights, state = pickle.load(file)
    source.setstate(state)
print("resumes", done > 0, flush=True)
while done < steps:
    time.sleep(0.02)
    row = [source.gauss(0, 1) for _ in weights]
    error = sum(w * x for w, x in zip(weights, row)) - sum(row)
    weights = [w - 0.05 * error * x for w, x in zip(weights, row)]
    done += 1
    print(f"step {done}/{steps}", flush=True)
    if stop:
        with open(path + ".new", "wb") as file:
            pickle.dump((done, weights, source.getstate()), file)
        os.replace(path + ".new", path)
        sys.exit(143)
print("weights", hashlib.sha256(repr(weights).encode()).hexdigest())
