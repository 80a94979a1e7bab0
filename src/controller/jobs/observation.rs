//! A job's view of its GPUs: the set point in force, reasons that slow them, and their energy.

use super::Job;
use crate::controller::gpus::{Gpu, Gpus};
use wattune_core::domain::{EventReasons, GpuId, SetPoint};
use wattune_core::profile::steps::Setting;
use wattune_core::time::Now;
use wattune_core::units::Joules;

impl Job {
    /// Takes in what its GPUs show.
    pub(in crate::controller) fn observe(&mut self, gpus: &Gpus, now: Now) {
        let (setting, reasons) = self.in_force(gpus);
        let energy = self.groups.iter().map(|g| group_energy(&g.members, gpus, now)).collect();
        self.see(now, setting, reasons, energy);
    }

    /// Returns the set point in force on each group of its GPUs, if all GPUs of a group agree, and why any of them is
    /// slowed.
    fn in_force(&self, gpus: &Gpus) -> (Option<Setting>, EventReasons) {
        let mut reasons = EventReasons::default();
        let mut setting = Setting::with_capacity(self.groups.len());
        for group in &self.groups {
            let mut agreed = None;
            for id in &group.members {
                let Some(gpu) = gpus.get(id).filter(|g| g.seen.fault.is_none()) else { return (None, reasons) };
                let Some(limit) = gpu.seen.reading.enforced.or(gpu.seen.reading.requested) else {
                    return (None, reasons);
                };
                let set = SetPoint { limit, clock: gpu.clock_lock() };
                reasons = reasons | gpu.seen.reading.reasons.unwrap_or_default();
                match agreed {
                    None => agreed = Some(set),
                    Some(other) if set.same_as(other) => {}
                    Some(_) => return (None, reasons),
                }
            }
            let Some(set) = agreed else { return (None, reasons) };
            // Some GPUs round what they are given: the profile knows the limit that was asked for.
            setting.push(self.nearest_known(setting.len(), set));
        }
        (Some(setting), reasons)
    }
}

/// Returns the energy of a group's GPUs up to `now`. GPUs are read some milliseconds before: what they drew since is
/// estimated from their power, or short windows would be wrong by that much.
fn group_energy(members: &[GpuId], gpus: &Gpus, now: Now) -> Joules {
    let energy = |gpu: &Gpu| {
        let since = gpu.seen.at.map(|at| now.monotonic.since(at.monotonic)).unwrap_or_default();
        let drawn = gpu.seen.reading.power.unwrap_or_default() * since;
        gpu.seen.metered.drawn.to_joules() + drawn
    };
    members.iter().filter_map(|id| gpus.get(id)).map(energy).sum()
}
