//! The driver's library: finds it, opens it, and reopens it after a driver reload.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};

use super::error::{is_stale, lookup_error};
use crate::files::regular;
use crate::gpu::GpuError;
use wattune_core::domain::GpuId;

/// The default file names of the library: first the name that drivers install, then the name in development packages.
const DEFAULT_NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// Settings for access to the NVIDIA driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The path of the driver's library, needed if the dynamic linker does not find it by its usual names.
    pub library: Option<PathBuf>,
}

/// The reason why the driver's library cannot be used.
#[expect(missing_docs, reason = "the messages explain the fields")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No library file was found.
    #[error(
        "no NVIDIA driver found: {}; install the driver, or name its library (--nvml-library, gpus.nvml.library); a container needs the \
         NVIDIA runtime (docker run --gpus all)", tried.join("; ")
    )]
    NoDriver { tried: Vec<String> },
    /// The file is not an NVML library.
    #[error(
        "{} is not a usable NVML library: {message}; gpus.nvml.library must name the driver's libnvidia-ml.so.1, built for \
         this machine", path.display()
    )]
    NotNvml { path: PathBuf, message: String },
    /// The library is installed, but the driver's kernel module is not loaded.
    #[error(
        "the NVIDIA driver is installed ({}) but not loaded: try modprobe nvidia, then look for NVRM in dmesg",
        path.display()
    )]
    DriverNotLoaded { path: PathBuf },
    /// The permission to read the library or the driver's device files is missing.
    #[error(
        "no permission to use the NVIDIA driver through {}: {message}; this user must be able to read it, and to read \
         and write /dev/nvidiactl and /dev/nvidia0, 1, …", path.display()
    )]
    NoPermission { path: PathBuf, message: String },
    /// The library and the running kernel module have different versions.
    #[error(
        "{} and the loaded NVIDIA kernel module are of different versions, as after an update: reload the module or \
         reboot; in a container, use the host's library", path.display()
    )]
    VersionMismatch { path: PathBuf },
    /// Any other failure, with the driver's message.
    #[error("{call} in {} failed: {message}; nvidia-smi should fail likewise", path.display())]
    Driver { path: PathBuf, call: &'static str, message: String },
}

/// The opened library of the driver.
///
/// The library is leaked once per process, because the wrapper's handles borrow it and GPU threads live until the
/// process ends. After a driver reload it is opened and leaked once more, which takes a few kilobytes. The end of the
/// process closes it.
///
/// An open library preserves the GPUs' state in the driver, and prevents unloading the driver and resetting a GPU.
pub(super) struct Library {
    path: PathBuf,
    nvml: Mutex<&'static Nvml>,
}

impl Library {
    /// Opens the library that `settings` name, or the first of the default names that exists.
    pub(super) fn open(settings: &Settings) -> Result<Arc<Self>, OpenError> {
        let names: Vec<PathBuf> = match &settings.library {
            Some(path) => vec![path.clone()],
            None => DEFAULT_NAMES.map(PathBuf::from).into(),
        };
        let mut tried = Vec::new();
        for path in names {
            // Refuses a file such as a pipe, on which opening would block until another process writes to it.
            if let Err(error) = regular::open(&path)
                && error.kind() == ErrorKind::InvalidInput
            {
                return Err(OpenError::NotNvml { path, message: error.to_string() });
            }
            match init(&path) {
                Ok(nvml) => {
                    let nvml: &'static Nvml = Box::leak(Box::new(nvml));
                    return Ok(Arc::new(Self { path, nvml: Mutex::new(nvml) }));
                }
                Err(NvmlError::LibloadingError(error)) if is_absence(&error.to_string()) => {
                    tried.push(error.to_string());
                }
                Err(error) => return Err(open_error(&path, "nvmlInit_v2", error)),
            }
        }
        Err(OpenError::NoDriver { tried })
    }

    /// Returns the number of GPUs that the driver reports; `None` if the driver does not answer. Reopens the library
    /// after a driver reload.
    pub(super) fn count(&self) -> Option<u32> {
        let nvml = self.nvml();
        let count = match nvml.device_count() {
            Err(error) if is_stale(&error) => {
                let has_gpus = |fresh: &Nvml| match fresh.device_count()? {
                    0 => Err(NvmlError::NotFound),
                    _ => Ok(()),
                };
                self.renew(nvml, has_gpus).and_then(|nvml| nvml.device_count())
            }
            count => count,
        };
        count.ok()
    }

    pub(super) fn device_count(&self) -> Result<u32, OpenError> {
        self.nvml().device_count().map_err(|error| open_error(&self.path, "nvmlDeviceGetCount_v2", error))
    }

    /// Returns the id of the GPU at this index; `None` if the driver reports no GPU or no id there.
    pub(super) fn id_at(&self, index: u32) -> Option<GpuId> {
        let device = self.nvml().device_by_index(index).ok()?;
        GpuId::new(device.uuid().ok()?).ok()
    }

