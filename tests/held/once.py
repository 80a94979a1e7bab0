"""Runs the training script, and records each start in a file: once.py LOG SCRIPT [ARGUMENT ...]

A second process at the same time is recorded as one, and ends.
"""

import fcntl
import os
import runpy
import sys
import time

log = open(sys.argv[1], "a")
lock = open(sys.argv[1] + ".lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("twice", time.time(), file=log, flush=True)
    sys.exit(99)
print("start", time.time(), os.environ.get("WATTUNE_RESUMED", "0"), file=log, flush=True)
sleep, due = time.sleep, time.monotonic()


def paced(span):
    """Sleeps until the next step is due, so that a busy machine changes the pace of the steps little."""
    global due
    now = time.monotonic()
    due = max(due + span, now - 1)
    sleep(max(0, due - now))


time.sleep = paced
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
