//! The demo's result: each job compared with the same job at the maximum usable limit, as JSON or as a table.

use anyhow::bail;
use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::controller::view::{IntervalView, SavingFigures, SavingView};
use crate::demo::Outcome;
use wattune_core::domain::CarbonSeries;
use wattune_core::ledger::Comparison;
use wattune_core::units::GramsPerKwh;
use wattune_lab::grid::covered_until;

/// The result of the demo, printed as one JSON object.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Always true: nothing was measured on hardware.
    pub(super) simulated: bool,
    /// Grid of the demo, in words.
    pub(super) carbon_source: String,
    /// Relative standard deviation of each reading of power and progress.
    pub(super) noise_per_reading: f64,
    pub(super) jobs: Vec<JobReport>,
}

/// A job compared with the same job at the maximum usable limit, by the simulator's true values.
#[derive(Debug, Serialize)]
pub(super) struct JobReport {
    name: String,
    max_slowdown: Option<f64>,
    energy_j: f64,
    energy_at_max_j: f64,
    energy_reduction_pct: f64,
    carbon_g: f64,
    carbon_at_max_g: f64,
    carbon_reduction_pct: f64,
    time_s: f64,
    time_at_max_s: f64,
    time_increase_pct: f64,
    energy_effect_pct: f64,
    timing_effect_pct: f64,
    /// Comparison with starting at once; absent for a job that did not wait for its start.
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<StartReport>,
    /// The carbon reduction that the daemon reports, with its 95 % confidence interval; absent for a job that waited,
    /// whose reference starts at once.
    reported_carbon_reduction_pct: Option<IntervalView>,
}

/// A job that waited for its start, compared with starting at once at the maximum usable limit.
#[derive(Debug, Serialize)]
struct StartReport {
    waited_s: f64,
    /// Emissions of the same work at the maximum usable limit, started at once.
    carbon_at_once_g: f64,
    /// Reduction against `carbon_at_once_g`; the three effects add up to it.
    carbon_reduction_pct: f64,
    start_effect_pct: f64,
    energy_effect_pct: f64,
    timing_effect_pct: f64,
    /// Reduction that the daemon reports, with its 95 % confidence interval; the means of `reported_effects` add up to
    /// its mean.
    reported_carbon_reduction_pct: Option<IntervalView>,
    reported_effects: Option<ReportedEffects>,
}

/// The means of the four effects that the daemon reports.
#[derive(Debug, Serialize)]
struct ReportedEffects {
    start_effect_pct: f64,
    suspension_effect_pct: f64,
    energy_effect_pct: f64,
    timing_effect_pct: f64,
}

/// The smallest effect that two decimals show.
const SMALLEST_SHOWN_PCT: f64 = 0.005;

impl ReportedEffects {
    /// Describes the effects; that of suspensions only if there is one: most jobs are not suspended.
    fn described(&self) -> String {
        let mut effects = vec![
            ("start", self.start_effect_pct),
            ("suspension", self.suspension_effect_pct),
            ("energy", self.energy_effect_pct),
            ("timing", self.timing_effect_pct),
        ];
        effects.retain(|(name, pct)| *name != "suspension" || pct.abs() >= SMALLEST_SHOWN_PCT);
        described(&effects)
    }
}

impl StartReport {
    fn of(outcome: &Outcome, against: &Comparison) -> Option<Self> {
        let (waited, at_once) = outcome.waited.zip(outcome.against_at_once.as_ref())?;
        // The effects after the start, in percent of the emissions of starting at once.
        let part = against.carbon_at_reference / at_once.carbon_at_reference;
        let reported = reported(outcome);
        let effects = reported.and_then(|saving| {
            Some(ReportedEffects {
                start_effect_pct: saving.start_effect_pct?.mean,
                suspension_effect_pct: saving.suspension_effect_pct?.mean,
                energy_effect_pct: saving.energy_effect_pct?.mean,
                timing_effect_pct: saving.timing_effect_pct?.mean,
            })
        });
        Some(Self {
            waited_s: waited.get(),
            carbon_at_once_g: at_once.carbon_at_reference.get(),
            carbon_reduction_pct: at_once.carbon_reduction_pct,
            start_effect_pct: 100.0 * (1.0 - part),
            energy_effect_pct: against.energy_effect_pct * part,
            timing_effect_pct: against.timing_effect_pct * part,
            reported_carbon_reduction_pct: reported.map(|saving| saving.carbon_reduction_pct),
            reported_effects: effects,
        })
    }
}

