//! Intervals of CPU packages and memory (zones), whose energy is attributed by the CPU time of the jobs' processes.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::Accounting;
use super::checkpoint::as_closed;
use super::zones::OpenZone;
use crate::controller::error::ControlError;
use crate::controller::node::Node;
use crate::controller::view::{CpuView, CpuZoneKind, CpuZoneView, ProcessesView};
use crate::cpu::watch::{CpuHandle, ZoneState};
use crate::cpu::{CpuSource, ProcessUser};
use crate::store::{Checkpoint, OpenIntervalRecord};
use wattune_core::domain::{DeviceId, DeviceKind, InvalidJob, JobId, Process, ProcessSelector, Processes};
use wattune_core::ledger::{self, AttributionRule, OpenInterval, whole_millijoules};
use wattune_core::time::{Monotonic, Now};
use wattune_core::units::Seconds;

/// Reason, in the ledger, for lost energy of a zone (CPU package or its memory) whose counter was reset, or that is
/// read from another counter now.
const RESET: &str =
    "its counter was reset or another counter is read now: its energy since the last reading is unknown";

impl Accounting {
    /// Fetches the latest readings of the CPUs, and opens the intervals of zones that were read for the first time.
    pub(crate) fn observe_cpu(&mut self) {
        let Some(handle) = &self.cpu.handle else { return };
        handle.refresh();
        self.cpu.observed = handle.observe();
        self.open_zone_intervals();
    }

    /// Returns the handle of the CPUs; `None` if they are not read.
    pub(crate) fn cpu_handle(&self) -> Option<CpuHandle> {
        self.cpu.handle.clone()
    }

    /// Returns the inode number of the namespace of process ids in which jobs name their processes; `None` if unknown.
    pub(crate) fn pid_namespace(&self) -> Option<u64> {
        self.cpu.handle.as_ref()?.pid_namespace()
    }

    /// Returns the job of each process that belongs to a job, by process id.
    pub(crate) fn process_owners(&self) -> &BTreeMap<u32, JobId> {
        &self.cpu.observed.usage.owners
    }

    /// Returns the time of the latest reading of processes, and the number of running processes of each job that named
    /// some; `None` before the first reading.
    pub(crate) fn running_processes(&self) -> Option<(Monotonic, BTreeMap<JobId, u32>)> {
        let at = self.cpu.observed.at?.monotonic;
        let jobs = &self.cpu.observed.usage.jobs;
        Some((at, jobs.iter().map(|(job, usage)| (job.clone(), usage.running)).collect()))
    }

    fn open_zone_intervals(&mut self) {
        let observed = self.cpu.observed.clone();
        for zone in &observed.zones {
            if self.cpu.zones.contains_key(&zone.device) {
                continue;
            }
            let Some((at, counter)) = self.cpu.read(&zone.device).and_then(|(zone, at)| Some((at, zone.counter_uj?)))
            else {
                continue;
            };
            let (device, counter) = (zone.device.clone(), whole_millijoules(counter));
            let last = self.backlog.recovered.iter().position(|c| c.device == device);
            let mut rebased_before = 0;
            if let Some(last) = last.map(|i| self.backlog.recovered.swap_remove(i)) {
                let gap = self.gap_of(zone, &last, at, observed.usage.booted);
                self.backlog.intervals.extend(gap.iter().cloned());
                let recorded = gap.iter().map(|row| row.energy).sum();
                let moved = ledger::rebased(last.counter, counter, recorded);
                rebased_before = last.rebased_mj + moved - zone.metered.rebased_mj;
            }
            let interval = OpenInterval::open(device.clone(), at, zone.metered);
            let open = OpenZone { interval, rebased_before, time: observed.time.clone() };
            self.backlog.checkpoints.extend(open.checkpoint(zone, at.utc));
            self.cpu.zones.insert(device, open);
        }
    }

