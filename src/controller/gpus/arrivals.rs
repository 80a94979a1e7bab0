//! Where GPUs come from after the start, and the handles of all that came.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::Receiver;

use crate::gpu::GpuDevice;
use crate::gpu::thread::GpuHandle;

/// Where GPUs come from that could not be used at the start.
pub struct Arrivals {
    /// The GPUs, as they come.
    pub devices: Receiver<Box<dyn GpuDevice>>,
    /// What was said of those that the driver counts, by their index: it is no problem any more once they come.
    pub problems: BTreeMap<u32, String>,
}

/// The handles of all GPUs, also for whoever has to give them back without the controller.
#[derive(Clone, Default)]
pub(in crate::controller) struct Handles(Arc<Mutex<Vec<GpuHandle>>>);

impl Handles {
    pub(in crate::controller) fn add(&self, handle: GpuHandle) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    }

    pub(in crate::controller) fn all(&self) -> Vec<GpuHandle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
