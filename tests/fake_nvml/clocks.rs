//! Clocks: current ones, lockable ones, and the lock. As in NVML, no call returns the lock.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{self as sys, nvmlClockType_t, nvmlDevice_t, nvmlReturn_t};

use crate::{
    calls::{Call, code, on_gpu, on_write, put},
    codes::{INSUFFICIENT_SIZE, INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND, NOT_SUPPORTED, Outcome},
};

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetClockInfo(
    device: nvmlDevice_t,
    kind: nvmlClockType_t,
    out: *mut c_uint,
) -> nvmlReturn_t {
    let clock = on_gpu("nvmlDeviceGetClockInfo", &device, |c| {
        let state = c.state();
        of_kind(kind, c.gpu().mem_clock_mhz, c.gpu().clock_mhz(state.limit_mw, state.lock_mhz))
    });
    // SAFETY: the caller passes a place for the value, or null.
    code(clock.and_then(|v| unsafe { put(out, v) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMaxClockInfo(
    device: nvmlDevice_t,
    kind: nvmlClockType_t,
    out: *mut c_uint,
) -> nvmlReturn_t {
    let clock =
        on_gpu("nvmlDeviceGetMaxClockInfo", &device, |c| of_kind(kind, c.gpu().mem_clock_mhz, c.gpu().max_clock_mhz));
    // SAFETY: the caller passes a place for the value, or null.
    code(clock.and_then(|v| unsafe { put(out, v) }))
}

fn of_kind(kind: nvmlClockType_t, memory: u32, core: u32) -> Outcome<u32> {
    match kind {
        sys::nvmlClockType_enum_NVML_CLOCK_MEM => Ok(memory),
        sys::nvmlClockType_enum_NVML_CLOCK_GRAPHICS
        | sys::nvmlClockType_enum_NVML_CLOCK_SM
        | sys::nvmlClockType_enum_NVML_CLOCK_VIDEO => Ok(core),
        _ => Err(INVALID_ARGUMENT),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedMemoryClocks(
    device: nvmlDevice_t,
    count: *mut c_uint,
    clocks: *mut c_uint,
) -> nvmlReturn_t {
    let known = on_gpu("nvmlDeviceGetSupportedMemoryClocks", &device, |c| {
        supported(c)?;
        Ok(vec![c.gpu().mem_clock_mhz, 405])
    });
    // SAFETY: the caller passes room for that many, or null.
    code(known.and_then(|known| unsafe { list(&known, count, clocks) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetSupportedGraphicsClocks(
    device: nvmlDevice_t,
    memory: c_uint,
    count: *mut c_uint,
    clocks: *mut c_uint,
) -> nvmlReturn_t {
    let known = on_gpu("nvmlDeviceGetSupportedGraphicsClocks", &device, |c| {
        supported(c)?;
        match memory {
            405 => Ok(vec![420, 405]),
            _ if memory == c.gpu().mem_clock_mhz => Ok(c.gpu().lockable_clocks()),
            _ => Err(NOT_FOUND),
        }
    });
    // SAFETY: the caller passes room for that many, or null.
    code(known.and_then(|known| unsafe { list(&known, count, clocks) }))
}

/// Writes a list to the caller's buffer, or returns its length if the buffer is too small.
///
/// # Safety
/// `count` may be read and written, and `out` written that many times; either may be null.
unsafe fn list(known: &[c_uint], count: *mut c_uint, out: *mut c_uint) -> Outcome<()> {
    if count.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: not null, and the caller answers for the rest.
    let room = unsafe { count.replace(known.len() as c_uint) };
    if known.len() > room as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    for (i, clock) in known.iter().enumerate() {
        // SAFETY: there is room for all of them.
        unsafe { put(out.wrapping_add(i), *clock) }?;
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetGpuLockedClocks(device: nvmlDevice_t, min: c_uint, max: c_uint) -> nvmlReturn_t {
    let call = "nvmlDeviceSetGpuLockedClocks";
    on_write(call, device, &format!("{min},{max}"), |c, held| {
        permit(c)?;
        let known = c.gpu().lockable_clocks();
        if min > max || !known.contains(&min) || !known.contains(&max) {
            return Err(INVALID_ARGUMENT);
        }
        c.change(held, |state| state.lock_mhz = max);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceResetGpuLockedClocks(device: nvmlDevice_t) -> nvmlReturn_t {
    on_write("nvmlDeviceResetGpuLockedClocks", device, "-", |c, held| {
        permit(c)?;
        c.change(held, |state| state.lock_mhz = 0);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetMemoryLockedClocks(device: nvmlDevice_t, min: c_uint, max: c_uint) -> nvmlReturn_t {
    on_write("nvmlDeviceSetMemoryLockedClocks", device, &format!("{min},{max}"), |c, held| {
        permit(c)?;
        let known = [405, c.gpu().mem_clock_mhz];
        if min > max || !known.contains(&min) || !known.contains(&max) {
            return Err(INVALID_ARGUMENT);
        }
        c.change(held, |state| state.memory_lock_mhz = max);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceResetMemoryLockedClocks(device: nvmlDevice_t) -> nvmlReturn_t {
    on_write("nvmlDeviceResetMemoryLockedClocks", device, "-", |c, held| {
        permit(c)?;
        c.change(held, |state| state.memory_lock_mhz = 0);
        Ok(())
    })
}

fn supported(call: &mut Call<'_>) -> Outcome<()> {
    if call.gpu().clocks_supported { Ok(()) } else { Err(NOT_SUPPORTED) }
}

/// Refuses callers without the permission to set limits: the real driver requires the same for both.
fn permit(call: &mut Call<'_>) -> Outcome<()> {
    supported(call)?;
    let gpu = call.gpu();
    if gpu.deny_set_limit || gpu.deny_clocks { Err(NO_PERMISSION) } else { Ok(()) }
}