    /// Returns unattributed rows for a zone's energy from the last daemon's checkpoint `last` (counter reading up to
    /// which energy is recorded) to now, as the zone's counter shows it. If the machine was started meanwhile, or
    /// another counter is read now, the energy is unknown: it is recorded as lost, and there are no rows.
    fn gap_of(
        &mut self,
        zone: &ZoneState,
        last: &Checkpoint,
        at: Now,
        booted: Option<DateTime<Utc>>,
    ) -> Vec<ledger::Interval> {
        let device = &zone.device;
        let from = self.backlog.gap_start(last.at, at);
        // The kernel's time of the machine's start moves when the wall clock is set.
        if booted.is_some_and(|booted| booted > last.at) && !self.backlog.is_same_boot_since(last.at) {
            tracing::warn!(
                "the machine restarted after {device} was last read at {}; the energy used in between is unknown",
                last.at
            );
            let why = "the machine restarted: its counter's last value before the restart is unknown";
            self.ledger.record_lost(device, from, at.utc, why);
            return Vec::new();
        }
        if last.read_from.as_deref().is_some_and(|before| before != zone.counter_id()) {
            self.ledger.record_lost(device, from, at.utc, RESET);
            return Vec::new();
        }
        let span = Seconds::from_delta(at.utc - from).max(Seconds::ZERO);
        let counter = whole_millijoules(zone.counter_uj.unwrap_or_default());
        let energy = ledger::min_energy_between(last.counter, counter, zone.range_uj, span);
        // If the energy equals the reading, the counter was reset: after a wrap the energy would be more than the
        // reading.
        if counter < last.counter && energy == counter {
            self.ledger.record_lost(device, from, at.utc, RESET);
        }
        ledger::gap_intervals(device, from, at.utc, energy, &[])
    }

    /// Closes the intervals of zones that `due` accepts or whose attribution rule changed, if they are long enough to
    /// be measured.
    pub(crate) fn close_zones(&mut self, due: impl Fn(&OpenInterval) -> bool) {
        let observed = self.cpu.observed.clone();
        let devices: Vec<DeviceId> = self.cpu.zones.keys().cloned().collect();
        for device in devices {
            let read = self.cpu.read(&device).filter(|(zone, _)| zone.counter_uj.is_some());
            let Some((zone, at)) = read.map(|(zone, at)| (zone.clone(), at)) else { continue };
            let Some(open) = self.cpu.zones.get_mut(&device) else { continue };
            if !(open.interval.has_rule_changes() || due(&open.interval)) {
                continue;
            }
            let time = open.time(&observed.time);
            let lost = open.interval.has_lost_energy(zone.metered).then(|| open.interval.start());
            let Some(rows) = open.interval.close(at, zone.metered, &AttributionRule::CpuTime(time)) else { continue };
            if let Some(from) = lost {
                self.ledger.record_lost(&device, from, open.interval.start(), RESET);
            }
            open.time = observed.time.clone();
            self.backlog.intervals.extend(rows);
            self.backlog.checkpoints.retain(|c| c.device != device);
            self.backlog.checkpoints.extend(open.checkpoint(&zone, open.interval.start()));
        }
    }

    /// Returns the open intervals of zones as they would be closed now.
    pub(crate) fn open_zones(&self) -> Vec<OpenIntervalRecord> {
        let time = &self.cpu.observed.time;
        let open = |(device, open): (&DeviceId, &OpenZone)| {
            let (zone, at) = self.cpu.read(device)?;
            let rule = AttributionRule::CpuTime(open.time(time));
            let record = as_closed(device, &open.interval, at, zone.metered, &rule, RESET)?;
            Some(OpenIntervalRecord { checkpoint: Some(open.checkpoint(zone, record.until)?), ..record })
        };
        self.cpu.zones.iter().filter_map(open).collect()
    }

    /// Closes the intervals of all zones. Called right before the counting of a job's CPU time ends, or right after it
    /// began. If a zone cannot be read now, the zone's energy is attributed later, by the CPU time up to now.
    fn split_zones(&mut self) {
        self.close_zones(|_| true);
        let observed = self.cpu.observed.clone();
        let Some(at) = observed.at else { return };
        for open in self.cpu.zones.values_mut().filter(|open| open.interval.is_unread(at.monotonic, Seconds::ZERO)) {
            let time = open.time(&observed.time);
            open.interval.change_rule(at.monotonic, AttributionRule::CpuTime(time));
            open.time = observed.time.clone();
        }
    }

