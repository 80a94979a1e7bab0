//! Problems of a GPU, in one sentence each: all that keeps wattune from measuring or controlling the GPU.

use super::gpu::Gpu;
use super::steering::LASTING;
use crate::controller::view::Concern;
use crate::gpu::GpuError;
use wattune_core::time::Monotonic;
use wattune_core::units::Seconds;

impl Concern {
    /// Returns whether the problem keeps wattune from controlling the GPU.
    pub(crate) const fn is_of_control(self) -> bool {
        matches!(self, Self::Answer | Self::Limit | Self::Clocks)
    }
}

/// Time for which a rejected increase of an energy counter stays a problem.
const JUMP_SHOWN: Seconds = Seconds::new(600.0);

/// Returns all problems of a GPU. Short outages of readings and short deviations from the wanted limit are left out.
pub(crate) fn concerns(gpu: &Gpu, now: Monotonic) -> Vec<(Concern, String)> {
    let (can, observed) = (gpu.handle.capabilities(), &gpu.observed);
    let mut concerns: Vec<(Concern, String)> = Vec::new();
    if let Some((error, since)) = &observed.fault {
        concerns.push((Concern::Answer, format!("{error} (since {})", since.utc.format("%FT%TZ"))));
    }
    // For a GPU that does not respond, `why_no_control` gives the same reason as the fault above; it is listed once.
    let uncontrolled = gpu.why_no_control().filter(|why| !concerns.iter().any(|(_, known)| known == why));
    concerns.extend(uncontrolled.map(|why| (Concern::Limit, why)));
    concerns.extend(gpu.restore_problem.clone().map(|why| (Concern::Limit, why)));
    concerns.extend(gpu.describe_deviation(now).map(|why| (Concern::Limit, why)));
    if observed.fault.is_none() {
        concerns.extend(unmeasured(gpu, now));
    }
    if let Some(mean) = observed.disagreement.filter(|_| can.energy_counter.is_ok()) {
        let words = format!(
            "by its energy counter it draws {:.0} W and by its power readings {:.0} W, for more than ten seconds: one of the \
             two is wrong (wattune records the counter)",
            mean.counter.get(),
            mean.sensor.get()
        );
        concerns.push((Concern::Energy, words));
    }
    if let Some((jump, at)) = observed.counter_jump.filter(|(jump, _)| now.since(jump.at) < JUMP_SHOWN) {
        let words = format!(
            "its energy counter rose by {:.0} J in {:.1} s at {}, but the GPU can have used {:.0} J at most: wattune ignores the \
             rise, integrates power instead, and marks this energy as estimated",
            jump.gained.to_joules().get(),
            jump.span.get(),
            at.utc.format("%FT%TZ"),
            jump.possible.get()
        );
        concerns.push((Concern::Energy, words));
    }
    concerns.extend(gpu.clocks.left_alone_because.clone().map(|why| (Concern::Clocks, why)));
    concerns.extend(gpu.describe_clock_deviation().map(|why| (Concern::Clocks, why)));
    if let Some(error) = &gpu.persistence_denied {
        concerns.push((Concern::Persistence, format!("persistence mode could not be changed: {error}")));
    }
    concerns
}

/// Returns the problem of missing energy or power readings, if there is one.
fn unmeasured(gpu: &Gpu, now: Monotonic) -> Option<(Concern, String)> {
    let (can, observed) = (gpu.handle.capabilities(), &gpu.observed);
    let since = |availability: &crate::gpu::Availability| availability.missing_longer_than(LASTING, now);
    let why =
        |answer: &Result<(), GpuError>, fine: &str| answer.as_ref().err().map_or(fine.into(), ToString::to_string);
    let counter = why(&can.energy_counter, "the counter does not increase although power is drawn");
    let power = why(&can.power, "no answer");
    match (since(&observed.energy_availability), since(&observed.power_availability)) {
        (Some(_), None) => {
            let words =
                format!("no energy counter ({counter}); its energy is integrated from power and marked as estimated");
            Some((Concern::Energy, words))
        }
        (Some(_), Some(_)) => {
            let words = format!("its energy is unknown: no counter ({counter}), no power ({power})");
            Some((Concern::Energy, words))
        }
        (None, Some(_)) => {
            let words = format!("its power cannot be read ({power}); its energy counter can");
            Some((Concern::Power, words))
        }
        (None, None) => None,
    }
}
