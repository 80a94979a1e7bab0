//! Properties of a GPU that do not change while it is open: its modes, power-limit range and lockable clocks.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, GpuVirtualizationMode};

use super::call;
use super::query::{Answer, Query, unless_gpu_lost};
use crate::gpu::GpuError;
use wattune_core::domain::{ClockLimit, ClockRange, LimitRange, PowerLimit};

/// Properties that do not change while a GPU is open. A property that could not be read is read again later.
pub(super) struct StaticProperties {
    mig: Answer<bool>,
    virtualised: Answer<bool>,
    constraints: Answer<(u32, u32)>,
    default: Answer<u32>,
    clocks: Answer<ClockRange>,
}

impl StaticProperties {
    pub(super) fn probe(device: &Device<'_>) -> Result<Self, GpuError> {
        Ok(Self {
            mig: is_mig(device)?,
            virtualised: is_virtual(device)?,
            constraints: constraints(device)?,
            default: default_limit(device)?,
            clocks: lockable_clocks(device)?,
        })
    }

    /// Reads the missing properties again, each once its retry is due.
    pub(super) fn renew(&mut self, query: &mut Query<'_>) -> Result<(), GpuError> {
        query.renew(&mut self.mig, is_mig)?;
        query.renew(&mut self.virtualised, is_virtual)?;
        query.renew(&mut self.constraints, constraints)?;
        query.renew(&mut self.default, default_limit)?;
        query.renew(&mut self.clocks, lockable_clocks)
    }

    /// Returns four capabilities: whether MIG is on, whether the GPU is virtual, the range of power limits, and the
    /// range of lockable clocks.
    pub(super) fn capabilities(&self) -> (bool, bool, Answer<LimitRange>, Answer<ClockRange>) {
        (self.mig == Ok(true), self.virtualised == Ok(true), self.limits(), self.clocks.clone())
    }

    /// Returns the range of power limits that wattune may set.
    fn limits(&self) -> Answer<LimitRange> {
        // If it is unknown whether MIG is on or the GPU is virtual, wattune does not control the limit.
        known_mode(self.mig.clone())
            .and(known_mode(self.virtualised.clone()))
            .and_then(|_| limit_range(self.constraints.clone(), self.default.clone()))
    }
}

fn is_mig(device: &Device<'_>) -> Result<Answer<bool>, GpuError> {
    unless_gpu_lost(call::MIG, device.mig_mode().map(|mode| mode.current == 1))
}

fn is_virtual(device: &Device<'_>) -> Result<Answer<bool>, GpuError> {
    let mode = device.virtualization_mode();
    unless_gpu_lost(call::VIRTUALIZATION, mode.map(|mode| mode == GpuVirtualizationMode::Vgpu))
}

fn constraints(device: &Device<'_>) -> Result<Answer<(u32, u32)>, GpuError> {
    unless_gpu_lost(call::CONSTRAINTS, device.power_management_limit_constraints().map(|c| (c.min_limit, c.max_limit)))
}

fn default_limit(device: &Device<'_>) -> Result<Answer<u32>, GpuError> {
    unless_gpu_lost(call::DEFAULT_LIMIT, device.power_management_limit_default())
}

/// Reads the graphics clocks that the GPU supports at its highest memory clock, at which compute GPUs run. If the GPU
/// lists no clocks, uses steps of 15 MHz up to its highest clock: such a GPU accepts any clock, and the driver rounds
/// it.
fn lockable_clocks(device: &Device<'_>) -> Result<Answer<ClockRange>, GpuError> {
    let memory = unless_gpu_lost(call::MEMORY_CLOCKS, device.supported_memory_clocks())?;
    let listed = match memory.map(|clocks| clocks.into_iter().max()) {
        Ok(Some(memory)) => unless_gpu_lost(call::GRAPHICS_CLOCKS, device.supported_graphics_clocks(memory))?,
        Ok(None) => Err(GpuError::NotSupported { call: call::MEMORY_CLOCKS }),
        Err(error) => Err(error),
    };
    let steps = match listed {
        Ok(steps) if !steps.is_empty() => Ok(steps),
        _ => unless_gpu_lost(call::MAX_CLOCK, device.max_clock_info(Clock::SM))?.map(clocks_up_to),
    };
    Ok(steps.and_then(|steps| {
        let steps = steps.into_iter().map(ClockLimit::from_megahertz).collect();
        ClockRange::new(steps).ok_or(GpuError::NotSupported { call: call::GRAPHICS_CLOCKS })
    }))
}

/// Returns clocks in steps of 15 MHz, as on NVIDIA GPUs, from the highest down to the idle clock of 210 MHz.
fn clocks_up_to(max: u32) -> Vec<u32> {
    std::iter::successors(Some(max), |clock| clock.checked_sub(15).filter(|below| *below >= 210)).collect()
}

/// Treats a mode that the GPU or its driver does not support as off.
fn known_mode(mode: Answer<bool>) -> Answer<bool> {
    match mode {
        Err(error) if error.is_unsupported() => Ok(false),
        mode => mode,
    }
}

fn limit_range(constraints: Answer<(u32, u32)>, default: Answer<u32>) -> Answer<LimitRange> {
    let (min, max) = constraints?;
    let default = default?;
    if min > max || max == 0 {
        let message = format!("the driver reports an invalid range of limits, {min} mW to {max} mW");
        return Err(GpuError::Driver { call: call::CONSTRAINTS, message });
    }
    let limit = PowerLimit::from_milliwatts;
    Ok(LimitRange { min: limit(min), max: limit(max), default: limit(default) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsupported<T>(call: &'static str) -> Result<T, GpuError> {
        Err(GpuError::NotSupported { call })
    }

    #[test]
    fn a_range_needs_all_of_its_numbers() {
        let limit = PowerLimit::from_milliwatts;
        assert_eq!(
            limit_range(Ok((100_000, 1_000_000)), Ok(700_000)),
            Ok(LimitRange { min: limit(100_000), max: limit(1_000_000), default: limit(700_000) })
        );
        assert_eq!(limit_range(unsupported(call::CONSTRAINTS), Ok(1)), unsupported(call::CONSTRAINTS));
        assert_eq!(limit_range(Ok((1, 2)), unsupported(call::DEFAULT_LIMIT)), unsupported(call::DEFAULT_LIMIT));
    }

    #[test]
    fn an_inverted_range_is_an_error() {
        for nonsense in [(300_000, 100_000), (0, 0)] {
            let error = limit_range(Ok(nonsense), Ok(200_000)).expect_err("nonsense");
            assert_eq!(error.call(), call::CONSTRAINTS);
        }
    }

    #[test]
    fn an_absent_mode_is_off_and_a_failing_one_is_not() {
        assert_eq!(known_mode(Ok(true)), Ok(true));
        assert_eq!(known_mode(unsupported(call::MIG)), Ok(false));
        assert_eq!(known_mode(Err(GpuError::MissingSymbol { call: call::MIG })), Ok(false));
        let failing = Err(GpuError::Driver { call: call::MIG, message: "an internal driver error occurred".into() });
        assert_eq!(known_mode(failing.clone()), failing);
    }
}
