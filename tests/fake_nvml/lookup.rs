//! The number of GPUs and the look-up of handles.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlReturn_t};

use crate::{
    calls::{code, on_gpu, on_system, put, take_text},
    codes::{INVALID_ARGUMENT, NOT_FOUND, Outcome},
    gpu::{FakeGpu, pci_address},
};

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetCount_v2(out: *mut c_uint) -> nvmlReturn_t {
    let count = on_system("nvmlDeviceGetCount_v2", |driver| Ok(driver.count()));
    // SAFETY: the caller passes a place for the value, or null.
    code(count.and_then(|v| unsafe { put(out, v) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut nvmlDevice_t) -> nvmlReturn_t {
    let found = handle("nvmlDeviceGetHandleByIndex_v2", &|i, _: &FakeGpu| i == index)
        // The real library calls an index beyond the count an invalid argument, not an unknown GPU.
        .map_err(|c| if c == NOT_FOUND { INVALID_ARGUMENT } else { c });
    // SAFETY: the caller passes a place for the handle, or null.
    code(found.and_then(|h| unsafe { put(out, h) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, out: *mut nvmlDevice_t) -> nvmlReturn_t {
    // SAFETY: the caller passes a C string, or null.
    let found = unsafe { take_text(uuid) }
        .and_then(|uuid| handle("nvmlDeviceGetHandleByUUID", &|_, b: &FakeGpu| b.uuid == uuid));
    // SAFETY: the caller passes a place for the handle, or null.
    code(found.and_then(|h| unsafe { put(out, h) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(bus_id: *const c_char, out: *mut nvmlDevice_t) -> nvmlReturn_t {
    // SAFETY: the caller passes a C string, or null.
    let found = unsafe { take_text(bus_id) }.and_then(|text| {
        let wanted = pci_address(&text).ok_or(INVALID_ARGUMENT)?;
        handle("nvmlDeviceGetHandleByPciBusId_v2", &|_, b: &FakeGpu| b.pci() == Some(wanted))
    });
    // SAFETY: the caller passes a place for the handle, or null.
    code(found.and_then(|h| unsafe { put(out, h) }))
}

fn handle(call: &str, wanted: &impl Fn(u32, &FakeGpu) -> bool) -> Outcome<nvmlDevice_t> {
    on_gpu(call, wanted, |c| Ok(c.handle()))
}
