//! Tests of the rule for found jobs, on made-up sightings.

use chrono::DateTime;

use super::*;
use crate::store::StoredProgress;
use wattune_core::domain::{JobName, JobSpec, Objective, Work};
use wattune_core::identity::{Groups, Identity, labels};
use wattune_core::time::Now;

/// A node with processes on GPUs: process id, GPUs, Slurm job, and the registered job that has it, if any.
#[derive(Default)]
struct World {
    rule: FoundJobs,
    processes: Vec<(u32, Vec<u32>, u32, Option<&'static str>)>,
    unlisted: Vec<u32>,
    unseen: Vec<u32>,
    begun: u32,
}

fn gpu(index: u32) -> GpuId {
    GpuId::new(format!("GPU-{index}")).expect("an id")
}

fn id(name: impl Into<String>) -> JobId {
    JobId::new(name).expect("an id")
}

fn sighting(pid: u32, slurm_job: u32) -> Sighting {
    let groups = Groups { slurm_job: Some(slurm_job), ..Groups::default() };
    let evidence = wattune_core::identity::Evidence { groups, ..Default::default() };
    let labels = labels(&Identity::from_evidence(evidence), None).expect("known");
    Sighting { process: Process { pid, start: 1 }, ancestors: vec![pid + 1000], cgroup: None, labels }
}

fn job(name: &str, gpus: &[u32], processes: Option<Processes>, tags: BTreeMap<String, String>) -> Job {
    let now = Now { utc: DateTime::UNIX_EPOCH, monotonic: Monotonic::default() };
    let spec = JobSpec {
        name: JobName::new("a").expect("a name"),
        gpus: gpus.iter().map(|index| gpu(*index)).collect(),
        batch_size: None,
        work: Work::Unknown,
        objective: Objective::DEFAULT,
        lease: Seconds::new(60.0),
        control: false,
        priority: 0,
        tags,
        processes,
        offers: Default::default(),
    };
    Job::new(id(name), spec, Vec::new(), None, StoredProgress::default(), now.utc, now)
}

impl World {
    /// Judges at this second, carries the steps out, and describes them.
    fn at(&mut self, second: f64) -> Vec<String> {
        let mut listed: BTreeMap<GpuId, (u32, Vec<u32>)> =
            (0..2).map(|index| (gpu(index), (index, Vec::new()))).collect();
        let mut sightings = Sightings::new();
        let mut owners = BTreeMap::new();
        for (pid, gpus, slurm, owner) in &self.processes {
            for index in gpus {
                listed.get_mut(&gpu(*index)).expect("there").1.push(*pid);
                let candidate = Candidate { gpu: gpu(*index), index: *index, pid: *pid };
                if !self.unseen.contains(pid) {
                    sightings.insert(candidate, Some(sighting(*pid, *slurm)));
                }
            }
            owners.insert(*pid, owner.map(id));
        }
        self.unlisted.iter().for_each(|index| drop(listed.remove(&gpu(*index))));
        let owner = Box::new(|candidate: &Candidate, _: &Sighting| owners[&candidate.pid].clone());
        let scene = Scene { listed, sightings: Arc::new(sightings), owner };
        let now = Monotonic::default().after(Seconds::new(second));
        let (steps, _) = self.rule.judge_after(&scene, now, Seconds::new(10.0));
        drop(scene);
        steps.into_iter().map(|step| self.carry_out(step)).collect()
    }

