//! GPUs behind the NVIDIA driver's library, `libnvidia-ml.so.1`.
//!
//! [`Library`] opens the library, [`NvmlDevice`] is one GPU. An old driver may lack any call and a GPU any value; each
//! value is read on its own, so that a missing one affects no other. Unsupported calls are retried at growing
//! intervals, as drivers report them temporarily; calls that fail for another reason are retried at the next read.
//!
//! Linux only, as persistence and virtualisation mode are.

mod device;
mod error;
mod library;
mod processes;
mod refusals;
mod search;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::Receiver;

pub use device::NvmlDevice;
pub use library::{Library, OpenError};

use super::{GpuDevice, GpuError};

/// The access to the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The path of the driver's library, where the dynamic linker does not find it by its usual names.
    pub library: Option<PathBuf>,
}

/// The GPUs of this machine.
pub struct Boards {
    /// The usable GPUs, by index.
    pub devices: Vec<Box<dyn GpuDevice>>,
    /// The GPUs that the driver counts but that cannot be used, by index.
    pub problems: Vec<Problem>,
}

/// A GPU that the driver counts but that could not be opened. Its UUID is unknown: only an open GPU reports it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("GPU {index} cannot be used: {error}; a running daemon uses it once it answers (see nvidia-smi -i {index})")]
pub struct Problem {
    /// The driver's index.
    pub index: u32,
    /// The reason.
    pub error: GpuError,
}

/// Opens the library and every GPU that answers. A machine without GPUs is no error.
///
/// # Errors
/// If the library cannot be used. A single GPU that fails is a [`Problem`].
pub fn open_all(settings: &Settings) -> Result<Boards, OpenError> {
    Library::open(settings)?.boards()
}

/// Opens the GPUs like [`open_all`], and returns a channel of those that become usable later.
///
/// # Errors
/// The errors of [`open_all`].
pub fn open_and_search(settings: &Settings) -> Result<(Boards, Receiver<Box<dyn GpuDevice>>), OpenError> {
    let library = Library::open(settings)?;
    let boards = library.boards()?;
    let opened = boards.devices.iter().map(|device| device.board().id.clone()).collect();
    Ok((boards, search::search(library, opened)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_one_key() {
        assert_eq!(toml::from_str::<Settings>("").expect("all have defaults"), Settings::default());
        let named: Settings = toml::from_str("library = \"/opt/lib/libnvidia-ml.so.1\"").expect("valid");
        assert_eq!(named.library, Some("/opt/lib/libnvidia-ml.so.1".into()));
        assert!(toml::from_str::<Settings>("libary = \"x\"").is_err());
    }

    #[test]
    fn a_problem_names_the_gpu() {
        let problem = Problem { index: 3, error: GpuError::Lost { call: "nvmlDeviceGetHandleByIndex_v2" } };
        let text = problem.to_string();
        assert!(text.starts_with("GPU 3 cannot be used: nvmlDeviceGetHandleByIndex_v2: the GPU is lost"), "{text}");
    }
}
