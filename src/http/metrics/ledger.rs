//! Metrics of the ledger of energy and emissions.

use super::device;
use super::family::{Families, unix_time};
use crate::controller::view::{IntervalView, StatusView};

pub(super) fn describe(status: &StatusView, families: &mut Families) {
    let ledger = &status.ledger;
    let recorded =
        families.counter("ledger_recorded", "joules", "Energy recorded since the daemon started, by owner and source");
    for part in &ledger.recorded {
        let mut labels = vec![("device", part.device.clone())];
        if let Some(gpu) = status.gpus.iter().find(|g| g.uuid == part.device) {
            labels.extend(device::labels(gpu));
        }
        labels.extend([("share", part.share.clone()), ("source", part.source.clone())]);
        recorded.add(labels, part.energy_j);
    }
    let help = "Gaps in a device's readings since the daemon started whose energy is known from its counter";
    families.counter("ledger_gaps", "", help).add([], ledger.gaps as f64);
    families
        .counter("ledger_gap", "joules", "Energy of the gaps in readings since the daemon started")
        .add([], ledger.gap_j);
    let help = "Gaps in a device's readings since the daemon started whose energy is unknown: the counter was reset, or there is none";
    families.counter("ledger_unknown_gaps", "", help).add([], ledger.unknown_gaps as f64);
    let help = "Gaps of the last 24 hours in the ledger, by known or unknown energy";
    let day = families.gauge("ledger_gaps_last_day", "", help);
    for (energy, gaps) in [("known", ledger.gaps_last_day), ("unknown", ledger.unknown_gaps_last_day)] {
        day.add([("energy", energy.to_owned())], gaps.map(|gaps| gaps as f64));
    }
    let help = "Difference between ledger and counters in the blocks closed since the daemon started; always 0 unless there is an error";
    families.gauge("ledger_difference", "joules", help).add([], ledger.difference_j);
    let help =
        "Time at which a ledger block was last closed and compared with the counters, in seconds since the Unix epoch";
    families.gauge("ledger_closed_time", "seconds", help).add([], ledger.closed_at.map(unix_time));
    families
        .counter("ledger_settlements", "", "Hourly settlements since the daemon started, in all versions")
        .add([], ledger.settlements as f64);
    families
        .gauge("ledger_settlements_pending", "", "Hours without a settlement so far")
        .add([], ledger.pending_hours as f64);
    if let Some(saved) = &ledger.saved {
        let help = "Jobs that ended in the last 30 days, by known or unknown saving";
        let family = families.gauge("ledger_saved_jobs", "", help);
        family.add([("known", "true".to_owned())], saved.known_jobs as f64);
        family.add([("known", "false".to_owned())], saved.jobs.saturating_sub(saved.known_jobs) as f64);
        let help = "Emissions saved against the original limits of their GPUs by jobs that ended in the last 30 days and \
                    have a known saving: the estimate and the bounds of its interval";
        let family = families.gauge("ledger_saved", "gco2e", help);
        for (bound, grams) in bounds(saved.saved_g.as_ref()) {
            family.add([("bound", bound.to_owned())], grams);
        }
    }
    let Some(settled) = &ledger.settled else { return };
    let family = families.gauge("ledger_settled", "joules", "Energy of the last 30 days by the state of its intensity");
    for (state, energy) in [
        ("forecast", settled.forecast_j),
        ("provisional", settled.provisional_j),
        ("final", settled.final_j),
        ("unknown", settled.unknown_j),
    ] {
        family.add([("state", state.to_owned())], energy);
    }
    families
        .gauge("ledger_settled_carbon", "gco2e", "Emissions of the last 30 days, of energy with a known intensity")
        .add([], settled.carbon_g);
}

/// Returns an estimate's lower bound, mean and upper bound, each after the name that the series' label `bound` has.
pub(super) fn bounds(estimate: Option<&IntervalView>) -> impl Iterator<Item = (&'static str, f64)> {
    estimate.into_iter().flat_map(|of| [("low", of.low), ("mean", of.mean), ("high", of.high)])
}
