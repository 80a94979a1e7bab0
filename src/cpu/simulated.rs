//! A simulated CPU that follows the load of simulated GPUs: one package with memory, and one data-loading process per
//! GPU. Every view labels it `simulated`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{CpuSource, JobUsage, Node, Usage, ZoneReading, Zones};
use crate::clock::Clock;
use crate::gpu::simulated::SimulatedGpu;
use wattune_core::domain::{DeviceId, DeviceKind, InvalidJob, JobId, Process, ProcessSelector, Processes};
use wattune_core::time::Monotonic;
use wattune_core::units::{Joules, Seconds, Watts};

/// The id of the simulated process that feeds GPU 0; the processes of further GPUs have the next ids.
pub const FIRST_PID: u32 = 10_000;

const CORES: u32 = 32;
/// The number of busy cores per GPU at full load, and the number that all other processes always keep busy.
const PER_GPU: f64 = 4.0;
const OTHERS: f64 = 0.5;
const PACKAGE_IDLE: Watts = Watts::new(45.0);
const PACKAGE_PER_CORE: Watts = Watts::new(4.5);
const DRAM_IDLE: Watts = Watts::new(8.0);
const DRAM_PER_CORE: Watts = Watts::new(0.8);
/// The range in microjoules of a real package's counter, which wraps every hour or two.
const RANGE_UJ: u64 = 262_143_328_850;

/// The simulated node's CPUs.
pub struct SimulatedNode {
    clock: Arc<dyn Clock>,
    gpus: Vec<SimulatedGpu>,
    at: Monotonic,
    package: Joules,
    dram: Joules,
    busy: Seconds,
    feeders: Vec<Seconds>,
    jobs: BTreeMap<JobId, Vec<(usize, Seconds)>>,
}

impl SimulatedNode {
    /// Creates a node whose CPU load follows these GPUs.
    pub fn new(gpus: Vec<SimulatedGpu>, clock: Arc<dyn Clock>) -> Self {
        let feeders = vec![Seconds::ZERO; gpus.len()];
        let at = clock.monotonic();
        let (package, dram, busy) = (Joules::ZERO, Joules::ZERO, Seconds::ZERO);
        Self { clock, gpus, at, package, dram, busy, feeders, jobs: BTreeMap::new() }
    }

    /// Integrates energy and CPU time from the last call to now at the present load. This is accurate because calls are
    /// frequent compared with changes of the load.
    fn advance(&mut self) {
        let now = self.clock.monotonic();
        let span = now.since(self.at);
        self.at = now;
        let mut cores = OTHERS;
        for (gpu, feeder) in self.gpus.iter().zip(&mut self.feeders) {
            let load = PER_GPU * gpu.load();
            *feeder += span * load;
            cores += load;
        }
        self.busy += span * cores;
        self.package += (PACKAGE_IDLE + PACKAGE_PER_CORE * cores) * span;
        self.dram += (DRAM_IDLE + DRAM_PER_CORE * cores) * span;
    }

    fn gpu_of(&self, process: u32) -> Option<usize> {
        let place = usize::try_from(process.checked_sub(FIRST_PID)?).ok()?;
        (place < self.gpus.len()).then_some(place)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters start at 0 and only grow")]
fn micro(value: f64) -> u64 {
    (value * 1e6).round() as u64
}

impl Node for SimulatedNode {
    fn source(&self) -> CpuSource {
        CpuSource::Simulated
    }

    fn zones(&mut self) -> Zones {
        self.advance();
        let zone = |name: &str, kind, energy: Joules| ZoneReading {
            device: DeviceId::of_package("simulated-package-0", kind).expect("letters, digits and dashes"),
            path: format!("simulated:{name}"),
            counter_uj: Ok(micro(energy.get()) % RANGE_UJ),
            range_uj: Some(RANGE_UJ),
        };
        let readings =
            vec![zone("package-0", DeviceKind::Cpu, self.package), zone("dram-0", DeviceKind::Dram, self.dram)];
        Zones { readings, problems: Vec::new() }
    }

    fn usage(&mut self) -> Usage {
        self.advance();
        let used = |places: &[(usize, Seconds)]| {
            let used: Seconds = places.iter().map(|(place, before)| self.feeders[*place] - *before).sum();
            let running = u32::try_from(places.len()).unwrap_or(u32::MAX);
            JobUsage { used_us: micro(used.get()), running, problem: None }
        };
        let owner = |(job, places): (&JobId, &Vec<(usize, Seconds)>)| {
            let pids = places.iter().filter_map(|(place, _)| u32::try_from(*place).ok());
            pids.map(|place| (FIRST_PID + place, job.clone())).collect::<Vec<_>>()
        };
        Usage {
            cores: Some(CORES),
            busy_us: Some(micro(self.busy.get())),
            jobs: self.jobs.iter().map(|(job, places)| (job.clone(), used(places))).collect(),
            owners: self.jobs.iter().flat_map(owner).collect(),
            booted: None,
            problem: None,
        }
    }

    fn resolve(&self, selector: &ProcessSelector) -> Result<Processes, InvalidJob> {
        let ProcessSelector::Pids(pids) = selector else {
            let (field, what) = match selector {
                ProcessSelector::Cgroup(_) => ("cgroup", "control groups"),
                _ => ("slurm_job_id", "Slurm"),
            };
            return Err(InvalidJob { field, why: format!("the node is simulated and has no {what}") });
        };
        if let Some(stranger) = pids.iter().find(|pid| self.gpu_of(**pid).is_none()) {
            let why = format!(
                "names {stranger}, but this simulated node has only the processes {FIRST_PID} to {}",
                FIRST_PID as usize + self.gpus.len().saturating_sub(1)
            );
            return Err(InvalidJob { field: "pids", why });
        }
        Ok(Processes::Pids(pids.iter().map(|pid| Process { pid: *pid, start: 0 }).collect()))
    }

    fn follow(&mut self, job: &JobId, processes: &Processes) {
        self.advance();
        let (Processes::Pids(processes) | Processes::Found(processes)) = processes else { return };
        let places = processes.iter().filter_map(|process| self.gpu_of(process.pid));
        let places = places.map(|place| (place, self.feeders[place])).collect();
        self.jobs.insert(job.clone(), places);
    }

    fn extend(&mut self, job: &JobId, found: &[Process]) {
        let places = found.iter().filter_map(|process| self.gpu_of(process.pid));
        let places: Vec<_> = places.map(|place| (place, self.feeders[place])).collect();
        self.jobs.entry(job.clone()).or_default().extend(places);
    }

    fn unfollow(&mut self, job: &JobId) {
        self.jobs.remove(job);
    }
}
