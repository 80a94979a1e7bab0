//! Owns the discovery of jobs: which processes on GPUs belong to no registered job, and the jobs recorded for them.
//!
//! [`FoundJobs::judge`] is the rule: it returns the actions that it requests as [`Step`]s.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::job::Job;
use crate::controller::gpus::Gpus;
use crate::discovery::{Candidate, Scout, Sighting, Sightings};
use wattune_core::domain::{GpuId, JobId, Process, Processes};
use wattune_core::identity::{Key, Kind, Labels};
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

/// Time for which a process may be missing from its GPU before it counts as gone. The list of processes is read every
/// second, and a process that opens a GPU anew is missing for a moment.
const GRACE: Seconds = Seconds::new(5.0);

/// Maximum number of ids in the tag `joins`.
const MOST_JOINED: usize = 6;

/// Action that the discovery of jobs requests.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// Records a job. `continues` is a found job that this one replaces because its processes now use other GPUs: the
    /// GPUs of a job never change.
    Begin { labels: Labels, gpus: Vec<GpuId>, processes: Vec<Process>, continues: Option<JobId> },
    /// Counts further processes for a found job.
    Extend { job: JobId, processes: Vec<Process> },
    /// Ends a job.
    End { job: JobId, why: String },
}

/// A job that was found and has not ended.
#[derive(Debug)]
struct FoundJob {
    key: Key,
    gpus: BTreeSet<GpuId>,
    /// Processes that are counted for the job.
    counted: BTreeSet<Process>,
    /// Time since which the processes use other GPUs than the job's, or none.
    changed_since: Option<Monotonic>,
}

/// Process ids on each GPU, with the GPU's index. GPUs whose processes are unknown are missing.
pub(crate) type Listed = BTreeMap<GpuId, (u32, Vec<u32>)>;

/// Function that returns the registered job to which a process on a GPU belongs.
pub(crate) type OwnerOf<'a> = dyn Fn(&Candidate, &Sighting) -> Option<JobId> + 'a;

/// Input of the rule that decides about found jobs.
pub(crate) struct Scene<'a> {
    pub(crate) listed: Listed,
    pub(crate) sightings: Arc<Sightings>,
    pub(crate) owner: Box<OwnerOf<'a>>,
}

/// Processes of one identity on GPUs.
#[derive(Default)]
struct Group {
    gpus: BTreeSet<GpuId>,
    processes: BTreeSet<Process>,
    labels: Option<Labels>,
    /// A registered job that has some of them, by GPU.
    owned: BTreeMap<GpuId, JobId>,
}

/// Owner of the discovery of jobs.
#[derive(Default)]
pub(crate) struct FoundJobs {
    scout: Option<Scout>,
    open: BTreeMap<JobId, FoundJob>,
    /// Time since which each identity has processes on GPUs without a job.
    waiting: BTreeMap<Key, Monotonic>,
}

impl FoundJobs {
    pub(crate) fn new(scout: Option<Scout>) -> Self {
        Self { scout, ..Self::default() }
    }

    /// Reads which processes have GPUs open (first) and their identities (second); `None` if the settings turn the
    /// discovery off.
    pub(crate) fn observe(&self, gpus: &Gpus) -> Option<(Listed, Arc<Sightings>)> {
        let scout = self.scout.as_ref()?;
        let mut listed = Listed::new();
        for gpu in gpus.iter() {
            let answer = gpu.observed.processes.as_ref().filter(|_| gpu.observed.fault.is_none());
            if let Some((_, pids)) = answer {
                listed.insert(gpu.id().clone(), (gpu.handle.identity().index, pids.clone()));
            }
        }
        let wanted = candidates(&listed).collect();
        Some((listed, scout.identify(wanted)))
    }

    /// Writes the job-mapping folder if the settings say so. `jobs` returns the ids of the jobs on each GPU, by the
    /// GPU's index.
    pub(crate) fn write_mapping(&self, jobs: impl FnOnce() -> BTreeMap<u32, Vec<String>>) {
        if let Some(scout) = self.scout.as_ref().filter(|scout| scout.writes_mapping()) {
            scout.set_mapping(jobs());
        }
    }

    /// Returns what keeps the job-mapping folder from being written, in one sentence; `None` if nothing does.
    pub(crate) fn problem(&self) -> Option<String> {
        let fault = self.scout.as_ref()?.mapping_fault()?;
        Some(format!("the job-mapping folder cannot be written: {fault}"))
    }

