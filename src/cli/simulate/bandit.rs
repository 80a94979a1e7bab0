//! `wattune simulate bandit`: simulates every combination of recurring job, GPU, policy and seed.

mod page;
mod write;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::builder::TypedValueParser;

use super::study::{Format, Progress, once, warn};
use crate::cli::output::{check_writable, deliver, to_json};
use crate::cli::values::{one_of, within};
use wattune_core::bandit::Spec;
use wattune_lab::bandit::policy::{self, Knobs, POLICIES, Policy};
use wattune_lab::bandit::{Case, JobQuery, Recurrences, Study, Switch, Traces};
use wattune_lab::traces::{Submission, TraceFile, submissions};

/// Simulates recurring jobs on recorded training runs, under policies that choose batch size and power limit.
///
/// Each run draws its number of epochs from the traces; a run that does not reach its target is repeated, at most 20
/// times. A run costs eta·energy + (1−eta)·(largest limit of the GPU)·time, in joules. The oracle is the best batch
/// size and power limit, known in advance. Regret is the cost of all runs minus the oracle's expected cost, as a
/// multiple of the oracle's expected cost of one run.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("drift").multiple(true))]
pub(super) struct Args {
    /// The number of epochs that each training run needed: a trace file of the Zeus project.
    #[arg(long, value_name = "FILE")]
    train_trace: PathBuf,
    /// Time and power of an epoch at each power limit of a GPU: a trace file of the Zeus project; several files, one
    /// per GPU, with commas.
    #[arg(long, value_name = "FILE", value_delimiter = ',', required = true)]
    power_trace: Vec<PathBuf>,
    /// The recurring job, as dataset/network; several with commas.
    #[arg(long, value_name = "WORKLOAD", value_delimiter = ',', required = true, value_parser = workload)]
    workload: Vec<(String, String)>,
    /// The training's optimizer, if the traces have several; one for all workloads, or one each, comma-separated. The
    /// same holds for --target-metric, --max-epochs and --default-batch-size.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    optimizer: Vec<String>,
    /// The value of the metric at which a run has reached its target, as the train trace states it.
    #[arg(long, value_name = "METRIC", value_delimiter = ',', required = true, allow_negative_numbers = true, value_parser = metric)]
    target_metric: Vec<f64>,
    /// The maximum number of epochs of a run.
    #[arg(long, value_name = "N", value_delimiter = ',', required = true, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_epochs: Vec<u32>,
    /// The batch size of the first run; if the power trace has only smaller ones, the largest of them.
    #[arg(long, value_name = "N", value_delimiter = ',', required = true, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    default_batch_size: Vec<u64>,
    /// The policies; several with commas [default: all].
    #[arg(long, value_name = "POLICY", value_delimiter = ',', value_parser = policies())]
    policy: Vec<Policy>,
    /// Seeds, with commas and ranges: 1-50 or 1,2,5-9.
    #[arg(long, value_name = "SEEDS", default_value = "1", allow_negative_numbers = true, value_parser = seeds)]
    seeds: Seeds,
    /// Weight of energy against time: 0 is time alone, 1 energy alone.
    #[arg(long, value_name = "KNOB", default_value_t = 0.5, allow_negative_numbers = true, value_parser = eta)]
    eta: f64,
    /// Stops a run once it costs more than FACTOR times the cheapest run so far that reached the target (policy zeus), or
    /// than FACTOR times the expected cost of the best batch size (policy wattune); "none" stops none.
    #[arg(long, value_name = "FACTOR", default_value = "2", allow_negative_numbers = true, value_parser = beta)]
    beta: Beta,
    /// In policy zeus, the number of latest runs of each batch size that its cost estimate uses; 0 for all runs.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    window: u32,
    /// The number of recurrences of a job [default: twice its number of batch sizes times its number of power limits].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    recurrences: Option<u32>,
    /// A file of overlapping submissions, in place of --recurrences: CSV with group, start and end in seconds, job
    /// (dataset or dataset/network) and optionally runtime_ratio.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["recurrences", "drift_at"])]
    group_trace: Option<PathBuf>,
    /// The first recurrence for which --drift-train-trace, --drift-power-trace and --drift-target-metric apply.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(2..), requires = "drift")]
    drift_at: Option<u32>,
    /// The train trace from --drift-at on.
    #[arg(long, value_name = "FILE", group = "drift", requires = "drift_at")]
    drift_train_trace: Option<PathBuf>,
    /// The power trace, and with it the GPU, from --drift-at on.
    #[arg(long, value_name = "FILE", group = "drift", requires = "drift_at")]
    drift_power_trace: Option<PathBuf>,
    /// The target metric from --drift-at on.
    #[arg(long, value_name = "METRIC", group = "drift", requires = "drift_at", allow_negative_numbers = true, value_parser = metric)]
    drift_target_metric: Option<f64>,
    /// Write a row for each run, too.
    #[arg(long)]
    history: bool,
    /// The output format: JSON is {"summary": […], "history": […], "notes": […]} without empty parts; CSV has only the
    /// history if --history is given, otherwise only the summary.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// The output file [default: standard output].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Clone, Debug)]
struct Seeds(Vec<u64>);

/// The cost factor at which a run is stopped; `None` if runs are never stopped.
#[derive(Clone, Copy, Debug)]
struct Beta(Option<f64>);

/// Creates a parser of policies by name.
fn policies() -> impl TypedValueParser<Value = Policy> {
    one_of(POLICIES.iter().map(|p| (p.name, p.about))).try_map(|name| policy::named(&name))
}

fn workload(text: &str) -> Result<(String, String), String> {
    let parts: Vec<&str> = text.split('/').collect();
    match parts.as_slice() {
        [dataset, network] if !dataset.is_empty() && !network.is_empty() => {
            Ok(((*dataset).to_owned(), (*network).to_owned()))
        }
        _ => Err(format!("{text:?} is not a workload; it is written dataset/network: cifar100/shufflenetv2")),
    }
}

fn metric(text: &str) -> Result<f64, String> {
    within(text, -1e12, 1e12, "a number, such as an accuracy or an error rate")
}

fn eta(text: &str) -> Result<f64, String> {
    within(text, 0.0, 1.0, "a number from 0 (time alone) to 1 (energy alone)")
}

fn beta(text: &str) -> Result<Beta, String> {
    if text == "none" {
        return Ok(Beta(None));
    }
    let right = "a number above 1 and up to 1000000, or none";
    within(text, 1.0, Spec::LARGEST_BETA, right)
        .and_then(|b| if b > 1.0 { Ok(Beta(Some(b))) } else { Err(format!("give {right}")) })
}

fn seeds(text: &str) -> Result<Seeds, String> {
    let wrong = || "give seeds like 1-50 or 1,2,5-9, at most 100000".to_owned();
    let mut all = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| wrong());
        let (first, last) = (number(first)?, number(last)?);
        if last < first || last - first >= 100_000 || all.len() >= 100_000 {
            return Err(wrong());
        }
        all.extend(first..=last);
    }
    Ok(Seeds(once_in_order(all)))
}

