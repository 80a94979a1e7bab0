//! Power, energy and limits.

use std::ffi::{c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings::{
    self as sys,
    field_id::{
        NVML_FI_DEV_ENERGY, NVML_FI_DEV_POWER_AVERAGE, NVML_FI_DEV_POWER_CURRENT_LIMIT,
        NVML_FI_DEV_POWER_DEFAULT_LIMIT, NVML_FI_DEV_POWER_INSTANT, NVML_FI_DEV_POWER_MAX_LIMIT,
        NVML_FI_DEV_POWER_MIN_LIMIT, NVML_FI_DEV_POWER_REQUESTED_LIMIT, NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
    },
    nvmlDevice_t, nvmlEnableState_t, nvmlFieldValue_t, nvmlPowerValue_v2_t, nvmlReturn_t, nvmlValue_t,
};

use crate::{
    calls::{Call, code, on_gpu, on_write, put},
    codes::{INVALID_ARGUMENT, NO_PERMISSION, NOT_SUPPORTED, Outcome, SUCCESS, VERSION_MISMATCH},
    gpu::FakeGpu,
    state::{State, unix_ns},
};

getters! {
    nvmlDeviceGetPowerUsage(c_uint) = |c| Ok(c.state().power_mw(c.gpu(), unix_ns()));
    nvmlDeviceGetTotalEnergyConsumption(c_ulonglong) = energy_mj;
    nvmlDeviceGetPowerManagementMode(nvmlEnableState_t) =
        |c| limit(c, |_, _| sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED);
    nvmlDeviceGetPowerManagementLimit(c_uint) = |c| limit(c, |_, s| s.limit_mw);
    nvmlDeviceGetPowerManagementDefaultLimit(c_uint) = |c| limit(c, |b, _| b.default_mw());
    nvmlDeviceGetEnforcedPowerLimit(c_uint) = |c| limit(c, |b, s| b.enforced_mw(s.limit_mw));
    nvmlDeviceGetPersistenceMode(nvmlEnableState_t) =
        |c| Ok(nvmlEnableState_t::from(c.state().persistence));
}

/// Returns a power limit's value, on a GPU that has limits.
fn limit(call: &mut Call<'_>, value: impl FnOnce(&FakeGpu, State) -> c_uint) -> Outcome<c_uint> {
    if call.gpu().limit_supported { Ok(value(call.gpu(), call.state())) } else { Err(NOT_SUPPORTED) }
}

fn energy_mj(call: &mut Call<'_>) -> Outcome<c_ulonglong> {
    if call.gpu().energy_supported { call.energy_mj() } else { Err(NOT_SUPPORTED) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetPowerManagementLimitConstraints(
    device: nvmlDevice_t,
    min: *mut c_uint,
    max: *mut c_uint,
) -> nvmlReturn_t {
    let call = "nvmlDeviceGetPowerManagementLimitConstraints";
    let range = on_gpu(call, &device, |c| Ok((limit(c, |b, _| b.min_mw())?, limit(c, |b, _| b.max_mw())?)));
    // SAFETY: the caller passes places for the values, or null.
    code(range.and_then(|r| unsafe { put(min, r.0).and_then(|()| put(max, r.1)) }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetPowerManagementLimit(device: nvmlDevice_t, limit: c_uint) -> nvmlReturn_t {
    set_limit("nvmlDeviceSetPowerManagementLimit", device, limit)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceSetPowerManagementLimit_v2(
    device: nvmlDevice_t,
    wanted: *mut nvmlPowerValue_v2_t,
) -> nvmlReturn_t {
    if wanted.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and the caller filled it in.
    let wanted = unsafe { wanted.read() };
    if wanted.version != size_of::<nvmlPowerValue_v2_t>() as c_uint | 2 << 24 {
        return VERSION_MISMATCH;
    }
    if u32::from(wanted.powerScope) != sys::NVML_POWER_SCOPE_GPU {
        return NOT_SUPPORTED;
    }
    let call = "nvmlDeviceSetPowerManagementLimit_v2";
    set_limit(call, device, wanted.powerValueMw)
}

fn set_limit(call: &str, device: nvmlDevice_t, limit_mw: c_uint) -> nvmlReturn_t {
    on_write(call, device, &limit_mw.to_string(), |c, held| {
        let gpu = c.gpu();
        if !gpu.limit_supported {
            return Err(NOT_SUPPORTED);
        }
        if gpu.deny_set_limit {
            return Err(NO_PERMISSION);
        }
        if !(gpu.min_mw()..=gpu.max_mw()).contains(&limit_mw) {
            return Err(INVALID_ARGUMENT);
        }
        c.change(held, |state| state.limit_mw = limit_mw);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceSetPersistenceMode(device: nvmlDevice_t, mode: nvmlEnableState_t) -> nvmlReturn_t {
    let call = "nvmlDeviceSetPersistenceMode";
    on_write(call, device, &mode.to_string(), |c, held| {
        if c.gpu().deny_persistence {
            return Err(NO_PERMISSION);
        }
        if mode > sys::nvmlEnableState_enum_NVML_FEATURE_ENABLED {
            return Err(INVALID_ARGUMENT);
        }
        c.change(held, |state| state.persistence = mode == 1);
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetFieldValues(
    device: nvmlDevice_t,
    count: c_int,
    values: *mut nvmlFieldValue_t,
) -> nvmlReturn_t {
    let Ok(count) = usize::try_from(count) else {
        return INVALID_ARGUMENT;
    };
    if values.is_null() || count == 0 {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and the caller passes that many, filled in.
    let values = unsafe { std::slice::from_raw_parts_mut(values, count) };
    code(on_gpu("nvmlDeviceGetFieldValues", &device, |c| {
        for value in values {
            fill(c, value);
        }
        Ok(())
    }))
}

/// Fills one field with its own return code.
fn fill(call: &mut Call<'_>, field: &mut nvmlFieldValue_t) {
    let now = unix_ns();
    let milliwatts = |mw: c_uint| {
        let kind = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
        (kind, nvmlValue_t { uiVal: mw })
    };
    // The module and its memory are fields of other scopes, which these GPUs do not have.
    let found = match field.fieldId {
        _ if field.scopeId != 0 => Err(NOT_SUPPORTED),
        NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION | NVML_FI_DEV_ENERGY => {
            let kind = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
            energy_mj(call).map(|mj| (kind, nvmlValue_t { ullVal: mj }))
        }
        NVML_FI_DEV_POWER_AVERAGE => Ok(milliwatts(call.state().average_mw())),
        NVML_FI_DEV_POWER_INSTANT => Ok(milliwatts(call.state().power_mw(call.gpu(), now))),
        NVML_FI_DEV_POWER_MIN_LIMIT => limit(call, |b, _| b.min_mw()).map(milliwatts),
        NVML_FI_DEV_POWER_MAX_LIMIT => limit(call, |b, _| b.max_mw()).map(milliwatts),
        NVML_FI_DEV_POWER_DEFAULT_LIMIT => limit(call, |b, _| b.default_mw()).map(milliwatts),
        NVML_FI_DEV_POWER_CURRENT_LIMIT => limit(call, |b, s| b.enforced_mw(s.limit_mw)).map(milliwatts),
        NVML_FI_DEV_POWER_REQUESTED_LIMIT => limit(call, |_, s| s.limit_mw).map(milliwatts),
        _ => Err(NOT_SUPPORTED),
    };
    field.timestamp = (now / 1000) as i64;
    field.latencyUsec = 0;
    match found {
        Ok((kind, value)) => {
            field.valueType = kind;
            field.value = value;
            field.nvmlReturn = SUCCESS;
        }
        Err(refused) => field.nvmlReturn = refused,
    }
}
