#!/usr/bin/env python3
"""A recurring job of Zeus's unmodified `BatchSizeOptimizer` from its registration to its deletion, against the daemon.

    tests/zeus/bso.py WATTUNE

Zeus's client and its packages are installed into an environment of their own. The client's GPUs and its energy monitor
are stand-ins with known values, so that every choice of a batch size is known: those of the Thompson sampling are
computed here with NumPy, as by Zeus's own server.
"""

import atexit
import json
import math
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from client import Daemon, run_inside  # noqa: E402

SIZES = [256, 16, 64, 32, 128]
# Epochs until the target, and joules of each epoch. 16 costs too much, 256 stays below its target.
TRUTH = {16: (99, 200.0), 32: (6, 70.0), 64: (5, 88.0), 128: (5, 86.0), 256: (99, 10.0)}
MAX_EPOCHS, SEED, LEASE_S = 10, 20221, 3


def check(holds, text):
    if not holds:
        sys.exit(f"FAILED: {text}")
    print(f"  {text}")


def optimizer(url, job_id, **changes):
    """A client that measures what `TRUTH` says, with 4 GPUs of up to 300 W."""
    from zeus.monitor.energy import Measurement
    from zeus.optimizer.batch_size import client
    from zeus.optimizer.batch_size.common import JobSpec

    class Gpus:
        def __len__(self):
            return 4

        def get_power_management_limit_constraints(self, _):
            return 100_000, 300_000

        def get_name(self, _):
            return "NVIDIA A100-SXM4-40GB"

    class Monitor:
        gpu_indices = [0, 1, 2, 3]
        joules = 0.0

        def begin_window(self, _):
            pass

        def end_window(self, _):
            return Measurement(time=0.5, gpu_energy={i: self.joules / 4 for i in range(4)})

    client.get_gpus = lambda ensure_homogeneous=False: Gpus()
    fields = {
        "job_id": job_id, "job_id_prefix": "nightly", "batch_sizes": SIZES, "default_batch_size": 64, "eta_knob": 1.0,
        "beta_knob": 2.0, "target_metric": 0.6, "max_epochs": MAX_EPOCHS, "mab_seed": SEED,
    }
    return client.BatchSizeOptimizer(Monitor(), url, JobSpec(**(fields | changes)))


def joules(batch_size, trial):
    """The energy of an epoch, which varies by up to a fifth from trial to trial."""
    return TRUTH[batch_size][1] * (1 + 0.2 * (trial * 0.618034 % 1))


def train(bso):
    """Trains to the end; returns batch size, number of the trial, energy, and the client's error."""
    from zeus.optimizer.batch_size.exceptions import ZeusBSOTrainFailError

    batch_size = bso.get_batch_size()
    bso.monitor.joules = joules(batch_size, bso.trial_number)
    bso.on_train_begin()
    error = ""
    try:
        while not bso.training_finished:
            reached = bso.cur_epoch + 1 >= TRUTH[batch_size][0]
            bso.on_evaluate(0.65 if reached else math.nan if bso.cur_epoch == 1 else 0.3)
    except ZeusBSOTrainFailError as failure:
        error = str(failure)
    return batch_size, bso.trial_number, bso.consumed_energy, error


def child(url, job_id, what):
    """One run as a process of its own: `train` to the end, `leave` or `stay` after the first epoch."""
    bso = optimizer(url, job_id)
    if what == "train":
        print(json.dumps(train(bso)))
        return
    bso.monitor.joules = joules(bso.get_batch_size(), bso.trial_number)
    bso.on_train_begin()
    bso.on_evaluate(0.1)
    print(json.dumps([bso.current_batch_size, bso.trial_number]), flush=True)
    if what == "stay":
        time.sleep(600)


def begin(url, job_id, what):
    command = [sys.executable, __file__, "--child", url, job_id, what]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def result(process):
    return json.loads(process.stdout.readline())


def finished(url, job_id):
    process = begin(url, job_id, "train")
    batch_size, trial, energy, error = result(process)
    check(process.wait() == 0, f"trial {trial} with batch size {batch_size}: {energy:.0f} J {error.splitlines()[:1]}")
    return batch_size, trial, energy, error


class Sampling:
    """The Thompson sampling of Zeus's server, with its random numbers."""

    def __init__(self, explored):
        import numpy as np

        self.np, self.random = np, np.random.default_rng(SEED)
        self.rewards = {size: [-cost for cost in explored[size]] for size in sorted(explored)}

    def choose(self):
        np, arms = self.np, list(self.rewards)
        self.random.choice(arms, len(arms), replace=False)
        drawn = {}
        for arm in arms:
            rewards = np.array(self.rewards[arm])
            precision = len(rewards) * np.reciprocal(np.var(rewards))
            mean = np.reciprocal(np.var(rewards)) * rewards.sum() / precision
            drawn[arm] = self.random.normal(mean, np.sqrt(np.reciprocal(precision)))
        return max(drawn, key=drawn.get)