fn once_in_order(mut seeds: Vec<u64>) -> Vec<u64> {
    let mut seen = std::collections::HashSet::new();
    seeds.retain(|seed| seen.insert(*seed));
    seeds
}

/// Runs the simulation and writes the rows.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    check_writable("--output", args.output.as_deref())?;
    let queries = queries(args)?;
    let group_trace = args.group_trace.as_deref().map(TraceFile::read).transpose()?;
    let submissions = group_trace.as_ref().map(submissions).transpose()?;
    let cases = cases(args, &queries, group_trace.as_ref().zip(submissions.as_deref()))?;
    let policies = once(&args.policy, |policy| policy.name);
    let policies = if policies.is_empty() { POLICIES.to_vec() } else { policies };
    let history = args.history || args.format == Format::Html;
    let knobs = Knobs { eta: args.eta, beta: args.beta.0, window: args.window };
    let study = Study { cases: &cases, policies: &policies, seeds: &args.seeds.0, knobs, history };
    let mut progress = Progress::new(study.steps());
    let report = study.run(|| progress.step())?;
    drop(progress);
    let bytes = match args.format {
        Format::Table => write::table(&report).into_bytes(),
        Format::Json => to_json(&report)?,
        Format::Csv => {
            // CSV has no place for notes beside the rows, so they go to stderr.
            warn(&report.notes);
            write::comma_separated(&report)?
        }
        Format::Html => page::page(&report).into_bytes(),
    };
    deliver(&bytes, args.output.as_deref())
}

