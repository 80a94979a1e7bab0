//! One GPU behind the driver's library, NVML.

use std::sync::Arc;
use std::time::Duration;

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::{GpuLockedClocksSetting, SampleValue};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_POWER_INSTANT;

use super::call;
use super::error::gpu_error;
use super::library::Library;
use super::processes::{Sample, since};
use super::properties::StaticProperties;
use super::query::{Answer, Query, unless_gpu_lost};
use super::refusals::Refusals;
use crate::gpu::{Capabilities, Depth, GpuDevice, GpuError, ProcessUse, Reading};
use wattune_core::domain::{ClockLimit, EventReasons, GpuId, GpuIdentity, PowerLimit};
use wattune_core::time::Monotonic;
use wattune_core::units::{Millijoules, Watts};

/// The number of attempts to read a name of the GPU, and the pause between two attempts.
const NAME_TRIES: u32 = 10;
const NAME_AGAIN: Duration = Duration::from_millis(200);

/// A GPU, identified by its UUID.
pub(super) struct NvmlDevice {
    library: Arc<Library>,
    device: Device<'static>,
    identity: GpuIdentity,
    capabilities: Capabilities,
    properties: StaticProperties,
    /// Calls that this GPU or this driver does not support, with their retry times.
    refusals: Refusals,
    /// The time of the newest process-use sample that was read, by the driver's clock.
    processes_seen: u64,
}

impl NvmlDevice {
    pub(super) fn open(library: Arc<Library>, index: u32) -> Result<Self, GpuError> {
        let device = library.nvml().device_by_index(index).map_err(|error| gpu_error(call::HANDLE, error))?;
        let identity = identify(&device, index)?;
        let properties = StaticProperties::probe(&device)?;
        let capabilities = probe(&device, &properties)?;
        let refusals = Refusals::default();
        Ok(Self { library, device, identity, capabilities, properties, refusals, processes_seen: 0 })
    }
}

impl GpuDevice for NvmlDevice {
    fn identity(&self) -> &GpuIdentity {
        &self.identity
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
            if depth != Depth::Requested {
                reading.enforced = query.ask(call::ENFORCED_LIMIT, |d| d.enforced_power_limit().map(limit))?.ok();
            }
            if matches!(depth, Depth::Requested | Depth::Limits) {
                query.end()?;
                return Ok(reading);
            }
        }
        if matches!(depth, Depth::Full | Depth::Retry) {
            // The wrapper (crate `nvml-wrapper`) reads throttle reasons and temperature only by their old NVML names.
            // CUDA 14 drops these names; both values are then absent until the wrapper is updated.
            reading.reasons = query
                .ask(call::REASONS, |d| d.current_throttle_reasons().map(|r| EventReasons::from_bits(r.bits())))?
                .ok();
            reading.temperature_c =
                query.ask(call::TEMPERATURE, |d| d.temperature(TemperatureSensor::Gpu).map(f64::from))?.ok();
            reading.sm_clock_mhz = query.ask(call::CLOCK, |d| d.clock_info(Clock::SM))?.ok();
            let persistence = query.ask(call::PERSISTENCE, |d| d.is_in_persistent_mode())?;
            (reading.persistence, can.persistence) = split(persistence);
            // Reads only the number of processes, not the list.
            reading.processes = query.ask(call::PROCESSES, |d| d.running_compute_processes_count())?.ok();
            self.properties.renew(&mut query)?;
            (can.mig, can.virtualised, can.limits, can.clocks) = self.properties.capabilities();
        }
        // Energy is read last: the caller reads the clock as soon as `read` returns, and that time must fit the energy.
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
            // No process ran since the last call, or the number of processes just grew; the next call succeeds.
            Err(NvmlError::NotFound | NvmlError::InsufficientSize(_)) => Vec::new(),
            Err(error) => return Err(gpu_error(call::PROCESS_USE, error)),
        };
        let samples = samples.iter().map(|s| Sample { at: s.timestamp, pid: s.pid, percent: s.sm_util });
        let (used, newest) = since(self.processes_seen, samples);
        self.processes_seen = newest;
        Ok(used)
    }

    fn processes(&mut self) -> Result<Vec<u32>, GpuError> {
        let list = self.device.running_compute_processes().map_err(|error| gpu_error(call::PROCESSES, error))?;
        Ok(list.into_iter().map(|process| process.pid).collect())
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
        // The locked range starts at the lowest clock, so that the GPU can idle.
        let lowest = self.capabilities.clocks.as_ref().map_err(GpuError::clone)?.min();
        self.lock_clock_range(lowest.megahertz(), highest.megahertz())
    }

    fn reset_clocks(&mut self) -> Result<(), GpuError> {
        self.device.reset_gpu_locked_clocks().map_err(|error| gpu_error(call::RESET_CLOCKS, error))
    }

    fn lock_clock_range(&mut self, min_mhz: u32, max_mhz: u32) -> Result<(), GpuError> {
        let setting = GpuLockedClocksSetting::Numeric { min_clock_mhz: min_mhz, max_clock_mhz: max_mhz };
        self.device.set_gpu_locked_clocks(setting).map_err(|error| gpu_error(call::LOCK_CLOCKS, error))
    }

    fn lock_memory_clocks(&mut self, min_mhz: u32, max_mhz: u32) -> Result<(), GpuError> {
        self.device.set_mem_locked_clocks(min_mhz, max_mhz).map_err(|error| gpu_error(call::LOCK_MEMORY_CLOCKS, error))
    }

    fn reset_memory_clocks(&mut self) -> Result<(), GpuError> {
        self.device.reset_mem_locked_clocks().map_err(|error| gpu_error(call::RESET_MEMORY_CLOCKS, error))
    }

    fn set_persistence(&mut self, on: bool) -> Result<(), GpuError> {
        self.device.set_persistent(on).map_err(|error| gpu_error(call::SET_PERSISTENCE, error))?;
        // On GPUs with coherent memory, turning persistence mode off invalidates every handle. If the lookup of a new
        // handle fails too, the next read fails.
        if !on && let Ok(device) = self.library.find(&self.identity.id) {
            self.device = device;
        }
        Ok(())
    }

    fn reopen(&mut self) -> Result<(), GpuError> {
        let device = self.library.find(&self.identity.id)?;
        // The driver may be another version now, with other capabilities.
        let properties = StaticProperties::probe(&device)?;
        self.capabilities = probe(&device, &properties)?;
        (self.device, self.properties) = (device, properties);
        self.refusals = Refusals::default();
        self.processes_seen = 0;
        Ok(())
    }
}