    /// Adds a found job that begins or that continues after a restart of the daemon. Ignores other jobs.
    pub(super) fn note(&mut self, job: &Job) {
        let Some(Processes::Found(processes)) = &job.spec.processes else { return };
        let Some(key) = Key::of_tags(&job.spec.tags) else { return };
        let (gpus, counted) = (job.spec.gpus.iter().cloned().collect(), processes.iter().copied().collect());
        self.open.insert(job.id.clone(), FoundJob { key, gpus, counted, changed_since: None });
    }

    pub(super) fn forget(&mut self, job: &JobId) {
        self.open.remove(job);
    }

    /// Returns, as the value of a tag, the ids of the found jobs to which processes of a new registration on these
    /// GPUs belong; `None` if there are none.
    pub(crate) fn joined_by(
        &self,
        gpus: &[GpuId],
        processes: Option<&Processes>,
        sightings: &Sightings,
    ) -> Option<String> {
        let includes = |candidate: &Candidate, sighting: &Sighting| {
            gpus.contains(&candidate.gpu)
                && match processes {
                    None => true,
                    Some(Processes::Pids(roots)) => {
                        roots.iter().any(|root| *root == sighting.process || sighting.ancestors.contains(&root.pid))
                    }
                    Some(Processes::Cgroup(path)) => sighting.cgroup.as_ref().is_some_and(|own| own.overlaps(path)),
                    Some(Processes::SlurmJob(number)) => is_slurm_job(&sighting.labels.key, *number),
                    Some(Processes::Found(_)) => false,
                }
        };
        let keys: BTreeSet<&Key> = sightings
            .iter()
            .filter_map(|(candidate, sighting)| Some((candidate, sighting.as_ref()?)))
            .filter(|(candidate, sighting)| includes(candidate, sighting))
            .map(|(_, sighting)| &sighting.labels.key)
            .collect();
        let joined = self.open.iter().filter(|(_, found)| keys.contains(&found.key));
        let ids: Vec<&str> = joined.map(|(id, _)| id.as_str()).take(MOST_JOINED).collect();
        (!ids.is_empty()).then(|| ids.join(","))
    }

    /// Decides about found jobs. Returns the requested actions (first) and the found jobs whose processes still use
    /// GPUs (second).
    pub(crate) fn judge(&mut self, scene: &Scene<'_>, now: Monotonic) -> (Vec<Step>, Vec<JobId>) {
        let after = self.scout.as_ref().map_or(Seconds::ZERO, Scout::after);
        self.judge_after(scene, now, after)
    }

    fn judge_after(&mut self, scene: &Scene<'_>, now: Monotonic, after: Seconds) -> (Vec<Step>, Vec<JobId>) {
        let (groups, unknown) = scene.groups();
        let (mut steps, mut alive) = (Vec::new(), Vec::new());
        let nothing = Group::default();
        for (id, found) in &mut self.open {
            let group = groups.get(&found.key).unwrap_or(&nothing);
            if !group.gpus.is_empty() {
                alive.push(id.clone());
            }
            let fresh: Vec<Process> = group.processes.difference(&found.counted).copied().collect();
            // A GPU of which nothing is known now counts as used, so that a fault of the driver ends no job.
            let used: BTreeSet<GpuId> =
                group.gpus.iter().cloned().chain(found.gpus.iter().filter(|gpu| unknown(gpu)).cloned()).collect();
            if used == found.gpus {
                found.changed_since = None;
                if !fresh.is_empty() {
                    found.counted.extend(fresh.iter().copied());
                    steps.push(Step::Extend { job: id.clone(), processes: fresh });
                }
                continue;
            }
            let joined = found.gpus.iter().find_map(|gpu| group.owned.get(gpu).filter(|_| !used.contains(gpu)));
            let is_more = !used.is_subset(&found.gpus);
            let since = *found.changed_since.get_or_insert(now);
            if joined.is_none() && !is_more && now.since(since) < GRACE {
                continue;
            }
            let why = match (joined, used.is_empty()) {
                (Some(by), true) => format!("joined by job {by}"),
                (None, true) => "its processes have left its GPUs".to_owned(),
                (Some(by), false) => {
                    format!("some of its processes belong to job {by} now; the others continue as a new job")
                }
                (None, false) => "its processes use other GPUs now and continue as a new job".to_owned(),
            };
            steps.push(Step::End { job: id.clone(), why });
            if let Some(labels) = group.labels.clone().filter(|_| !used.is_empty()) {
                let (gpus, processes) = (used.into_iter().collect(), group.processes.iter().copied().collect());
                steps.push(Step::Begin { labels, gpus, processes, continues: Some(id.clone()) });
            }
        }
        let is_open = |key: &Key| self.open.values().any(|found| found.key == *key);
        self.waiting.retain(|key, _| groups.get(key).is_some_and(|group| !group.gpus.is_empty()) && !is_open(key));
        for (key, group) in groups.iter().filter(|(key, group)| !group.gpus.is_empty() && !is_open(key)) {
            let since = *self.waiting.entry(key.clone()).or_insert(now);
            if let Some(labels) = group.labels.clone().filter(|_| now.since(since) >= after) {
                let gpus = group.gpus.iter().cloned().collect();
                let processes = group.processes.iter().copied().collect();
                steps.push(Step::Begin { labels, gpus, processes, continues: None });
            }
        }
        (steps, alive)
    }
}

