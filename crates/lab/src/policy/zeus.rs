//! Zeus: one power limit for the whole job, by energy and time, without regard to the grid.

use super::kind::{Policy, RunMode};
use crate::replay::{Decision, Step, View};
use wattune_core::units::{SamplesPerSecond, Watts};

/// Zeus's default weight of energy: energy and time count equally.
const ETA: f64 = 0.5;

pub(super) const POLICY: Policy = Policy {
    name: "zeus",
    about: "the one limit of least energy-time cost, of those within the budget",
    mode: RunMode::WithinBudgetAndFree(decide),
    learns: true,
};

/// Returns argmin (η·p(l) + (1−η)·P_max)/r(l), Zeus's cost per sample (its equation 2) with η = 0.5, for the whole job.
/// With a budget, only limits that keep the budget are considered.
fn decide(view: &View<'_>) -> Decision {
    let cost = |power: Watts, throughput: SamplesPerSecond| {
        if throughput < view.slowest_allowed() {
            return f64::INFINITY;
        }
        (ETA * power.get() + (1.0 - ETA) * view.max_power.get()) / throughput.get()
    };
    Ok(vec![Step::to_the_end(view.cheapest(cost))])
}