/// Returns one query of the traces for each workload, with the options given for that workload or for all.
fn queries(args: &Args) -> anyhow::Result<Vec<JobQuery>> {
    let count = args.workload.len();
    // Rows identify a job by workload and GPU only, so no workload may appear twice.
    let again = |place: &usize| args.workload[..*place].contains(&args.workload[*place]);
    if let Some((dataset, network)) = (0..count).find(again).map(|place| &args.workload[place]) {
        bail!("--workload has {dataset}/{network} twice; run it once for each of its targets, optimizers or defaults");
    }
    let fits = |name: &str, given: usize| match given {
        1 => Ok(()),
        given if given == count => Ok(()),
        given => bail!("{name} has {given} values for {count} workloads; give one for all or one for each"),
    };
    if !args.optimizer.is_empty() {
        fits("--optimizer", args.optimizer.len())?;
    }
    fits("--target-metric", args.target_metric.len())?;
    fits("--max-epochs", args.max_epochs.len())?;
    fits("--default-batch-size", args.default_batch_size.len())?;
    let of = |place: usize, (dataset, network): &(String, String)| JobQuery {
        dataset: dataset.clone(),
        network: network.clone(),
        optimizer: args.optimizer.get(place).or(args.optimizer.first()).cloned(),
        target_metric: *args.target_metric.get(place).unwrap_or(&args.target_metric[0]),
        max_epochs: *args.max_epochs.get(place).unwrap_or(&args.max_epochs[0]),
        default_batch_size: *args.default_batch_size.get(place).unwrap_or(&args.default_batch_size[0]),
    };
    Ok(args.workload.iter().enumerate().map(|(place, workload)| of(place, workload)).collect())
}

/// Reads the power traces. Rows identify a GPU by name only, so no two traces may be of the same GPU name.
fn power_traces(paths: &[PathBuf]) -> anyhow::Result<Vec<TraceFile>> {
    let mut files: Vec<TraceFile> = Vec::new();
    for path in paths {
        let file = TraceFile::read(path)?;
        let name = file.gpu();
        if let Some(other) = files.iter().find(|other| other.gpu() == name) {
            bail!(
                "--power-trace has {} and {}, both of a GPU {name}; name each file by its GPU, as summary_power_GPU.csv",
                other.path.display(),
                path.display()
            );
        }
        files.push(file);
    }
    Ok(files)
}

