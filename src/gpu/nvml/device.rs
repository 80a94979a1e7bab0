//! One GPU behind the driver's library.

use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, GpuVirtualizationMode, TemperatureSensor};
use nvml_wrapper::enums::device::{GpuLockedClocksSetting, SampleValue};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_POWER_INSTANT;

use super::Library;
use super::error::{gpu_error, is_gone};
use super::processes::{Sample, since};
use super::refusals::Refusals;
use crate::gpu::{Capabilities, Depth, GpuDevice, GpuError, ProcessUse, Reading};
use wattune_core::domain::{Board, ClockLimit, ClockRange, EventReasons, GpuId, LimitRange, PowerLimit};
use wattune_core::time::Monotonic;
use wattune_core::units::{Millijoules, Watts};

/// The C functions behind the wrapper's, by the names that people can look up.
mod call {
    pub(super) const HANDLE: &str = "nvmlDeviceGetHandleByIndex_v2";
    pub(super) const UUID: &str = "nvmlDeviceGetUUID";
    pub(super) const NAME: &str = "nvmlDeviceGetName";
    pub(super) const PCI: &str = "nvmlDeviceGetPciInfo_v3";
    pub(super) const MIG: &str = "nvmlDeviceGetMigMode";
    pub(super) const VIRTUALIZATION: &str = "nvmlDeviceGetVirtualizationMode";
    pub(super) const ENERGY: &str = "nvmlDeviceGetTotalEnergyConsumption";
    pub(super) const FIELDS: &str = "nvmlDeviceGetFieldValues";
    pub(super) const POWER: &str = "nvmlDeviceGetPowerUsage";
    pub(super) const CONSTRAINTS: &str = "nvmlDeviceGetPowerManagementLimitConstraints";
    pub(super) const DEFAULT_LIMIT: &str = "nvmlDeviceGetPowerManagementDefaultLimit";
    pub(super) const LIMIT: &str = "nvmlDeviceGetPowerManagementLimit";
    pub(super) const ENFORCED_LIMIT: &str = "nvmlDeviceGetEnforcedPowerLimit";
    pub(super) const REASONS: &str = "nvmlDeviceGetCurrentClocksThrottleReasons";
    pub(super) const TEMPERATURE: &str = "nvmlDeviceGetTemperature";
    pub(super) const CLOCK: &str = "nvmlDeviceGetClockInfo";
    pub(super) const PERSISTENCE: &str = "nvmlDeviceGetPersistenceMode";
    pub(super) const PROCESSES: &str = "nvmlDeviceGetComputeRunningProcesses_v3";
    pub(super) const PROCESS_USE: &str = "nvmlDeviceGetProcessUtilization";
    pub(super) const SET_LIMIT: &str = "nvmlDeviceSetPowerManagementLimit";
    pub(super) const MEMORY_CLOCKS: &str = "nvmlDeviceGetSupportedMemoryClocks";
    pub(super) const GRAPHICS_CLOCKS: &str = "nvmlDeviceGetSupportedGraphicsClocks";
    pub(super) const MAX_CLOCK: &str = "nvmlDeviceGetMaxClockInfo";
    pub(super) const LOCK_CLOCKS: &str = "nvmlDeviceSetGpuLockedClocks";
    pub(super) const RESET_CLOCKS: &str = "nvmlDeviceResetGpuLockedClocks";
    pub(super) const SET_PERSISTENCE: &str = "nvmlDeviceSetPersistenceMode";
}

/// Reads the newest power sample: field 186 of `nvmlDeviceGetFieldValues`, preferred wherever the driver has it.
///
/// The alternative, `nvmlDeviceGetPowerUsage`, is a one-second average on Ampere (except GA100) and newer GPUs, and the
/// newest sample on older ones.
///
/// Both are the GPU's draw: the wrapper leaves the scope of field values at 0. On GH200 and GB200 the module's draw
/// (scope 1, CPU and memory included) is therefore unavailable, and on GH200 the instantaneous value was seen to
/// contain the CPU's draw all the same (arXiv 2312.02741).
fn newest_power(device: &Device<'_>) -> Result<Watts, NvmlError> {
    let mut samples = device.field_values_for(&[FieldId(NVML_FI_DEV_POWER_INSTANT)])?;
    let sample = samples.pop().ok_or(NvmlError::NoData)??;
    match sample.value? {
        SampleValue::U32(milliwatts) if milliwatts > 0 => Ok(Watts::from_milliwatts(milliwatts)),
        // A driver that does not know the field may leave the wrapper's initial value: success and zero.
        _ => Err(NvmlError::NotSupported),
    }
}

