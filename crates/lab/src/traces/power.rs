//! Power and throughput of a workload at each power limit of a real GPU: `summary_power_*.csv`.

use std::fmt;

use super::file::{TraceError, TraceFile};
use super::rows::{TrainingKey, rows};
use wattune_core::domain::{Estimate, OperatingPoint, PowerLimit, Profile};
use wattune_core::units::{Joules, SamplesPerSecond, Seconds, Watts};

/// Number of samples in an epoch. Traces do not contain the size of the data set, so that one sample is a millionth of
/// an epoch.
const SAMPLES_PER_EPOCH: f64 = 1e6;

/// A training workload whose power was traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Name of the data set.
    pub dataset: String,
    /// Name of the network.
    pub network: String,
    /// Batch size: samples per step.
    pub batch_size: u64,
}

impl std::str::FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is not a workload; it is written dataset/network/batch size: imagenet/resnet50/128");
        let mut parts = text.split('/');
        let (Some(dataset), Some(network), Some(batch_size), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let batch_size = batch_size.parse().map_err(|_| wrong())?;
        Ok(Self { dataset: dataset.into(), network: network.into(), batch_size })
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.dataset, self.network, self.batch_size)
    }
}

/// Measurement of one epoch of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epoch {
    /// Duration of the epoch.
    pub time: Seconds,
    /// Mean power of the GPU during the epoch.
    pub power: Watts,
}

impl Epoch {
    /// Returns the energy of the epoch.
    pub fn energy(&self) -> Joules {
        self.power * self.time
    }
}

/// A row of a power trace: a measured epoch of a training at one power limit.
#[derive(Clone, Debug, PartialEq)]
pub struct PowerRow {
    /// The training that was measured.
    pub training: TrainingKey,
    /// Power limit of the measurement.
    pub limit: Watts,
    /// Time and power of the measured epoch.
    pub epoch: Epoch,
}

/// Returns the rows of a power trace, `summary_power_*.csv`.
pub fn power_rows(file: &TraceFile) -> Result<Vec<PowerRow>, TraceError> {
    let columns = ["dataset", "network", "optimizer", "batch_size", "power_limit", "time_per_epoch", "average_power"];
    rows(file, &columns, &[], |row| {
        let (limit, time, power) = (row.positive(4)?, row.positive(5)?, row.positive(6)?);
        let epoch = Epoch { time: Seconds::new(time), power: Watts::new(power) };
        Ok(PowerRow { training: TrainingKey::of(row)?, limit: Watts::new(limit), epoch })
    })
}

/// Returns the profile (throughput and power at each limit) of a workload on the GPU of a power trace, with the largest
/// limit first. `optimizer` is required only if the trace has several optimizers for the workload.
///
/// # Errors
/// If the file is not a power trace, has no such workload, or has several optimizers for it and none is chosen.
pub fn power_profile(file: &TraceFile, workload: &Workload, optimizer: Option<&str>) -> Result<Profile, TraceError> {
    let rows = power_rows(file)?;
    let of_workload = |r: &&PowerRow| {
        let TrainingKey { dataset, network, batch_size, .. } = &r.training;
        (dataset, network, *batch_size) == (&workload.dataset, &workload.network, workload.batch_size)
    };
    let mut chosen: Vec<&PowerRow> = rows.iter().filter(of_workload).collect();
    let optimizers = distinct(chosen.iter().map(|r| r.training.optimizer.clone()));
    if optimizers.is_empty() {
        let name = |t: &TrainingKey| format!("{}/{}/{}", t.dataset, t.network, t.batch_size);
        let known = distinct(rows.iter().map(|r| name(&r.training))).join(", ");
        return Err(file.unusable(format!("no workload {workload}; it has {known}")));
    }
    let optimizer = chosen_optimizer(&optimizers, optimizer, workload).map_err(|why| file.unusable(why))?;
    chosen.retain(|r| r.training.optimizer == optimizer);
    chosen.sort_by(|a, b| a.limit.total_cmp(&b.limit));
    Ok(Profile { points: chosen.into_iter().rev().map(point).collect() })
}

fn point(row: &PowerRow) -> OperatingPoint {
    let throughput = SamplesPerSecond::new(SAMPLES_PER_EPOCH / row.epoch.time.get());
    OperatingPoint {
        setting: vec![PowerLimit::from_watts(row.limit).into()],
        throughput: Estimate { mean: throughput, relative_error: 0.0 },
        power: Estimate { mean: row.epoch.power, relative_error: 0.0 },
        measured: Seconds::ZERO,
    }
}

/// Returns the optimizer to use among the `known` ones, of which there is at least one: the one `asked` for, or the only
/// one. Otherwise returns what is wrong.
pub(crate) fn chosen_optimizer<'a>(
    known: &'a [String],
    asked: Option<&'a str>,
    workload: impl fmt::Display,
) -> Result<&'a str, String> {
    match (known, asked) {
        ([only], None) => Ok(only),
        (several, None) => {
            Err(format!("{workload} was traced with several optimizers; choose one: {}", several.join(", ")))
        }
        (known, Some(asked)) if known.iter().any(|k| k == asked) => Ok(asked),
        (known, Some(asked)) => Err(format!("no optimizer {asked} for {workload}; it has {}", known.join(", "))),
    }
}

pub(crate) fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    names.collect::<std::collections::BTreeSet<_>>().into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n\
        d,n,8,adam,100,20,90\nd,n,8,adam,200,10,150\nd,n,16,adam,200,5,150\nd,n,16,sgd,200,4,160\n";

    fn profile(text: &str, workload: &str, optimizer: Option<&str>) -> Result<Profile, TraceError> {
        let file = TraceFile { path: "summary_power_a40.csv".into(), bytes: text.into() };
        power_profile(&file, &workload.parse().expect("a workload"), optimizer)
    }

    #[test]
    fn rows_become_a_profile() {
        let points = profile(TRACE, "d/n/8", None).expect("usable").points;
        let limits: Vec<f64> = points.iter().map(|p| p.setting[0].limit.watts().get()).collect();
        assert_eq!((limits, points[0].throughput.mean), (vec![200.0, 100.0], SamplesPerSecond::new(1e5)));
    }

    #[test]
    fn errors_say_what_would_be_right() {
        let refused = |text: &str, workload: &str, optimizer| {
            profile(text, workload, optimizer).expect_err("unusable").to_string()
        };
        assert!(refused(TRACE, "d/n/4", None).ends_with("no workload d/n/4; it has d/n/16, d/n/8"));
        assert!(refused(TRACE, "d/n/16", None).ends_with("choose one: adam, sgd"));
        assert!(refused(TRACE, "d/n/8", Some("sgd")).ends_with("it has adam"));
        assert!("d/n".parse::<Workload>().expect_err("too short").contains("imagenet/resnet50/128"));
        let nan = refused(&TRACE.replace("20,90", "20,NaN"), "d/n/8", None);
        assert!(nan.contains("line 2, column average_power: \"NaN\" is not a number above 0"), "{nan}");
        let empty = refused(TRACE.lines().next().expect("names"), "d/n/8", None);
        assert!(empty.contains("it has no rows"), "{empty}");
    }
}