/// Returns the daemon's own comparison of a job with the maximum usable limit.
fn reported(outcome: &Outcome) -> Option<&SavingFigures> {
    match &outcome.reported.as_ref()?.against_max {
        SavingView::Known(figures) => Some(figures),
        SavingView::Unknown(_) => None,
    }
}

/// Returns the report of a job of a demo that began at `start`.
///
/// # Errors
/// If the carbon trace has no value for the time of the job, or is zero for as long as its work takes at the maximum
/// usable limit.
pub(super) fn job_report(outcome: &Outcome, actual: &CarbonSeries, start: DateTime<Utc>) -> anyhow::Result<JobReport> {
    let name = &outcome.name;
    let Some(against) = &outcome.against_ceiling else {
        if outcome.intensity_at_ceiling.is_some_and(|intensity| intensity <= GramsPerKwh::ZERO) {
            bail!(
                "job {name}: the carbon trace is zero for as long as the work takes at the largest limit, so there is \
                 nothing to reduce; choose another --start"
            );
        }
        let missing = covered_until(actual, start).format("%FT%TZ");
        bail!("job {name}: the carbon trace has no value at {missing}, before the work is done; give fewer --hours");
    };
    let (energy, energy_at_max) = (outcome.truth.energy.get(), against.energy_at_reference.get());
    Ok(JobReport {
        name: outcome.name.clone(),
        max_slowdown: outcome.objective.max_slowdown,
        energy_j: energy,
        energy_at_max_j: energy_at_max,
        energy_reduction_pct: 100.0 * (1.0 - energy / energy_at_max),
        carbon_g: outcome.truth.carbon.get(),
        carbon_at_max_g: against.carbon_at_reference.get(),
        carbon_reduction_pct: against.carbon_reduction_pct,
        time_s: outcome.truth.time.get(),
        time_at_max_s: against.time_at_reference.get(),
        time_increase_pct: against.time_increase_pct,
        energy_effect_pct: against.energy_effect_pct,
        timing_effect_pct: against.timing_effect_pct,
        start: StartReport::of(outcome, against),
        // The daemon compares a job that waited with starting at once.
        reported_carbon_reduction_pct: reported(outcome)
            .filter(|_| outcome.waited.is_none())
            .map(|saving| saving.carbon_reduction_pct),
    })
}

