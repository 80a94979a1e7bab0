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
    let mut arms = 0;
    let fits = latest.iter().take_while(|job| {
        arms += job.arms.len();
        arms <= ARMS_SHOWN
    });
    let shown = &latest[..fits.count()];
    families.gauge("recurring_jobs", "", "Recurring jobs").add([], all as f64);
    let left_out = all.saturating_sub(shown.len() as u64) as f64;
    let help = "Recurring jobs without series because of the limit on series";
    families.gauge("recurring_jobs_left_out", "", help).add([], left_out);
    let name = |job: &RecurringView| ("recurring", job.name.clone());
    families.each(Families::gauge, &GAUGES, shown, |job| [name(job)]);
    let stages = families.gauge("recurring_stage", "", "Learning stage: 1 for the current one");
    for job in shown {
        let present = STAGES.iter().find(|(stage, _)| *stage == job.stage).map(|(_, name)| *name);
        stages.states(&[name(job)], "stage", STAGES.map(|(_, name)| name), |s| present == Some(s));
    }
    for (metric, unit, help, value) in ARM_GAUGES {
        let family = families.gauge(metric, unit, help);
        for job in shown {
            for arm in &job.arms {
                family.add([name(job), ("batch_size", arm.batch_size.to_string())], value(arm));
            }
        }
    }
}
