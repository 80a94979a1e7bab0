//! The driver's library: finding it, opening it, and opening it again when the driver was reloaded.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::error::{is_stale, lookup_error};
use super::{Boards, NvmlDevice, Problem, Settings};
use crate::files::regular;
use crate::gpu::GpuError;
use wattune_core::domain::GpuId;

/// Where the library is looked for: by the name that drivers install, then by that of development packages.
const USUAL_NAMES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

/// If no further board answers for this long, those that are left count as hanging. Without persistence mode the driver
/// starts boards one after the other, each in a few seconds.
const OPENING: Duration = Duration::from_secs(10);

/// Why the driver's library cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is no such file.
    #[error(
        "no NVIDIA driver found: {}; install the driver, or name its library (--nvml-library, gpus.nvml.library); a container needs the \
         NVIDIA runtime (docker run --gpus all)", tried.join("; ")
    )]
    NoDriver {
        /// What the dynamic linker said to each name.
        tried: Vec<String>,
    },
    /// The file is there and is something else.
    #[error(
        "{} is not a usable NVML library: {message}; gpus.nvml.library must name the driver's libnvidia-ml.so.1, built for \
         this machine", path.display()
    )]
    NotNvml {
        /// The file's path or name.
        path: PathBuf,
        /// What the dynamic linker said.
        message: String,
    },
    /// The library is installed, the kernel's part of the driver is not running.
    #[error(
        "the NVIDIA driver is installed ({}) but not loaded: try modprobe nvidia, then look for NVRM in dmesg",
        path.display()
    )]
    DriverNotLoaded {
        /// The library's path or name.
        path: PathBuf,
    },
    /// The file or the driver's device files may not be read.
    #[error(
        "no permission to use the NVIDIA driver through {}: {message}; this user must be able to read it, \
         /dev/nvidiactl and /dev/nvidia0, 1, …", path.display()
    )]
    NoPermission {
        /// The library's path or name.
        path: PathBuf,
        /// Who refused, in their words.
        message: String,
    },
    /// The library is of another version than the running kernel module.
    #[error(
        "{} and the loaded NVIDIA kernel module are of different versions, as after an update: reload the module or \
         reboot; in a container, use the host's library", path.display()
    )]
    VersionMismatch {
        /// The library's path or name.
        path: PathBuf,
    },
    /// Anything else, in the driver's words.
    #[error("{call} in {} failed: {message}; nvidia-smi should fail likewise", path.display())]
    Driver {
        /// The library's path or name.
        path: PathBuf,
        /// The failed call.
        call: &'static str,
        /// What the driver said.
        message: String,
    },
}

/// The driver's library, open.
///
/// The wrapper's handles borrow the open library, and boards live on threads of their own until the process ends; so
/// the open library is leaked, once per process. When the driver is reloaded underneath, the boards that return open
/// it once more and leave a few kilobytes behind. The process' end closes it, as it would after a kill.
///
/// While it is open the driver keeps the boards' state, and nobody can unload the driver or reset a board.
pub struct Library {
    path: PathBuf,
    nvml: Mutex<&'static Nvml>,
}