def scenario(wattune):
    import httpx
    from zeus.optimizer.batch_size.exceptions import ZeusBSORuntimError

    # The hooks of the clients in this process would run after the daemon has ended.
    atexit.register = lambda hook: hook
    with Daemon(wattune, f"[recurring]\nzeus_lease_s = {LEASE_S}\n") as daemon:
        url, job = daemon.url, "nightly-resnet50"

        print("registration")
        bso = optimizer(url, job)
        check(bso.job.max_power == 1200 and bso.job.batch_sizes == sorted(SIZES), "the job is registered")
        check(optimizer(url, job, batch_sizes=sorted(SIZES)).job == bso.job, "again, in another order: the same job")
        try:
            optimizer(url, job, beta_knob=3.0)
            check(False, "another specification is refused")
        except ZeusBSORuntimError as error:
            check("409" in str(error), "another specification is refused")
        other = optimizer(url, None).job.job_id
        check(other.startswith("nightly-") and len(other) == 16, f"a job without an id gets one: {other}")
        check(optimizer(url, "nightly-ü/" + 300 * "x").get_batch_size() == 64, "any text is an id")

        print("first pruning round")
        gone = begin(url, job, "leave")
        check(result(gone) == [64, 1] and gone.wait() == 0, "the first run begins with the default, and is interrupted")
        lost = begin(url, job, "stay")
        check(result(lost) == [64, 2], "the batch size is offered again")
        beside = optimizer(url, job)
        check(beside.get_batch_size() == 64 and beside.trial_number == 3, "a run beside it gets the best known one")
        lost.send_signal(signal.SIGKILL)
        lost.wait()
        time.sleep(LEASE_S + 1)
        explored = {}
        orders = []
        for expected in (64, 32, 16, 128, 256):
            batch_size, _, energy, error = finished(url, job)
            orders.append(batch_size)
            if expected == 16:
                check("exceeded the cost upper bound" in error, "a run that costs too much is stopped")
            elif expected == 256:
                check("failed to converge within max_epoch(10)" in error, "a run may miss its target")
            else:
                check(not error, "the run reaches its target")
                explored[batch_size] = [energy]
        check(orders == [64, 32, 16, 128, 256], "from the default down, then up; the killed run blocks nothing")

        print("second pruning round, over a kill of the daemon")
        daemon.kill()
        daemon.start()
        concurrent = optimizer(url, job)
        for expected in (32, 64, 128):
            if expected == 64:
                waiting = optimizer(url, job)
                check(waiting.get_batch_size() == 64, "one run explores")
                check(concurrent.get_batch_size() == 32, "a concurrent one gets the cheapest batch size")
                batch_size, _, energy, error = train(waiting)
            else:
                batch_size, _, energy, error = finished(url, job)
            check(batch_size == expected and not error, f"batch size {batch_size} is explored again")
            explored[batch_size].append(energy)

        print("Thompson sampling")
        sampling = Sampling(explored)
        chosen = set()
        for _ in range(20):
            batch_size, _, energy, error = finished(url, job)
            expected = sampling.choose()
            check(batch_size == expected and not error, f"as NumPy chooses: {expected}")
            sampling.rewards[batch_size].append(-energy)
            chosen.add(batch_size)
        check(len(chosen) > 1, f"more than one batch size is tried: {sorted(chosen)}")
        check("with arms [32, 64, 128]" in daemon.log(), "the log names the arms")
        check(not train(concurrent)[3], "a concurrent run from before may still end")
        check(not train(beside)[3], "a run that was silent for long may still end")

        print("the same job in wattune's own API")
        view = httpx.get(f"{url}/v1/recurring/{job}").json()
        check(view["stage"] == "exploiting" and view["spec"]["policy"] == "zeus", "it is listed with its stage")
        exported = httpx.get(f"{url}/v1/recurring/{job}/export").json()
        check(httpx.post(f"{url}/v1/recurring/copy/import", json=exported).status_code == 201, "it can be exported")

        print("deletion")
        check(httpx.delete(f"{url}/jobs", params={"job_id": job}).text == "null", "the job is deleted")
        check(httpx.delete(f"{url}/jobs", params={"job_id": job}).status_code == 404, "it is deleted once")
        try:
            bso.get_batch_size()
            check(False, "a deleted job has no trials")
        except ZeusBSORuntimError as error:
            check("Please register the job first" in str(error), "a deleted job has no trials")
        again = optimizer(url, job)
        check((again.get_batch_size(), again.trial_number) == (64, 1), "registered anew, it begins anew")
    print("done")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        run_inside(__file__, *sys.argv[1:])
        scenario(pathlib.Path(sys.argv[1]).resolve())