/// Splits an answer into the value, if any, and the reason why there is none.
fn split<T>(answer: Answer<T>) -> (Option<T>, Answer<()>) {
    match answer {
        Ok(value) => (Some(value), Ok(())),
        Err(error) => (None, Err(error)),
    }
}

fn identify(device: &Device<'_>, index: u32) -> Result<GpuIdentity, GpuError> {
    let uuid = device.uuid().map_err(|error| gpu_error(call::UUID, error))?;
    let id = GpuId::new(uuid).map_err(|error| GpuError::Driver { call: call::UUID, message: error.to_string() })?;
    let pci_bus_id = read_name(call::PCI, || device.pci_info().map(|pci| pci.bus_id))?;
    let model = read_name(call::NAME, || device.name())?;
    Ok(GpuIdentity { id, index, pci_bus_id, model, simulated: false })
}

/// Reads a name of the GPU; "unknown" if several attempts fail. Names are shown to people and stored profiles are found
/// by the model's name, but wattune can use a GPU without a name, so the number of attempts is limited.
fn read_name(call: &'static str, get: impl Fn() -> Result<String, NvmlError>) -> Result<String, GpuError> {
    for _ in 0..NAME_TRIES {
        if let Ok(name) = unless_gpu_lost(call, get())? {
            return Ok(name);
        }
        std::thread::sleep(NAME_AGAIN);
    }
    Ok("unknown".into())
}

fn probe(device: &Device<'_>, properties: &StaticProperties) -> Result<Capabilities, GpuError> {
    let power = match unless_gpu_lost(call::FIELDS, newest_power(device))? {
        Ok(power) => Ok(power),
        Err(_) => unless_gpu_lost(call::POWER, default_power(device))?,
    };
    let (mig, virtualised, limits, clocks) = properties.capabilities();
    Ok(Capabilities {
        energy_counter: unless_gpu_lost(call::ENERGY, device.total_energy_consumption().map(drop))?,
        power: power.map(drop),
        limit: unless_gpu_lost(call::LIMIT, device.power_management_limit().map(drop))?,
        persistence: unless_gpu_lost(call::PERSISTENCE, device.is_in_persistent_mode().map(drop))?,
        mig,
        virtualised,
        limits,
        clocks,
        driver: device.nvml().sys_driver_version().unwrap_or_else(|_| "unknown".into()),
    })
}

/// Reads the newest power sample: field 186 of `nvmlDeviceGetFieldValues`, preferred if the driver has it.
///
/// The alternative, `nvmlDeviceGetPowerUsage`, is a one-second average on Ampere (except GA100) and newer GPUs, and the
/// newest sample on older ones.
///
/// Both values are the GPU's own draw, because the wrapper leaves the scope of field values at 0. The draw of a whole
/// GH200 or GB200 module with CPU and memory (scope 1) is therefore unavailable. On GH200 the newest sample was
/// nevertheless observed to include the CPU's draw (arXiv 2312.02741).
fn newest_power(device: &Device<'_>) -> Result<Watts, NvmlError> {
    let mut samples = device.field_values_for(&[FieldId(NVML_FI_DEV_POWER_INSTANT)])?;
    let sample = samples.pop().ok_or(NvmlError::NoData)??;
    match sample.value? {
        SampleValue::U32(milliwatts) if milliwatts > 0 => Ok(Watts::from_milliwatts(milliwatts)),
        // A driver that does not know the field may report success and leave the wrapper's initial value, zero.
        _ => Err(NvmlError::NotSupported),
    }
}

fn default_power(device: &Device<'_>) -> Result<Watts, NvmlError> {
    device.power_usage().map(Watts::from_milliwatts)
}
