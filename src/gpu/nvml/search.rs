//! Finds GPUs that were missing or unusable at the start and become usable later.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{self, Receiver, Sender};

use super::{Library, NvmlDevice};
use crate::gpu::GpuDevice;
use wattune_core::domain::GpuId;

/// The interval between searches while the driver counts more GPUs than are open.
const EVERY: Duration = Duration::from_secs(2);

/// The capacity of the channel; the controller empties it at each tick.
const AT_ONCE: usize = 64;

/// The search. Its lock is never held across a driver call.
struct Search {
    library: Arc<Library>,
    arrivals: Sender<Box<dyn GpuDevice>>,
    state: Mutex<SearchState>,
}

#[derive(Default)]
struct SearchState {
    /// The open GPUs.
    opened: BTreeSet<GpuId>,
    /// The indices that a thread is opening: such a call may hang forever and is not made twice.
    opening: BTreeSet<u32>,
    /// The receiver is gone.
    is_over: bool,
}

/// Searches for GPUs other than `opened` on a thread of its own until the receiver is gone.
pub(super) fn search(library: Arc<Library>, opened: BTreeSet<GpuId>) -> Receiver<Box<dyn GpuDevice>> {
    let (arrivals, found) = mpsc::channel(AT_ONCE);
    let state = Mutex::new(SearchState { opened, ..SearchState::default() });
    let search = Arc::new(Search { library, arrivals, state });
    let body = move || {
        while !search.state().is_over {
            thread::sleep(EVERY);
            Search::open_new(&search);
        }
    };
    // Without a thread, GPUs that come back are used from the next start on.
    if let Err(error) = thread::Builder::new().name("gpu-search".into()).spawn(body) {
        tracing::error!(%error, "cannot search for GPUs that come back");
    }
    found
}

impl Search {
    fn state(&self) -> MutexGuard<'_, SearchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens each index on a thread of its own, since a hanging GPU must not hide the others.
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
        let is_new = self.state().opened.insert(device.board().id.clone());
        if is_new && self.arrivals.blocking_send(Box::new(device)).is_err() {
            self.state().is_over = true;
        }
    }
}
