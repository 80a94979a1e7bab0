//! Metrics of recurring jobs: trials and the cost estimate of each batch size.

use super::family::{Families, Metric, flag};
use crate::recurring::{ArmView, RecurringStage, RecurringView};

/// The maximum number of recurring jobs with series: the jobs with the latest trials (runs).
pub(super) const SHOWN: u32 = 50;

/// The maximum number of batch sizes with series, over all recurring jobs; each batch size has up to six series.
const ARMS_SHOWN: usize = 400;

const STAGES: [(RecurringStage, &str); 3] = [
    (RecurringStage::Exploring, "exploring"),
    (RecurringStage::Exploiting, "exploiting"),
    (RecurringStage::NoneConverges, "none_converges"),
];

const GAUGES: [Metric<RecurringView>; 2] = [
    ("recurring_trials", "", "Trials of a recurring job", |j| Some(j.trials as f64)),
    ("recurring_trials_running", "", "Running trials of a recurring job", |j| Some(j.running as f64)),
];

const ARM_GAUGES: [Metric<ArmView>; 6] = [
    (
        "recurring_mean_cost",
        "joules",
        "Expected cost of a trial with this batch size: eta × energy + (1 − eta) × time × maximum power",
        |a| a.mean_cost_j,
    ),
    ("recurring_cost_deviation", "joules", "Standard deviation of the expected cost", |a| a.deviation_j),
    (
        "recurring_mean_carbon",
        "gco2e",
        "Expected emissions of a trial at the reference intensity, for recurring jobs with the objective carbon",
        |a| a.mean_cost_g,
    ),
    ("recurring_pulls", "", "Trials with this batch size that have a result", |a| Some(a.runs as f64)),
    ("recurring_reached", "", "Trials with this batch size that reached their target", |a| Some(a.reached as f64)),
    ("recurring_favourite", "", "1 for the batch size with the lowest expected cost", |a| Some(flag(a.favourite))),
];

/// Adds the recurring jobs with the latest trials; `all` is the total number of recurring jobs.
pub(super) fn describe(latest: &[RecurringView], all: u64, families: &mut Families) {
    let mut left = ARMS_SHOWN;
    // A job that does not fit is left out alone: those after it may have fewer batch sizes.
    let fitting = latest.iter().filter_map(|job| {
        left = left.checked_sub(job.arms.len())?;
        Some(job)
    });
    let shown: Vec<&RecurringView> = fitting.collect();
    families.gauge("recurring_jobs", "", "Recurring jobs").add([], all as f64);
    let left_out = all.saturating_sub(shown.len() as u64) as f64;
    let help = "Recurring jobs without series because of the limit on series";
    families.gauge("recurring_jobs_left_out", "", help).add([], left_out);
    let name = |job: &RecurringView| ("recurring", job.name.clone());
    for (metric, unit, help, value) in GAUGES {
        let family = families.gauge(metric, unit, help);
        for &job in &shown {
            family.add([name(job)], value(job));
        }
    }
    let stages = families.gauge("recurring_stage", "", "Learning stage: 1 for the current one");
    for &job in &shown {
        let present = STAGES.iter().find(|(stage, _)| *stage == job.stage).map(|(_, name)| *name);
        stages.states(&[name(job)], "stage", STAGES.map(|(_, name)| name), |s| present == Some(s));
    }
    for (metric, unit, help, value) in ARM_GAUGES {
        let family = families.gauge(metric, unit, help);
        for &job in &shown {
            for arm in &job.arms {
                family.add([name(job), ("batch_size", arm.batch_size.to_string())], value(arm));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use prometheus_client::encoding::text;
    use prometheus_client::registry::Registry;

    use super::*;

    fn job(name: &str, batch_sizes: u64) -> RecurringView {
        let spec = serde_json::json!({"batch_sizes": [1], "default_batch_size": 1, "max_power_w": 300.0,
            "target_metric": 0.6, "max_epochs": 100});
        let arm = |batch_size| ArmView {
            batch_size,
            favourite: false,
            runs: 1,
            reached: 1,
            mean_cost_j: Some(5e6),
            deviation_j: None,
            mean_cost_g: None,
        };
        RecurringView {
            name: name.into(),
            created_at: DateTime::UNIX_EPOCH,
            spec: serde_json::from_value(spec).expect("a specification"),
            stage: RecurringStage::Exploring,
            favourite: 1,
            trials: 1,
            running: 0,
            arms: (1..=batch_sizes).map(arm).collect(),
        }
    }

    #[test]
    fn a_job_of_too_many_batch_sizes_leaves_the_others_their_series() {
        let mut families = Families::default();
        describe(&[job("large", 500), job("a", 3), job("b", 2)], 3, &mut families);
        let mut registry = Registry::with_prefix("wattune");
        registry.register_collector(Box::new(families));
        let mut shown = String::new();
        text::encode(&mut shown, &registry).expect("text");
        let series = ["large", "a", "b"].map(|name| {
            let of_job = format!("wattune_recurring_pulls{{recurring=\"{name}\"");
            shown.lines().filter(|line| line.starts_with(&of_job)).count()
        });
        assert_eq!(series, [0, 3, 2], "{shown}");
        assert!(shown.contains("wattune_recurring_jobs_left_out 1.0\n"), "{shown}");
    }
}
