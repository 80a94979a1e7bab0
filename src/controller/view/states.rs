//! States that the API shows: enums whose variants have the same names in JSON, in the OpenAPI document and in the
//! labels of metrics.

use serde::Serialize;
use utoipa::ToSchema;

use crate::providers::Freshness;
use wattune_core::domain::{Origin, ProgressSource, SignalKind, SignalScope};
use wattune_core::plan::JobActivity;

/// Defines an enum of states with their names in the API.
macro_rules! states {
    ($(#[$doc:meta])* $name:ident { $($(#[$of:meta])* $state:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum $name {
            $($(#[$of])* $state),+
        }

        impl $name {
            /// All states.
            pub const ALL: &'static [Self] = &[$(Self::$state),+];

            /// Returns the state's name in the API and in labels of metrics.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$state => $text),+
                }
            }
        }
    };
}

/// Defines an enum of states with the variants of another module's enum, and the conversion from that enum, which has
/// no names for the API.
macro_rules! states_of {
    ($(#[$doc:meta])* $name:ident of $source:ident { $($(#[$of:meta])* $state:ident = $text:literal),+ $(,)? }) => {
        states! { $(#[$doc])* $name { $($(#[$of])* $state = $text),+ } }

        impl From<$source> for $name {
            fn from(state: $source) -> Self {
                match state {
                    $($source::$state { .. } => Self::$state),+
                }
            }
        }
    };
}

states! {
    /// Mode of the daemon: it sets limits (`control`), or plans them and sets none (`observe`).
    Mode {
        /// The daemon sets limits.
        Control = "control",
        /// The daemon plans limits but never sets one.
        Observe = "observe",
    }
}

states! {
    /// State of a GPU's limit. The limit is determined by nothing (`free`: the GPU has its original limit), a `job`'s
    /// plan, a manual `override` or an `external` writer. wattune cannot set the limit while the GPU is `observed` (not
    /// permitted), `lost` (no response) or `unresponsive` (a call to the driver has not returned).
    GpuState {
        /// Nothing determines the limit: the GPU has its original limit.
        Free = "free",
        /// A job's plan determines the limit.
        Job = "job",
        /// A manual override determines the limit.
        Override = "override",
        /// A writer other than wattune has set the limit.
        External = "external",
        /// wattune may not set the limit.
        Observed = "observed",
        /// The GPU does not respond.
        Lost = "lost",
        /// A call to the GPU's driver has not returned.
        Unresponsive = "unresponsive",
    }
}

states! {
    /// Part of a GPU's operation that has a problem.
    Concern {
        /// The GPU does not respond.
        Answer = "answer",
        /// The GPU's energy is not measured, or only estimated.
        Energy = "energy",
        /// The GPU's power is not read.
        Power = "power",
        /// The power limit is not as wanted, or wattune may not set it.
        Limit = "limit",
        /// The clocks are not as wanted, or wattune may not lock them.
        Clocks = "clocks",
        /// Persistence mode is not as wanted.
        Persistence = "persistence",
    }
}

states! {
    /// Method by which a GPU's energy is measured now.
    EnergyMethod {
        /// The energy is read from the GPU's energy counter.
        Counter = "counter",
        /// The energy is integrated from readings of the GPU's power.
        IntegratedPower = "integrated_power",
    }
}

states! {
    /// Kind of a CPU zone, a part of the CPUs with an energy counter of its own.
    CpuZoneKind {
        /// The zone is a processor package.
        Package = "package",
        /// The zone is the memory of a processor package.
        Dram = "dram",
    }
}

states! {
    /// State of the circuit breaker for a source: requests are made as usual (`closed`), or rarely after repeated
    /// failures (`open`).
    Circuit {
        /// The daemon requests values from the source as usual.
        Closed = "closed",
        /// The daemon rarely requests values from the source, after repeated failures.
        Open = "open",
    }
}

states! {
    /// Finality of a past carbon intensity: `forecast` if its source has published no actual value, `provisional` if
    /// the source may still change the actual value, `final` if not.
    Finality {
        /// The value is a forecast, or made by wattune.
        Forecast = "forecast",
        /// The value is an actual one, and the source may still change it.
        Provisional = "provisional",
        /// The value is an actual one, and the source declared it final.
        Final = "final",
    }
}

states_of! {
    /// Freshness of a source: `fresh`, `stale` if its last response is too old, `none` if no response covers the
    /// present.
    SignalFreshness of Freshness {
        /// The source's values are current.
        Fresh = "fresh",
        /// The source's last response is older than it should be.
        Stale = "stale",
        /// No response of the source covers the present.
        None = "none",
    }
}

states_of! {
    /// Activity of a job in a segment of the job's plan: `resuming` while the job saves and loads a training
    /// checkpoint.
    SegmentActivity of JobActivity {
        /// The job trains.
        Training = "training",
        /// The job is paused.
        Paused = "paused",
        /// The job saves and loads a training checkpoint.
        Resuming = "resuming",
    }
}

states_of! {
    /// Kind of a carbon intensity: emissions of all generation per energy consumed (`average`), or emissions of the
    /// generator that serves one more watt (`marginal`).
    IntensityKind of SignalKind {
        /// Emissions of all generation divided by consumption.
        Average = "average",
        /// Emissions of the generator that serves one more watt.
        Marginal = "marginal",
        /// The source does not specify the kind.
        Unspecified = "unspecified",
    }
}

states_of! {
    /// Emissions that a carbon intensity includes: direct emissions of power plants alone (`operational`), or also
    /// those of construction, fuel supply and disposal (`lifecycle`).
    IntensityScope of SignalScope {
        /// Emissions of power plants, including construction, fuel supply and disposal.
        Lifecycle = "lifecycle",
        /// Direct emissions of power plants only.
        Operational = "operational",
        /// The source does not specify the scope.
        Unspecified = "unspecified",
    }
}

states_of! {
    /// Origin of a carbon intensity: published after the time that it is for, from measurements (`measured`, or
    /// `estimated` if the measurements were incomplete); published before that time (`forecast`); made by wattune where
    /// the source has no value (`fallback`); or generated for no real grid (`synthetic`).
    IntensityOrigin of Origin {
        /// The source published the value after the time that it is for, from measurements.
        Measured = "measured",
        /// The source published the value after the time that it is for, from incomplete measurements.
        Estimated = "estimated",
        /// The source published the value before the time that it is for.
        Forecast = "forecast",
        /// wattune made the value, because the source has none.
        Fallback = "fallback",
        /// A generator made the value, for no real grid.
        Synthetic = "synthetic",
    }
}

states_of! {
    /// Source of a job's progress reports, from the least to the most explicit one. `wattune run` follows the most
    /// explicit source that it receives.
    ProgressOrigin of ProgressSource {
        /// Lines that the job prints, such as `step 120/5000`.
        LogLine = "log_line",
        /// A hook that counts the steps of a PyTorch optimizer.
        OptimizerHook = "optimizer_hook",
        /// A Keras callback.
        Keras = "keras",
        /// A Lightning callback.
        Lightning = "lightning",
        /// Status posts of the Hugging Face `Trainer`.
        TrainerStatus = "trainer_status",
        /// The Python package `wattune`, which the job's own code calls.
        PythonClient = "python_client",
        /// Requests to the HTTP API that state no source.
        Http = "http",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_json_have_the_same_names() {
        fn agree<S: Copy + Serialize>(all: &[S], as_str: fn(S) -> &'static str) {
            for state in all {
                assert_eq!(serde_json::to_value(state).expect("a unit"), as_str(*state));
            }
        }
        agree(Mode::ALL, Mode::as_str);
        agree(GpuState::ALL, GpuState::as_str);
        agree(Concern::ALL, Concern::as_str);
        agree(EnergyMethod::ALL, EnergyMethod::as_str);
        agree(CpuZoneKind::ALL, CpuZoneKind::as_str);
        agree(Circuit::ALL, Circuit::as_str);
        agree(Finality::ALL, Finality::as_str);
        agree(SignalFreshness::ALL, SignalFreshness::as_str);
        agree(SegmentActivity::ALL, SegmentActivity::as_str);
        agree(IntensityKind::ALL, IntensityKind::as_str);
        agree(IntensityScope::ALL, IntensityScope::as_str);
        agree(IntensityOrigin::ALL, IntensityOrigin::as_str);
        agree(ProgressOrigin::ALL, ProgressOrigin::as_str);
        agree(&ProgressSource::ALL, |source| ProgressOrigin::from(source).as_str());
    }
}