/// Returns the cases to simulate: each workload on each GPU, with its recurrences. `group_trace` is the file of
/// overlapping submissions, if there is one, and its content.
fn cases<'a>(
    args: &Args,
    queries: &[JobQuery],
    group_trace: Option<(&TraceFile, &'a [Submission])>,
) -> anyhow::Result<Vec<Case<'a>>> {
    let (train, power) = (TraceFile::read(&args.train_trace)?, power_traces(&args.power_trace)?);
    let drift = |path: &Option<PathBuf>| path.as_deref().map(TraceFile::read).transpose();
    let (drift_train, drift_power) = (drift(&args.drift_train_trace)?, drift(&args.drift_power_trace)?);
    let groups = group_trace.map(|(file, all)| groups(file, queries, all)).transpose()?;
    let mut cases = Vec::new();
    for power in &power {
        let traces = Traces::join(&train, power)?;
        let later = match args.drift_at {
            Some(at) => {
                let train = drift_train.as_ref().unwrap_or(&train);
                Some((at, Traces::join(train, drift_power.as_ref().unwrap_or(power))?))
            }
            None => None,
        };
        for (place, query) in queries.iter().enumerate() {
            let mut job = traces.job(query)?;
            let mut switch = None;
            if let Some((at, later)) = &later {
                let target_metric = args.drift_target_metric.unwrap_or(query.target_metric);
                let default_batch_size = job.arms[job.default].batch_size;
                let mut after = later.job(&JobQuery { target_metric, default_batch_size, ..query.clone() })?;
                let shared = job.shared_with(&after, "after").and_then(|()| after.shared_with(&job, "before"));
                shared.map_err(anyhow::Error::msg).with_context(|| job.workload.clone())?;
                switch = Some(Switch { at: *at, job: after, new_gpu: drift_power.is_some() });
            }
            let recurrences = args.recurrences.unwrap_or(job.recurrences);
            if let Some(at) = args.drift_at.filter(|at| *at > recurrences) {
                bail!(
                    "--drift-at is {at}, after the last of {recurrences} recurrences; give a smaller --drift-at, or more --recurrences"
                );
            }
            let recurrences = match &groups {
                Some(groups) => {
                    if groups[place].is_empty() {
                        job.notes.push(format!(
                            "{}: it has no rows, since the group trace has no submission of it",
                            job.workload
                        ));
                    }
                    Recurrences::Overlapping(groups[place].clone())
                }
                None => Recurrences::InTurn(recurrences, switch),
            };
            cases.push(Case { job, recurrences });
        }
    }
    Ok(cases)
}

type Groups<'a> = Vec<(String, Vec<&'a Submission>)>;

/// Returns, for each workload in the order of `queries`, its groups of submissions by name, each sorted by start.
fn groups<'a>(file: &TraceFile, queries: &[JobQuery], all: &'a [Submission]) -> anyhow::Result<Vec<Groups<'a>>> {
    let mut found: Vec<Groups<'a>> = vec![Vec::new(); queries.len()];
    for submission in all {
        let named = |query: &JobQuery| {
            submission.job == query.dataset || submission.job == format!("{}/{}", query.dataset, query.network)
        };
        let places: Vec<usize> = (0..queries.len()).filter(|place| named(&queries[*place])).collect();
        let place = match places[..] {
            [place] => place,
            _ => bail!(
                "{}, line {}, column job: {:?} is {}",
                file.path.display(),
                submission.line,
                submission.job,
                if places.is_empty() {
                    "none of --workload; name it there as dataset/network"
                } else {
                    "the data set of several of --workload; write dataset/network"
                }
            ),
        };
        match found[place].iter_mut().find(|(group, _)| *group == submission.group) {
            Some((_, members)) => members.push(submission),
            None => found[place].push((submission.group.clone(), vec![submission])),
        }
    }
    for (_, members) in found.iter_mut().flatten() {
        members.sort_by(|a, b| a.start.total_cmp(&b.start));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_belongs_to_one_workload() {
        let query = |network: &str| JobQuery {
            dataset: "d".to_owned(),
            network: network.to_owned(),
            optimizer: None,
            target_metric: 0.5,
            max_epochs: 10,
            default_batch_size: 8,
        };
        let grouped = |job: &str, queries: &[JobQuery]| {
            let bytes = format!("group,start,end,job\na,1,2,{job}\n").into_bytes();
            let file = TraceFile { path: "groups.csv".into(), bytes };
            let all = submissions(&file).expect("submissions");
            let found = groups(&file, queries, &all).map_err(|error| error.to_string())?;
            Ok::<Vec<usize>, String>(found.iter().map(Vec::len).collect())
        };
        let both = [query("m"), query("n")];
        assert_eq!(grouped("d", &both[..1]), Ok(vec![1]));
        assert_eq!(grouped("d/n", &both), Ok(vec![0, 1]));
        let several = grouped("d", &both).expect_err("either of two");
        assert!(several.contains("line 2, column job: \"d\" is the data set of several of --workload"), "{several}");
        let none = grouped("d/o", &both).expect_err("neither");
        assert!(none.contains("is none of --workload"), "{none}");
    }
}
