//! The Carbon-Aware Zeus prototype: Zeus's cost with carbon in place of energy, decided anew every half hour.

use crate::simulate::replay::{Decision, Step, View, no_horizon};
use wattune_core::plan::Unplannable;
use wattune_core::units::{SamplesPerSecond, Seconds, Watts};

/// The prototype's own knob.
pub(super) const OWN_ETA: f64 = 0.25;
/// The prototype's reference intensity, in gCO2e/kWh.
const REFERENCE: f64 = 800.0;
/// How often it decides.
const SLOT: Seconds = Seconds::new(1800.0);
/// Steps of a sweep of the knob.
const STEPS: u32 = 20;

/// argmin (η·p(l)·c_next + (1−η)·P_max·c_ref)/r(l) for each half hour counted from the job's start, with the forecast
/// for it as it was given (`planning.md` §2).
pub(super) fn decide(view: &View<'_>, eta: f64) -> Decision {
    let next = view.grid.given(view.now).ok_or_else(no_horizon)?;
    let time_cost = (1.0 - eta) * view.max_power.get() * REFERENCE;
    let cost =
        |power: Watts, throughput: SamplesPerSecond| (eta * power.get() * next.get() + time_cost) / throughput.get();
    let point = view.cheapest(cost);
    let into = view.elapsed.get().rem_euclid(SLOT.get());
    // An end that rounding has left a moment ahead is the end.
    let lasts = SLOT.get() - if SLOT.get() - into < 1e-3 { 0.0 } else { into };
    Ok::<_, Unplannable>(vec![Step::at(point, Seconds::new(lasts))])
}

/// Settings of the knob from 0 to 1, in steps of 0.05: the prototype's own is one of them.
pub fn sweep() -> impl Iterator<Item = f64> {
    (0..=STEPS).map(|i| f64::from(i) / f64::from(STEPS))
}
