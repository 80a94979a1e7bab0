//! Rejected requests to a recurring job: their reasons, and the detection of impossible or contradicting reports.

use chrono::{DateTime, Utc};

use super::{NoneConverges, Report, Run, Spec};
use crate::domain::JobId;

/// Maximum number of running trials of a job.
pub(super) const MAX_RUNNING: usize = 1000;

/// Reason for a rejection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The trial does not exist.
    #[error("there is no trial {0}")]
    NoSuchTrial(u32),
    /// The trial was lost or withdrawn.
    #[error("trial {number} ended at {}: {why}; request a new trial", .at.format("%FT%TZ"))]
    Void {
        /// Number of the trial.
        number: u32,
        /// Time of its end.
        at: DateTime<Utc>,
        /// Reason.
        why: String,
    },
    /// The trial has ended, and the report contradicts its last one.
    #[error("{field} {why}; trial {number} has ended at {}: {reason}", .at.format("%FT%TZ"))]
    Ended {
        /// Number of the trial.
        number: u32,
        /// Time of its end.
        at: DateTime<Utc>,
        /// Reason of its end.
        reason: String,
        /// Field that contradicts the last report, as users write it.
        field: &'static str,
        /// Contradiction.
        why: String,
    },
    /// No batch size is left to try.
    #[error(transparent)]
    NoneConverges(#[from] NoneConverges),
    /// Too many trials run.
    #[error("{MAX_RUNNING} trials of this job are running; end some, or wait for their leases to expire")]
    TooMany,
    /// The report is impossible.
    #[error("{field} {why}")]
    Contradiction {
        /// Field, as users write it.
        field: &'static str,
        /// Error and valid values.
        why: String,
    },
    /// The training run belongs to another trial.
    #[error("job {job} already reports for trial {number}; register a job for each trial")]
    Taken {
        /// Training run.
        job: JobId,
        /// Number of that trial.
        number: u32,
    },
}

/// Upper bound of a run's time, in seconds.
const MAX_TIME_S: f64 = 1e9;
/// Upper bound of plausible power as a multiple of the maximum, whatever else was measured beside the GPUs.
const MAX_POWER_RATIO: f64 = 10.0;

/// Returns true if a report about an ended trial differs from its last one: the client missed the stop and continued.
///
/// # Errors
/// Returns an error if the report contradicts the last one.
pub(super) fn is_late(run: &Run, report: &Report, job: Option<&JobId>) -> Result<bool, Refused> {
    let same_epochs = report.epochs == run.trial.epochs;
    let other_metric = report.metric.zip(run.metric).filter(|(now, was)| same_epochs && now != was);
    let contradiction = if let Some((job, before)) = job.zip(run.job.as_ref()).filter(|(job, before)| job != before) {
        Some(("job_id", format!("is {job} after {before}")))
    } else if let Some((now, was)) = other_metric {
        Some(("metric", format!("is {now} after as many epochs as {was}")))
    } else {
        // The ledger has the exact energy only after intervals close.
        decreased(run, report).filter(|(field, _)| job.is_none() || *field == "epochs")
    };
    if let Some((field, why)) = contradiction {
        let at = run.ended_at.unwrap_or(run.lease_until);
        return Err(Refused::Ended { number: run.trial.number, at, reason: run.reason.clone(), field, why });
    }
    let is_same_usage = job.is_some() || (report.energy, report.time) == (run.energy, run.time);
    Ok(!(same_epochs && report.metric == run.metric && is_same_usage))
}

/// Rejects values that no run can have, mostly in wrong units.
pub(super) fn refuse_impossible(spec: &Spec, report: &Report) -> Result<(), Refused> {
    let refused = |field, why| Err(Refused::Contradiction { field, why });
    if report.epochs > spec.max_epochs {
        return refused("epochs", format!("is {}, more than max_epochs, {}", report.epochs, spec.max_epochs));
    }
    let (energy, time) = (report.energy.get(), report.time.get());
    if time > MAX_TIME_S {
        return refused("time_s", format!("is beyond {MAX_TIME_S:e}; give seconds since the trial began"));
    }
    let most = MAX_POWER_RATIO * spec.knob.max_power.get() * if time > 0.0 { time } else { MAX_TIME_S };
    if energy > most {
        let power = spec.knob.max_power.get();
        let why = format!(
            "is more than {MAX_POWER_RATIO} times max_power_w, {power}, over time_s; give joules since the trial began"
        );
        return refused("energy_j", why);
    }
    Ok(())
}

/// Returns the first value that is less than in the previous report, with both values.
fn decreased(run: &Run, report: &Report) -> Option<(&'static str, String)> {
    let table = [
        ("epochs", f64::from(report.epochs), f64::from(run.trial.epochs)),
        ("energy_j", report.energy.get(), run.energy.get()),
        ("time_s", report.time.get(), run.time.get()),
    ];
    let (field, now, before) = table.into_iter().find(|(_, now, before)| now < before)?;
    Some((field, format!("is {now} after {before}")))
}

/// Rejects cumulative values that decrease.
pub(super) fn refuse_contradiction(run: &Run, report: &Report) -> Result<(), Refused> {
    let Some((field, what)) = decreased(run, report) else { return Ok(()) };
    let why = format!("{what}; it is cumulative and cannot decrease");
    Err(Refused::Contradiction { field, why })
}