fn default_power(device: &Device<'_>) -> Result<Watts, NvmlError> {
    device.power_usage().map(Watts::from_milliwatts)
}

/// The attempts to read a name, and the pause between them.
const NAME_TRIES: u32 = 10;
const NAME_AGAIN: Duration = Duration::from_millis(200);

/// A GPU, identified by its UUID.
pub struct NvmlDevice {
    library: Arc<Library>,
    device: Device<'static>,
    board: Board,
    capabilities: Capabilities,
    properties: StaticProperties,
    /// Calls that this GPU or this driver does not support.
    refusals: Refusals,
    /// The time of the newest sample of process use, by the driver's clock.
    processes_seen: u64,
}

/// Properties that stay the same while a GPU is open. Missing ones are read again.
struct StaticProperties {
    mig: Result<bool, GpuError>,
    virtualised: Result<bool, GpuError>,
    constraints: Result<(u32, u32), GpuError>,
    default: Result<u32, GpuError>,
    clocks: Result<ClockRange, GpuError>,
}

impl StaticProperties {
    fn probe(device: &Device<'_>) -> Result<Self, GpuError> {
        Ok(Self {
            mig: is_mig(device)?,
            virtualised: is_virtual(device)?,
            constraints: constraints(device)?,
            default: default_limit(device)?,
            clocks: lockable_clocks(device)?,
        })
    }

    /// Returns the range of limits that wattune may set.
    fn limits(&self) -> Result<LimitRange, GpuError> {
        // Without knowing the modes, wattune does not control the limit.
        known_mode(self.mig.clone())
            .and(known_mode(self.virtualised.clone()))
            .and_then(|_| limit_range(self.constraints.clone(), self.default.clone()))
    }

    fn apply_to(&self, capabilities: &mut Capabilities) {
        capabilities.mig = self.mig == Ok(true);
        capabilities.virtualised = self.virtualised == Ok(true);
        capabilities.limits = self.limits();
        capabilities.clocks = self.clocks.clone();
    }
}

impl NvmlDevice {
    pub(super) fn open(library: Arc<Library>, index: u32) -> Result<Self, GpuError> {
        let device = library.nvml().device_by_index(index).map_err(|error| gpu_error(call::HANDLE, error))?;
        let board = identify(&device, index)?;
        let properties = StaticProperties::probe(&device)?;
        let capabilities = probe(&device, &properties)?;
        let refusals = Refusals::default();
        Ok(Self { library, device, board, capabilities, properties, refusals, processes_seen: 0 })
    }
}

