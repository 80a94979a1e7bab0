//! Power traces: what a workload did at each power limit of a real board (Zeus's trace files, as they are).

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::files::{PACKED, is_packed};
use crate::gpu::simulated::{CurvePoint, LoadCurve};
use wattune_core::units::{SamplesPerSecond, Watts};

/// What a trace row counts as one epoch: a sample stands for a millionth of it, whatever the data set's size.
const SAMPLES_PER_EPOCH: f64 = 1e6;

/// Which rows of a power trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// The data set.
    pub dataset: String,
    /// The network.
    pub network: String,
    /// Samples per step.
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

/// Why a power trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file or one of its rows cannot be read.
    #[error("power trace {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: csv::Error,
    },
    /// The rows are there, and do not fit.
    #[error("power trace {}: {why}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what would be right.
        why: String,
    },
}

#[derive(Debug, Deserialize)]
struct Row {
    #[serde(skip)]
    line: u64,
    dataset: String,
    network: String,
    batch_size: u64,
    optimizer: String,
    power_limit: f64,
    time_per_epoch: f64,
    average_power: f64,
}

/// The curve of a workload on the board of a power trace. `optimizer` is needed only where the trace has several.
///
/// # Errors
/// If the file cannot be read, has no such workload, or more than one optimizer for it.
pub fn power_curve(path: &Path, workload: &Workload, optimizer: Option<&str>) -> Result<LoadCurve, TraceError> {
    let unreadable = |source| TraceError::Unreadable { path: path.to_owned(), source };
    let unusable = |why| TraceError::Unusable { path: path.to_owned(), why };
    let bytes = std::fs::read(path).map_err(|source| unreadable(source.into()))?;
    if is_packed(&bytes) {
        return Err(unusable(PACKED.to_owned()));
    }
    let mut reader = csv::Reader::from_reader(bytes.as_slice());
    let names = reader.headers().map_err(unreadable)?.clone();
    let mut rows: Vec<Row> = Vec::new();
    for record in reader.records() {
        let record = record.map_err(unreadable)?;
        let line = record.position().map_or(0, csv::Position::line);
        rows.push(Row { line, ..record.deserialize(Some(&names)).map_err(unreadable)? });
    }
    if rows.is_empty() {
        let columns = "dataset, network, batch_size, optimizer, power_limit, time_per_epoch and average_power";
        return Err(unusable(format!("it has no rows; a power trace is a CSV file with the columns {columns}")));
    }
    let fits = |r: &&Row| {
        r.dataset == workload.dataset && r.network == workload.network && r.batch_size == workload.batch_size
    };
    let mut found: Vec<&Row> = rows.iter().filter(fits).collect();
    let mut optimizers: Vec<&str> = found.iter().map(|r| r.optimizer.as_str()).collect();
    optimizers.sort_unstable();
    optimizers.dedup();
    match (optimizers.as_slice(), optimizer) {
        ([], _) => {
            let mut known: Vec<String> =
                rows.iter().map(|r| format!("{}/{}/{}", r.dataset, r.network, r.batch_size)).collect();
            known.sort_unstable();
            known.dedup();
            return Err(unusable(format!("no workload {workload}; it has {}", known.join(", "))));
        }
        ([_], None) => {}
        (several, None) => {
            let several = several.join(", ");
            return Err(unusable(format!("{workload} was traced with several optimizers; choose one: {several}")));
        }
        (known, Some(asked)) if !known.contains(&asked) => {
            return Err(unusable(format!("no optimizer {asked} for {workload}; it has {}", known.join(", "))));
        }
        (_, Some(asked)) => found.retain(|r| r.optimizer == asked),
    }
    let point = |r: &&Row| {
        let columns =
            [("power_limit", r.power_limit), ("time_per_epoch", r.time_per_epoch), ("average_power", r.average_power)];
        if let Some((column, value)) = columns.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            return Err(unusable(format!("line {}, column {column:?}: {value} is not a positive number", r.line)));
        }
        Ok(CurvePoint {
            limit: Watts::new(r.power_limit),
            throughput: SamplesPerSecond::new(SAMPLES_PER_EPOCH / r.time_per_epoch),
            power: Watts::new(r.average_power),
        })
    };
    let points = found.iter().map(point).collect::<Result<Vec<CurvePoint>, TraceError>>()?;
    LoadCurve::new(points).ok_or_else(|| unusable(format!("{workload} has no rows")))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const TRACE: &str = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n\
        d,n,8,adam,100,20,90\nd,n,8,adam,200,10,150\nd,n,16,adam,200,5,150\nd,n,16,sgd,200,4,160\n";

    fn trace(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        file
    }

    #[test]
    fn rows_become_a_curve() {
        let file = trace(TRACE);
        let workload = "d/n/8".parse().expect("a workload");
        let curve = power_curve(file.path(), &workload, None).expect("usable");
        assert_eq!(curve.at(Watts::new(200.0)).throughput, SamplesPerSecond::new(1e5));
        assert_eq!(curve.points().len(), 2);
    }

    #[test]
    fn errors_say_what_would_be_right() {
        let file = trace(TRACE);
        let curve = |workload: &str, optimizer| {
            let workload = workload.parse().expect("a workload");
            power_curve(file.path(), &workload, optimizer).expect_err("unusable").to_string()
        };
        assert!(curve("d/n/4", None).ends_with("no workload d/n/4; it has d/n/16, d/n/8"));
        assert!(curve("d/n/16", None).ends_with("choose one: adam, sgd"));
        assert!(curve("d/n/8", Some("sgd")).ends_with("it has adam"));
        assert!("d/n".parse::<Workload>().expect_err("too short").contains("imagenet/resnet50/128"));
        let broken = trace(&TRACE.replace("20,90", "twenty,90"));
        let error = power_curve(broken.path(), &"d/n/8".parse().expect("a workload"), None).expect_err("broken");
        let cause = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(cause.contains("line: 2"), "{cause}");
        let nan = trace(&TRACE.replace("20,90", "20,NaN"));
        let error = power_curve(nan.path(), &"d/n/8".parse().expect("a workload"), None).expect_err("no number");
        assert!(error.to_string().contains("line 2, column \"average_power\": NaN"), "{error}");
        let empty = trace("dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n");
        let error = power_curve(empty.path(), &"d/n/8".parse().expect("a workload"), None).expect_err("empty");
        assert!(error.to_string().contains("it has no rows"), "{error}");
    }
}