    pub(super) fn nvml(&self) -> &'static Nvml {
        *self.current()
    }

    /// Returns a handle of the GPU with this id. Reopens the library first if the driver was reloaded.
    pub(super) fn find(&self, id: &GpuId) -> Result<Device<'static>, GpuError> {
        let nvml = self.nvml();
        let by_id = |nvml: &'static Nvml| nvml.device_by_uuid(id.as_str());
        let found = match by_id(nvml) {
            Err(error) if is_stale(&error) => {
                self.renew(nvml, |fresh| fresh.device_by_uuid(id.as_str()).map(drop)).and_then(by_id)
            }
            found => found,
        };
        found.map_err(|error| lookup_error("nvmlDeviceGetHandleByUUID", error))
    }

    /// Opens the library again in place of `stale`, unless another GPU's thread has already done so. The new library is
    /// kept, and thus leaked, only if `works` succeeds with it, because GPUs retry every few seconds.
    fn renew(
        &self,
        stale: &'static Nvml,
        works: impl Fn(&Nvml) -> Result<(), NvmlError>,
    ) -> Result<&'static Nvml, NvmlError> {
        let mut current = self.current();
        if ptr::eq(*current, stale) {
            let fresh = init(&self.path)?;
            works(&fresh)?;
            *current = Box::leak(Box::new(fresh));
        }
        Ok(*current)
    }

    fn current(&self) -> MutexGuard<'_, &'static Nvml> {
        self.nvml.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn init(path: &Path) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(path.as_os_str()).init()
}

/// Returns true if the dynamic linker's message means that the file does not exist. The linker has no error codes;
/// glibc and musl use the same words.
fn is_absence(message: &str) -> bool {
    message.contains("No such file")
}

fn open_error(path: &Path, call: &'static str, error: NvmlError) -> OpenError {
    let path = path.to_path_buf();
    match error {
        NvmlError::LibloadingError(error) => {
            let message = error.to_string();
            if message.contains("Permission denied") {
                OpenError::NoPermission { path, message }
            } else {
                OpenError::NotNvml { path, message }
            }
        }
        NvmlError::FailedToLoadSymbol(message) => OpenError::NotNvml { path, message },
        NvmlError::DriverNotLoaded => OpenError::DriverNotLoaded { path },
        NvmlError::LibRmVersionMismatch => OpenError::VersionMismatch { path },
        error @ (NvmlError::NoPermission | NvmlError::OperatingSystem) => {
            OpenError::NoPermission { path, message: error.to_string() }
        }
        other => OpenError::Driver { path, call, message: other.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(library: impl Into<PathBuf>) -> OpenError {
        match Library::open(&Settings { library: Some(library.into()) }) {
            Ok(_) => panic!("opened"),
            Err(error) => error,
        }
    }

    #[test]
    fn a_missing_library_is_a_missing_driver() {
        let error = refusal("/nowhere/libnvidia-ml.so.1");
        assert!(matches!(error, OpenError::NoDriver { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("/nowhere/libnvidia-ml.so.1") && text.contains("install the driver"), "{text}");
    }

    #[test]
    fn another_file_is_refused() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("libnvidia-ml.so.1");
        std::fs::write(&path, "not a library").expect("written");
        let error = refusal(&path);
        assert!(matches!(error, OpenError::NotNvml { .. }), "{error:?}");
        assert!(error.to_string().starts_with(path.to_str().expect("UTF-8")), "{error}");
    }

    #[test]
    fn each_open_error_says_what_to_do() {
        let message_of = |error| open_error(Path::new("libnvidia-ml.so.1"), "nvmlInit_v2", error).to_string();
        assert!(message_of(NvmlError::DriverNotLoaded).contains("modprobe nvidia"));
        assert!(message_of(NvmlError::NoPermission).contains("/dev/nvidiactl"));
        assert!(message_of(NvmlError::OperatingSystem).contains("cgroups"));
        assert!(message_of(NvmlError::LibRmVersionMismatch).contains("reboot"));
        assert!(
            message_of(NvmlError::FailedToLoadSymbol("undefined symbol: nvmlInit_v2".into())).contains("not a usable")
        );
        assert_eq!(
            message_of(NvmlError::Unknown),
            "nvmlInit_v2 in libnvidia-ml.so.1 failed: an internal driver error occurred; nvidia-smi should fail likewise"
        );
    }

    #[test]
    fn settings_have_one_key() {
        assert_eq!(toml::from_str::<Settings>("").expect("all have defaults"), Settings::default());
        let named: Settings = toml::from_str("library = \"/opt/lib/libnvidia-ml.so.1\"").expect("valid");
        assert_eq!(named.library, Some("/opt/lib/libnvidia-ml.so.1".into()));
        assert!(toml::from_str::<Settings>("libary = \"x\"").is_err());
    }
}
