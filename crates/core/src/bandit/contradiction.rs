//! Reports that cannot be true, or not beside the one before.

use super::refused::Refused;
use super::{Report, Run, Spec};
use crate::domain::JobId;

/// No run takes so many seconds.
const LONGEST: f64 = 1e9;
/// Power that is so many times the largest cannot be right, whatever else was measured beside the boards.
const MOST_POWER: f64 = 10.0;

/// Whether a report of a trial that has ended is another one than its last: of a client that did not hear that it is to
/// stop, and went on.
pub(super) fn is_late(run: &Run, report: &Report, job: Option<&JobId>) -> Result<bool, Refused> {
    let same_epochs = report.epochs == run.trial.epochs;
    let other_metric = report.metric.zip(run.metric).filter(|(now, was)| same_epochs && now != was);
    let contradiction = if let Some((job, before)) = job.zip(run.job.as_ref()).filter(|(job, before)| job != before) {
        Some(("job_id", format!("is {job} after {before}")))
    } else if let Some((now, was)) = other_metric {
        Some(("metric", format!("is {now} after as many epochs as {was}")))
    } else {
        // Books are settled to the millijoule only when intervals close.
        fallen(run, report).filter(|(field, _)| job.is_none() || *field == "epochs")
    };
    if let Some((field, why)) = contradiction {
        let at = run.ended_at.unwrap_or(run.lease_until);
        return Err(Refused::Ended { number: run.trial.number, at, reason: run.reason.clone(), field, why });
    }
    let same_use = job.is_some() || (report.energy, report.time) == (run.energy, run.time);
    Ok(!(same_epochs && report.metric == run.metric && same_use))
}

/// What no run can have used or done: mostly other units.
pub(super) fn refuse_impossible(spec: &Spec, report: &Report) -> Result<(), Refused> {
    let refused = |field, why| Err(Refused::Contradiction { field, why });
    if report.epochs > spec.max_epochs {
        return refused("epochs", format!("is {}, more than max_epochs, {}", report.epochs, spec.max_epochs));
    }
    let (energy, time) = (report.energy.get(), report.time.get());
    if time > LONGEST {
        return refused("time_s", format!("is beyond {LONGEST:e}; give seconds since the trial began"));
    }
    let most = MOST_POWER * spec.knob.max_power.get() * if time > 0.0 { time } else { LONGEST };
    if energy > most {
        let power = spec.knob.max_power.get();
        let why =
            format!("is more than {MOST_POWER} times what max_power_w, {power}, gives in time_s; give joules so far");
        return refused("energy_j", why);
    }
    Ok(())
}

/// What is less than in the report before, with both values.
fn fallen(run: &Run, report: &Report) -> Option<(&'static str, String)> {
    let table = [
        ("epochs", f64::from(report.epochs), f64::from(run.trial.epochs)),
        ("energy_j", report.energy.get(), run.energy.get()),
        ("time_s", report.time.get(), run.time.get()),
    ];
    let (field, now, before) = table.into_iter().find(|(_, now, before)| now < before)?;
    Some((field, format!("is {now} after {before}")))
}

/// What falls that counts from the trial's beginning.
pub(super) fn refuse_contradiction(run: &Run, report: &Report) -> Result<(), Refused> {
    let Some((field, what)) = fallen(run, report) else { return Ok(()) };
    let why = format!("{what}; it counts from the trial's beginning and does not fall");
    Err(Refused::Contradiction { field, why })
}
