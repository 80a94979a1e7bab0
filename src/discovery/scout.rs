//! The thread that identifies the processes on GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Settings;
use super::mapping::{self, MappingWriter};
use super::pod_resources::Assigned;
use super::{evidence, kubelet};
use wattune_core::domain::{CgroupPath, GpuId, Process};
use wattune_core::identity::{Evidence, Identity, Labels, Pod, labels};
use wattune_core::units::Seconds;

/// The machine's list of users.
const USERS: &str = "/etc/passwd";

/// A process to identify, on one of its GPUs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// The GPU.
    pub gpu: GpuId,
    /// The GPU's index.
    pub index: u32,
    /// The process id.
    pub pid: u32,
}

/// The identity of a process, with the data by which it is matched with registered jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Sighting {
    /// The process.
    pub process: Process,
    /// The ids of the process's ancestors.
    pub ancestors: Vec<u32>,
    /// The process's control group (version 2), if it is not the root group.
    pub cgroup: Option<CgroupPath>,
    /// The name and the labels of a job that is recorded for this process.
    pub labels: Labels,
}

/// The processes that were identified. `None` stands for a process that does not exist in this namespace, or about
/// which nothing is known. Processes that were not examined yet are missing.
pub type Sightings = BTreeMap<Candidate, Option<Sighting>>;

/// Data that the control loop and the thread exchange.
#[derive(Debug, Default)]
struct Shared {
    wanted: BTreeSet<Candidate>,
    seen: Arc<Sightings>,
    /// The ids of the jobs on each GPU, by index, for the job-mapping folder.
    mapping: BTreeMap<u32, Vec<String>>,
    /// The reason why the job-mapping folder cannot be written, with its path.
    mapping_fault: Option<String>,
}

