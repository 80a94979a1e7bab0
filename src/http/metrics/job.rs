//! Metrics of the jobs that have not ended.

use std::collections::{BTreeMap, BTreeSet};

use super::device;
use super::family::{Families, unix_time};
use super::ledger::bounds;
use crate::controller::Phase;
use crate::controller::view::{JobView, Mode, StatusView};
use wattune_core::units::Seconds;

pub(super) const PHASES: [(Phase, &str); 7] = [
    (Phase::Waiting, "waiting"),
    (Phase::Profiling, "profiling"),
    (Phase::Planned, "planned"),
    (Phase::Paused, "paused"),
    (Phase::Observing, "observing"),
    (Phase::Held, "held"),
    (Phase::Suspended, "suspended"),
];

type Value = fn(&StatusView, &JobView) -> Option<f64>;

const GAUGES: [(&str, &str, &str, Value); 12] = [
    // Not a counter, since it falls when carbon intensities are revised downwards.
    ("job_carbon", "gco2e", "Emissions of the job's recorded energy, by the intensities known now", |_, j| j.carbon_g),
    ("job_work", "samples", "Total work of the job", |_, j| j.total_samples),
    ("job_slowdown", "ratio", "Slowdown so far against the maximum usable limit: 0.012 is 1.2 %", |_, j| j.slowdown),
    ("job_max_slowdown", "ratio", "Slowdown that the job allows", |_, j| j.objective.max_slowdown),
    ("job_lease", "seconds", "The job's lease", |_, j| Some(j.lease_s)),
    ("job_lease_left", "seconds", "Time until the lease expires without a further report", |_, j| j.lease_left_s),
    (
        "job_expected_end_time",
        "seconds",
        "Expected end of the job by its plan, in seconds since the Unix epoch; absent if the node's cap lowers limits below the plan",
        |_, j| j.expected_end.map(unix_time),
    ),
    ("job_plan_age", "seconds", "Age of the plan in force", |s, j| {
        j.plan_made_at.map(|at| Seconds::from_delta(s.now - at).max(Seconds::ZERO).get())
    }),
    (
        "job_planned_carbon",
        "gco2e",
        "Emissions from the start of the plan in force to the job's end, as planned",
        |s, j| j.planned_carbon_g.filter(|_| is_shown(s, j)),
    ),
    (
        "job_planned_carbon_at_max",
        "gco2e",
        "Emissions of the same work at the maximum usable limit, as planned",
        |s, j| j.planned_carbon_at_max_g.filter(|_| is_shown(s, j)),
    ),
    (
        "job_broken_promises",
        "",
        "Constraints that the plan in force cannot meet; GET /v1/jobs/{id} lists them",
        |_, j| Some(j.broken_promises as f64),
    ),
    ("job_warnings", "", "Current warnings about the job; GET /v1/jobs/{id} lists them", |_, j| {
        Some(j.warnings.len() as f64)
    }),
];

/// Returns true if the metrics show the job's plan: because the plan is in force, or because the daemon runs in observe
/// mode, which only plans. The plan of a job whose GPU is lost or has an external limit is not in force.
fn is_shown(status: &StatusView, job: &JobView) -> bool {
    status.mode == Mode::Observe || matches!(job.phase, Some(Phase::Planned | Phase::Paused))
}

const COUNTERS: [(&str, &str, &str, Value); 4] = [
    ("job_energy", "joules", "Recorded energy of the job", |s, j| {
        // The sum of no numbers would be −0, so the fold begins with 0.
        j.energy_j.map(|_| recorded(s, j).values().fold(0.0, |sum, joules| sum + joules))
    }),
    ("job_samples", "", "Samples reported by the job", |_, j| j.samples),
    ("job_active", "seconds", "Time the job spent training", |_, j| Some(j.active_s)),
    ("job_stalled", "seconds", "Time without progress that wattune did not cause", |_, j| Some(j.stalled_s)),
];

/// Returns the energy of a job by kind of device, in joules. As a counter must not fall, a correction of the running
/// job's energy does not lower it; reports have the corrected energy.
fn recorded<'a>(status: &'a StatusView, job: &'a JobView) -> &'a BTreeMap<String, f64> {
    status.ledger.recorded_of_jobs.get(&job.job_id).unwrap_or(&job.energy_by_device_j)
}

/// The maximum number of jobs with series: first jobs whose GPUs wattune controls, then the newest jobs.
const SHOWN: usize = 100;

/// The maximum number of tag keys that become labels: the most frequent ones.
const TAG_KEYS: usize = 16;

