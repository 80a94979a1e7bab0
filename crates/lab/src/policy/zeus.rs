//! Zeus: one power limit for the whole job, chosen by energy and time; carbon intensities are ignored.

use super::kind::{Policy, RunMode};
use crate::replay::{Decision, Step, View};
use wattune_core::units::{SamplesPerSecond, Watts};

/// Zeus's default weight η of energy: energy and time count equally.
const ETA: f64 = 0.5;

pub(super) const POLICY: Policy = Policy {
    name: "zeus",
    about: "the one limit of least energy-time cost, of those within the budget",
    mode: RunMode::WithinBudgetAndFree(decide),
    learns: true,
};

/// Returns the limit l with the least (η·p(l) + (1−η)·P_max)/r(l) for the whole job: Zeus's cost per sample (Zeus,
/// equation 2) with the power p, the throughput r and η = 0.5. With a budget of extra time, only limits that keep the
/// budget are considered; if none does, the largest limit.
fn decide(view: &View<'_>) -> Decision {
    let slowest = view.slowest_from_now();
    let cost = |power: Watts, throughput: SamplesPerSecond| {
        if slowest.is_none_or(|slowest| throughput < slowest) {
            return f64::INFINITY;
        }
        (ETA * power.get() + (1.0 - ETA) * view.max_power.get()) / throughput.get()
    };
    Ok(vec![Step::to_the_end(view.cheapest(cost))])
}
