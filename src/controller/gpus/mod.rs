//! The GPUs and the journal of original limits: reads each GPU, and writes to bring it to its target.

mod actuation;
mod client_settings;
mod clocks;
mod concerns;
mod control_state;
mod gpu;
mod holders;
mod limit_history;
mod sharing;
mod steering;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub(super) use concerns::concerns;
pub use control_state::OverrideEnd;
pub(super) use control_state::{Act, EndedOverride, FinishedWrite, Override, WriteRequest};
pub(super) use gpu::Gpu;
pub(super) use steering::is_rounded;

use tokio::sync::Notify;
use tokio::sync::mpsc::Receiver;

use super::cap::restore_within;
use super::error::{ControlError, in_full};
use super::requests::ClientCommands;
use super::settings::Settings;
use crate::clock::Clock;
use crate::gpu::GpuDevice;
use crate::gpu::handle::{GpuHandle, Sampling};
use crate::gpu::journal::Journal;
use crate::gpu::restore::Restored;
use wattune_core::domain::{GpuId, PowerLimit, SetPoint};
use wattune_core::time::Now;
use wattune_core::units::{Seconds, Watts};

/// Time between two full readings of a GPU; the readings in between fetch energy and power only.
pub(super) const FULL_READING: Seconds = Seconds::new(1.0);

/// Wanted state of a GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// Set point wanted by the GPU's manual override or its job; `None` for its original limit.
    pub(super) wanted: Option<SetPoint>,
    /// True if the GPU may be written to now; false while other GPUs have to be lowered first under the cap.
    pub(super) may_write: bool,
}

/// Name of a GPU in requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuRef {
    /// Index that the driver has given to the GPU at this boot.
    Index(u32),
    /// UUID or PCI bus id.
    Id(String),
}

impl GpuRef {
    /// Parses a name: digits are an index, everything else an id.
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Id(text.to_owned()), Self::Index)
    }
}

impl std::fmt::Display for GpuRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Index(index) => write!(f, "{index}"),
            Self::Id(id) => f.write_str(id),
        }
    }
}

/// GPUs that could not be used at the daemon's start: the devices of those that become usable later, and the problems
/// of the others.
pub struct Arrivals {
    /// Receiver of the devices of GPUs that become usable.
    pub devices: Receiver<Box<dyn GpuDevice>>,
    /// Problem of each unusable GPU that the driver counts, by the GPU's index; removed once the GPU becomes usable.
    pub problems: BTreeMap<u32, String>,
}

/// Handles of all GPUs, shared with the supervisor, which restores limits without the controller.
#[derive(Clone, Default)]
pub(super) struct Handles(Arc<Mutex<Vec<GpuHandle>>>);

impl Handles {
    fn add(&self, handle: GpuHandle) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    }

    pub(super) fn all(&self) -> Vec<GpuHandle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Owner of the GPUs and of the journal of original limits.
pub(super) struct Gpus {
    all: BTreeMap<GpuId, Gpu>,
    journal: Journal,
    /// Reason why the journal cannot be written; no limit is set meanwhile.
    journal_fault: Option<String>,
    handles: Handles,
    /// Notified whenever a driver has accepted a write to one of the GPUs, and whenever a write has ended.
    write_progress: Arc<Notify>,
    client_commands: ClientCommands,
    arrivals: Option<Arrivals>,
    sampling: Sampling,
    /// Problems known since the start, such as GPUs that could not be opened.
    problems: Vec<String>,
}

impl Gpus {
    /// Creates the owner of these GPUs. The caller has already restored, as far as possible, the original limits that
    /// an earlier daemon left changed.
    pub(super) fn new(journal: Journal, handles: Vec<GpuHandle>, sampling: Sampling, problems: Vec<String>) -> Self {
        let (all_handles, write_progress) = (Handles::default(), Arc::new(Notify::new()));
        for handle in &handles {
            handle.notify_of_writes(&write_progress);
            all_handles.add(handle.clone());
        }
        let all = handles.into_iter().map(|handle| (handle.identity().id.clone(), Gpu::new(handle))).collect();
        Self {
            all,
            journal,
            journal_fault: None,
            handles: all_handles,
            write_progress,
            client_commands: ClientCommands::default(),
            arrivals: None,
            sampling,
            problems,
        }
    }