impl Scene<'_> {
    /// Returns the processes by identity (first), and a test for GPUs with a process that was not examined yet or with
    /// unknown processes (second).
    fn groups(&self) -> (BTreeMap<Key, Group>, impl Fn(&GpuId) -> bool) {
        let mut groups: BTreeMap<Key, Group> = BTreeMap::new();
        let mut known: BTreeSet<GpuId> = self.listed.keys().cloned().collect();
        for candidate in candidates(&self.listed) {
            let Some(looked_at) = self.sightings.get(&candidate) else {
                known.remove(&candidate.gpu);
                continue;
            };
            let Some(sighting) = looked_at else { continue };
            let group = groups.entry(sighting.labels.key.clone()).or_default();
            match (self.owner)(&candidate, sighting) {
                Some(job) => drop(group.owned.insert(candidate.gpu, job)),
                None => {
                    group.gpus.insert(candidate.gpu);
                    group.processes.insert(sighting.process);
                    group.labels.get_or_insert_with(|| sighting.labels.clone());
                }
            }
        }
        (groups, move |gpu: &GpuId| !known.contains(gpu))
    }
}

fn candidates(listed: &Listed) -> impl Iterator<Item = Candidate> {
    listed.iter().flat_map(|(gpu, (index, pids))| {
        pids.iter().map(|pid| Candidate { gpu: gpu.clone(), index: *index, pid: *pid })
    })
}

fn is_slurm_job(key: &Key, number: u32) -> bool {
    key.kind == Kind::Slurm && key.id == number.to_string()
}

/// Returns the registered job to which a process on a GPU belongs, among the jobs on that GPU: the one that counts the
/// process or one above it, the one of the same Slurm job, or one that named no processes, to which all may belong.
/// `owners` maps processes to jobs.
pub(crate) fn owner<'a>(
    jobs: impl Iterator<Item = &'a Job>,
    owners: &BTreeMap<u32, JobId>,
    candidate: &Candidate,
    sighting: &Sighting,
) -> Option<JobId> {
    let is_found = |job: &Job| matches!(job.spec.processes, Some(Processes::Found(_)));
    let holders: Vec<&Job> =
        jobs.filter(|job| job.spec.gpus.contains(&candidate.gpu) && !is_found(job) && !job.is_absent()).collect();
    let lineage = std::iter::once(&candidate.pid).chain(&sighting.ancestors);
    let counted = lineage.filter_map(|pid| owners.get(pid)).find_map(|id| holders.iter().find(|job| job.id == *id));
    let by_slurm = || {
        holders.iter().find(|job| {
            let tagged = job.spec.tags.get(Kind::Slurm.tag()).and_then(|number| number.parse().ok());
            let named = match job.spec.processes {
                Some(Processes::SlurmJob(number)) => Some(number),
                _ => tagged,
            };
            named.is_some_and(|number| is_slurm_job(&sighting.labels.key, number))
        })
    };
    let unspecific = || holders.iter().find(|job| job.spec.processes.is_none());
    counted.or_else(by_slurm).or_else(unspecific).map(|job| job.id.clone())
}

#[cfg(test)]
#[path = "found_jobs_tests.rs"]
mod tests;