impl GpuDevice for NvmlDevice {
    fn board(&self) -> &Board {
        &self.board
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn read(&mut self, depth: Depth, now: Monotonic) -> Result<Reading, GpuError> {
        let can = &mut self.capabilities;
        let mut query = Query::new(&self.device, &mut self.refusals, depth, now);
        let mut reading = Reading::default();
        if depth != Depth::Quick {
            let limit = PowerLimit::from_milliwatts;
            let requested = query.ask(call::LIMIT, |d| d.power_management_limit().map(limit))?;
            (reading.requested, can.limit) = split(requested);
            reading.enforced = query.ask(call::ENFORCED_LIMIT, |d| d.enforced_power_limit().map(limit))?.ok();
            // The wrapper has reasons and temperature by their old names only. CUDA 14 drops those; they are absent
            // there until the wrapper follows.
            reading.reasons = query
                .ask(call::REASONS, |d| d.current_throttle_reasons().map(|r| EventReasons::from_bits(r.bits())))?
                .ok();
            reading.temperature_c =
                query.ask(call::TEMPERATURE, |d| d.temperature(TemperatureSensor::Gpu).map(f64::from))?.ok();
            reading.sm_clock_mhz = query.ask(call::CLOCK, |d| d.clock_info(Clock::SM))?.ok();
            let persistence = query.ask(call::PERSISTENCE, |d| d.is_in_persistent_mode())?;
            (reading.persistence, can.persistence) = split(persistence);
            // Reads the number alone, without the list.
            reading.processes = query.ask(call::PROCESSES, |d| d.running_compute_processes_count())?.ok();
            query.renew(&mut self.properties.mig, is_mig)?;
            query.renew(&mut self.properties.virtualised, is_virtual)?;
            query.renew(&mut self.properties.constraints, constraints)?;
            query.renew(&mut self.properties.default, default_limit)?;
            query.renew(&mut self.properties.clocks, lockable_clocks)?;
            self.properties.apply_to(can);
        }
        // Energy last: the caller reads the clock as soon as this returns, and the two belong together.
        let power = match query.ask(call::FIELDS, newest_power)? {
            Ok(power) => Ok(power),
            Err(_) => query.ask(call::POWER, default_power)?,
        };
        (reading.power, can.power) = split(power);
        let energy = query.ask(call::ENERGY, |d| d.total_energy_consumption().map(Millijoules::new))?;
        (reading.energy, can.energy_counter) = split(energy);
        query.end()?;
        Ok(reading)
    }

    fn process_use(&mut self) -> Result<Vec<ProcessUse>, GpuError> {
        let samples = match self.device.process_utilization_stats(self.processes_seen) {
            Ok(samples) => samples,
            // No process ran since, or more processes than a moment ago; the next call succeeds.
            Err(NvmlError::NotFound | NvmlError::InsufficientSize(_)) => Vec::new(),
            Err(error) => return Err(gpu_error(call::PROCESS_USE, error)),
        };
        let samples = samples.iter().map(|s| Sample { at: s.timestamp, pid: s.pid, percent: s.sm_util });
        let (used, newest) = since(self.processes_seen, samples);
        self.processes_seen = newest;
        Ok(used)
    }

    fn set_power_limit(&mut self, limit: PowerLimit) -> Result<(), GpuError> {
        self.device.set_power_management_limit(limit.milliwatts()).map_err(|error| {
            match (error, &self.capabilities.limits) {
                (NvmlError::InvalidArg, Ok(range)) => {
                    let message = format!("{limit} is refused; the GPU accepts {} to {}", range.min, range.max);
                    GpuError::Driver { call: call::SET_LIMIT, message }
                }
                (error, _) => gpu_error(call::SET_LIMIT, error),
            }
        })
    }

    fn lock_clocks(&mut self, highest: ClockLimit) -> Result<(), GpuError> {
        // From the lowest clock on, so that the GPU can idle.
        let min_clock_mhz = match &self.capabilities.clocks {
            Ok(range) => range.min().megahertz(),
            Err(error) => return Err(error.clone()),
        };
        let setting = GpuLockedClocksSetting::Numeric { min_clock_mhz, max_clock_mhz: highest.megahertz() };
        self.device.set_gpu_locked_clocks(setting).map_err(|error| gpu_error(call::LOCK_CLOCKS, error))
    }

    fn reset_clocks(&mut self) -> Result<(), GpuError> {
        self.device.reset_gpu_locked_clocks().map_err(|error| gpu_error(call::RESET_CLOCKS, error))
    }

    fn set_persistence(&mut self, on: bool) -> Result<(), GpuError> {
        self.device.set_persistent(on).map_err(|error| gpu_error(call::SET_PERSISTENCE, error))?;
        // On GPUs with coherent memory, turning it off invalidates every handle. If there is no new one either, the
        // next read fails.
        if !on && let Ok(device) = self.library.find(&self.board.id) {
            self.device = device;
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), GpuError> {
        let device = self.library.find(&self.board.id)?;
        // The driver may be another version by now, with other capabilities.
        let properties = StaticProperties::probe(&device)?;
        self.capabilities = probe(&device, &properties)?;
        (self.device, self.properties) = (device, properties);
        self.refusals = Refusals::default();
        self.processes_seen = 0;
        Ok(())
    }
}

/// Splits an answer into the value and the reason why there is none.
fn split<T>(answer: Result<T, GpuError>) -> (Option<T>, Result<(), GpuError>) {
    match answer {
        Ok(value) => (Some(value), Ok(())),
        Err(error) => (None, Err(error)),
    }
}

/// The calls of one read: each value fails on its own, unless the GPU is gone.
struct Query<'a> {
    device: &'a Device<'static>,
    refusals: &'a mut Refusals,
    depth: Depth,
    now: Monotonic,
    answered: bool,
    failure: Option<GpuError>,
}

impl<'a> Query<'a> {
    fn new(device: &'a Device<'static>, refusals: &'a mut Refusals, depth: Depth, now: Monotonic) -> Self {
        Self { device, refusals, depth, now, answered: false, failure: None }
    }