/// The daemon's handle for identifying processes on a thread of its own. When the handle is dropped, the thread removes
/// its files from the job-mapping folder and ends.
pub struct Scout {
    shared: Arc<Mutex<Shared>>,
    writes_mapping: bool,
    after: Seconds,
    /// Closed to end the thread.
    stop: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Scout {
    /// Starts the thread. `proc` is the directory of the kernel's process files.
    pub fn start(settings: Settings, proc: PathBuf) -> Self {
        let shared: Arc<Mutex<Shared>> = Arc::default();
        let (stop, stopped) = mpsc::channel::<()>();
        let (writes_mapping, after) = (settings.write_job_mapping, settings.after_s);
        let mut examiner = Examiner::new(settings, proc);
        let theirs = shared.clone();
        let body = move || {
            let period = examiner.settings.poll_s.to_std();
            loop {
                examiner.examine(&theirs);
                if !matches!(stopped.recv_timeout(period), Err(RecvTimeoutError::Timeout)) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("discovery".into()).spawn(body);
        if let Err(error) = &thread {
            tracing::error!(%error, "cannot start the thread that looks for jobs: processes are not recorded as jobs");
        }
        Self { shared, writes_mapping, after, stop: Some(stop), thread: thread.ok() }
    }

    /// Sets the processes to identify, and returns the latest results without waiting.
    pub fn identify(&self, wanted: BTreeSet<Candidate>) -> Arc<Sightings> {
        let mut shared = lock(&self.shared);
        shared.wanted = wanted;
        shared.seen.clone()
    }

    /// Returns the time for which a process must have a GPU open before it becomes a job.
    pub fn after(&self) -> Seconds {
        self.after
    }

    /// Returns whether the job-mapping folder is to be written.
    pub fn writes_mapping(&self) -> bool {
        self.writes_mapping
    }

    /// Returns the path of the job-mapping folder and why it cannot be written; `None` if it can.
    pub fn mapping_fault(&self) -> Option<String> {
        lock(&self.shared).mapping_fault.clone()
    }

    /// Sets the ids of the jobs on each GPU, by index, for the job-mapping folder.
    pub fn set_mapping(&self, mapping: BTreeMap<u32, Vec<String>>) {
        lock(&self.shared).mapping = mapping;
    }
}

impl Drop for Scout {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A thread that hangs in a file is left: only one that writes files has something to tidy up.
        if let Some(thread) = self.thread.take().filter(|_| self.writes_mapping) {
            // A panic of the thread has been reported when it happened.
            let _ = thread.join();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's own state.
struct Examiner {
    settings: Settings,
    proc: PathBuf,
    writer: Option<MappingWriter>,
    /// Evidence about processes that were examined before, without that of kubelet and job mapping, which may change.
    witnesses: BTreeMap<u32, evidence::Witness>,
    /// The last problem that was logged, by its subject.
    reported: BTreeMap<&'static str, String>,
}

impl Examiner {
    fn new(settings: Settings, proc: PathBuf) -> Self {
        let folder = settings.job_mapping_dir.clone().filter(|_| settings.write_job_mapping);
        let writer = folder.map(MappingWriter::new);
        Self { settings, proc, writer, witnesses: BTreeMap::new(), reported: BTreeMap::new() }
    }

    fn examine(&mut self, shared: &Mutex<Shared>) {
        let (wanted, mapping) = {
            let shared = lock(shared);
            (shared.wanted.clone(), shared.mapping.clone())
        };
        if let Some(writer) = &mut self.writer {
            let written = writer.write(&mapping);
            let fault = written.err().map(|error| format!("{}: {error}", writer.folder().display()));
            lock(shared).mapping_fault.clone_from(&fault);
            self.tell("job-mapping folder", fault);
        }
        let pods = if wanted.is_empty() { Vec::new() } else { self.pods() };
        self.witnesses.retain(|pid, _| wanted.iter().any(|candidate| candidate.pid == *pid));
        let look = |candidate: Candidate| {
            let sighting = self.sighting(&candidate, &pods);
            (candidate, sighting)
        };
        let seen: Sightings = wanted.into_iter().map(look).collect();
        lock(shared).seen = Arc::new(seen);
    }

    fn pods(&mut self) -> Vec<Assigned> {
        let socket = self.settings.kubelet_socket.clone();
        if !socket.exists() {
            self.tell("kubelet", None);
            return Vec::new();
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let listed = runtime.map_err(|error| error.to_string());
        let listed =
            listed.and_then(|runtime| runtime.block_on(kubelet::assigned(&socket)).map_err(|error| error.to_string()));
        match listed {
            Ok(pods) => {
                self.tell("kubelet", None);
                pods
            }
            Err(error) => {
                self.tell("kubelet", Some(format!("{}: {error}; pods go by their ids", socket.display())));
                Vec::new()
            }
        }
    }

    fn sighting(&mut self, candidate: &Candidate, pods: &[Assigned]) -> Option<Sighting> {
        let (pid, proc) = (candidate.pid, &self.proc);
        let is_same = |witness: &evidence::Witness| {
            crate::cpu::process_and_parent(proc, pid).is_some_and(|(process, _)| process == witness.process)
        };
        if !self.witnesses.get(&pid).is_some_and(is_same) {
            self.witnesses.remove(&pid);
            self.witnesses.insert(pid, evidence::read(proc, pid)?);
        }
        let witness = self.witnesses.get(&pid)?;
        let folder = self.settings.job_mapping_dir.as_deref().filter(|_| !self.settings.write_job_mapping);
        let evidence = Evidence {
            mapped_job: folder.and_then(|folder| mapping::slurm_job(folder, candidate.index)),
            pod: pod_of(&candidate.gpu, pods),
            ..witness.evidence.clone()
        };
        let identity = Identity::from_evidence(evidence);
        let user = identity.uid.map(|uid| evidence::user(uid, Path::new(USERS)));
        let labels = labels(&identity, user.as_ref())?;
        let (process, ancestors, cgroup) = (witness.process, witness.ancestors.clone(), witness.cgroup.clone());
        Some(Sighting { process, ancestors, cgroup, labels })
    }

    /// Logs a problem once, and its end.
    fn tell(&mut self, subject: &'static str, problem: Option<String>) {
        if self.reported.get(subject) == problem.as_ref() {
            return;
        }
        match problem {
            Some(problem) => {
                tracing::warn!("discovery of jobs: {subject}: {problem}");
                self.reported.insert(subject, problem);
            }
            None => {
                self.reported.remove(subject);
                tracing::info!("discovery of jobs: {subject}: works again");
            }
        }
    }
}

/// Returns the pod to which the kubelet gave a GPU, if it gave it to one alone.
fn pod_of(gpu: &GpuId, pods: &[Assigned]) -> Option<Pod> {
    let mut found = pods.iter().filter(|assigned| assigned.device == gpu.as_str()).map(|assigned| &assigned.pod);
    let first = found.next()?;
    found.all(|other| (&other.namespace, &other.name) == (&first.namespace, &first.name)).then(|| first.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_folder_is_named_while_it_cannot_be_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let folder = dir.path().join("mapping");
        std::fs::write(&folder, "in the way").expect("written");
        let settings =
            Settings { job_mapping_dir: Some(folder.clone()), write_job_mapping: true, ..Settings::default() };
        let mut examiner = Examiner::new(settings, "/proc".into());
        let shared = Mutex::new(Shared::default());
        lock(&shared).mapping = BTreeMap::from([(0, vec!["7".to_owned()])]);
        examiner.examine(&shared);
        let fault = lock(&shared).mapping_fault.clone().expect("a file is in the way");
        assert!(fault.starts_with(&format!("{}: ", folder.display())), "{fault}");
        std::fs::remove_file(&folder).expect("removed");
        examiner.examine(&shared);
        assert_eq!(lock(&shared).mapping_fault, None);
        assert_eq!(std::fs::read_to_string(folder.join("0")).expect("written"), "7\n");
    }
}
