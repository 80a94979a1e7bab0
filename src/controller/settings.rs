//! Settings of the control loop.

use serde::{Deserialize, Deserializer, Serialize, de};

use wattune_core::units::Seconds;

/// Permission to lock GPU clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Locking {
    /// Clocks may be locked where the power limit does not bind, if the GPU and the daemon's rights permit locking.
    #[default]
    Auto,
    /// wattune never locks clocks.
    Off,
}

impl<'de> Deserialize<'de> for Locking {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Word;
        impl de::Visitor<'_> for Word {
            type Value = Locking;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("\"auto\" or \"off\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Locking, E> {
                match text {
                    "auto" => Ok(Locking::Auto),
                    "off" => Ok(Locking::Off),
                    other => Err(E::unknown_variant(other, &["auto", "off"])),
                }
            }
        }
        deserializer.deserialize_any(Word)
    }
}

/// Settings of the control loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// True if the daemon plans and records, but sets no power limit and no clock.
    pub observe: bool,
    /// Time between two ticks of the control loop.
    pub tick_s: Seconds,
    /// Maximum length of an interval of the ledger.
    pub interval_s: Seconds,
    /// Time between two checkpoints, which store the ledger's open intervals and the jobs' last reports. A killed
    /// daemon loses at most the records of this time and of one tick.
    pub checkpoint_s: Seconds,
    /// True to turn on the driver's persistence mode where it is off, so that limits stay in force after the GPU's last
    /// client has exited. wattune turns the mode off again after it has restored the GPU's original limit.
    pub enable_persistence: bool,
    /// Permission to lock clocks where the power limit does not bind.
    pub clocks: Locking,
    /// Rolling window over which jobs of unknown length are planned.
    pub window_s: Seconds,
    /// Lease (longest silence before a job counts as dead) of a job that requests none.
    pub default_lease_s: Seconds,
    /// Maximum number of open jobs; further ones are refused until some have ended.
    pub most_jobs: u32,
    /// Maximum number of open jobs on one GPU.
    pub most_jobs_per_gpu: u32,
    /// Time after which a GPU that has not completed a write or a read counts as unresponsive.
    pub call_timeout_s: Seconds,
    /// Time between two readings of energy and power.
    pub sample_s: Seconds,
    /// Time for which a tick waits for the search for new plans. After this time the tick continues with the old plans
    /// and asks the search to stop.
    pub solve_limit_s: Seconds,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            observe: false,
            tick_s: Seconds::new(1.0),
            interval_s: Seconds::new(60.0),
            checkpoint_s: Seconds::new(2.0),
            enable_persistence: false,
            clocks: Locking::Auto,
            window_s: Seconds::new(86_400.0),
            default_lease_s: Seconds::new(60.0),
            most_jobs: 1000,
            most_jobs_per_gpu: 1000,
            call_timeout_s: Seconds::new(1.0),
            sample_s: Seconds::new(0.1),
            solve_limit_s: Seconds::new(2.0),
        }
    }
}

impl Settings {
    /// Returns the time-out of each step of restoring a GPU: three times that of other calls, because the step is the
    /// last attempt, but 3 to 5 s, so that it ends before a service manager kills the daemon.
    pub(super) fn restore_timeout(&self) -> Seconds {
        (self.call_timeout_s * 3.0).max(Seconds::new(3.0)).min(Seconds::new(5.0))
    }

    /// Checks the value ranges that the types of the fields do not enforce; the error names the key and its valid
    /// range.
    pub fn check(&self) -> Result<(), String> {
        self.tick_s.check("tick_s", 0.05, 60.0)?;
        self.interval_s.check("interval_s", 1.0, 60.0)?;
        self.checkpoint_s.check("checkpoint_s", 0.1, 4.0)?;
        self.window_s.check("window_s", 600.0, 30.0 * 86_400.0)?;
        self.default_lease_s.check("default_lease_s", 1.0, 86_400.0)?;
        for (key, most) in [("most_jobs", self.most_jobs), ("most_jobs_per_gpu", self.most_jobs_per_gpu)] {
            if !(1..=100_000).contains(&most) {
                return Err(format!("{key} = {most} must be from 1 to 100000"));
            }
        }
        self.call_timeout_s.check("call_timeout_s", 0.05, 60.0)?;
        self.sample_s.check("sample_s", 0.02, 1.0)?;
        self.solve_limit_s.check("solve_limit_s", 0.05, 60.0)
    }
}
