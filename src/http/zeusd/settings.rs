//! Settings of Zeus's protocol: what its clients may do, and what becomes of what they set.

use serde::{Deserialize, Serialize};

use wattune_core::units::Seconds;

/// Group of routes that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ApiGroup {
    /// Power limits, persistence mode and clocks of GPUs.
    GpuControl,
    /// Readings of GPUs.
    GpuRead,
    /// Readings of CPUs and memory.
    CpuRead,
}

impl ApiGroup {
    /// Returns the group's name in the protocol.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::GpuControl => "gpu-control",
            Self::GpuRead => "gpu-read",
            Self::CpuRead => "cpu-read",
        }
    }

    /// Returns the group of a path, by the path's beginning alone; `None` for paths that are always there.
    pub(super) fn of(path: &str) -> Option<Self> {
        match path {
            _ if path.starts_with("/gpu/set_") || path.starts_with("/gpu/reset_") => Some(Self::GpuControl),
            _ if path.starts_with("/gpu/") => Some(Self::GpuRead),
            _ if path.starts_with("/cpu/") => Some(Self::CpuRead),
            _ => None,
        }
    }
}

/// Settings of Zeus's protocol, the table `[zeus]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ZeusSettings {
    /// The groups of routes that Zeus's clients may use.
    pub enable: Vec<ApiGroup>,
    /// True if Zeus's clients may change a GPU that a job or a manual override controls. Otherwise they get status 403.
    pub over_jobs: bool,
    /// True to keep what a client on the Unix socket has set after its process has ended, until another write or the
    /// daemon's end.
    pub keep_after_exit: bool,
    /// The time without a process on the GPU after which the setting of a client over TCP ends.
    pub unused_s: Seconds,
    /// The number of readings per second of each GPU whose power is streamed.
    pub gpu_power_poll_hz: u32,
    /// The number of readings per second of the CPUs while their power is streamed; a single reading of their power takes
    /// one such period.
    pub cpu_power_poll_hz: u32,
}

impl Default for ZeusSettings {
    fn default() -> Self {
        Self {
            enable: vec![ApiGroup::GpuControl, ApiGroup::GpuRead, ApiGroup::CpuRead],
            over_jobs: false,
            keep_after_exit: false,
            unused_s: Seconds::new(600.0),
            gpu_power_poll_hz: 20,
            cpu_power_poll_hz: 10,
        }
    }
}

impl ZeusSettings {
    /// Checks the values. The error names the key and what would be right.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), String> {
        self.unused_s.check("unused_s", 1.0, 86_400.0)?;
        for (key, hz) in [("gpu_power_poll_hz", self.gpu_power_poll_hz), ("cpu_power_poll_hz", self.cpu_power_poll_hz)]
        {
            if !(1..=100).contains(&hz) {
                return Err(format!("{key} = {hz} must be from 1 to 100"));
            }
        }
        Ok(())
    }
}
