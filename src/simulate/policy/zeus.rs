//! Zeus: one limit for the whole job, by energy and time, blind to the grid.

use crate::simulate::replay::{Decision, Step, View};

/// Zeus's default: energy and time count alike.
const ETA: f64 = 0.5;

/// argmin (η·p(l) + (1−η)·P_max)/r(l), the cost per sample of Zeus (its equation 2) with η = 0.5. With a budget, of
/// those limits that keep it.
pub(super) fn decide(view: &View<'_>) -> Decision {
    let slowest = view.curve.ceiling().throughput / (1.0 + view.budget.unwrap_or(f64::INFINITY));
    let cost = |power: wattune_core::units::Watts, throughput: wattune_core::units::SamplesPerSecond| {
        if throughput < slowest {
            return f64::INFINITY;
        }
        (ETA * power.get() + (1.0 - ETA) * view.max_power.get()) / throughput.get()
    };
    Ok(vec![Step::to_the_end(view.cheapest(cost))])
}