    /// Finds the processes that a job's registration names, and checks that they belong to no other job.
    ///
    /// # Errors
    /// If the processes do not exist, cannot be looked up, or belong to another job.
    pub(crate) async fn find_processes(
        &self,
        node: &Node<'_>,
        selector: Option<ProcessSelector>,
        replaced: Option<&JobId>,
    ) -> Result<Option<Processes>, ControlError> {
        let Some(selector) = selector else { return Ok(None) };
        let field = match selector {
            ProcessSelector::Pids(_) => "pids",
            ProcessSelector::Cgroup(_) => "cgroup",
            ProcessSelector::SlurmJob(_) => "slurm_job_id",
        };
        let invalid = |why: &str| ControlError::Invalid(InvalidJob { field, why: why.to_owned() });
        let Some(handle) = self.cpu.handle.clone() else {
            return Err(invalid("cannot be used: this daemon does not read processes; leave the field out"));
        };
        let resolved = self.off_thread(node, move || handle.resolve(&selector)).await;
        let processes = resolved.ok_or_else(|| invalid("could not be looked up in time; send the request again"))??;
        for job in node.jobs.iter().filter(|job| Some(&job.id) != replaced) {
            if let Some(shared) = job.spec.processes.as_ref().and_then(|theirs| processes.shared_with(theirs)) {
                return Err(ControlError::Conflict(format!(
                    "{field}: {shared} is already counted for job {} ({}); end that job first, or name other processes",
                    job.id, job.spec.name
                )));
            }
        }
        Ok(Some(processes))
    }

    /// Checks that processes are those of a user.
    ///
    /// # Errors
    /// If they are not, with the reason and the field of the request that names them.
    pub(crate) async fn check_user(
        &self,
        node: &Node<'_>,
        processes: &Processes,
        user: u32,
    ) -> Result<(), (&'static str, String)> {
        let field = match processes {
            Processes::Cgroup(_) => "cgroup",
            Processes::SlurmJob(_) => "slurm_job_id",
            Processes::Pids(_) | Processes::Found(_) => "pids",
        };
        let Some(handle) = self.cpu.handle.clone() else { return Ok(()) };
        let processes = processes.clone();
        let checked = self.off_thread(node, move || handle.check_user(&processes, user)).await;
        checked.unwrap_or_else(|| Err("their users could not be read in time".into())).map_err(|why| (field, why))
    }

    /// Returns the users of processes, as far as they are known.
    pub(crate) async fn users_of(&self, node: &Node<'_>, pids: Vec<u32>) -> Vec<ProcessUser> {
        let Some(handle) = self.cpu.handle.clone() else { return Vec::new() };
        self.off_thread(node, move || handle.users(&pids)).await.unwrap_or_default()
    }

    /// Begins to count a job's CPU time. Energy used up to now is attributed without the job's CPU time.
    pub(crate) async fn follow(&mut self, node: &mut Node<'_>, job: &JobId, processes: &Processes) {
        let Some(handle) = self.cpu.handle.clone() else { return };
        let (id, processes) = (job.clone(), processes.clone());
        if self.off_thread(node, move || handle.follow(&id, &processes)).await.is_none() {
            tracing::error!(job.id = %job, "CPU time of job {job} is not counted: reading /proc timed out");
        }
        self.observe_cpu();
        self.split_zones();
    }

    /// Counts the CPU time of further processes for a found job.
    pub(crate) async fn extend(&mut self, node: &mut Node<'_>, job: &JobId, processes: Vec<Process>) {
        let Some(handle) = self.cpu.handle.clone() else { return };
        let id = job.clone();
        if self.off_thread(node, move || handle.extend(&id, &processes)).await.is_none() {
            tracing::error!(job.id = %job, "CPU time of new processes of job {job} is not counted: reading /proc timed out");
        }
    }

