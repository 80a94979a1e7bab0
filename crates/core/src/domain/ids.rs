//! Identifiers and names, each as a distinct type.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{is_invisible, is_visible, legible};

/// Error for an invalid name or identifier, with what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {given:?} is invalid: {why}")]
pub struct InvalidName {
    what: &'static str,
    given: String,
    why: &'static str,
}

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal, $allowed:expr, $why:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Validates the text.
            ///
            /// # Errors
            /// Returns an error if the text is empty, too long, "." or "..", or has a character that is not allowed.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
                let text = text.into();
                let allowed: fn(char) -> bool = $allowed;
                if text.is_empty() || text.chars().count() > $max || !text.chars().all(allowed) || matches!(text.as_str(), "." | "..") {
                    let given = text.chars().take(80).collect();
                    return Err(InvalidName { what: $what, given, why: $why });
                }
                Ok(Self(text))
            }

            /// Returns the text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type!(
    /// Identifier of one training run, which the daemon creates and never reuses.
    JobId,
    "job id",
    64,
    |c| c.is_ascii_alphanumeric() || c == '-',
    "ids have 1 to 64 letters, digits and '-'"
);
name_type!(
    /// Identifier of a demand-response event, chosen by the client that announces it.
    EventId,
    "event id",
    64,
    |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':'),
    "ids have 1 to 64 letters, digits, '-', '_', '.' and ':', and are not \".\" or \"..\""
);
name_type!(
    /// Name that the user gives to a training job; recurring runs share it, and with it their profile.
    JobName,
    "job name",
    128,
    |c| !c.is_control(),
    "names have 1 to 128 characters, none of them a control character, and are not \".\" or \"..\""
);
name_type!(
    /// Key that the user gives to a job. If the program that started the job dies, the same command with the same key
    /// continues the job.
    JobKey,
    "job key",
    128,
    |c| !c.is_control() && !is_invisible(c),
    "keys have 1 to 128 visible characters, and are not \".\" or \"..\""
);
name_type!(
    /// UUID of a GPU as NVML reports it ("GPU-3f…"). Unlike the driver's index, it stays the same after a reboot.
    GpuId,
    "GPU UUID",
    96,
    |c| c.is_ascii_alphanumeric() || c == '-' || c == '_',
    "UUIDs have 1 to 96 letters, digits, '-' and '_'"
);
name_type!(
    /// Device in the ledger: a GPU by its UUID, or a CPU package or its memory ("cpu:package-0", "dram:package-0").
    DeviceId,
    "device",
    96,
    |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ':'),
    "devices have 1 to 96 letters, digits, '-', '_' and ':'"
);
name_type!(
    /// Grid zone, as the carbon source names it ("GB", "13", "MISO_MASON_CITY").
    Zone,
    "zone",
    96,
    |c| !c.is_control(),
    "zones have 1 to 96 characters, none of them a control character, and are not \".\" or \"..\""
);

impl JobName {
    /// Checks that a new name is readable. Names stored by older versions may break this rule.
    ///
    /// # Errors
    /// Returns an error if the name is blank, begins or ends with a space, or has invisible characters, unusual spaces or
    /// text direction marks.
    pub fn require_visible(self) -> Result<Self, InvalidName> {
        let why = "names have no invisible characters, none that change the direction of text, no spaces but the plain one, \
                   none at either end, and are not all blank";
        // Two names that look alike would be two profiles: a no-break space looks like a plain one, and a space at an end
        // like none.
        let is_odd_space = |c: char| c.is_whitespace() && c != ' ';
        match self.0.trim() != self.0 || self.0.contains(|c| is_invisible(c) || is_odd_space(c)) || !is_visible(&self.0)
        {
            true => Err(InvalidName { what: "job name", given: legible(&self.0).chars().take(80).collect(), why }),
            false => Ok(self),
        }
    }
}

/// Kind of a device in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// A GPU.
    Gpu,
    /// A CPU package.
    Cpu,
    /// The memory of a CPU package.
    Dram,
}

impl DeviceKind {
    /// Returns `gpu`, `cpu` or `dram`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::Dram => "dram",
        }
    }
}

impl DeviceId {
    /// Returns the identifier of the CPU package that the kernel calls `package` ("package-0"), or of its memory,
    /// depending on `kind`.
    ///
    /// # Errors
    /// Returns an error if the result is not a valid identifier.
    pub fn of_package(package: &str, kind: DeviceKind) -> Result<Self, InvalidName> {
        match kind {
            DeviceKind::Gpu => Self::new(package),
            DeviceKind::Cpu => Self::new(format!("cpu:{package}")),
            DeviceKind::Dram => Self::new(format!("dram:{package}")),
        }
    }

    /// Returns the kind of the device.
    pub fn kind(&self) -> DeviceKind {
        match self.0.split_once(':') {
            Some(("cpu", _)) => DeviceKind::Cpu,
            Some(("dram", _)) => DeviceKind::Dram,
            _ => DeviceKind::Gpu,
        }
    }
}

impl DeviceId {
    /// Returns true if the device is simulated. Drivers never use such names.
    pub fn is_simulated(&self) -> bool {
        let package = self.0.split_once(':').map_or("", |(_, package)| package);
        self.0.starts_with(SIMULATED_GPU) || package.starts_with("simulated-")
    }
}

/// Prefix of the UUIDs of simulated GPUs; UUIDs of NVML begin with "GPU-" or "MIG-".
pub const SIMULATED_GPU: &str = "SIM-";

impl From<&GpuId> for DeviceId {
    fn from(gpu: &GpuId) -> Self {
        Self(gpu.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_once() {
        assert!(JobName::new("resnet50 / nightly").is_ok());
        let error = JobName::new("a\nb").expect_err("control character").to_string();
        assert!(error.contains("control character"), "{error}");
        for odd in [
            "a\u{202e}b",
            "a\u{200b}",
            "\u{feff}a",
            "a\u{2066}b\u{2069}",
            "\u{e0041}",
            "\u{3164}",
            "\u{301}",
            "\u{2800}",
            "\u{a0}",
            "a\u{a0}b",
            " a",
            "a ",
        ] {
            let error = JobName::new(odd).and_then(JobName::require_visible).expect_err(odd).to_string();
            assert!(error.contains("invisible") && !error.contains(is_invisible), "{error}");
        }
        assert!(JobName::new("größe 訓練 👍").and_then(JobName::require_visible).is_ok());
        for dots in [".", ".."] {
            let error = JobName::new(dots).expect_err(dots).to_string();
            assert!(error.contains("are not \".\" or \"..\""), "{error}");
        }
        let simulated = |id: &str| DeviceId::new(id).expect(id).is_simulated();
        assert!(
            ["SIM-00000000-0000", "cpu:simulated-package-0", "dram:simulated-package-0"].into_iter().all(simulated)
        );
        assert!(!["GPU-3f", "MIG-1", "cpu:package-0", "dram:package-0"].into_iter().any(simulated));
        assert!(GpuId::new("").is_err());
        assert!([".", ".."].iter().all(|id| EventId::new(*id).is_err()) && EventId::new("dr.1").is_ok());
        assert!(serde_json::from_str::<JobId>("\"../../etc\"").is_err());
    }
}
