//! GPUs that come after the start: what is owed to them, and the jobs that wait for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::Receiver;

use super::start::FULL_READING;
use super::{Controller, Gpu};
use crate::gpu::GpuDevice;
use crate::gpu::thread::GpuHandle;
use wattune_core::domain::DeviceId;

/// Where GPUs come from that could not be used at the start.
pub struct Arrivals {
    /// The GPUs, as they come.
    pub devices: Receiver<Box<dyn GpuDevice>>,
    /// What was said of those that the driver counts, by their index: it is no problem any more once they come.
    pub problems: BTreeMap<u32, String>,
}

/// The handles of all GPUs, also for whoever has to give them back without the controller.
#[derive(Clone, Default)]
pub(super) struct Handles(Arc<Mutex<Vec<GpuHandle>>>);

impl Handles {
    pub(super) fn add(&self, handle: GpuHandle) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
    }

    pub(super) fn all(&self) -> Vec<GpuHandle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Controller {
    /// Takes GPUs up from now on as they come.
    pub fn await_arrivals(&mut self, arrivals: Arrivals) {
        self.arrivals = Some(arrivals);
    }

    /// Takes up the GPUs that came since the last tick.
    pub(super) async fn take_up_arrivals(&mut self) {
        while let Some(device) = self.arrivals.as_mut().and_then(|a| a.devices.try_recv().ok()) {
            self.take_up(device).await;
        }
    }

    async fn take_up(&mut self, device: Box<dyn GpuDevice>) {
        let id = device.board().id.clone();
        if self.gpus.contains_key(&id) {
            return;
        }
        let timeout = self.settings.call_timeout_s;
        let handle = GpuHandle::start(device, self.clock.clone(), self.sampling, FULL_READING, timeout);
        self.handles.add(handle.clone());
        // Whose its limit is can be told only once it has said which one it has.
        for _ in 0..50 {
            let seen = handle.observe();
            if seen.at.is_some() || seen.fault.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let gpu_device = DeviceId::from(&id);
        if handle.capabilities().energy_counter.is_err() {
            match self.store.booked_until(&gpu_device).await {
                Ok(until) => self.backlog.booked_until.extend(until.map(|until| (gpu_device, until))),
                Err(error) => self.note_store_fault(&error),
            }
        }
        let index = handle.board().index;
        let mut gpu = Gpu::new(handle);
        gpu.came_late = true;
        gpu.observe();
        for job in self.jobs.values().filter(|job| job.spec.gpus.contains(&id)) {
            match job.spec.control && gpu.owner.is_none() {
                true => {
                    gpu.owner = Some(job.id.clone());
                    gpu.leave_as_before(&self.journal);
                }
                false => gpu.guests.push(job.id.clone()),
            }
        }
        if let Some(other) = self.gpus.values().find(|other| other.handle.board().index == index) {
            self.start_problems.push(format!(
                "GPU {index} is the index of both {id}, which came after the start, and {}: name them by UUID until the daemon \
                 is started again",
                other.id()
            ));
        }
        self.gpus.insert(id.clone(), gpu);
        if let Some(problem) = self.arrivals.as_mut().and_then(|a| a.problems.remove(&index)) {
            self.start_problems.retain(|known| *known != problem);
        }
        tracing::info!(gpu.uuid = %id, "GPU {index} ({id}) can be used from now on");
        self.replan_all("a GPU came back");
    }
}
