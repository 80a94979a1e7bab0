"""The reference simulator (package zeus 0.16.0, module _legacy) on one job after the other, for benches/bandit.sh.

Usage: bandit_reference.py TRACES SEEDS  — prints recurrences, CPU seconds, and CPU milliseconds per recurrence.
"""

import sys
import time

import pandas as pd
from zeus._legacy.job import Job
from zeus._legacy.policy import JITPowerLimitOptimizer, PruningGTSBatchSizeOptimizer
from zeus._legacy.simulate import Simulator

JOBS = [
    ("cifar100", "shufflenetv2", "adadelta", 0.6, 100, 1024),
    ("imagenet", "resnet50", "adadelta", 0.65, 100, 256),
    ("squad", "bert_base_uncased", "adamw", 84, 6, 32),
    ("librispeech", "deepspeech2", "adamw", 40.0, 16, 192),
    ("movielens-1m", "ncf", "adam", 0.41, 100, 1024),
    ("sentiment140", "bert_base_uncased", "adamw", 0.84, 10, 128),
]


def main():
    traces, seeds = sys.argv[1], int(sys.argv[2])
    train = pd.read_csv(f"{traces}/summary_train.csv")
    recurrences, spent = 0, 0.0
    for gpu in ("v100", "a40", "p100", "rtx6000"):
        power = pd.read_csv(f"{traces}/summary_power_{gpu}.csv")
        for dataset, network, optimizer, target, max_epochs, default in JOBS:
            rows = power[(power.dataset == dataset) & (power.network == network) & (power.optimizer == optimizer)]
            default = min(default, int(rows.batch_size.max()))
            job = Job(dataset, network, optimizer, target, max_epochs, default, 0.1)
            joined = job.filter_df(train.merge(power, how="inner"))
            count = 2 * joined.batch_size.nunique() * joined.power_limit.nunique()
            for seed in range(1, seeds + 1):
                batch_sizes = PruningGTSBatchSizeOptimizer(seed=seed, verbose=False)
                limits = JITPowerLimitOptimizer(verbose=False)
                simulator = Simulator(train, power, batch_sizes, limits, seed=seed, verbose=False)
                begun = time.process_time()
                simulator.simulate_one_job(job, count, 2.0, 0.5)
                spent += time.process_time() - begun
                recurrences += count
    print(f"{recurrences} {spent:.3f} {1000 * spent / recurrences:.3f}")


if __name__ == "__main__":
    main()
