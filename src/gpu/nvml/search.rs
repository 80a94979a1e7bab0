//! Looking for GPUs that could not be used at the start, or that were not there, and can be used later.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc::{self, Receiver, Sender};

use super::{Library, NvmlDevice};
use crate::gpu::GpuDevice;
use wattune_core::domain::GpuId;

/// While the driver counts more GPUs than are open, the others are looked for this often.
const EVERY: Duration = Duration::from_secs(2);

/// More GPUs than come at once; they are taken up at each tick.
const AT_ONCE: usize = 64;

/// What the search knows. The lock is held for moments, never across a call of the driver.
struct Search {
    library: Arc<Library>,
    arrivals: Sender<Box<dyn GpuDevice>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The GPUs that are open.
    opened: BTreeSet<GpuId>,
    /// The indices that a thread looks at: such a call may hang for ever, and is not made twice.
    looked_at: BTreeSet<u32>,
    /// Whether nobody takes further GPUs.
    is_over: bool,
}

/// Looks for GPUs beside those that are `opened`, on a thread of its own, until nobody waits for them any more.
pub(super) fn search(library: Arc<Library>, opened: BTreeSet<GpuId>) -> Receiver<Box<dyn GpuDevice>> {
    let (arrivals, found) = mpsc::channel(AT_ONCE);
    let known = Mutex::new(Known { opened, ..Known::default() });
    let search = Arc::new(Search { library, arrivals, known });
    let body = move || {
        while !search.known().is_over {
            thread::sleep(EVERY);
            Search::look(&search);
        }
    };
    // Without a thread, GPUs that come back are taken up at the next start.
    if let Err(error) = thread::Builder::new().name("gpu-search".into()).spawn(body) {
        tracing::error!(%error, "cannot look for GPUs that come back");
    }
    found
}

impl Search {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at each index on a thread of its own, since one GPU that hangs must not hide the others.
    fn look(search: &Arc<Self>) {
        let Some(count) = search.library.count() else { return };
        if usize::try_from(count).is_ok_and(|count| count <= search.known().opened.len()) {
            return;
        }
        for index in (0..count).filter(|index| search.known().looked_at.insert(*index)) {
            let at = search.clone();
            let body = move || {
                at.try_open(index);
                at.known().looked_at.remove(&index);
            };
            if thread::Builder::new().name(format!("open{index}")).spawn(body).is_err() {
                search.known().looked_at.remove(&index);
            }
        }
    }

    fn try_open(&self, index: u32) {
        let is_open = |id: &GpuId| self.known().opened.contains(id);
        if self.library.id_at(index).is_none_or(|id| is_open(&id)) {
            return;
        }
        // It may still fail; the next look tries again.
        let Ok(device) = NvmlDevice::open(self.library.clone(), index) else { return };
        let is_new = self.known().opened.insert(device.board().id.clone());
        if is_new && self.arrivals.blocking_send(Box::new(device)).is_err() {
            self.known().is_over = true;
        }
    }
}
