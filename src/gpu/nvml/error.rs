//! Converts NVML's errors into [`GpuError`].

use nvml_wrapper::error::NvmlError;

use crate::gpu::GpuError;

/// NVML's code for a call that newer drivers no longer support; the wrapper (crate `nvml-wrapper`) does not know it.
const DEPRECATED: u32 = 26;
/// NVML's code for a GPU that is no longer present; the wrapper does not know it.
const GPU_NOT_FOUND: u32 = 28;
/// The first of NVML's error codes that the wrapper does not know. The wrapper reports an unknown error code as an
/// unexpected enum variant with that number. For the calls made here, numbers of truly unexpected enum variants are all
/// smaller.
const FIRST_UNKNOWN_CODE: u32 = 23;

/// Converts the error of `call`.
pub(super) fn gpu_error(call: &'static str, error: NvmlError) -> GpuError {
    match error {
        NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::UnexpectedVariant(GPU_NOT_FOUND) => {
            GpuError::Lost { call }
        }
        NvmlError::NoPermission => GpuError::NoPermission { call },
        NvmlError::NotSupported | NvmlError::VgpuEccNotSupported | NvmlError::UnexpectedVariant(DEPRECATED) => {
            GpuError::NotSupported { call }
        }
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => GpuError::MissingSymbol { call },
        NvmlError::UnexpectedVariant(code) if code >= FIRST_UNKNOWN_CODE => {
            GpuError::Driver { call, message: format!("the driver returned code {code} (nvmlReturn_t)") }
        }
        other => GpuError::Driver { call, message: other.to_string() },
    }
}

/// Converts the error of a lookup by UUID: a GPU that the driver does not find counts as lost.
pub(super) fn lookup_error(call: &'static str, error: NvmlError) -> GpuError {
    match error {
        // Drivers return different codes for an unknown UUID.
        NvmlError::NotFound | NvmlError::InvalidArg => GpuError::Lost { call },
        other => gpu_error(call, other),
    }
}

/// Returns true if this error means that the GPU's handle is invalid, so that the GPU has to be looked up again.
pub(super) fn is_gpu_lost(error: &NvmlError) -> bool {
    is_stale(error)
        || matches!(error, NvmlError::GpuLost | NvmlError::ResetRequired | NvmlError::UnexpectedVariant(GPU_NOT_FOUND))
}

/// Returns true if this error means that the driver was unloaded or replaced, so that the library has to be opened
/// again.
pub(super) fn is_stale(error: &NvmlError) -> bool {
    matches!(error, NvmlError::Uninitialized | NvmlError::DriverNotLoaded | NvmlError::LibRmVersionMismatch)
}

#[cfg(test)]
mod tests {
    use nvml_wrapper::error::Bits;

    use super::*;

    const CALL: &str = "nvmlDeviceGetPowerUsage";

    fn driver(message: &str) -> GpuError {
        GpuError::Driver { call: CALL, message: message.into() }
    }

    #[test]
    fn every_error_is_mapped() {
        use NvmlError::*;
        let lost = GpuError::Lost { call: CALL };
        let unsupported = GpuError::NotSupported { call: CALL };
        let missing = GpuError::MissingSymbol { call: CALL };
        #[expect(deprecated, reason = "the driver may still return it")]
        let already = AlreadyInitialized;
        let not_utf8 = String::from_utf8(vec![0xff]).expect_err("not UTF-8").utf8_error();
        let nul = std::ffi::CString::new("a\0b").expect_err("has a nul");
        let cases = [
            (GpuLost, lost.clone()),
            (ResetRequired, lost.clone()),
            (UnexpectedVariant(28), lost),
            (NoPermission, GpuError::NoPermission { call: CALL }),
            (NotSupported, unsupported.clone()),
            (VgpuEccNotSupported, unsupported.clone()),
            (UnexpectedVariant(26), unsupported),
            (FailedToLoadSymbol("undefined symbol".into()), missing.clone()),
            (FunctionNotFound, missing),
            (UnexpectedVariant(27), driver("the driver returned code 27 (nvmlReturn_t)")),
            (UnexpectedVariant(7), driver("unexpected enum variant value: 7")),
            (Uninitialized, driver("NVML was not first initialized with `Nvml::init()`")),
            (InvalidArg, driver("a supplied argument was invalid")),
            (already, driver("NVML was already initialized")),
            (NotFound, driver("a query to find an object was unsuccessful")),
            (InsufficientSize(Some(4)), driver("an input argument is not large enough, needs to be at least 4")),
            (InsufficientPower, driver("device's external power cables are not properly attached")),
            (DriverNotLoaded, driver("NVIDIA driver is not loaded")),
            (Timeout, driver("the provided timeout was reached")),
            (IrqIssue, driver("NVIDIA kernel detected an interrupt issue with a device")),
            (LibraryNotFound, driver("a shared library couldn't be found or loaded")),
            (CorruptedInfoROM, driver("the infoROM is corrupted")),
            (OperatingSystem, driver("device control has been blocked by the operating system/cgroups")),
            (LibRmVersionMismatch, driver("RM detects a driver/library version mismatch")),
            (InUse, driver("operation cannot be performed because the GPU is currently in use")),
            (InsufficientMemory, driver("insufficient memory")),
            (NoData, driver("no data")),
            (Unknown, driver("an internal driver error occurred")),
            (Utf8Error(not_utf8), driver("could not interpret string as utf-8")),
            (NulError(nul), driver("nul byte inside string")),
            (StringTooLong { max_len: 1, actual_len: 2 }, driver("max string length was 1 but string length is 2")),
            (
                IncorrectBits(Bits::U32(9)),
                driver("invalid combination of bits (U32(9)) when trying to interpret as bitflags"),
            ),
            (SetReleaseFailed, driver("a call to `EventSet.release_events()` failed")),
            (GetPciInfoFailed, driver("a call to `Device.pci_info()` failed")),
            (PciInfoToCFailed, driver("a call to `PciInfo.try_into_c()` failed")),
        ];
        for (refusal, meaning) in cases {
            let gone = is_gpu_lost(&refusal);
            let mapped = gpu_error(CALL, refusal);
            assert_eq!(mapped, meaning);
            // A lost GPU is looked up again, and so is a GPU whose driver was unloaded.
            assert!(gone || !matches!(mapped, GpuError::Lost { .. }), "{mapped}");
        }
    }

    #[test]
    fn only_an_unloaded_driver_makes_the_library_stale() {
        for stale in [NvmlError::Uninitialized, NvmlError::DriverNotLoaded, NvmlError::LibRmVersionMismatch] {
            assert!(is_stale(&stale) && is_gpu_lost(&stale), "{stale}");
        }
        assert!(!is_stale(&NvmlError::GpuLost));
        for harmless in [NvmlError::Unknown, NvmlError::Timeout, NvmlError::NoPermission, NvmlError::NotSupported] {
            assert!(!is_gpu_lost(&harmless), "{harmless}");
        }
    }

    #[test]
    fn an_unknown_uuid_is_a_lost_gpu() {
        for unknown in [NvmlError::NotFound, NvmlError::InvalidArg, NvmlError::GpuLost] {
            assert_eq!(lookup_error(CALL, unknown), GpuError::Lost { call: CALL });
        }
        assert_eq!(lookup_error(CALL, NvmlError::DriverNotLoaded), driver("NVIDIA driver is not loaded"));
    }
}
