//! The GPUs and the journal that gives their limits back: looking at them, and bringing each to what is wanted of it.

mod arrivals;
mod astray;
mod clocks;
mod concerns;
mod gpu;
mod gpu_ref;
mod holders;
mod limit_history;
mod locked_clock;
mod sharing;
mod steering;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use arrivals::Arrivals;
pub(super) use arrivals::Handles;
pub(super) use concerns::concerns;
pub use gpu::{Act, Gpu, Override};
pub use gpu_ref::GpuRef;

use super::cap::give_back_within;
use super::error::{ControlError, in_full};
use super::settings::Settings;
use crate::clock::Clock;
use crate::gpu::GpuDevice;
use crate::gpu::journal::Journal;
use crate::gpu::restore::Restored;
use crate::gpu::thread::{GpuHandle, Sampling};
use wattune_core::domain::{GpuId, PowerLimit, SetPoint};
use wattune_core::time::Now;
use wattune_core::units::{Seconds, Watts};

/// GPUs answer in full this often.
pub(super) const FULL_READING: Seconds = Seconds::new(1.0);

/// What is to become of a GPU now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    /// The set point that somebody wants; `None` for what was found.
    pub(super) wanted: Option<SetPoint>,
    /// Whether it may be written already: under a cap others are lowered first.
    pub(super) may_write: bool,
}

/// A write of a limit that ended since it was asked for last.
pub(super) use gpu::Written;

/// Owns the GPUs and the journal of original limits.
pub(super) struct Gpus {
    all: BTreeMap<GpuId, Gpu>,
    journal: Journal,
    /// Why no limit is set: the journal cannot be written.
    journal_fault: Option<String>,
    handles: Handles,
    arrivals: Option<Arrivals>,
    sampling: Sampling,
    /// GPUs that exist and could not be opened, and what else somebody should look at since the start.
    problems: Vec<String>,
}

impl Gpus {
    /// GPUs that an earlier daemon's limits were taken from, as far as that could be done.
    pub(super) fn new(journal: Journal, handles: Vec<GpuHandle>, sampling: Sampling, problems: Vec<String>) -> Self {
        let all_handles = Handles::default();
        handles.iter().for_each(|handle| all_handles.add(handle.clone()));
        let all = handles.into_iter().map(|handle| (handle.board().id.clone(), Gpu::new(handle))).collect();
        Self { all, journal, journal_fault: None, handles: all_handles, arrivals: None, sampling, problems }
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

    /// By their identities.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Gpu> {
        self.all.values()
    }

