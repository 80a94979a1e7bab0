//! The activity of a GPU: temperature, load, processes.

use std::ffi::{c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    self as sys, nvmlDevice_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationSample_t,
    nvmlReturn_t, nvmlTemperature_t, nvmlTemperatureSensors_t, nvmlUtilization_t,
};

use crate::{
    calls::{Call, code, on_gpu, put},
    codes::{INSUFFICIENT_SIZE, INVALID_ARGUMENT, NOT_FOUND, Outcome, VERSION_MISMATCH},
    state::unix_ns,
};

/// The first PID of the simulated processes: larger than any PID on Linux.
const FIRST_PID: c_uint = (1 << 22) + 1;
const MEMORY_EACH: c_ulonglong = 1 << 30;
const NO_INSTANCE: c_uint = c_uint::MAX;
/// The interval between samples of process use, in microseconds.
const SAMPLED_US: c_ulonglong = 100_000;

getters! {
    nvmlDeviceGetCurrentClocksThrottleReasons(c_ulonglong) =
        |c| Ok(c.gpu().reasons(unix_ns(), c.state().limit_mw, c.state().lock_mhz));
    nvmlDeviceGetCurrentClocksEventReasons(c_ulonglong) =
        |c| Ok(c.gpu().reasons(unix_ns(), c.state().limit_mw, c.state().lock_mhz));
    nvmlDeviceGetUtilizationRates(nvmlUtilization_t) = |c| {
        let gpu = c.gpu();
        let gpu = gpu.utilization.unwrap_or(if gpu.idle { 0 } else { 100 });
        Ok(nvmlUtilization_t { gpu, memory: gpu / 2 })
    };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: nvmlDevice_t,
    sensor: nvmlTemperatureSensors_t,
    out: *mut c_uint,
) -> nvmlReturn_t {
    let read = on_gpu("nvmlDeviceGetTemperature", &device, |c| celsius(c, sensor));
    // SAFETY: the caller passes a place for the value, or null.
    code(read.and_then(|t| unsafe { put(out, t.unsigned_abs()) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetTemperatureV(device: nvmlDevice_t, out: *mut nvmlTemperature_t) -> nvmlReturn_t {
    if out.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and the caller filled in the version and the sensor.
    let asked = unsafe { out.read() };
    if asked.version != size_of::<nvmlTemperature_t>() as c_uint | 1 << 24 {
        return VERSION_MISMATCH;
    }
    let read = on_gpu("nvmlDeviceGetTemperatureV", &device, |c| celsius(c, asked.sensorType));
    let answer = read.map(|temperature| nvmlTemperature_t { temperature, ..asked });
    // SAFETY: as above.
    code(answer.and_then(|a| unsafe { put(out, a) }))
}

fn celsius(call: &mut Call<'_>, sensor: nvmlTemperatureSensors_t) -> Outcome<i32> {
    if sensor == sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU {
        Ok(call.gpu().temperature_c)
    } else {
        Err(INVALID_ARGUMENT)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_v1_t,
) -> nvmlReturn_t {
    let call = "nvmlDeviceGetComputeRunningProcesses";
    let info = |pid| nvmlProcessInfo_v1_t { pid, usedGpuMemory: MEMORY_EACH };
    // SAFETY: the caller passes room for that many, or null.
    code(unsafe { processes(call, device, count, infos, info) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_v2_t,
) -> nvmlReturn_t {
    let call = "nvmlDeviceGetComputeRunningProcesses_v2";
    // SAFETY: the caller passes room for that many, or null.
    code(unsafe { processes(call, device, count, infos, info_v2) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_v2_t,
) -> nvmlReturn_t {
    let call = "nvmlDeviceGetComputeRunningProcesses_v3";
    // SAFETY: the caller passes room for that many, or null.
    code(unsafe { processes(call, device, count, infos, info_v2) })
}

fn info_v2(pid: c_uint) -> nvmlProcessInfo_v2_t {
    nvmlProcessInfo_v2_t { pid, usedGpuMemory: MEMORY_EACH, gpuInstanceId: NO_INSTANCE, computeInstanceId: NO_INSTANCE }
}

/// Returns one sample for each process with any use that is newer than requested. Like the real library, returns "not
/// found" instead of an empty list.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetProcessUtilization(
    device: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    since: c_ulonglong,
) -> nvmlReturn_t {
    let call = "nvmlDeviceGetProcessUtilization";
    if count.is_null() {
        return INVALID_ARGUMENT;
    }
    let read = on_gpu(call, &device, |c| {
        let now = unix_ns() / 1000;
        let at = now - now % SAMPLED_US;
        let used = c.gpu().process_utilization.iter().filter(|(_, percent)| **percent > 0 && at > since);
        let sample = |(pid, percent): (&c_uint, &c_uint)| nvmlProcessUtilizationSample_t {
            pid: *pid,
            timeStamp: at,
            smUtil: *percent,
            memUtil: 0,
            encUtil: 0,
            decUtil: 0,
        };
        let list: Vec<_> = used.map(sample).collect();
        if list.is_empty() { Err(NOT_FOUND) } else { Ok(list) }
    });
    let list = match read {
        Ok(list) => list,
        Err(code) => return code,
    };
    // SAFETY: not null, and the caller answers for the rest.
    let room = unsafe { count.replace(list.len() as c_uint) };
    if list.len() > room as usize || samples.is_null() {
        return INSUFFICIENT_SIZE;
    }
    for (i, sample) in list.into_iter().enumerate() {
        // SAFETY: there is room for all of them.
        if let Err(code) = unsafe { put(samples.wrapping_add(i), sample) } {
            return code;
        }
    }
    code(Ok(()))
}

/// Lists the processes, or returns their number if the buffer is too small.
///
/// # Safety
/// `count` may be read and written, and `infos` written that many times; either may be null.
unsafe fn processes<T>(
    call: &str,
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut T,
    info: impl Fn(c_uint) -> T,
) -> Outcome<()> {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    let running: Vec<c_uint> = on_gpu(call, &device, |c| {
        let gpu = c.gpu();
        Ok(gpu.process_ids.iter().copied().chain((0..gpu.processes).map(|i| FIRST_PID + i)).collect())
    })?;
    // SAFETY: not null, and the caller answers for the rest.
    let room = unsafe { count.replace(running.len() as c_uint) };
    if running.len() > room as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    for (i, pid) in running.into_iter().enumerate() {
        // SAFETY: there is room for all that run.
        unsafe { put(infos.wrapping_add(i), info(pid)) }?;
    }
    Ok(())
}
