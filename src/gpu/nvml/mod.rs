//! GPUs behind the NVIDIA driver's library, `libnvidia-ml.so.1`.
//!
//! `library.rs` opens the library, `device.rs` is one GPU. An old driver may lack any call, and a GPU any value; each
//! value is read separately, so that a missing one affects no other. Unsupported calls are retried at growing
//! intervals, since drivers report some as unsupported temporarily; calls that fail for another reason are retried at
//! the next read.
//!
//! Linux only, because NVML has persistence mode and virtualisation mode only there.

mod call;
mod device;
mod error;
mod library;
mod open;
mod processes;
mod properties;
mod query;
mod refusals;

pub use library::{OpenError, Settings};
pub use open::{OpenedGpus, Problem, open_all, open_and_search};