    /// Returns the last refusal of a call that is not due for a retry.
    fn refusal(&self, call: &str) -> Option<&GpuError> {
        self.refusals.pending(call, self.now).filter(|_| self.depth != Depth::Retry)
    }

    fn ask<T>(
        &mut self,
        call: &'static str,
        get: impl FnOnce(&Device<'static>) -> Result<T, NvmlError>,
    ) -> Result<Result<T, GpuError>, GpuError> {
        if let Some(refused) = self.refusal(call) {
            return Ok(Err(refused.clone()));
        }
        let answer = unless_gone(call, get(self.device))?;
        match &answer {
            Ok(_) => {
                self.answered = true;
                self.refusals.clear(call);
            }
            Err(error) if error.is_unsupported() => self.refusals.record(error.clone(), self.now),
            Err(error) => self.failure = Some(error.clone()),
        }
        Ok(answer)
    }

    /// Reads a missing property again if its retry is due.
    fn renew<T>(
        &mut self,
        known: &mut Result<T, GpuError>,
        get: impl FnOnce(&Device<'_>) -> Result<Result<T, GpuError>, GpuError>,
    ) -> Result<(), GpuError> {
        let Err(error) = &*known else { return Ok(()) };
        if self.refusal(error.call()).is_some() {
            return Ok(());
        }
        *known = get(self.device)?;
        // A property that was missing at the start may stay missing, for any reason.
        if let Err(error) = &*known {
            self.refusals.record(error.clone(), self.now);
        }
        Ok(())
    }

    /// Returns the failure if every call failed, as with an invalid handle. A GPU that is present at least reports its
    /// UUID.
    fn end(self) -> Result<(), GpuError> {
        match self.failure {
            Some(failure) if !self.answered && self.device.uuid().is_err() => Err(failure),
            _ => Ok(()),
        }
    }
}

/// Returns the value or the reason why there is none; the outer error means that the GPU is gone.
fn unless_gone<T>(call: &'static str, result: Result<T, NvmlError>) -> Result<Result<T, GpuError>, GpuError> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) if is_gone(&error) => Err(gpu_error(call, error)),
        Err(error) => Ok(Err(gpu_error(call, error))),
    }
}

fn identify(device: &Device<'_>, index: u32) -> Result<Board, GpuError> {
    let uuid = device.uuid().map_err(|error| gpu_error(call::UUID, error))?;
    let id = GpuId::new(uuid).map_err(|error| GpuError::Driver { call: call::UUID, message: error.to_string() })?;
    let pci_bus_id = read_name(call::PCI, || device.pci_info().map(|pci| pci.bus_id))?;
    let model = read_name(call::NAME, || device.name())?;
    Ok(Board { id, index, pci_bus_id, model, simulated: false })
}

/// Reads a name. It serves people and stored profiles of the model; wattune uses a GPU without one, so the attempts are
/// limited.
fn read_name(call: &'static str, get: impl Fn() -> Result<String, NvmlError>) -> Result<String, GpuError> {
    for _ in 0..NAME_TRIES {
        if let Ok(name) = unless_gone(call, get())? {
            return Ok(name);
        }
        std::thread::sleep(NAME_AGAIN);
    }
    Ok("unknown".into())
}

fn probe(device: &Device<'_>, properties: &StaticProperties) -> Result<Capabilities, GpuError> {
    let power = match unless_gone(call::FIELDS, newest_power(device))? {
        Ok(power) => Ok(power),
        Err(_) => unless_gone(call::POWER, default_power(device))?,
    };
    let mut capabilities = Capabilities {
        energy_counter: unless_gone(call::ENERGY, device.total_energy_consumption().map(drop))?,
        power: power.map(drop),
        limit: unless_gone(call::LIMIT, device.power_management_limit().map(drop))?,
        persistence: unless_gone(call::PERSISTENCE, device.is_in_persistent_mode().map(drop))?,
        mig: false,
        virtualised: false,
        limits: properties.limits(),
        clocks: properties.clocks.clone(),
        driver: device.nvml().sys_driver_version().unwrap_or_else(|_| "unknown".into()),
    };
    properties.apply_to(&mut capabilities);
    Ok(capabilities)
}

fn is_mig(device: &Device<'_>) -> Result<Result<bool, GpuError>, GpuError> {
    unless_gone(call::MIG, device.mig_mode().map(|mode| mode.current == 1))
}

fn is_virtual(device: &Device<'_>) -> Result<Result<bool, GpuError>, GpuError> {
    let mode = device.virtualization_mode();
    unless_gone(call::VIRTUALIZATION, mode.map(|mode| mode == GpuVirtualizationMode::Vgpu))
}

fn constraints(device: &Device<'_>) -> Result<Result<(u32, u32), GpuError>, GpuError> {
    unless_gone(call::CONSTRAINTS, device.power_management_limit_constraints().map(|c| (c.min_limit, c.max_limit)))
}

fn default_limit(device: &Device<'_>) -> Result<Result<u32, GpuError>, GpuError> {
    unless_gone(call::DEFAULT_LIMIT, device.power_management_limit_default())
}

/// Reads the clocks that go with the highest memory clock, at which compute GPUs run. A GPU that lists none accepts any
/// clock up to its highest, rounded by the driver.
fn lockable_clocks(device: &Device<'_>) -> Result<Result<ClockRange, GpuError>, GpuError> {
    let memory = unless_gone(call::MEMORY_CLOCKS, device.supported_memory_clocks())?;
    let listed = match memory.map(|clocks| clocks.into_iter().max()) {
        Ok(Some(memory)) => unless_gone(call::GRAPHICS_CLOCKS, device.supported_graphics_clocks(memory))?,
        Ok(None) => Err(GpuError::NotSupported { call: call::MEMORY_CLOCKS }),
        Err(error) => Err(error),
    };
    let steps = match listed {
        Ok(steps) if !steps.is_empty() => Ok(steps),
        _ => unless_gone(call::MAX_CLOCK, device.max_clock_info(Clock::SM))?.map(clocks_up_to),
    };
    Ok(steps.and_then(|steps| {
        let steps = steps.into_iter().map(ClockLimit::from_megahertz).collect();
        ClockRange::new(steps).ok_or(GpuError::NotSupported { call: call::GRAPHICS_CLOCKS })
    }))
}

/// Returns steps of 15 MHz, as NVIDIA GPUs have them, from the highest clock down to the idle clock of 210 MHz.
fn clocks_up_to(max: u32) -> Vec<u32> {
    std::iter::successors(Some(max), |clock| clock.checked_sub(15).filter(|below| *below >= 210)).collect()
}

/// Treats a mode that the GPU or its driver does not have as off.
fn known_mode(mode: Result<bool, GpuError>) -> Result<bool, GpuError> {
    match mode {
        Err(error) if error.is_unsupported() => Ok(false),
        mode => mode,
    }
}

fn limit_range(
    constraints: Result<(u32, u32), GpuError>,
    default: Result<u32, GpuError>,
) -> Result<LimitRange, GpuError> {
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

    #[test]
    fn only_a_lost_gpu_ends_the_query() {
        assert_eq!(unless_gone(call::POWER, Ok(1)), Ok(Ok(1)));
        assert_eq!(unless_gone::<u32>(call::POWER, Err(NvmlError::NotSupported)), Ok(unsupported(call::POWER)));
        assert_eq!(unless_gone::<u32>(call::POWER, Err(NvmlError::GpuLost)), Err(GpuError::Lost { call: call::POWER }));
        assert!(unless_gone::<u32>(call::POWER, Err(NvmlError::Uninitialized)).is_err());
    }
}