    pub(super) fn get(&self, id: &GpuId) -> Option<&Gpu> {
        self.all.get(id)
    }

    pub(super) fn get_mut(&mut self, id: &GpuId) -> Option<&mut Gpu> {
        self.all.get_mut(id)
    }

    pub(super) fn contains(&self, id: &GpuId) -> bool {
        self.all.contains_key(id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Gpu> {
        self.all.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Gpu> {
        self.all.values_mut()
    }

    pub(super) fn ids(&self) -> Vec<GpuId> {
        self.all.keys().cloned().collect()
    }

    /// Returns the journal of original limits, those of absent GPUs included.
    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Returns the directory of the journal.
    pub(super) fn state_dir(&self) -> &Path {
        self.journal.path().parent().unwrap_or(Path::new(""))
    }

    /// Returns why the journal cannot be written, so that no limit is set; `None` if it can.
    pub(super) fn journal_fault(&self) -> Option<&String> {
        self.journal_fault.as_ref()
    }

    /// Returns the problems known since the start.
    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Returns the handles of all GPUs; those of GPUs added later appear there too.
    pub(super) fn handles(&self) -> Handles {
        self.handles.clone()
    }

    /// Returns what is notified whenever a driver has accepted a write to a GPU, and whenever a write has ended and its
    /// outcome can be observed.
    pub(super) fn write_progress(&self) -> Arc<Notify> {
        Arc::clone(&self.write_progress)
    }

    /// Returns the commands of clients that wait for the GPUs.
    pub(super) fn client_commands(&mut self) -> &mut ClientCommands {
        &mut self.client_commands
    }

    /// Returns the limit in force before wattune's first write; the present limit if wattune has written none.
    pub(super) fn original_limit(&self, id: &GpuId) -> Option<PowerLimit> {
        self.get(id)?.original_limit(&self.journal)
    }

    /// Returns the maximum usable limit of a GPU.
    pub(super) fn ceiling(&self, id: &GpuId) -> Option<PowerLimit> {
        self.get(id)?.ceiling(&self.journal)
    }

    /// Returns the sum of the GPUs' maximum limits, to which a cap in percent refers.
    pub(super) fn maximum_limits(&self) -> Watts {
        self.iter().filter_map(Gpu::range).map(|range| range.max.watts()).sum()
    }

    /// Finds a GPU by its name in a request.
    ///
    /// # Errors
    /// If no GPU has that name, or two GPUs have that index.
    pub(super) fn resolve(&self, which: &GpuRef) -> Result<GpuId, ControlError> {
        let matches = |gpu: &&Gpu| {
            let identity = gpu.handle.identity();
            match which {
                GpuRef::Index(index) => identity.index == *index,
                GpuRef::Id(id) => identity.id.as_str() == id || identity.pci_bus_id.eq_ignore_ascii_case(id),
            }
        };
        let mut found = self.iter().filter(matches);
        if let Some(gpu) = found.next() {
            // The driver may renumber GPUs when one becomes usable, so that two have the same index here.
            return match found.next() {
                Some(other) => Err(ControlError::Conflict(format!(
                    "{which} is the index of both {} and {} since one of them was added after the daemon's start; name the GPU by its UUID",
                    gpu.id(),
                    other.id()
                ))),
                None => Ok(gpu.id().clone()),
            };
        }
        let known: Vec<String> = self.iter().map(|g| format!("{} ({})", g.handle.identity().index, g.id())).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(ControlError::not_found("GPU", which, format!("; GPUs of this machine: {known}")))
    }

    /// Takes over the latest readings of every GPU.
    pub(super) fn observe(&mut self) {
        self.iter_mut().for_each(Gpu::observe);
    }

    /// Reads the given GPUs again.
    pub(super) fn refresh(&mut self, ids: &[GpuId]) {
        for id in ids {
            if let Some(gpu) = self.all.get_mut(id) {
                gpu.handle.refresh();
                gpu.observed = gpu.handle.observe();
            }
        }
    }

    /// Returns the number of finished writes that are not in the audit log yet.
    pub(super) fn finished_writes(&self) -> usize {
        self.iter().map(|gpu| gpu.writes.finished.len()).sum()
    }

    /// For each GPU whose limit was written since the last call, returns the last such write.
    pub(super) fn take_changed_limits(&mut self) -> Vec<(GpuId, FinishedWrite)> {
        let taken = self.iter_mut().map(|gpu| (gpu.id().clone(), gpu.writes.changed_limit.take()));
        taken.filter_map(|(id, write)| Some((id, write?))).collect()
    }

    /// Returns the writes that finished since the last call, of each GPU the oldest first.
    pub(super) fn take_finished_writes(&mut self) -> Vec<(GpuId, Vec<FinishedWrite>)> {
        let taken = self.iter_mut().map(|gpu| (gpu.id().clone(), std::mem::take(&mut gpu.writes.finished)));
        taken.filter(|(_, writes)| !writes.is_empty()).collect()
    }

    /// Returns the overrides that ended without a request for that since the last call.
    pub(super) fn take_ended_overrides(&mut self) -> Vec<(GpuId, EndedOverride)> {
        let ended = self.iter_mut().flat_map(|gpu| {
            let ended = std::mem::take(&mut gpu.writes.ended);
            ended.into_iter().map(|ended| (gpu.id().clone(), ended))
        });
        ended.collect()
    }

    /// Ends the manual overrides that have expired.
    pub(super) fn expire_overrides(&mut self, now: Now) {
        for gpu in self.iter_mut() {
            let processes = gpu.observed.reading.processes;
            let Some(manual) = &mut gpu.manual else { continue };
            if manual.is_over(processes, now.monotonic) {
                let why = manual.end.describe();
                gpu.end_override(why);
            }
        }
    }

    /// Acts on each GPU to reach its target and returns the actions. A failed action is retried by the next call.
    pub(super) fn act(
        &mut self,
        targets: &BTreeMap<GpuId, Target>,
        settings: &Settings,
        now: Now,
    ) -> Vec<(GpuId, Act)> {
        // Checked without a change, too: the next one may be hours away.
        let place = if settings.observe { Ok(()) } else { self.journal.check_place() };
        let mut fault = place.err().map(|error| in_full(&error));
        let mut done = Vec::new();
        for (id, gpu) in &mut self.all {
            let Some(target) = targets.get(id) else { continue };
            match act_on(gpu, *target, settings, &mut self.journal, now) {
                Ok(Act::Nothing) => gpu.unjournalled = None,
                Ok(act) => {
                    gpu.unjournalled = None;
                    done.push((id.clone(), act));
                }
                Err(error) => {
                    gpu.unjournalled = Some(error.clone());
                    fault = Some(error);
                }
            }
            let original = match settings.observe {
                true => Ok(()),
                false => gpu.journal_original(&mut self.journal, now),
            };
            if let Err(error) = original.and_then(|()| self.journal.set_external_limit(id, gpu.external)) {
                fault = Some(in_full(&error));
            }
        }
        if let Some(fault) = &fault
            && self.journal_fault.as_ref() != Some(fault)
        {
            tracing::error!("power limits cannot be changed: {fault}");
        }
        self.journal_fault = fault;
        done
    }

    /// Records each GPU's reported limit, wanted limit and energy in its limit history.
    pub(super) fn remember(&mut self, targets: &BTreeMap<GpuId, Target>, now: Now) {
        for gpu in self.iter_mut() {
            let wanted = targets.get(gpu.id()).and_then(|target| target.wanted);
            gpu.remember(wanted.map(|set| set.limit), now);
        }
    }

    /// Takes from the journal the external limit (set by another program than wattune) that an earlier daemon found on
    /// a GPU whose job continues.
    pub(super) fn respect_external_limit(&mut self, id: &GpuId) {
        if let Some(gpu) = self.all.get_mut(id) {
            gpu.respect_external_limit(&self.journal);
        }
    }

    /// Accepts, from now on, GPUs that become usable after the daemon's start.
    pub(super) fn await_arrivals(&mut self, arrivals: Arrivals) {
        self.arrivals = Some(arrivals);
    }

    /// Returns a GPU that has become usable, without its jobs; `None` if there is none. Waits briefly for the GPU's
    /// first response.
    pub(super) async fn next_arrival(&mut self, clock: &Arc<dyn Clock>, call_timeout: Seconds) -> Option<Gpu> {
        let device = self.next_unknown()?;
        let handle = GpuHandle::start(device, clock.clone(), self.sampling, FULL_READING, call_timeout);
        handle.notify_of_writes(&self.write_progress);
        self.handles.add(handle.clone());
        // Whether the GPU's limit is external is known only once the GPU has reported a limit.
        for _ in 0..50 {
            let observed = handle.observe();
            if observed.at.is_some() || observed.fault.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut gpu = Gpu::new(handle);
        gpu.arrived_late = true;
        gpu.observe();
        Some(gpu)
    }

    fn next_unknown(&mut self) -> Option<Box<dyn GpuDevice>> {
        loop {
            let device = self.arrivals.as_mut()?.devices.try_recv().ok()?;
            if !self.contains(&device.identity().id) {
                return Some(device);
            }
        }
    }

    /// Adds a GPU that became usable after the daemon's start.
    pub(super) fn add(&mut self, gpu: Gpu) {
        let (id, index) = (gpu.id().clone(), gpu.handle.identity().index);
        if let Some(other) = self.all.values().find(|other| other.handle.identity().index == index) {
            let problem = format!(
                "GPU {index} is the index of both {id}, which was added after the daemon's start, and {}: name them by UUID until \
                 the daemon is restarted",
                other.id()
            );
            self.problems.push(problem);
        }
        self.all.insert(id.clone(), gpu);
        if let Some(problem) = self.arrivals.as_mut().and_then(|a| a.problems.remove(&index)) {
            self.problems.retain(|known| *known != problem);
        }
        tracing::info!(gpu.uuid = %id, "GPU {index} ({id}) is usable again");
    }

    /// Restores the original limit of every GPU whose limit wattune has set, as far as `cap` (in milliwatts) allows,
    /// and reads all GPUs once more. Returns the GPUs, and the result of restoring each.
    pub(super) async fn restore(mut self, timeout: Seconds, cap: Option<u64>) -> (Self, Vec<(GpuId, Restored)>) {
        let (handles, mut journal) = (self.handles.all(), self.journal);
        let restored = tokio::task::spawn_blocking(move || {
            let restored = restore_within(&mut journal, &handles, timeout, cap);
            (journal, restored)
        });
        let restored = match restored.await {
            Ok((journal, restored)) => {
                self.journal = journal;
                restored
            }
            // The supervisor catches the panic and restores limits once more.
            Err(died) => std::panic::resume_unwind(died.into_panic()),
        };
        self.observe();
        (self, restored)
    }
}

/// Does the next step towards one GPU's target.
///
/// # Errors
/// If the journal cannot be written; then nothing is written to the GPU.
fn act_on(gpu: &mut Gpu, target: Target, settings: &Settings, journal: &mut Journal, now: Now) -> Result<Act, String> {
    let Target { wanted, may_write } = target;
    if wanted.is_some() && settings.enable_persistence {
        gpu.persist(journal, now).map_err(|error| in_full(&error))?;
    }
    let acted = match may_write {
        true => gpu.act(wanted, journal, now),
        false => gpu.wait(journal, now),
    };
    let acted = acted.map_err(|error| in_full(&error))?;
    let id = gpu.id();
    match &acted {
        Act::Nothing => {}
        Act::Requested { from, to } => {
            tracing::info!(gpu.uuid = %id, power.from_w = from.watts().get(), power.limit_w = to.watts().get(),
                "GPU {id}: power limit {from} → {to}");
        }
        Act::Clocks(what) => tracing::info!(gpu.uuid = %id, "GPU {id}: {what}"),
        Act::Yielded(external) => {
            tracing::warn!(gpu.uuid = %id, "GPU {id}: an external writer set the limit to {}; wattune leaves it alone", external.limit);
        }
        Act::Restored(limit) => {
            tracing::info!(gpu.uuid = %id, "GPU {id}: restored to its original limit of {limit}");
        }
    }
    Ok(acted)
}