impl Library {
    /// Opens the library that `settings` name, else the first of the usual ones that is there.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(settings: &Settings) -> Result<Arc<Self>, OpenError> {
        let names: Vec<PathBuf> = match &settings.library {
            Some(path) => vec![path.clone()],
            None => USUAL_NAMES.map(PathBuf::from).into(),
        };
        let mut tried = Vec::new();
        for path in names {
            // To load a pipe waits for whoever writes into it.
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

    /// The path or name under which it was found.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The driver's version; `None` if it does not tell.
    pub fn driver_version(&self) -> Option<String> {
        self.nvml().sys_driver_version().ok()
    }

    /// Opens every board, each on a thread of its own: one that hangs is a problem and holds up no other.
    ///
    /// # Errors
    /// If the driver cannot even say how many there are.
    pub fn boards(self: &Arc<Self>) -> Result<Boards, OpenError> {
        let count =
            self.nvml().device_count().map_err(|error| open_error(&self.path, "nvmlDeviceGetCount_v2", error))?;
        let (sender, opened) = mpsc::channel();
        for index in 0..count {
            let (library, sender) = (self.clone(), sender.clone());
            // Nobody may be waiting for the answer any more. A thread that cannot start is a board that is silent.
            let open = move || drop(sender.send((index, NvmlDevice::open(library, index))));
            drop(thread::Builder::new().name(format!("open{index}")).spawn(open));
        }
        drop(sender);
        let mut answers: Vec<Option<_>> = (0..count).map(|_| None).collect();
        while answers.iter().any(Option::is_none)
            && let Ok((index, answer)) = opened.recv_timeout(OPENING)
        {
            answers[index as usize] = Some(answer);
        }
        let mut boards = Boards { devices: Vec::new(), problems: Vec::new() };
        for (index, answer) in (0..).zip(answers) {
            match answer {
                Some(Ok(device)) => boards.devices.push(Box::new(device)),
                Some(Err(error)) => boards.problems.push(Problem { index, error }),
                None => {
                    let error = GpuError::TimedOut { call: "opening the board", after: OPENING.into() };
                    boards.problems.push(Problem { index, error });
                }
            }
        }
        Ok(boards)
    }

    /// How many boards the driver counts now; `None` if it does not say. A driver that was reloaded is opened again.
    pub(super) fn count(&self) -> Option<u32> {
        let nvml = self.nvml();
        match nvml.device_count() {
            Err(error) if is_stale(&error) => {
                let mut current = self.current();
                // Another board's thread may have been faster. Only what works is leaked.
                if ptr::eq(*current, nvml) {
                    let fresh = init(&self.path).ok()?;
                    fresh.device_count().ok().filter(|count| *count > 0)?;
                    *current = Box::leak(Box::new(fresh));
                }
                current.device_count().ok()
            }
            count => count.ok(),
        }
    }

    /// Which board has this index now; `None` if it does not say.
    pub(super) fn id_at(&self, index: u32) -> Option<GpuId> {
        let device = self.nvml().device_by_index(index).ok()?;
        GpuId::new(device.uuid().ok()?).ok()
    }

    pub(super) fn nvml(&self) -> &'static Nvml {
        *self.current()
    }

    /// Looks a board up. If the library turns out to be useless because the driver was reloaded, opens it again first.
    pub(super) fn find(&self, id: &GpuId) -> Result<Device<'static>, GpuError> {
        let nvml = self.nvml();
        let found = match nvml.device_by_uuid(id.as_str()) {
            Err(error) if is_stale(&error) => self.renew(nvml, id),
            found => found,
        };
        found.map_err(|error| lookup_error("nvmlDeviceGetHandleByUUID", error))
    }

    fn renew(&self, stale: &'static Nvml, id: &GpuId) -> Result<Device<'static>, NvmlError> {
        let mut current = self.current();
        // Another board's thread may have been faster.
        if ptr::eq(*current, stale) {
            let fresh = init(&self.path)?;
            // Boards try again every few seconds: leak only what works, or a driver that is down for days adds up.
            fresh.device_by_uuid(id.as_str())?;
            *current = Box::leak(Box::new(fresh));
        }
        current.device_by_uuid(id.as_str())
    }

    fn current(&self) -> MutexGuard<'_, &'static Nvml> {
        self.nvml.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn init(path: &Path) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(path.as_os_str()).init()
}

/// Whether the dynamic linker's message means that there is no such file. It has no codes; glibc and musl agree on
/// these words.
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
    fn an_absent_library_is_an_absent_driver() {
        let error = refusal("/nowhere/libnvidia-ml.so.1");
        assert!(matches!(error, OpenError::NoDriver { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("/nowhere/libnvidia-ml.so.1") && text.contains("install the driver"), "{text}");
    }

    #[test]
    fn another_file_is_no_nvml() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("libnvidia-ml.so.1");
        std::fs::write(&path, "not a library").expect("written");
        let error = refusal(&path);
        assert!(matches!(error, OpenError::NotNvml { .. }), "{error:?}");
        assert!(error.to_string().starts_with(path.to_str().expect("UTF-8")), "{error}");
    }

    #[test]
    fn each_refusal_to_start_says_what_to_do() {
        let told = |error| open_error(Path::new("libnvidia-ml.so.1"), "nvmlInit_v2", error).to_string();
        assert!(told(NvmlError::DriverNotLoaded).contains("modprobe nvidia"));
        assert!(told(NvmlError::NoPermission).contains("/dev/nvidiactl"));
        assert!(told(NvmlError::OperatingSystem).contains("cgroups"));
        assert!(told(NvmlError::LibRmVersionMismatch).contains("reboot"));
        assert!(told(NvmlError::FailedToLoadSymbol("undefined symbol: nvmlInit_v2".into())).contains("not a usable"));
        assert_eq!(
            told(NvmlError::Unknown),
            "nvmlInit_v2 in libnvidia-ml.so.1 failed: an internal driver error occurred; nvidia-smi should fail likewise"
        );
    }
}
