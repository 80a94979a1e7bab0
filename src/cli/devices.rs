//! Opens the configured GPUs.

use std::sync::Arc;

use crate::clock::Clock;
use crate::config::{Backend, Settings, SimulatedSettings};
use crate::controller::{Arrivals, open_handles};
use crate::gpu::handle::{GpuHandle, Sampling};
use crate::gpu::simulated::{LoadCurve, Physics, SimulatedGpu};
use crate::gpu::{GpuDevice, nvml};
use wattune_core::domain::{ClockLimit, LimitRange, PowerLimit};
use wattune_core::units::{SamplesPerSecond, Seconds, Watts};

type Devices = Vec<Box<dyn GpuDevice>>;

/// Returns first the configured GPUs that can be used, second notes such as the problems of unusable ones, and third
/// the GPUs that become usable later (`None` for simulated GPUs).
pub(super) fn find_devices(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<(Devices, Vec<String>, Option<Arrivals>)> {
    if settings.gpus.backend != Backend::Nvml {
        let (devices, problems) = open_devices(settings, clock)?;
        return Ok((devices, problems, None));
    }
    let (found, devices) = nvml::open_and_search(&settings.gpus.nvml)?;
    let problems = found.problems.iter().map(|problem| (problem.index, problem.to_string())).collect();
    Ok((found.devices, describe_problems(&found.problems), Some(Arrivals { devices, problems })))
}

/// Logs GPUs that cannot be used, and returns a description of each.
fn describe_problems(problems: &[nvml::Problem]) -> Vec<String> {
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    problems.iter().for_each(|problem| tracing::error!("{problem}"));
    problems
}

/// Returns first the configured GPUs that can be used, second notes such as the problems of unusable ones.
fn open_devices(settings: &Settings, clock: &Arc<dyn Clock>) -> anyhow::Result<(Devices, Vec<String>)> {
    match settings.gpus.backend {
        Backend::Nvml => {
            let found = nvml::open_all(&settings.gpus.nvml)?;
            Ok((found.devices, describe_problems(&found.problems)))
        }
        Backend::Simulated => {
            let simulated = &settings.gpus.simulated;
            let gpu = |index: u32| simulated_gpu(index, simulated, clock);
            let note = "the GPUs are simulated: nothing is measured or set on hardware".to_owned();
            Ok(((0..simulated.boards).map(gpu).collect(), vec![note]))
        }
    }
}

/// Creates a simulated GPU that is always busy, to try out the API.
fn simulated_gpu(index: u32, settings: &SimulatedSettings, clock: &Arc<dyn Clock>) -> Box<dyn GpuDevice> {
    let watts = |w: u32| PowerLimit::from_milliwatts(w * 1000);
    let range = LimitRange { min: watts(100), max: watts(300), default: watts(300) };
    let physics = Physics {
        range,
        original_limit: range.default,
        idle: Watts::new(25.0),
        settling: Seconds::new(0.5),
        noise: 0.01,
        seed: settings.seed.wrapping_add(u64::from(index)),
    };
    let world = SimulatedGpu::new(physics, clock.clone());
    let (floor, peak) = (Watts::new(70.0), SamplesPerSecond::new(400.0));
    let highest = ClockLimit::from_megahertz(1_980);
    let curve = if settings.memory_bound {
        LoadCurve::memory_bound(highest, Watts::new(160.0), floor, peak)
    } else {
        LoadCurve::saturating(&range, Watts::new(280.0), floor, peak)
    };
    let world = match curve.clocks() {
        Some(clocks) => world.with_clocks(clocks),
        None => world,
    };
    world.run(Some(curve));
    Box::new(world.device(index, "Demo GPU"))
}

/// Returns the GPUs for commands that only restore or inspect them: first their handles, second notes about the GPUs.
pub(super) fn handles(settings: &Settings, clock: &Arc<dyn Clock>) -> anyhow::Result<(Vec<GpuHandle>, Vec<String>)> {
    let (devices, problems) = open_devices(settings, clock)?;
    let timeout = settings.control.call_timeout_s;
    Ok((open_handles(devices, clock, Sampling::Every(Seconds::new(1.0)), timeout), problems))
}
