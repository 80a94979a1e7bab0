//! The Carbon-Aware Zeus prototype: Zeus's cost with carbon in place of energy, decided anew every half hour.

use crate::plan::Unplannable;
use crate::simulate::replay::{Decision, Step, View, no_horizon};
use crate::units::{SamplesPerSecond, Seconds, Watts};

/// The prototype's own knob.
pub const OWN_ETA: f64 = 0.25;
/// The prototype's reference intensity, in gCO2e/kWh.
const REFERENCE: f64 = 800.0;
/// How often it decides.
const SLOT: Seconds = Seconds::new(1800.0);
/// Settings of a sweep, ends included.
const SETTINGS: u32 = 240;

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

/// Settings of the knob from 1 down to 0, evenly spread over the logarithm of the weight of time against carbon: on a
/// clean grid all that matters lies close to 1.
pub fn sweep() -> Vec<f64> {
    let weight = |i: u32| 10_f64.powf(-4.0 + 6.0 * f64::from(i) / f64::from(SETTINGS - 3));
    let inner = (0..SETTINGS - 2).map(|i| 1.0 / (1.0 + weight(i)));
    std::iter::once(1.0).chain(inner).chain(std::iter::once(0.0)).collect()
}
