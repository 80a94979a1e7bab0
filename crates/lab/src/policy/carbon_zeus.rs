//! The Carbon-Aware Zeus prototype: Zeus's cost with carbon in place of energy, minimised anew every half hour.

use super::kind::{Policy, RunMode};
use crate::replay::{Decision, Step, View, no_horizon};
use wattune_core::units::{SamplesPerSecond, Seconds, Watts};

/// The prototype's reference carbon intensity c_ref, in gCO2e/kWh, which converts time to carbon.
const REFERENCE: f64 = 800.0;
/// Time between two decisions of the policy.
const SLOT: Seconds = Seconds::new(1800.0);

pub(super) const POLICY: Policy = Policy {
    name: "carbon-zeus",
    about: "every half hour the limit of least carbon-time cost at the forecast; rows with a budget lie on the frontier of \
            its knob",
    mode: RunMode::Swept { decide, authors_value: 0.25 },
    learns: true,
};

/// Returns the limit l with the least (η·p(l)·c_next + (1−η)·P_max·c_ref)/r(l) until the end of the current half hour,
/// counted from the job's start: p is power, r throughput, and c_next the source's uncorrected forecast (`planning.md`
/// §2).
fn decide(view: &View<'_>, eta: f64) -> Decision {
    let next = view.grid.uncorrected(view.now).ok_or_else(no_horizon)?;
    let time_cost = (1.0 - eta) * view.max_power.get() * REFERENCE;
    let cost =
        |power: Watts, throughput: SamplesPerSecond| (eta * power.get() * next.get() + time_cost) / throughput.get();
    let point = view.cheapest(cost);
    let into = view.elapsed.get().rem_euclid(SLOT.get());
    // If less than a millisecond of the half hour is left, this is a rounding error: a whole half hour follows.
    let lasts = SLOT.get() - if SLOT.get() - into < 1e-3 { 0.0 } else { into };
    Ok(vec![Step::at(point, Seconds::new(lasts))])
}