    /// Attributes energy by a job's CPU time up to now, and stops counting the job's CPU time.
    pub(crate) async fn unfollow(&mut self, node: &mut Node<'_>, job: &JobId) {
        let Some(handle) = self.cpu.handle.clone() else { return };
        self.refresh_cpu(node).await;
        self.split_zones();
        let id = job.clone();
        if self.off_thread(node, move || handle.unfollow(&id)).await.is_none() {
            tracing::error!(job.id = %job, "CPU time of the ended job {job} is still counted: reading /proc timed out");
        }
    }

    /// Reads the CPUs now and closes their intervals.
    pub(crate) async fn refresh_cpu(&mut self, node: &mut Node<'_>) {
        let Some(handle) = self.cpu.handle.clone() else { return };
        self.off_thread(node, move || drop(handle.sample())).await;
        self.observe_cpu();
        self.close_zones(|_| true);
    }

    /// Runs blocking work on another thread; returns `None` if the work panics, or takes longer than a driver call may
    /// take.
    async fn off_thread<T: Send + 'static>(
        &self,
        node: &Node<'_>,
        what: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let done = tokio::task::spawn_blocking(what);
        tokio::time::timeout(node.settings.call_timeout_s.to_std(), done).await.ok()?.ok()
    }

    /// Returns the CPUs as the API shows them; `None` if the daemon does not read them.
    pub(crate) fn cpu_view(&self, now: Now) -> Option<CpuView> {
        let (handle, observed) = (self.cpu.handle.as_ref()?, &self.cpu.observed);
        let zone = |zone: &ZoneState| CpuZoneView {
            device: zone.device.to_string(),
            zone: zone_name(&zone.device),
            kind: match zone.device.kind() {
                DeviceKind::Dram => CpuZoneKind::Dram,
                _ => CpuZoneKind::Package,
            },
            path: zone.path.clone(),
            power_w: zone.power.map(|power| power.get()),
            energy_j: zone.at.map(|_| zone.metered.total().to_joules().get()),
            energy_age_s: zone.at.map(|at| now.monotonic.since(at.monotonic).get()),
            energy_in_gaps_j: zone.metered.gap.to_joules().get(),
            counter_turns: zone.wraps,
            counter_resets: zone.resets,
            counter_jumps: zone.jumps,
            counter_changes: zone.moves,
            problem: zone.problem.clone(),
        };
        let unread =
            observed.zones.iter().filter_map(|zone| Some(format!("{}: {}", zone.device, zone.problem.as_ref()?)));
        Some(CpuView {
            source: handle.source(),
            simulated: handle.source() == CpuSource::Simulated,
            cores: observed.usage.cores,
            zones: observed.zones.iter().map(zone).collect(),
            problems: observed.problems.iter().chain(&observed.usage.problem).cloned().chain(unread).collect(),
        })
    }

    /// Returns the problems of the CPUs, one sentence each. That the machine has no RAPL energy counters is no problem
    /// here; [`Self::cpu_view`] shows it.
    pub(crate) fn cpu_problems(&self) -> Vec<String> {
        let observed = &self.cpu.observed;
        let of_all = observed.problems.iter().filter(|_| !observed.zones.is_empty()).chain(&observed.usage.problem);
        let of_all = of_all.map(|problem| format!("CPU: {problem}"));
        of_all.chain(observed.zones.iter().flat_map(ZoneState::concerns)).collect()
    }

    /// Returns a running job's processes as the API shows them.
    pub(crate) fn processes_view(&self, job: &JobId, processes: &Processes) -> ProcessesView {
        let usage = self.cpu.observed.usage.jobs.get(job);
        ProcessesView {
            running: usage.map(|usage| usage.running),
            #[expect(clippy::cast_precision_loss, reason = "for display")]
            cpu_time_s: usage.map(|usage| usage.used_us as f64 / 1e6),
            problem: usage.and_then(|usage| usage.problem.clone()),
            ..ProcessesView::of(processes)
        }
    }
}

/// Returns the short name of a zone: "package-0" or "dram-0".
fn zone_name(device: &DeviceId) -> String {
    match device.as_str().split_once(':') {
        Some(("dram", package)) => package.replacen("package", "dram", 1),
        Some((_, package)) => package.to_owned(),
        None => device.to_string(),
    }
}
