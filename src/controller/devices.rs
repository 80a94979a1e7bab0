//! Direct access to the devices' readings, for requests that need a new reading instead of the control loop's latest.

use std::sync::Arc;

use super::gpus::Handles;
use crate::clock::Clock;
use crate::cpu::watch::CpuHandle;
use crate::gpu::handle::GpuHandle;

/// Handles of all GPUs and of the CPUs, and the daemon's clock. Cheap to clone.
#[derive(Clone)]
pub struct Devices {
    pub(super) gpus: Handles,
    pub(super) cpu: Option<CpuHandle>,
    pub(super) clock: Arc<dyn Clock>,
}

impl Devices {
    /// Returns access to no devices.
    pub fn none(clock: Arc<dyn Clock>) -> Self {
        Self { gpus: Handles::default(), cpu: None, clock }
    }

    /// Returns the handles of all GPUs, in order of their index; those of GPUs added later appear too.
    pub fn gpus(&self) -> Vec<GpuHandle> {
        let mut handles = self.gpus.all();
        handles.sort_by_key(|handle| handle.identity().index);
        handles.dedup_by_key(|handle| handle.identity().index);
        handles
    }

    /// Returns the handle of the CPUs; `None` if they are not read.
    pub fn cpu(&self) -> Option<&CpuHandle> {
        self.cpu.as_ref()
    }

    /// Returns the daemon's clock.
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }
}
