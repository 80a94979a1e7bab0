//! Readings of GPUs, each made for the request, except that requests in quick succession share a reading of the power.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use serde::Serialize;

use super::answer::{Refusal, of_gpu};
use crate::gpu::handle::GpuHandle;
use crate::gpu::{Capabilities, GpuError, Observation};
use wattune_core::domain::PowerLimit;
use wattune_core::time::Now;
use wattune_core::units::Seconds;

/// The age up to which requests share a reading of the power, in seconds. GPUs renew the value every 20 to 100 ms
/// (`docs/src/explanation/nvml.md`), and a reading costs two switches between threads, for which requests would wait.
const SHARED_S: f64 = 0.010;
/// The age from which a request that shares a reading has a new one made for those that follow, in seconds.
const RENEWED_S: f64 = 0.005;

/// Answer by GPU, in ascending order of the indices.
pub(super) type ByGpu<T> = BTreeMap<u32, T>;

/// State and capabilities of a GPU.
type Answer = Result<(Observation, Arc<Capabilities>), GpuError>;

/// Readings of a GPU that a request needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Power, which requests in quick succession share.
    SharedPower,
    /// Energy and power, read now.
    EnergyAndPower,
    /// Everything, read now.
    All,
}

/// Power of GPUs, with the time at which all of them had been read.
#[derive(Serialize)]
pub(super) struct PowerAnswer {
    pub(super) timestamp_ms: i64,
    pub(super) power_mw: ByGpu<u32>,
}

/// Energy of a GPU since its driver was loaded.
#[derive(Serialize)]
pub(super) struct EnergyAnswer {
    energy_mj: u64,
}

/// Power limit of a GPU.
#[derive(Serialize)]
pub(super) struct LimitAnswer {
    power_limit_mw: u32,
}

/// Range of power limits that a GPU accepts.
#[derive(Serialize)]
pub(super) struct RangeAnswer {
    min_power_limit_mw: u32,
    max_power_limit_mw: u32,
}

/// Persistence mode of a GPU.
#[derive(Serialize)]
pub(super) struct PersistenceAnswer {
    enabled: bool,
}

/// Reads GPUs, all at the same time.
async fn read<T>(
    gpus: &[GpuHandle],
    what: What,
    value: impl Fn(&Observation, &Capabilities) -> Result<T, GpuError>,
) -> Result<ByGpu<T>, Refusal> {
    let readings = join_all(gpus.iter().map(|gpu| reading(gpu, what, &value))).await;
    let (mut values, mut failed) = (BTreeMap::new(), BTreeMap::new());
    for (gpu, reading) in gpus.iter().zip(readings) {
        match reading {
            Ok(value) => drop(values.insert(gpu.identity().index, value)),
            Err(error) => drop(failed.insert(gpu.identity().index, of_gpu(&error))),
        }
    }
    if failed.is_empty() { Ok(values) } else { Err(Refusal::Devices(failed)) }
}

/// Reads a GPU now: all values if `all`, otherwise energy and power.
async fn fresh(gpu: &GpuHandle, all: bool) -> Answer {
    let timed_out = || GpuError::TimedOut { call: "reading the GPU", after: gpu.call_timeout() };
    let answer = tokio::time::timeout(gpu.call_timeout().to_std(), gpu.request_reading(all)).await;
    let observed = answer.ok().and_then(Result::ok).ok_or_else(timed_out)?;
    match &observed.fault {
        Some((error, _)) => Err(error.clone()),
        None => Ok((observed, gpu.capabilities())),
    }
}

async fn reading<T>(
    gpu: &GpuHandle,
    what: What,
    value: impl Fn(&Observation, &Capabilities) -> Result<T, GpuError>,
) -> Result<T, GpuError> {
    if what == What::SharedPower
        && let Some((value, age)) = gpu.recent(Seconds::new(SHARED_S), &value)
    {
        if age >= Seconds::new(RENEWED_S) {
            gpu.renew();
        }
        return value;
    }
    fresh(gpu, what == What::All).await.and_then(|(observed, can)| value(&observed, &can))
}

/// Returns a reading, or the reason why there is none.
fn present<T>(value: Option<T>, answer: &Result<(), GpuError>, call: &'static str) -> Result<T, GpuError> {
    value.ok_or_else(|| answer.clone().err().unwrap_or(GpuError::NotSupported { call }))
}

/// Returns a GPU's power in milliwatts, from its latest state.
pub(super) fn power_of(observed: &Observation, can: &Capabilities) -> Result<u32, GpuError> {
    let power = present(observed.reading.power, &can.power, "nvmlDeviceGetPowerUsage")?;
    Ok(PowerLimit::from_watts(power).milliwatts())
}

/// Returns a GPU's power in milliwatts and the time of its reading, which is at most `oldest` old.
pub(super) async fn timed_power(gpu: &GpuHandle, oldest: Seconds) -> Result<(u32, Option<Now>), GpuError> {
    let read = |observed: &Observation, can: &Capabilities| Ok((power_of(observed, can)?, observed.at));
    match gpu.recent(oldest, read) {
        Some((read, _)) => read,
        None => fresh(gpu, false).await.and_then(|(observed, can)| read(&observed, &can)),
    }
}

/// Reads the power in milliwatts.
pub(super) async fn power(gpus: &[GpuHandle]) -> Result<ByGpu<u32>, Refusal> {
    read(gpus, What::SharedPower, power_of).await
}

/// Reads the energy counters.
pub(super) async fn energy(gpus: &[GpuHandle]) -> Result<ByGpu<EnergyAnswer>, Refusal> {
    let call = "nvmlDeviceGetTotalEnergyConsumption";
    let of = |observed: &Observation, can: &Capabilities| {
        let energy = present(observed.reading.energy, &can.energy_counter, call)?;
        Ok(EnergyAnswer { energy_mj: energy.get() })
    };
    read(gpus, What::EnergyAndPower, of).await
}

/// Reads the power limits.
pub(super) async fn limits(gpus: &[GpuHandle]) -> Result<ByGpu<LimitAnswer>, Refusal> {
    let of = |observed: &Observation, can: &Capabilities| {
        let limit = present(observed.reading.requested, &can.limit, "nvmlDeviceGetPowerManagementLimit")?;
        Ok(LimitAnswer { power_limit_mw: limit.milliwatts() })
    };
    read(gpus, What::All, of).await
}

/// Reads the ranges of power limits.
pub(super) async fn ranges(gpus: &[GpuHandle]) -> Result<ByGpu<RangeAnswer>, Refusal> {
    let of = |_: &Observation, can: &Capabilities| {
        let range = can.limits.as_ref().map_err(Clone::clone)?;
        Ok(RangeAnswer { min_power_limit_mw: range.min.milliwatts(), max_power_limit_mw: range.max.milliwatts() })
    };
    read(gpus, What::EnergyAndPower, of).await
}

/// Reads the persistence modes.
pub(super) async fn persistence(gpus: &[GpuHandle]) -> Result<ByGpu<PersistenceAnswer>, Refusal> {
    let of = |observed: &Observation, can: &Capabilities| {
        let enabled = present(observed.reading.persistence, &can.persistence, "nvmlDeviceGetPersistenceMode")?;
        Ok(PersistenceAnswer { enabled })
    };
    read(gpus, What::All, of).await
}
