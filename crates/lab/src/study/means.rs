//! Means of results over starts and seeds.

use serde::Serialize;

use super::figures::captured;
use super::row::Row;

/// Mean of the rows of one policy, job and budget over all starts and seeds.
#[expect(missing_docs, reason = "fields are those of `Row`, or its means")]
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mean {
    pub policy: &'static str,
    pub gpu: String,
    pub workload: String,
    pub batch_size: u64,
    pub job: usize,
    pub grid: String,
    pub budget_pct: Option<f64>,
    /// Number of rows in the mean: without those of starts from which the job would have no emissions, unless there are
    /// no others. Such starts have no figures under any policy.
    pub rows: usize,
    /// Mean reduction of emissions. This mean and the others are `None` if one of the rows has no figures: otherwise
    /// the means of different policies would be over different starts.
    pub carbon_reduction_pct: Option<f64>,
    pub time_increase_pct: Option<f64>,
    /// Mean carbon reduction beyond that of static, divided by the mean headroom (`planning.md` §5).
    pub captured_headroom: Option<f64>,
    pub energy_effect_pct: Option<f64>,
    pub timing_effect_pct: Option<f64>,
}

/// Returns the means of rows that differ only in start and seed. The means are in the order in which their first rows
/// appear.
pub fn means(rows: &[Row]) -> Vec<Mean> {
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    let key = |r: &Row| (r.policy, r.gpu.clone(), r.workload.clone(), r.batch_size, r.job, r.grid.clone());
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
    let counted: Vec<&Row> = group.iter().copied().filter(|row| !row.no_carbon).collect();
    let counted: &[&Row] = if counted.is_empty() { group } else { &counted };
    let mean = |value: fn(&Row) -> Option<f64>| {
        let sum = counted.iter().map(|r| value(r)).sum::<Option<f64>>();
        sum.map(|sum| sum / counted.len() as f64)
    };
    Mean {
        policy: group[0].policy,
        gpu: group[0].gpu.clone(),
        workload: group[0].workload.clone(),
        batch_size: group[0].batch_size,
        job: group[0].job,
        grid: group[0].grid.clone(),
        budget_pct: group[0].budget_pct,
        rows: counted.len(),
        carbon_reduction_pct: mean(|r| r.carbon_reduction_pct),
        time_increase_pct: mean(|r| r.time_increase_pct),
        captured_headroom: captured(mean(|r| r.over_static), mean(|r| r.headroom)),
        energy_effect_pct: mean(|r| r.energy_effect_pct),
        timing_effect_pct: mean(|r| r.timing_effect_pct),
    }
}