pub(super) fn describe(status: &StatusView, families: &mut Families) {
    let jobs = status.foremost_jobs(SHOWN);
    let all = status.jobs.iter().filter(|job| job.ended_at.is_none()).count();
    families.gauge("jobs", "", "Jobs that have not ended").add([], all as f64);
    let help = "Jobs without series because of the limit on series";
    families.gauge("jobs_left_out", "", help).add([], (all - jobs.len()) as f64);
    let (keys, left_out) = tag_keys(&jobs);
    let help = "Tag keys without a label in job_info because of the limit on labels";
    families.gauge("jobs_tag_keys_left_out", "", help).add([], left_out as f64);
    let info = families.info("job", "Identity of the job; join it by job_id");
    for job in &jobs {
        info.push(identity(job, &keys).iter().map(|(key, value)| (key.as_str(), value.clone())));
    }
    let gpus = families.info("job_gpu", "GPUs of the job");
    for job in &jobs {
        for uuid in &job.gpus {
            let mut labels = vec![("job_id", job.job_id.clone())];
            match status.gpus.iter().find(|g| g.uuid == *uuid) {
                Some(gpu) => labels.extend(device::labels(gpu)),
                None => labels.push(("gpu_uuid", uuid.clone())),
            }
            gpus.push(labels);
        }
    }
    for (name, unit, help, value) in GAUGES {
        let family = families.gauge(name, unit, help);
        for job in &jobs {
            family.add([("job_id", job.job_id.clone())], value(status, job));
        }
    }
    for (name, unit, help, value) in COUNTERS {
        let family = families.counter(name, unit, help);
        for job in &jobs {
            family.add([("job_id", job.job_id.clone())], value(status, job));
        }
    }
    let help = "Recorded energy of the job by device kind: gpu, cpu or dram";
    let by_kind = families.counter("job_device_energy", "joules", help);
    for job in &jobs {
        for (kind, energy) in recorded(status, job) {
            by_kind.add([("job_id", job.job_id.clone()), ("kind", kind.clone())], *energy);
        }
    }
    let help =
        "Emissions saved so far against the original limit, if known: the estimate and the bounds of its interval";
    let saved = families.gauge("job_saved", "gco2e", help);
    for job in &jobs {
        for (bound, grams) in bounds(job.saved_g.as_ref()) {
            saved.add([("job_id", job.job_id.clone()), ("bound", bound.to_owned())], grams);
        }
    }
    let phases = families.gauge("job_phase", "", "Phase of the job: 1 for the current one");
    for job in &jobs {
        let present = PHASES.iter().find(|(phase, _)| Some(*phase) == job.phase).map(|(_, name)| *name);
        phases.states(&[("job_id", job.job_id.clone())], "phase", PHASES.map(|(_, name)| name), |p| present == Some(p));
    }
}

/// Returns the tag keys that become labels, and the number of keys left out.
fn tag_keys<'a>(jobs: &[&'a JobView]) -> (BTreeSet<&'a str>, usize) {
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    for key in jobs.iter().flat_map(|job| job.tags.keys()) {
        *found.entry(key).or_default() += 1;
    }
    let mut keys: Vec<(&str, usize)> = found.into_iter().collect();
    keys.sort_by_key(|(_, jobs)| std::cmp::Reverse(*jobs));
    let all = keys.len();
    // If several keys become the same label, only the most frequent of them is used.
    let mut labels = BTreeSet::new();
    keys.retain(|(key, _)| labels.insert(label(key)));
    keys.truncate(TAG_KEYS);
    let left_out = all - keys.len();
    (keys.into_iter().map(|(key, _)| key).collect(), left_out)
}

/// Returns the label name for a tag's key.
fn label(key: &str) -> String {
    let safe: String = key.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("tag_{safe}")
}

/// Returns the labels that identify a job.
fn identity(job: &JobView, keys: &BTreeSet<&str>) -> Vec<(String, String)> {
    let mut labels = vec![
        ("job_id".to_owned(), job.job_id.clone()),
        ("name".to_owned(), job.name.clone()),
        ("control".to_owned(), job.control.to_string()),
    ];
    labels.extend(job.batch_size.map(|size| ("batch_size".to_owned(), size.to_string())));
    let tags: BTreeMap<String, String> = job
        .tags
        .iter()
        .filter(|(key, _)| keys.contains(key.as_str()))
        .map(|(key, value)| (label(key), value.clone()))
        .collect();
    labels.extend(tags);
    labels
}
