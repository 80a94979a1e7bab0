//! The identity of a GPU: names, numbers, address, modes.

use std::ffi::{c_char, c_uint};

use nvml_wrapper_sys::bindings::{
    self as sys, nvmlDevice_t, nvmlDeviceArchitecture_t, nvmlGpuVirtualizationMode_t, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlPciInfo_t, nvmlReturn_t,
};

use crate::{
    calls::{Call, code, on_gpu, put, put_text},
    codes::{INVALID_ARGUMENT, Outcome, VERSION_MISMATCH},
};

/// An A40 on the bus: device 2235 of vendor 10DE.
const PCI_DEVICE: c_uint = 0x2235_10DE;
const PCI_SUBSYSTEM: c_uint = 0x145A_10DE;

const MEMORY_TOTAL: u64 = 48 << 30;
const MEMORY_RESERVED: u64 = 512 << 20;
const MEMORY_USED_EACH: u64 = 1 << 30;

getters! {
    nvmlDeviceGetIndex(c_uint) = |c| c.index();
    nvmlDeviceGetMinorNumber(c_uint) = |c| c.index();
    nvmlDeviceGetArchitecture(nvmlDeviceArchitecture_t) = |_| Ok(sys::NVML_DEVICE_ARCH_AMPERE);
    nvmlDeviceGetPciInfo_v2(nvmlPciInfo_t) = pci_info;
    nvmlDeviceGetPciInfo_v3(nvmlPciInfo_t) = pci_info;
    nvmlDeviceGetVirtualizationMode(nvmlGpuVirtualizationMode_t) = |c| Ok(if c.gpu().vgpu {
        sys::nvmlGpuVirtualizationMode_NVML_GPU_VIRTUALIZATION_MODE_VGPU
    } else {
        sys::nvmlGpuVirtualizationMode_NVML_GPU_VIRTUALIZATION_MODE_NONE
    });
    nvmlDeviceGetMemoryInfo(nvmlMemory_t) = |c| {
        let used = used_memory(c);
        Ok(nvmlMemory_t { total: MEMORY_TOTAL, free: MEMORY_TOTAL - used, used })
    };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(device: nvmlDevice_t, out: *mut c_char, length: c_uint) -> nvmlReturn_t {
    let name = on_gpu("nvmlDeviceGetName", &device, |c| Ok(c.gpu().name.clone()));
    // SAFETY: the caller passes a buffer of that length, or null.
    code(name.and_then(|v| unsafe { put_text(out, length, &v) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(device: nvmlDevice_t, out: *mut c_char, length: c_uint) -> nvmlReturn_t {
    let uuid = on_gpu("nvmlDeviceGetUUID", &device, |c| Ok(c.gpu().uuid.clone()));
    // SAFETY: the caller passes a buffer of that length, or null.
    code(uuid.and_then(|v| unsafe { put_text(out, length, &v) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: nvmlDevice_t,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> nvmlReturn_t {
    let mode = on_gpu("nvmlDeviceGetMigMode", &device, |c| Ok(c_uint::from(c.gpu().mig_mode)));
    // SAFETY: the caller passes places for the values, or null.
    code(mode.and_then(|m| unsafe { put(current, m).and_then(|()| put(pending, m)) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, out: *mut nvmlMemory_v2_t) -> nvmlReturn_t {
    if out.is_null() {
        return INVALID_ARGUMENT;
    }
    let version = size_of::<nvmlMemory_v2_t>() as c_uint | 2 << 24;
    // SAFETY: not null, and the caller filled in the version.
    if unsafe { (*out).version } != version {
        return VERSION_MISMATCH;
    }
    let used = on_gpu("nvmlDeviceGetMemoryInfo_v2", &device, |c| Ok(used_memory(c)));
    let memory = used.map(|used| nvmlMemory_v2_t {
        version,
        total: MEMORY_TOTAL,
        reserved: MEMORY_RESERVED,
        free: MEMORY_TOTAL - MEMORY_RESERVED - used,
        used,
    });
    // SAFETY: as above.
    code(memory.and_then(|m| unsafe { put(out, m) }))
}

fn used_memory(call: &mut Call<'_>) -> u64 {
    (u64::from(call.gpu().processes) * MEMORY_USED_EACH).min(MEMORY_TOTAL - MEMORY_RESERVED)
}

fn pci_info(call: &mut Call<'_>) -> Outcome<nvmlPciInfo_t> {
    let (domain, bus, device) = call.gpu().pci().unwrap_or_default();
    let mut info = nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain,
        bus,
        device,
        pciDeviceId: PCI_DEVICE,
        pciSubSystemId: PCI_SUBSYSTEM,
        busId: [0; 32],
    };
    // Both texts are shorter than their fields, which therefore keep their NULs.
    for (to, byte) in
        info.busIdLegacy.iter_mut().zip(format!("{:04X}:{bus:02X}:{device:02X}.0", domain & 0xFFFF).bytes())
    {
        *to = byte as c_char;
    }
    for (to, byte) in info.busId.iter_mut().zip(format!("{domain:08X}:{bus:02X}:{device:02X}.0").bytes()) {
        *to = byte as c_char;
    }
    Ok(info)
}
