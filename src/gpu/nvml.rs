//! Boards behind the driver's library, `libnvidia-ml.so.1`.
//!
//! [`Library`] opens it, [`NvmlDevice`] is one board. Every call may be missing from an old driver and every value
//! from a board; each is asked for on its own, so that an absent one takes no other with it. What a board or driver
//! says it does not support is asked for again ever more rarely, as it may say so for a moment only; what fails for another
//! reason is asked for again at the next read.
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

/// How to reach the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The driver's library, where the dynamic linker does not find it by its usual names.
    pub library: Option<PathBuf>,
}

/// The boards of this machine.
pub struct Boards {
    /// Those that answer, by index.
    pub devices: Vec<Box<dyn GpuDevice>>,
    /// Those that the driver counts and that cannot be used, by index.
    pub problems: Vec<Problem>,
}

/// A board that the driver counts and that could not be opened. It has no UUID: only an open board says that.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("GPU {index} cannot be used: {error}; a running daemon takes it up once it answers (nvidia-smi -i {index})")]
pub struct Problem {
    /// The driver's index.
    pub index: u32,
    /// What failed.
    pub error: GpuError,
}

/// Opens the library and every board that answers. No board at all is no error.
///
/// # Errors
/// If the library cannot be used. A single board that fails is a [`Problem`].
pub fn open_all(settings: &Settings) -> Result<Boards, OpenError> {
    Library::open(settings)?.boards()
}

/// As [`open_all`], for who stays: the other answer has the boards that can be used later, as they come.
///
/// # Errors
/// As for [`open_all`].
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
    fn settings_know_one_key() {
        assert_eq!(toml::from_str::<Settings>("").expect("all have defaults"), Settings::default());
        let named: Settings = toml::from_str("library = \"/opt/lib/libnvidia-ml.so.1\"").expect("valid");
        assert_eq!(named.library, Some("/opt/lib/libnvidia-ml.so.1".into()));
        assert!(toml::from_str::<Settings>("libary = \"x\"").is_err());
    }

    #[test]
    fn a_problem_names_the_board() {
        let problem = Problem { index: 3, error: GpuError::Lost { call: "nvmlDeviceGetHandleByIndex_v2" } };
        let text = problem.to_string();
        assert!(text.starts_with("GPU 3 cannot be used: nvmlDeviceGetHandleByIndex_v2: the GPU is lost"), "{text}");
    }
}
