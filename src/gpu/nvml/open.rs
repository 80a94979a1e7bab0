//! Opens the GPUs of this machine: those usable at the start, and those that become usable later.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::device::NvmlDevice;
use super::library::{Library, OpenError, Settings};
use crate::gpu::{GpuDevice, GpuError};
use wattune_core::domain::GpuId;

/// The longest wait for the next GPU to open; all remaining GPUs then count as hanging. Without persistence mode the
/// driver starts GPUs one after the other, each in a few seconds.
const OPENING: Duration = Duration::from_secs(10);

/// The interval between searches for new GPUs while the driver reports more GPUs than are open.
const EVERY: Duration = Duration::from_secs(2);

/// The number of new GPUs that the channel can hold; the controller empties it at each tick.
const AT_ONCE: usize = 64;

/// The GPUs found on this machine.
pub struct OpenedGpus {
    /// The usable GPUs, by index.
    pub devices: Vec<Box<dyn GpuDevice>>,
    /// The GPUs that the driver reports but that cannot be used, by index.
    pub problems: Vec<Problem>,
}

/// A GPU that the driver reports but that could not be opened. Its UUID is unknown, since only an open GPU reports it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("GPU {index} cannot be used: {error}; a running daemon uses it once it answers (see nvidia-smi -i {index})")]
pub struct Problem {
    /// The index of the GPU in the driver.
    pub index: u32,
    /// The reason why the GPU could not be opened.
    pub error: GpuError,
}

/// Opens the library and every GPU that answers. A machine without GPUs is not an error.
///
/// # Errors
/// If the library cannot be used. A single GPU that fails is a [`Problem`].
pub fn open_all(settings: &Settings) -> Result<OpenedGpus, OpenError> {
    open_now(&Library::open(settings)?)
}

/// Opens the GPUs like [`open_all`], and returns a channel that delivers GPUs that become usable later.
pub fn open_and_search(settings: &Settings) -> Result<(OpenedGpus, Receiver<Box<dyn GpuDevice>>), OpenError> {
    let library = Library::open(settings)?;
    let gpus = open_now(&library)?;
    let opened = gpus.devices.iter().map(|device| device.identity().id.clone()).collect();
    Ok((gpus, search(library, opened)))
}

/// Opens every GPU on a thread of its own, so that a hanging GPU delays no other.
fn open_now(library: &Arc<Library>) -> Result<OpenedGpus, OpenError> {
    let count = library.device_count()?;
    let (sender, opened) = mpsc::channel();
    for index in 0..count {
        let (library, sender) = (library.clone(), sender.clone());
        // Sending fails if the receiver has stopped waiting. A GPU whose thread cannot start counts as hanging.
        let open = move || drop(sender.send((index, NvmlDevice::open(library, index))));
        drop(thread::Builder::new().name(format!("open{index}")).spawn(open));
    }
    drop(sender);
    let mut answers: Vec<Option<_>> = (0..count).map(|_| None).collect();
    while answers.iter().any(Option::is_none)
        && let Ok((index, answer)) = opened.recv_timeout(OPENING)
    {
        answers[index as usize] = Some(answer);
    }
    let mut gpus = OpenedGpus { devices: Vec::new(), problems: Vec::new() };
    for (index, answer) in (0..).zip(answers) {
        let timed_out = || Err(GpuError::TimedOut { call: "opening the GPU", after: OPENING.into() });
        match answer.unwrap_or_else(timed_out) {
            Ok(device) => gpus.devices.push(Box::new(device)),
            Err(error) => gpus.problems.push(Problem { index, error }),
        }
    }
    Ok(gpus)
}

/// The search for GPUs that become usable later. The lock on its state is never held during a driver call.
struct Search {
    library: Arc<Library>,
    arrivals: Sender<Box<dyn GpuDevice>>,
    state: Mutex<SearchState>,
}

#[derive(Default)]
struct SearchState {
    /// The ids of the open GPUs.
    opened: BTreeSet<GpuId>,
    /// The indices whose GPUs threads are opening now. Opening may hang forever, so no second thread tries the same
    /// index.
    opening: BTreeSet<u32>,
    /// True once the receiver is dropped.
    is_over: bool,
}

/// Searches for GPUs other than `opened`, on a separate thread, until the receiver is dropped.
fn search(library: Arc<Library>, opened: BTreeSet<GpuId>) -> Receiver<Box<dyn GpuDevice>> {
    let (arrivals, found) = channel(AT_ONCE);
    let state = Mutex::new(SearchState { opened, ..SearchState::default() });
    let search = Arc::new(Search { library, arrivals, state });
    let body = move || {
        while !search.state().is_over {
            thread::sleep(EVERY);
            Search::open_new(&search);
        }
    };
    // Without the thread, GPUs that become usable later are used only after the next start of the daemon.
    if let Err(error) = thread::Builder::new().name("gpu-search".into()).spawn(body) {
        tracing::error!(%error, "cannot start the thread that looks for lost GPUs; a GPU that returns is used only after a restart of the daemon");
    }
    found
}

impl Search {
    fn state(&self) -> MutexGuard<'_, SearchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries to open the GPU at each index on a thread of its own, since a hanging GPU must not delay the others.
    fn open_new(search: &Arc<Self>) {
        let Some(count) = search.library.count() else { return };
        if usize::try_from(count).is_ok_and(|count| count <= search.state().opened.len()) {
            return;
        }
        for index in (0..count).filter(|index| search.state().opening.insert(*index)) {
            let at = search.clone();
            let body = move || {
                at.try_open(index);
                at.state().opening.remove(&index);
            };
            if thread::Builder::new().name(format!("open{index}")).spawn(body).is_err() {
                search.state().opening.remove(&index);
            }
        }
    }

    fn try_open(&self, index: u32) {
        let is_open = |id: &GpuId| self.state().opened.contains(id);
        if self.library.id_at(index).is_none_or(|id| is_open(&id)) {
            return;
        }
        // A failure is retried at the next search.
        let Ok(device) = NvmlDevice::open(self.library.clone(), index) else { return };
        let is_new = self.state().opened.insert(device.identity().id.clone());
        if is_new && self.arrivals.blocking_send(Box::new(device)).is_err() {
            self.state().is_over = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_names_the_gpu() {
        let problem = Problem { index: 3, error: GpuError::Lost { call: "nvmlDeviceGetHandleByIndex_v2" } };
        let text = problem.to_string();
        assert!(text.starts_with("GPU 3 cannot be used: nvmlDeviceGetHandleByIndex_v2: the GPU is lost"), "{text}");
    }
}