/// Renders the report as a table with a legend, for people.
pub(super) fn table(report: &Report) -> String {
    let mut text = format!(
        "\nEach job compared with the same job at the maximum usable limit, from the simulator's true values; grid: \
         {}.\n\n",
        report.carbon_source
    );
    let width = report.jobs.iter().map(|j| j.name.chars().count()).max().unwrap_or(0).max(3);
    text += &format!(
        "{:<width$}  {:>10} {:>8}  {:>11} {:>8}  {:>9} {:>8}   {:>13} {:>13}\n",
        "job", "energy kWh", "change", "carbon gCO2e", "change", "time h", "change", "energy effect", "timing effect"
    );
    for job in &report.jobs {
        text += &format!(
            "{:<width$}  {:>10.3} {:>+7.2}%  {:>12.1} {:>+7.2}%  {:>9.3} {:>+7.2}%   {:>+12.2}% {:>+12.2}%\n",
            job.name,
            job.energy_j / 3.6e6,
            -job.energy_reduction_pct,
            job.carbon_g,
            -job.carbon_reduction_pct,
            job.time_s / 3600.0,
            job.time_increase_pct,
            -job.energy_effect_pct,
            -job.timing_effect_pct,
        );
        text += &format!(
            "{:<width$}  {:>10.3} {:>8}  {:>12.1} {:>8}  {:>9.3}\n",
            "  at max",
            job.energy_at_max_j / 3.6e6,
            "",
            job.carbon_at_max_g,
            "",
            job.time_at_max_s / 3600.0,
        );
        let reported = |reported: &IntervalView| {
            let (mean, low, high) = (-reported.mean, -reported.high, -reported.low);
            format!("{:<width$}  {:>33} {:>+7.2}%  ({:+.2} to {:+.2})", "  reported", "", mean, low, high)
        };
        if let Some(it) = &job.reported_carbon_reduction_pct {
            text += &(reported(it) + "\n");
        }
        if let Some(start) = &job.start {
            text += &format!(
                "{:<width$}  {:>10} {:>8}  {:>12.1} {:>+7.2}%  waited {:.1} h for its start\n",
                "  at once",
                "",
                "",
                start.carbon_at_once_g,
                -start.carbon_reduction_pct,
                start.waited_s / 3600.0
            );
            let effects = [start.start_effect_pct, start.energy_effect_pct, start.timing_effect_pct];
            let effects: Vec<_> = ["start", "energy", "timing"].into_iter().zip(effects).collect();
            text += &format!("{:<width$}  {:>42}  {}\n", "", "", described(&effects));
            if let Some(it) = &start.reported_carbon_reduction_pct {
                text += &reported(it);
                if let Some(effects) = &start.reported_effects {
                    text += &format!(": {}", effects.described());
                }
                text += "\n";
            }
        }
    }
    text += "\nEnergy effect: the change that the best constant mix of limits makes in the same time; timing effect: the rest, \
             from\nfollowing the grid and from profiling. Both in percent of the carbon at the maximum usable limit.\n\
             Reported: the daemon's own estimate, with a 95 % confidence interval.\n\
             At once: the same job at the maximum usable limit, started without waiting for the clean window;\n\
             the effects beside it add up to the change, and so do the effects that the daemon reports.\n";
    text
}

/// Describes effects, as changes of the emissions in percent.
fn described(effects: &[(&str, f64)]) -> String {
    let each: Vec<String> = effects.iter().map(|(name, pct)| format!("{name} {:+.2}%", -pct)).collect();
    each.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;
    use wattune_core::domain::{Intensity, Objective, Origin, Slot};

    #[test]
    fn a_job_that_was_not_suspended_has_no_effect_of_suspensions() {
        let effects = |suspension_effect_pct| {
            let (start_effect_pct, energy_effect_pct, timing_effect_pct) = (20.0, 3.0, 1.5);
            ReportedEffects { start_effect_pct, suspension_effect_pct, energy_effect_pct, timing_effect_pct }
                .described()
        };
        assert_eq!(effects(0.0), "start -20.00%, energy -3.00%, timing -1.50%");
        assert_eq!(effects(2.0), "start -20.00%, suspension -2.00%, energy -3.00%, timing -1.50%");
    }

    #[test]
    fn a_job_without_a_comparison_says_why() {
        let start = DateTime::UNIX_EPOCH + TimeDelta::days(20_000);
        let value = Intensity { value: GramsPerKwh::new(300.0), origin: Origin::Measured };
        let hour = |h: i64| Slot::new(start + TimeDelta::hours(h), start + TimeDelta::hours(h + 1)).expect("an hour");
        let points = [0, 1, 4].map(|h| (hour(h), value));
        let actual = CarbonSeries::from_points(points.to_vec()).0;
        let error = |intensity_at_ceiling| {
            let outcome = Outcome {
                name: "a".to_owned(),
                objective: Objective::UNBOUND,
                truth: Default::default(),
                against_ceiling: None,
                intensity_at_ceiling,
                against_original: None,
                against_at_once: None,
                waited: None,
                reported: None,
            };
            job_report(&outcome, &actual, start).expect_err("nothing to compare with").to_string()
        };
        assert!(error(Some(GramsPerKwh::ZERO)).contains("so there is nothing to reduce"));
        let missing = (start + TimeDelta::hours(2)).format("%FT%TZ").to_string();
        let cut_off = error(None);
        assert!(cut_off.contains(&format!("has no value at {missing}")), "{cut_off}");
    }
}
