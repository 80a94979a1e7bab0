//! The carbon signal.

use super::family::Families;
use crate::controller::view::StatusView;
use crate::units::Seconds;

pub(super) fn describe(status: &StatusView, families: &mut Families) {
    let carbon = &status.carbon;
    let some = |key, value: &Option<String>| value.clone().map(|v| (key, v));
    let signal = [some("zone", &carbon.zone), some("kind", &carbon.kind), some("scope", &carbon.scope)];
    let provenance = [some("source", &carbon.source), some("origin", &carbon.origin)];

    let all: Vec<_> = signal.iter().chain(&provenance).flatten().cloned().collect();
    if !all.is_empty() {
        families.info("carbon_signal", "Where the carbon intensity comes from").push(all);
    }
    families
        .gauge("carbon_intensity", "gco2e_per_kwh", "Carbon intensity of the present slot")
        .add(signal.into_iter().flatten(), carbon.intensity_g_per_kwh);
    families
        .gauge("carbon_fallback", "gco2e_per_kwh", "Carbon intensity planned with where the signal says nothing")
        .add([], carbon.fallback_g_per_kwh);
    let fresh = f64::from(u8::from(carbon.freshness == "fresh"));
    families.gauge("carbon_signal_fresh", "", "1 if the signal is fresh, 0 if it is stale or absent").add([], fresh);
    let age = carbon.fetched_at.map(|at| Seconds::from_delta(status.now - at).max(Seconds::ZERO).get());
    families.gauge("carbon_signal_age", "seconds", "Time since the last good answer of a source").add([], age);
    families
        .gauge("carbon_forecast_followed", "ratio", "How far the forecast is followed: 0 not at all, 1 fully")
        .add([], carbon.followed);
}
