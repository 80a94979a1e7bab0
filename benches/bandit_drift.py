"""How many recurrences policies need after a switch of traces, until they are back within 5 % of the new oracle.

Usage: bandit_drift.py WATTUNE TRACES [SEEDS]

A policy is back at the first of three recurrences in a row that reach their target with a batch size and limit whose
expected cost is within 5 % of the oracle's. zeus has a window of 10. Fails if wattune needs more than 1.5 times as many as
zeus, on the mean of seeds, in all cases together or in one of them, where 4 are always allowed: if what zeus ran before
is still good it needs none, one look elsewhere in those three takes up to 3, and one seed in 40 that never comes back
(what it ran became cheaper, so that it looks nowhere else) counts for 3.75.
"""

import json
import subprocess
import sys

from bandit_bounds import DEFAULTS, EPOCHS, OPTIMIZERS, Board, mean

# Workload; board and target before and after.
CASES = [
    ("cifar100/shufflenetv2", ("v100", 0.6), ("v100", 0.4)),
    ("cifar100/shufflenetv2", ("v100", 0.4), ("v100", 0.6)),
    ("cifar100/shufflenetv2", ("v100", 0.6), ("a40", 0.6)),
    ("cifar100/shufflenetv2", ("rtx6000", 0.6), ("p100", 0.6)),
    ("imagenet/resnet50", ("v100", 0.65), ("v100", 0.5)),
    ("imagenet/resnet50", ("v100", 0.5), ("v100", 0.65)),
    ("librispeech/deepspeech2", ("v100", 40), ("v100", 50)),
    ("librispeech/deepspeech2", ("v100", 50), ("v100", 40)),
    ("librispeech/deepspeech2", ("v100", 40), ("a40", 40)),
    ("librispeech/deepspeech2", ("a40", 40), ("rtx6000", 40)),
    ("movielens-1m/ncf", ("v100", 0.41), ("v100", 0.375)),
    ("movielens-1m/ncf", ("v100", 0.375), ("v100", 0.41)),
    ("sentiment140/bert_base_uncased", ("v100", 0.84), ("a40", 0.84)),
    ("sentiment140/bert_base_uncased", ("a40", 0.84), ("v100", 0.84)),
    ("squad/bert_base_uncased", ("v100", 84), ("v100", 83)),
    # The other way, and other boards.
    ("cifar100/shufflenetv2", ("a40", 0.6), ("v100", 0.6)),
    ("cifar100/shufflenetv2", ("p100", 0.6), ("v100", 0.6)),
    ("cifar100/shufflenetv2", ("a40", 0.5), ("a40", 0.6)),
    ("imagenet/resnet50", ("rtx6000", 0.65), ("rtx6000", 0.5)),
    ("librispeech/deepspeech2", ("p100", 50), ("p100", 40)),
    ("movielens-1m/ncf", ("a40", 0.41), ("v100", 0.41)),
    ("sentiment140/bert_base_uncased", ("v100", 0.84), ("p100", 0.84)),
    ("squad/bert_base_uncased", ("v100", 83), ("v100", 84)),
    ("squad/bert_base_uncased", ("v100", 84), ("a40", 84)),
    ("squad/bert_base_uncased", ("a40", 84), ("v100", 84)),
]
ALWAYS = 4
BEFORE, AFTER = 60, 150


def needed(runs, good):
    """Recurrences before the first of three good ones."""
    last = {}
    for run in runs:
        if run["recurrence"] > BEFORE:
            last[run["recurrence"]] = run
    row = 0
    for recurrence in sorted(last):
        row = row + 1 if good(last[recurrence]) else 0
        if row == 3:
            return recurrence - BEFORE - 3
    return AFTER


def main():
    wattune, traces, seeds = sys.argv[1], sys.argv[2], int((sys.argv[3:] or ["40"])[0])
    wrong, total = [], {"zeus": 0.0, "wattune": 0.0}
    for workload, (gpu, target), (later_gpu, later) in CASES:
        dataset = workload.split("/")[0]
        command = [
            wattune, "simulate", "bandit", "--train-trace", f"{traces}/summary_train.csv",
            "--power-trace", f"{traces}/summary_power_{gpu}.csv", "--workload", workload,
            "--optimizer", OPTIMIZERS.get(dataset, "adamw"), "--target-metric", str(target),
            "--max-epochs", str(EPOCHS[dataset]), "--default-batch-size", str(DEFAULTS[dataset]),
            "--policy", "zeus,wattune", "--window", "10", "--seeds", f"1-{seeds}",
            "--recurrences", str(BEFORE + AFTER), "--drift-at", str(BEFORE + 1),
            "--drift-target-metric", str(later), "--history", "--format", "json",
        ]
        if later_gpu != gpu:
            command += ["--drift-power-trace", f"{traces}/summary_power_{later_gpu}.csv"]
        report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        board = Board(traces, later_gpu, 0.5)
        best = board.best(workload, float(later))
        costs = {}

        def good(run):
            setting = (run["batch_size"], run["power_limit_w"])
            if setting not in costs:
                costs[setting] = board.expected(workload, float(later), *setting)
            return run["reached"] and costs[setting] <= 1.05 * best

        back = {}
        for policy in ("zeus", "wattune"):
            of = [[] for _ in range(seeds)]
            for run in report["history"]:
                if run["policy"] == policy:
                    of[run["seed"] - 1].append(run)
            back[policy] = mean(needed(runs, good) for runs in of)
        name = f"{workload} {gpu} {target} -> {later_gpu} {later}"
        print(f"{name:60} zeus {back['zeus']:6.1f} wattune {back['wattune']:6.1f}")
        # Written so that a value that is no number fails too.
        if not back["wattune"] <= max(1.5 * back["zeus"], ALWAYS):
            wrong.append(f"{name}: {back['wattune']:.1f} recurrences, zeus {back['zeus']:.1f}")
        for policy in total:
            total[policy] += back[policy] / len(CASES)
    print(f"{'mean':60} zeus {total['zeus']:6.1f} wattune {total['wattune']:6.1f}")
    if not total["wattune"] <= 1.5 * total["zeus"]:
        wrong.append(f"mean: {total['wattune']:.1f} recurrences, zeus {total['zeus']:.1f}")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
