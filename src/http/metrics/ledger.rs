//! The books.

use super::device;
use super::family::Families;
use crate::controller::view::{IntervalView, StatusView};

pub(super) fn describe(status: &StatusView, families: &mut Families) {
    let ledger = &status.ledger;
    let booked =
        families.counter("ledger_booked", "joules", "Energy booked since the daemon started, by share and source");
    for part in &ledger.booked {
        let mut labels = vec![("device", part.device.clone())];
        if let Some(gpu) = status.gpus.iter().find(|g| g.uuid == part.device) {
            labels.extend(device::labels(gpu));
        }
        labels.extend([("share", part.share.clone()), ("source", part.source.clone())]);
        booked.add(labels, part.energy_j);
    }
    let help = "Times since the daemon started after which a device's energy was found without anybody having looked";
    families.counter("ledger_gaps", "", help).add([], ledger.gaps as f64);
    families.counter("ledger_gap", "joules", "Energy of those times").add([], ledger.gap_j);
    let help = "Times since the daemon started in which a device used energy that nothing tells of: its counter was reset, or it has none and was not read";
    families.counter("ledger_unknown_gaps", "", help).add([], ledger.unknown_gaps as f64);
    let help =
        "Gaps of the last 24 hours that the books hold, whichever daemon found them, by whether their energy is known";
    let day = families.gauge("ledger_gaps_last_day", "", help);
    for (energy, gaps) in [("known", ledger.gaps_last_day), ("unknown", ledger.unknown_gaps_last_day)] {
        day.add([("energy", energy.to_owned())], gaps.map(|gaps| gaps as f64));
    }
    let help =
        "By how much books and counters differ in the blocks closed since the daemon started; 0, or something is wrong";
    families.gauge("ledger_difference", "joules", help).add([], ledger.difference_j);
    let closed = ledger.closed_at.map(|at| at.timestamp_micros() as f64 / 1e6);
    let help = "Until when books are closed against the counters, since the Unix epoch";
    families.gauge("ledger_closed_time", "seconds", help).add([], closed);
    families
        .counter("ledger_settlements", "", "Settlements of an hour since the daemon started, all versions")
        .add([], ledger.settlements as f64);
    families
        .gauge("ledger_settlements_pending", "", "Hours that wait to be settled")
        .add([], ledger.pending_hours as f64);
    if let Some(saved) = &ledger.saved {
        let help = "Jobs that ended in the last 30 days, by whether their saving is known";
        let family = families.gauge("ledger_saved_jobs", "", help);
        family.add([("known", "true".to_owned())], saved.known_jobs as f64);
        family.add([("known", "false".to_owned())], saved.jobs.saturating_sub(saved.known_jobs) as f64);
        let help = "Emissions that jobs saved against the limit found on their boards, of those that ended in the last 30 days and of \
                    which it is known: the figure and its interval";
        let family = families.gauge("ledger_saved", "gco2e", help);
        for (bound, grams) in bounds(saved.saved_g.as_ref()) {
            family.add([("bound", bound.to_owned())], grams);
        }
    }
    let Some(settled) = &ledger.settled else { return };
    let family =
        families.gauge("ledger_settled", "joules", "Energy of the last 30 days by what is known of its intensity");
    for (state, energy) in [
        ("forecast", settled.forecast_j),
        ("provisional", settled.provisional_j),
        ("final", settled.final_j),
        ("unknown", settled.unknown_j),
    ] {
        family.add([("state", state.to_owned())], energy);
    }
    families
        .gauge("ledger_settled_carbon", "gco2e", "What the energy of the last 30 days emitted, as far as that is known")
        .add([], settled.carbon_g);
}

/// A figure and the ends of its interval, by name.
pub(super) fn bounds(told: Option<&IntervalView>) -> impl Iterator<Item = (&'static str, f64)> {
    told.into_iter().flat_map(|of| [("low", of.low), ("mean", of.mean), ("high", of.high)])
}
