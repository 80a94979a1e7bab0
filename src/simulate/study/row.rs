//! What one policy gave in one case, and means over cases.

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};

use crate::simulate::replay::Job;

/// A headroom under this many points is noise (`planning.md` §5).
const LEAST_HEADROOM: f64 = 0.1;

/// What a policy gave against the largest limit, in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Less carbon.
    pub carbon_reduction_pct: f64,
    /// More time; may be negative, where a lower limit is faster.
    pub time_increase_pct: f64,
    /// Less energy.
    pub energy_reduction_pct: f64,
    /// The part of the carbon reduction that the constant mix with the same time would have had.
    pub energy_effect_pct: f64,
    /// The rest of it: from following the grid.
    pub timing_effect_pct: f64,
}

impl Figures {
    /// This far from here to there: 0 is here, 1 is there.
    pub(super) fn towards(&self, there: &Self, share: f64) -> Self {
        let between = |here: f64, there: f64| here + (there - here) * share;
        Self {
            carbon_reduction_pct: between(self.carbon_reduction_pct, there.carbon_reduction_pct),
            time_increase_pct: between(self.time_increase_pct, there.time_increase_pct),
            energy_reduction_pct: between(self.energy_reduction_pct, there.energy_reduction_pct),
            energy_effect_pct: between(self.energy_effect_pct, there.energy_effect_pct),
            timing_effect_pct: between(self.timing_effect_pct, there.timing_effect_pct),
        }
    }
}

/// One policy in one case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// As `--policy` takes it.
    pub policy: &'static str,
    /// The board.
    pub gpu: String,
    /// Data set and network.
    pub workload: String,
    /// Samples per step.
    pub batch_size: u64,
    /// The grid.
    pub grid: String,
    /// When the job began.
    #[serde(serialize_with = "rfc3339")]
    pub start: DateTime<Utc>,
    /// The maximum slowdown in percent: 3 % is 3.0. `None` for a policy by its own weights.
    pub budget_pct: Option<f64>,
    /// See [`Figures::carbon_reduction_pct`]. `None`, as the other figures then are, where the trace ends before that can
    /// be told.
    pub carbon_reduction_pct: Option<f64>,
    /// See [`Figures::time_increase_pct`].
    pub time_increase_pct: Option<f64>,
    /// (carbon of static − carbon) / (carbon of static − carbon of clairvoyant); `None` where there was next to nothing
    /// to capture, and without a budget.
    pub captured_headroom: Option<f64>,
    /// See [`Figures::energy_reduction_pct`].
    pub energy_reduction_pct: Option<f64>,
    /// See [`Figures::energy_effect_pct`]; with the next it adds up to the carbon reduction.
    pub energy_effect_pct: Option<f64>,
    /// See [`Figures::timing_effect_pct`].
    pub timing_effect_pct: Option<f64>,
    /// Of the profile's error, where it has one.
    pub seed: Option<u64>,
    /// More reduction than static, in points; `None` without a budget or without figures.
    #[serde(skip)]
    pub over_static: Option<f64>,
    /// What clairvoyant has more than static, in points; `None` without a budget.
    #[serde(skip)]
    pub headroom: Option<f64>,
}

impl Row {
    #[expect(clippy::too_many_arguments, reason = "one for each part of the row's key")]
    pub(super) fn new(
        policy: &'static str,
        job: &Job,
        grid: &str,
        start: DateTime<Utc>,
        seed: Option<u64>,
        budget: Option<f64>,
        figures: Option<Figures>,
        bounds: Option<(Figures, Figures)>,
    ) -> Self {
        let carbon_reduction_pct = figures.map(|f| f.carbon_reduction_pct);
        let over_static = bounds.and_then(|(fixed, _)| Some(carbon_reduction_pct? - fixed.carbon_reduction_pct));
        let headroom = bounds.map(|(fixed, best)| best.carbon_reduction_pct - fixed.carbon_reduction_pct);
        Self {
            policy,
            gpu: job.gpu.clone(),
            workload: format!("{}/{}", job.workload.dataset, job.workload.network),
            batch_size: job.workload.batch_size,
            grid: grid.to_owned(),
            start,
            // A fraction as it was typed is not exact in percent: 0.07 is 7.000000000000001 %.
            budget_pct: budget.map(|b| (b * 1e11).round() / 1e9),
            carbon_reduction_pct,
            time_increase_pct: figures.map(|f| f.time_increase_pct),
            captured_headroom: captured(over_static, headroom),
            energy_reduction_pct: figures.map(|f| f.energy_reduction_pct),
            energy_effect_pct: figures.map(|f| f.energy_effect_pct),
            timing_effect_pct: figures.map(|f| f.timing_effect_pct),
            seed,
            over_static,
            headroom,
        }
    }
}

fn captured(over_static: Option<f64>, headroom: Option<f64>) -> Option<f64> {
    let headroom = headroom.filter(|h| *h >= LEAST_HEADROOM)?;
    Some(over_static? / headroom)
}

fn rfc3339<S: Serializer>(t: &DateTime<Utc>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&t.format("%FT%TZ"))
}

/// Several rows of one policy, job and budget, over starts and seeds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// As in the rows.
    pub policy: &'static str,
    /// As in the rows.
    pub gpu: String,
    /// As in the rows.
    pub workload: String,
    /// As in the rows.
    pub batch_size: u64,
    /// As in the rows.
    pub grid: String,
    /// As in the rows.
    pub budget_pct: Option<f64>,
    /// How many rows these are the means of.
    pub rows: usize,
    /// The mean; `None`, as the others then are, where one of the rows has none: what is left would be the mean of
    /// other starts than those of the other policies.
    pub carbon_reduction_pct: Option<f64>,
    /// The mean.
    pub time_increase_pct: Option<f64>,
    /// The ratio of the means (`planning.md` §5).
    pub captured_headroom: Option<f64>,
    /// The mean.
    pub energy_effect_pct: Option<f64>,
    /// The mean.
    pub timing_effect_pct: Option<f64>,
}

/// The means of rows that differ only in start and seed, in the order in which these first appear.
pub fn means(rows: &[Row]) -> Vec<Mean> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    let key = |r: &Row| (r.policy, r.gpu.clone(), r.workload.clone(), r.batch_size, r.grid.clone());
    for row in rows {
        let same = |group: &&mut Vec<&Row>| key(group[0]) == key(row) && group[0].budget_pct == row.budget_pct;
        match groups.iter_mut().find(same) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.iter().map(|group| mean_of(group)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "a count of rows")]
fn mean_of(group: &[&Row]) -> Mean {
    let mean = |value: fn(&Row) -> Option<f64>| {
        let sum = group.iter().map(|r| value(r)).sum::<Option<f64>>();
        sum.map(|sum| sum / group.len() as f64)
    };
    Mean {
        policy: group[0].policy,
        gpu: group[0].gpu.clone(),
        workload: group[0].workload.clone(),
        batch_size: group[0].batch_size,
        grid: group[0].grid.clone(),
        budget_pct: group[0].budget_pct,
        rows: group.len(),
        carbon_reduction_pct: mean(|r| r.carbon_reduction_pct),
        time_increase_pct: mean(|r| r.time_increase_pct),
        captured_headroom: captured(mean(|r| r.over_static), mean(|r| r.headroom)),
        energy_effect_pct: mean(|r| r.energy_effect_pct),
        timing_effect_pct: mean(|r| r.timing_effect_pct),
    }
}
