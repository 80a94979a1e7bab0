//! Reasons for rejecting requests to a recurring job, and checks for impossible or contradictory reports.

use chrono::{DateTime, Utc};

use super::{NoneConverges, Report, Run, Spec};
use crate::domain::JobId;

/// Maximum number of trials of a job that may run at the same time.
pub(super) const MAX_RUNNING: usize = 1000;

/// Reason for rejecting a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The job has no trial with this number.
    #[error("there is no trial {0}")]
    NoSuchTrial(u32),
    /// The trial was withdrawn, or its lease expired: the client did not report in time.
    #[error("trial {number} ended at {}: {why}; request a new trial", .at.format("%FT%TZ"))]
    Void {
        /// Number of the trial.
        number: u32,
        /// Time at which the trial ended.
        at: DateTime<Utc>,
        /// Reason why the trial ended.
        why: String,
    },
    /// The trial has ended, and the report contradicts the trial's last report.
    #[error("{field} {why}; trial {number} has ended at {}: {reason}", .at.format("%FT%TZ"))]
    Ended {
        /// Number of the trial.
        number: u32,
        /// Time at which the trial ended.
        at: DateTime<Utc>,
        /// Reason why the trial ended.
        reason: String,
        /// Name (in the API) of the field that contradicts the last report.
        field: &'static str,
        /// Value of the field in this report, and in the last report.
        why: String,
    },
    /// No batch size is left to try.
    #[error(transparent)]
    NoneConverges(#[from] NoneConverges),
    /// Too many trials of the job are running.
    #[error("{MAX_RUNNING} trials of this job are running; end some, or wait for their leases to expire")]
    TooMany,
    /// The report contradicts the trial's previous report, or contains impossible values.
    #[error("{field} {why}")]
    Contradiction {
        /// Name of the wrong field in the API.
        field: &'static str,
        /// Given value, and the value or values that would be valid.
        why: String,
    },
    /// The key with which a trial is requested is that of another caller's trial.
    #[error("the key belongs to trial {number} of another user; give another key, or none")]
    KeyOfOthers {
        /// Number of the other user's trial.
        number: u32,
    },
    /// The job whose energy this trial's report gives already reports for another trial.
    #[error("job {job} already reports for trial {number}; register a job for each trial")]
    Taken {
        /// Identifier of the job.
        job: JobId,
        /// Number of the other trial, for which the job already reports.
        number: u32,
    },
}

/// Maximum time in a report, in seconds.
const MAX_TIME_S: f64 = 1e9;
/// Maximum plausible mean power of a run as a multiple of the maximum power of its GPUs: the client's meter may measure
/// more than the GPUs.
const MAX_POWER_RATIO: f64 = 10.0;

/// Returns true if a report that arrives after the trial's end differs from the trial's last report: the client missed
/// the request to stop and trained on. Returns false if the report repeats the last one.
///
/// # Errors
/// If the report contradicts the last one.
pub(super) fn is_late(run: &Run, report: &Report, job: Option<&JobId>) -> Result<bool, Refused> {
    let same_epochs = report.epochs == run.trial.epochs;
    let other_metric = report.metric.zip(run.metric).filter(|(now, was)| same_epochs && now != was);
    let contradiction = if let Some((job, before)) = job.zip(run.job.as_ref()).filter(|(job, before)| job != before) {
        Some(("job_id", format!("is {job} after {before}")))
    } else if let Some((now, was)) = other_metric {
        Some(("metric", format!("is {now}, but was {was} in the previous report after the same number of epochs")))
    } else {
        // In an open ledger interval, energy and time are estimates: a later, exact value may be lower.
        decreased(run, report).filter(|(field, _)| job.is_none() || *field == "epochs")
    };
    if let Some((field, why)) = contradiction {
        let at = run.trial.ended_at.unwrap_or(run.lease_until);
        return Err(Refused::Ended { number: run.trial.number, at, reason: run.reason.clone(), field, why });
    }
    let is_same_usage = job.is_some() || (report.energy, report.time) == (run.energy, run.time);
    Ok(!(same_epochs && report.metric == run.metric && is_same_usage))
}

/// Rejects values that no run can have; mostly the client used a wrong unit.
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

/// Returns the first field whose value is lower than in the previous report (first value of the result), and a text
/// with the new and the previous value (second); `None` if no value is lower.
fn decreased(run: &Run, report: &Report) -> Option<(&'static str, String)> {
    let table = [
        ("epochs", f64::from(report.epochs), f64::from(run.trial.epochs)),
        ("energy_j", report.energy.get(), run.energy.get()),
        ("time_s", report.time.get(), run.time.get()),
    ];
    let (field, now, before) = table.into_iter().find(|(_, now, before)| now < before)?;
    Some((field, format!("is {now} after {before}")))
}

/// Rejects a report in which a cumulative value (epochs, energy or time) is lower than in the previous report.
pub(super) fn refuse_contradiction(run: &Run, report: &Report) -> Result<(), Refused> {
    let Some((field, what)) = decreased(run, report) else { return Ok(()) };
    let why = format!("{what}; it is cumulative and cannot decrease");
    Err(Refused::Contradiction { field, why })
}