    fn carry_out(&mut self, step: Step) -> String {
        match step {
            Step::Begin { labels, gpus, processes, continues } => {
                self.begun += 1;
                let name = format!("job-{}", self.begun);
                let pids: Vec<String> = processes.iter().map(|process| process.pid.to_string()).collect();
                let indexes: Vec<u32> =
                    gpus.iter().filter_map(|gpu| gpu.as_str().strip_prefix("GPU-")?.parse().ok()).collect();
                self.rule.note(&job(&name, &indexes, Some(Processes::Found(processes)), labels.tags));
                let continues = continues.map_or(String::new(), |id| format!(" after {id}"));
                format!("{name} on {indexes:?} with {}{continues}", pids.join("+"))
            }
            Step::Extend { job, processes } => format!("{job} gains {}", processes[0].pid),
            Step::End { job, why } => {
                self.rule.forget(&job);
                format!("{job} ends: {why}")
            }
        }
    }
}

#[test]
fn a_process_becomes_a_job_after_a_while_and_ends_with_its_processes() {
    let mut world = World { processes: vec![(50, vec![0], 7, None), (51, vec![1], 7, None)], ..World::default() };
    assert_eq!(world.at(0.0), Vec::<String>::new());
    assert_eq!(world.at(9.0), Vec::<String>::new());
    assert_eq!(world.at(10.0), ["job-1 on [0, 1] with 50+51"]);
    world.processes.push((52, vec![0], 7, None));
    assert_eq!(world.at(11.0), ["job-1 gains 52"]);
    assert_eq!(world.at(12.0), Vec::<String>::new(), "each process is counted once");
    world.processes.clear();
    assert_eq!((world.at(13.0), world.at(17.0)), (Vec::new(), Vec::new()));
    assert_eq!(world.at(18.0), ["job-1 ends: its processes have left its GPUs"]);
    assert_eq!(world.at(60.0), Vec::<String>::new());
}

#[test]
fn a_process_that_stays_shortly_is_no_job() {
    let mut world = World { processes: vec![(50, vec![0], 7, None)], ..World::default() };
    world.at(0.0);
    let before = std::mem::take(&mut world.processes);
    world.at(5.0);
    world.processes = before;
    assert_eq!(world.at(12.0), Vec::<String>::new(), "its time begins anew");
    assert_eq!(world.at(22.0).len(), 1);
}

#[test]
fn a_registration_takes_its_processes_over_at_once() {
    let mut world = World { processes: vec![(50, vec![0], 7, None), (51, vec![1], 7, None)], ..World::default() };
    world.at(0.0);
    world.at(10.0);
    world.processes[0].3 = Some("theirs");
    let parted = world.at(11.0);
    assert!(parted[0].starts_with("job-1 ends: some of its processes belong to job theirs now"), "{parted:?}");
    assert_eq!(parted[1..], ["job-2 on [1] with 51 after job-1"]);
    world.processes[1].3 = Some("theirs");
    assert_eq!(world.at(12.0), ["job-2 ends: joined by job theirs"]);
    // The registered job ends and its processes go on.
    world.processes.iter_mut().for_each(|process| process.3 = None);
    assert_eq!(world.at(20.0), Vec::<String>::new());
    assert_eq!(world.at(30.0), ["job-3 on [0, 1] with 50+51"]);
}

#[test]
fn a_further_gpu_makes_another_job_that_goes_on() {
    let mut world = World { processes: vec![(50, vec![0], 7, None), (60, vec![1], 8, None)], ..World::default() };
    world.at(0.0);
    assert_eq!(world.at(10.0), ["job-1 on [0] with 50", "job-2 on [1] with 60"]);
    world.processes.push((51, vec![1], 7, None));
    let grown = world.at(11.0);
    assert!(grown[0].starts_with("job-1 ends: its processes use other GPUs now"), "{grown:?}");
    assert_eq!(grown[1..], ["job-3 on [0, 1] with 50+51 after job-1"]);
}

#[test]
fn what_is_unknown_ends_no_job() {
    let mut world = World { processes: vec![(50, vec![0], 7, None)], ..World::default() };
    world.at(0.0);
    world.at(10.0);
    // The GPU's driver does not answer.
    world.unlisted.push(0);
    assert_eq!((world.at(20.0), world.at(40.0)), (Vec::new(), Vec::new()));
    world.unlisted.clear();
    // As after a restart of the daemon, before the first look.
    world.unseen.push(50);
    assert_eq!((world.at(41.0), world.at(60.0)), (Vec::new(), Vec::new()));
    world.unseen.clear();
    assert_eq!(world.at(61.0), Vec::<String>::new());
}

#[test]
fn a_process_belongs_to_the_job_that_counts_it_or_may_have_it() {
    let none = BTreeMap::new;
    let tagged = || BTreeMap::from([("slurm_job_id".to_owned(), "7".to_owned())]);
    let pids = || Some(Processes::Pids(Vec::new()));
    let nobody: BTreeMap<u32, JobId> = BTreeMap::new();
    let counts = BTreeMap::from([(1050, id("a"))]);
    let candidate = Candidate { gpu: gpu(0), index: 0, pid: 50 };
    let owner_of = |jobs: Vec<Job>, owners: &BTreeMap<u32, JobId>, slurm| {
        owner(jobs.iter(), owners, &candidate, &sighting(50, slurm)).map(|id| id.to_string())
    };
    let table = [
        (vec![job("a", &[0], pids(), none())], &counts, 7, Some("a"), "its parent is counted"),
        (vec![job("a", &[1], pids(), none())], &counts, 7, None, "on another GPU"),
        (vec![job("a", &[0], pids(), none())], &nobody, 7, None, "of other processes"),
        (vec![job("a", &[0], None, none())], &nobody, 7, Some("a"), "of unknown processes"),
        (vec![job("a", &[0], pids(), tagged())], &nobody, 7, Some("a"), "its label names the Slurm job"),
        (vec![job("a", &[0], Some(Processes::SlurmJob(7)), none())], &nobody, 7, Some("a"), "it is the Slurm job"),
        (vec![job("a", &[0], Some(Processes::SlurmJob(7)), none())], &nobody, 8, None, "of another Slurm job"),
        (vec![job("a", &[0], Some(Processes::Found(Vec::new())), tagged())], &counts, 7, None, "a found job"),
    ];
    for (jobs, owners, slurm, expected, what) in table {
        assert_eq!(owner_of(jobs, owners, slurm).as_deref(), expected, "{what}");
    }
}
