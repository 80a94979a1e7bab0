//! Opening and closing the library, and its versions.

use std::ffi::{c_char, c_int, c_uint};

use nvml_wrapper_sys::bindings::nvmlReturn_t;

use crate::{
    calls::{close, code, on_system, open, put, put_text},
    codes,
};

/// The newest CUDA version that the fake driver supports: 13.0.
const CUDA: c_int = 13_000;

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    code(open("nvmlInit_v2"))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> nvmlReturn_t {
    code(open("nvmlInitWithFlags"))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    code(close())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: nvmlReturn_t) -> *const c_char {
    codes::text(result).as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(out: *mut c_char, length: c_uint) -> nvmlReturn_t {
    let version = on_system("nvmlSystemGetDriverVersion", |driver| Ok(driver.script.driver_version.clone()));
    // SAFETY: the caller passes a buffer of that length, or null.
    code(version.and_then(|v| unsafe { put_text(out, length, &v) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(out: *mut c_char, length: c_uint) -> nvmlReturn_t {
    let version = on_system("nvmlSystemGetNVMLVersion", |driver| Ok(format!("13.{}", driver.script.driver_version)));
    // SAFETY: the caller passes a buffer of that length, or null.
    code(version.and_then(|v| unsafe { put_text(out, length, &v) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion(out: *mut c_int) -> nvmlReturn_t {
    let version = on_system("nvmlSystemGetCudaDriverVersion", |_| Ok(CUDA));
    // SAFETY: the caller passes a place for the value, or null.
    code(version.and_then(|v| unsafe { put(out, v) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(out: *mut c_int) -> nvmlReturn_t {
    let version = on_system("nvmlSystemGetCudaDriverVersion_v2", |_| Ok(CUDA));
    // SAFETY: the caller passes a place for the value, or null.
    code(version.and_then(|v| unsafe { put(out, v) }))
}
