"""Solves the planner's problems with HiGHS and prints both times: see benches/peer.sh.

The programme is the relaxation in which caps hold on average over a slot and each job ends in the slot that the planner
chose; the planner's time includes choosing it, and arranging limits so that the cap holds at every instant.
"""

import json
import subprocess
import sys
import time

import numpy as np
import scipy
from scipy.optimize import linprog
from scipy.sparse import csr_array

# Jobs, slots, limits, and the cap as a part of the sum of all highest limits.
PROBLEMS = [("1", "288", "9"), ("8", "288", "50", "0.7"), ("64", "576", "50", "0.7")]


def programme(problem):
    """Cost, equalities and inequalities; a variable is the part of a slot that a job spends at a point."""
    cost, equal, at_most = [], ([], [], [], []), ([], [], [], [])

    def add(rows, columns, values, right):
        rows[0].append(np.full(len(columns), len(rows[3])))
        rows[1].append(np.asarray(columns))
        rows[2].append(np.asarray(values))
        rows[3].append(right)

    seconds, intensity = np.array(problem["seconds"]), np.array(problem["intensity"])
    capped = [([], []) for _ in seconds]
    variables = 0
    for job in problem["jobs"]:
        limit, power, rate = np.array(job["points"]).T
        work = ([], [])
        for t in range(job["last"] + 1):
            span = seconds[t] if t < job["last"] else job["in_last"]
            columns = variables + np.arange(len(limit))
            variables += len(limit)
            cost.append(span * intensity[t] * power / 3.6e6)
            add(equal if t < job["last"] else at_most, columns, np.ones(len(limit)), 1.0)
            work[0].append(columns)
            work[1].append(span * rate / job["work"])
            capped[t][0].append(columns)
            capped[t][1].append(span * limit)
        add(equal, np.concatenate(work[0]), np.concatenate(work[1]), 1.0)
    for cap, span, (columns, values) in zip(problem["caps"], seconds, capped):
        if cap is not None and columns:
            add(at_most, np.concatenate(columns), np.concatenate(values) / (cap * span), 1.0)

    def matrix(rows):
        if not rows[3]:
            return None, None
        places = (np.concatenate(rows[0]), np.concatenate(rows[1]))
        return csr_array((np.concatenate(rows[2]), places), shape=(len(rows[3]), variables)), np.array(rows[3])

    return np.concatenate(cost), matrix(equal), matrix(at_most)


def main():
    solver, patience = sys.argv[1], float(sys.argv[2])
    print(f"scipy {scipy.__version__}; times in seconds, ours the best of all tries within one second")
    print("| jobs × slots × limits | wattune | peak | HiGHS-ds | HiGHS-ipm | faster | objective off | kept at every instant |")
    print("|---|---|---|---|---|---|---|---|")
    for sizes in PROBLEMS:
        problem = json.loads(subprocess.run([solver, *sizes], check=True, capture_output=True).stdout)
        ours = problem["answer"]
        cost, (a_eq, b_eq), (a_ub, b_ub) = programme(problem)
        times, values = [], []
        for method in ("highs-ds", "highs-ipm"):
            began = time.monotonic()
            found = linprog(cost, a_ub, b_ub, a_eq, b_eq, method=method, options={"time_limit": patience})
            took = time.monotonic() - began
            solved = found.status == 0
            times.append((took, "" if solved else "+"))
            values += [found.fun] if solved else []
        best = min(times)
        off = f"{ours['relaxed'] / values[0] - 1:.1e}" if values else "not solved"
        shown = " | ".join(f"{took:.3f}{more}" for took, more in times)
        print(
            f"| {' × '.join(sizes[:3])} | {ours['seconds']:.5f} | {ours['peak_mib']:.0f} MiB | {shown} "
            f"| {best[0] / ours['seconds']:.0f}×{best[1]} | {off} | +{100 * (ours['cost'] / ours['relaxed'] - 1):.3f} % |",
            flush=True,
        )
    print("A + marks a time at which HiGHS was stopped. The last column is what keeping the cap at every instant costs.")


if __name__ == "__main__":
    main()