    /// By their identities.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Gpu> {
        self.all.values_mut()
    }

    pub(super) fn ids(&self) -> Vec<GpuId> {
        self.all.keys().cloned().collect()
    }

    /// The original limits, and what is owed to GPUs that are not there.
    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Where the journal is.
    pub(super) fn state_dir(&self) -> &Path {
        self.journal.path().parent().unwrap_or(Path::new(""))
    }

    /// Why no limit is set, if the journal cannot be written.
    pub(super) fn journal_fault(&self) -> Option<&String> {
        self.journal_fault.as_ref()
    }

    /// What has been known to be wrong since the start.
    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The handles, also of GPUs that will come, for whoever has to give them back without the controller.
    pub(super) fn handles(&self) -> Handles {
        self.handles.clone()
    }

    /// The limit that a GPU had before wattune touched it; the present one if wattune has not.
    pub(super) fn found(&self, id: &GpuId) -> Option<PowerLimit> {
        self.get(id)?.found(&self.journal)
    }

    /// The highest limit that wattune may set on a GPU.
    pub(super) fn ceiling(&self, id: &GpuId) -> Option<PowerLimit> {
        self.get(id)?.ceiling(&self.journal)
    }

    /// The largest limits of all of them: what a share of the node's cap is of.
    pub(super) fn largest_limits(&self) -> Watts {
        self.iter().filter_map(Gpu::range).map(|range| range.max.watts()).sum()
    }

    /// Finds a GPU by what people call it.
    ///
    /// # Errors
    /// If there is none of that name, or two of that index.
    pub(super) fn resolve(&self, which: &GpuRef) -> Result<GpuId, ControlError> {
        let matches = |gpu: &&Gpu| {
            let board = gpu.handle.board();
            match which {
                GpuRef::Index(index) => board.index == *index,
                GpuRef::Id(id) => board.id.as_str() == id || board.pci_bus_id.eq_ignore_ascii_case(id),
            }
        };
        let mut found = self.iter().filter(matches);
        if let Some(gpu) = found.next() {
            // The driver numbers GPUs anew when one comes back.
            return match found.next() {
                Some(other) => Err(ControlError::Conflict(format!(
                    "{which} is the index of both {} and {} since one of them came after the start; name the GPU by its UUID",
                    gpu.id(),
                    other.id()
                ))),
                None => Ok(gpu.id().clone()),
            };
        }
        let known: Vec<String> = self.iter().map(|g| format!("{} ({})", g.handle.board().index, g.id())).collect();
        let known = if known.is_empty() { "no GPU at all".to_owned() } else { known.join(", ") };
        Err(ControlError::not_found("GPU", which, format!("; this machine has {known}")))
    }

    /// Takes in what the hardware says now.
    pub(super) fn observe(&mut self) {
        self.iter_mut().for_each(Gpu::observe);
    }

    /// Reads some of them anew.
    pub(super) fn refresh(&mut self, ids: &[GpuId]) {
        for id in ids {
            if let Some(gpu) = self.all.get_mut(id) {
                gpu.handle.refresh();
                gpu.seen = gpu.handle.observe();
            }
        }
    }

    /// The writes that ended since this was asked last.
    pub(super) fn take_written(&mut self) -> Vec<(GpuId, Written)> {
        self.iter_mut().filter_map(|gpu| Some((gpu.id().clone(), gpu.written.take()?))).collect()
    }

    /// Ends overrides whose time is over.
    pub(super) fn expire_overrides(&mut self, now: Now) {
        for gpu in self.iter_mut() {
            gpu.manual.take_if(|manual| manual.until < now.monotonic);
        }
    }

    /// Brings each GPU nearer to what is wanted of it. The next call is the retry. Answers with what was done.
    pub(super) fn act(&mut self, wishes: &BTreeMap<GpuId, Wish>, settings: &Settings, now: Now) -> Vec<(GpuId, Act)> {
        let (mut done, mut fault) = (Vec::new(), None);
        for (id, gpu) in &mut self.all {
            let Some(wish) = wishes.get(id) else { continue };
            match act_on(gpu, *wish, settings, &mut self.journal, now) {
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
                false => gpu.keep_original(&mut self.journal, now),
            };
            if let Err(error) = original.and_then(|()| self.journal.set_external_limit(id, gpu.foreign)) {
                fault = Some(in_full(&error));
            }
        }
        if let Some(fault) = &fault
            && self.journal_fault.as_ref() != Some(fault)
        {
            tracing::error!("no limit is set: {fault}");
        }
        self.journal_fault = fault;
        done
    }

    /// Notes the limit that is wanted of each and what it draws, for its last day.
    pub(super) fn remember(&mut self, wishes: &BTreeMap<GpuId, Wish>, now: Now) {
        for gpu in self.iter_mut() {
            let wanted = wishes.get(gpu.id()).and_then(|wish| wish.wanted);
            gpu.remember(wanted.map(|set| set.limit), now);
        }
    }

    /// A job of an earlier daemon goes on there: what that one found on it counts.
    pub(super) fn leave_as_before(&mut self, id: &GpuId) {
        if let Some(gpu) = self.all.get_mut(id) {
            gpu.leave_as_before(&self.journal);
        }
    }

    /// Takes GPUs up from now on as they come.
    pub(super) fn await_arrivals(&mut self, arrivals: Arrivals) {
        self.arrivals = Some(arrivals);
    }

    /// A GPU that came since, once it has said something; nobody holds it yet.
    pub(super) async fn next_arrival(&mut self, clock: &Arc<dyn Clock>, call_timeout: Seconds) -> Option<Gpu> {
        let device = self.next_unknown()?;
        let handle = GpuHandle::start(device, clock.clone(), self.sampling, FULL_READING, call_timeout);
        self.handles.add(handle.clone());
        // Whose its limit is can be told only once it has said which one it has.
        for _ in 0..50 {
            let seen = handle.observe();
            if seen.at.is_some() || seen.fault.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut gpu = Gpu::new(handle);
        gpu.came_late = true;
        gpu.observe();
        Some(gpu)
    }

    fn next_unknown(&mut self) -> Option<Box<dyn GpuDevice>> {
        loop {
            let device = self.arrivals.as_mut()?.devices.try_recv().ok()?;
            if !self.contains(&device.board().id) {
                return Some(device);
            }
        }
    }

    /// Takes a GPU up that came after the start.
    pub(super) fn take_up(&mut self, gpu: Gpu) {
        let (id, index) = (gpu.id().clone(), gpu.handle.board().index);
        if let Some(other) = self.all.values().find(|other| other.handle.board().index == index) {
            let problem = format!(
                "GPU {index} is the index of both {id}, which came after the start, and {}: name them by UUID until the daemon \
                 is started again",
                other.id()
            );
            self.problems.push(problem);
        }
        self.all.insert(id.clone(), gpu);
        if let Some(problem) = self.arrivals.as_mut().and_then(|a| a.problems.remove(&index)) {
            self.problems.retain(|known| *known != problem);
        }
        tracing::info!(gpu.uuid = %id, "GPU {index} ({id}) can be used from now on");
    }

    /// Gives every GPU that wattune has set back as far as `cap`, in milliwatts, allows, and looks at all of them once
    /// more. Answers with what became of each.
    pub(super) async fn give_back(mut self, timeout: Seconds, cap: Option<u64>) -> (Self, Vec<(GpuId, Restored)>) {
        let (handles, mut journal) = (self.handles.all(), self.journal);
        let restored = tokio::task::spawn_blocking(move || {
            let restored = give_back_within(&mut journal, &handles, timeout, cap);
            (journal, restored)
        });
        let restored = match restored.await {
            Ok((journal, restored)) => {
                self.journal = journal;
                restored
            }
            // Whoever supervises the loop tries once more.
            Err(died) => std::panic::resume_unwind(died.into_panic()),
        };
        self.observe();
        (self, restored)
    }
}

/// Brings one GPU nearer to what is wanted of it.
///
/// # Errors
/// Why the journal could not be written: then the GPU was not.
fn act_on(gpu: &mut Gpu, wish: Wish, settings: &Settings, journal: &mut Journal, now: Now) -> Result<Act, String> {
    let Wish { wanted, may_write } = wish;
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
        Act::Asked { from, to } => {
            tracing::info!(gpu.uuid = %id, power.from_w = from.watts().get(), power.limit_w = to.watts().get(),
                "GPU {id}: power limit {from} → {to}");
        }
        Act::Clocks(what) => tracing::info!(gpu.uuid = %id, "GPU {id}: {what}"),
        Act::Yielded(foreign) => {
            tracing::warn!(gpu.uuid = %id, "GPU {id}: somebody else set {}; leaving it alone", foreign.limit);
        }
        Act::GivenBack(limit) => {
            tracing::info!(gpu.uuid = %id, "GPU {id}: back at its found limit of {limit}");
        }
    }
    Ok(acted)
}
