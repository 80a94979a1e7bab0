"""Holds the policy wattune against zeus, the default and the oracle, from summary rows and, independently, the traces.

Usage: bandit_bounds.py TRACES ETA GEOMETRIC_MEAN WORST STRICT [DATASET=TARGET | DATASET:default=BATCH_SIZE]... < summary.json

TRACES is the folder of Zeus's traces. For each job and board: mean regret of wattune over mean regret of zeus, its cost
against the default's, and what its final choice is expected to cost against the oracle's. Fails if the geometric mean
of the ratios is above GEOMETRIC_MEAN or one is above WORST; with STRICT 1 also if the cost is not below the default's
where the oracle's expected run is at least 2 % cheaper than the default's (elsewhere more than two such runs above it),
or the final choice is more than 1 % above the oracle. STRICT 0 is for other knobs and targets.
"""

import csv
import json
import math
import sys

# Targets by workload, as asked for; epochs; what the default batch size is before it is clipped.
EPOCHS = {"cifar100": 100, "imagenet": 100, "squad": 6, "librispeech": 16, "movielens-1m": 100, "sentiment140": 10}
DEFAULTS = {"cifar100": 1024, "imagenet": 256, "squad": 32, "librispeech": 192, "movielens-1m": 1024, "sentiment140": 128}
OPTIMIZERS = {"cifar100": "adadelta", "imagenet": "adadelta", "movielens-1m": "adam"}


def mean(values):
    values = list(values)
    return sum(values) / len(values)


class Board:
    """Expected costs on a board."""

    def __init__(self, traces, gpu, eta):
        self.train = rows(f"{traces}/summary_train.csv")
        self.power = rows(f"{traces}/summary_power_{gpu}.csv")
        trained = {key(row) for row in self.train}
        self.max_power = max(float(row["power_limit"]) for row in self.power if key(row) in trained)
        self.eta = eta

    def expected(self, workload, target, batch_size, limit):
        dataset, network = workload.split("/")
        of = (dataset, network, str(batch_size), OPTIMIZERS.get(dataset, "adamw"))
        paths = [row for row in self.train if key(row) == of and float(row["target_metric"]) == target]
        epochs = [
            (self.eta * float(row["average_power"]) + (1 - self.eta) * self.max_power) * float(row["time_per_epoch"])
            for row in self.power
            if key(row) == of and float(row["power_limit"]) == limit
        ]
        most = EPOCHS[dataset]
        needed = [float(row["target_epoch"] or "nan") for row in paths]
        reached = [e for e in needed if e <= most]
        if not reached or not epochs:
            return math.inf
        return mean(epochs) * (sum(reached) + most * (len(needed) - len(reached))) / len(reached)

    def best(self, workload, target):
        dataset, network = workload.split("/")
        settings = {
            (int(row["batch_size"]), float(row["power_limit"]))
            for row in self.power
            if (row["dataset"], row["network"]) == (dataset, network)
        }
        return min(self.expected(workload, target, *setting) for setting in settings)

    def default(self, workload, target):
        dataset, network = workload.split("/")
        of_job = [row for row in self.power if (row["dataset"], row["network"]) == (dataset, network)]
        optimizer = OPTIMIZERS.get(dataset, "adamw")
        sizes = {int(row["batch_size"]) for row in of_job if row["optimizer"] == optimizer}
        size = min(DEFAULTS[dataset], max(sizes))
        limit = max(float(row["power_limit"]) for row in of_job if int(row["batch_size"]) == size)
        return self.expected(workload, target, size, limit)


def rows(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def key(row):
    return (row["dataset"], row["network"], row["batch_size"], row["optimizer"])


def main():
    traces, (eta, most_mean, most), strict = sys.argv[1], map(float, sys.argv[2:5]), sys.argv[5] == "1"
    targets = {"cifar100": 0.6, "imagenet": 0.65, "squad": 84, "librispeech": 40, "movielens-1m": 0.41, "sentiment140": 0.84}
    for argument in sys.argv[6:]:
        name, value = argument.split("=")
        dataset, _, default = name.partition(":")
        if default:
            DEFAULTS[dataset] = int(value)
        else:
            targets[dataset] = float(value)
    pairs = {}
    for row in json.load(sys.stdin)["summary"]:
        pairs.setdefault((row["gpu"], row["workload"]), {}).setdefault(row["policy"], []).append(row)
    boards, ratios, wrong = {}, [], []
    for (gpu, workload), by_policy in pairs.items():
        board = boards.setdefault(gpu, Board(traces, gpu, eta))
        target = targets[workload.split("/")[0]]
        best, default = board.best(workload, target), board.default(workload, target)
        regret = {policy: mean(r["cumulative_regret_runs"] for r in of) for policy, of in by_policy.items()}
        row = by_policy["wattune"][0]
        recurrences = row["cumulative_cost"] / best - row["cumulative_regret_runs"]
        if abs(recurrences - round(recurrences)) > 1e-6:
            wrong.append(f"{gpu} {workload}: regret is not in the oracle's expected runs")
        ratio = regret["wattune"] / regret["zeus"]
        ratios.append(max(ratio, 1e-3))
        # The default's own luck left out.
        beyond = regret["wattune"] - round(recurrences) * (default / best - 1)
        final = mean(
            board.expected(workload, target, r["final_batch_size"], r["final_power_limit_w"]) / best - 1
            for r in by_policy["wattune"]
        )
        print(f"{gpu:8} {workload:30} zeus {regret['zeus']:7.2f} wattune {regret['wattune']:7.2f} ratio {ratio:5.2f}  "
              f"beyond default {beyond:8.2f}  final {100 * final:+.2f} %")
        # Written so that a value that is no number fails too.
        if not ratio <= most:
            wrong.append(f"{gpu} {workload}: {ratio:.2f} times the regret of zeus")
        if strict and not (beyond < 0 if default >= 1.02 * best else beyond <= 2):
            wrong.append(f"{gpu} {workload}: {beyond:.2f} runs beyond the default")
        if strict and not final <= 0.01:
            wrong.append(f"{gpu} {workload}: the final choice is {100 * final:.2f} % above the oracle")
    geometric = math.exp(mean(map(math.log, ratios)))
    print(f"{len(ratios)} pairs, eta {eta}: geometric mean of ratios {geometric:.3f}, largest {max(ratios):.2f}")
    if not geometric <= most_mean:
        wrong.append(f"the geometric mean is {geometric:.3f}")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
