//! States that the API shows: each is an enum in JSON, in the OpenAPI document and in the labels of metrics.

use serde::Serialize;
use utoipa::ToSchema;

use crate::providers::Freshness;
use wattune_core::domain::{Origin, SignalKind, SignalScope};
use wattune_core::plan::JobActivity;

/// Defines an enum of states with its names.
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

            /// Returns its name in the API and in labels.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$state => $text),+
                }
            }
        }
    };
}

/// Defines an enum of states with the variants of another room's enum, which knows no HTTP.
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
        /// Limits are set.
        Control = "control",
        /// Limits are planned but never set.
        Observe = "observe",
    }
}

states! {
    /// State of a GPU's limit. It is determined by nothing (`free`: the original limit), a `job`'s plan, a manual `override` or
    /// an `external` writer. wattune cannot set it while it is `observed` (not permitted), `lost` (it does not answer) or
    /// `unresponsive` (a call to its driver has not returned).
    GpuState {
        /// Nothing: it is at its original limit.
        Free = "free",
        /// A job's plan.
        Job = "job",
        /// A manual override.
        Override = "override",
        /// A writer other than wattune.
        External = "external",
        /// wattune may not set it.
        Observed = "observed",
        /// It does not answer.
        Lost = "lost",
        /// A call to its driver has not returned.
        Unresponsive = "unresponsive",
    }
}

states! {
    /// Subject of a GPU's problem.
    Concern {
        /// It does not answer.
        Answer = "answer",
        /// Its energy is not measured, or only estimated.
        Energy = "energy",
        /// Its power is not read.
        Power = "power",
        /// Its power limit is not as wanted, or not wattune's to set.
        Limit = "limit",
        /// Its clocks are not as wanted, or not wattune's to lock.
        Clocks = "clocks",
        /// Its persistence mode is not as wanted.
        Persistence = "persistence",
    }
}

states! {
    /// Present method of measuring a GPU's energy.
    EnergyMethod {
        /// By its energy counter.
        Counter = "counter",
        /// By integrating its power.
        IntegratedPower = "integrated_power",
    }
}

states! {
    /// Kind of a zone of the CPUs.
    CpuZoneKind {
        /// A processor package.
        Package = "package",
        /// The memory of a package.
        Dram = "dram",
    }
}

states! {
    /// State of a source's requests: as usual (`closed`), or seldom after repeated failures (`open`).
    Circuit {
        /// As usual.
        Closed = "closed",
        /// Seldom.
        Open = "open",
    }
}

states! {
    /// Finality of a past intensity: `forecast` if nothing else is known, `provisional` if it may change, or `final`.
    Finality {
        /// Nothing but a forecast is known.
        Forecast = "forecast",
        /// It may change.
        Provisional = "provisional",
        /// It will not change.
        Final = "final",
    }
}

states_of! {
    /// Freshness of a source: `none` if no response of it covers the present, `stale` if its last is older than it should be.
    SignalFreshness of Freshness {
        /// Its values are current.
        Fresh = "fresh",
        /// It is older than it should be.
        Stale = "stale",
        /// There is none that covers the present.
        None = "none",
    }
}

states_of! {
    /// Activity of a job in a segment of its plan; it is `resuming` while its checkpoint is saved and loaded.
    SegmentActivity of JobActivity {
        /// It trains.
        Training = "training",
        /// It is paused.
        Paused = "paused",
        /// Its checkpoint is saved and loaded.
        Resuming = "resuming",
    }
}

states_of! {
    /// Kind of a carbon intensity: emissions per energy consumed (`average`), or of the generator that serves one more watt
    /// (`marginal`).
    IntensityKind of SignalKind {
        /// Emissions of all generation divided by consumption.
        Average = "average",
        /// Emissions of the generator that serves one more watt.
        Marginal = "marginal",
        /// Not specified by the source.
        Unspecified = "unspecified",
    }
}

states_of! {
    /// Emissions that a carbon intensity includes: of the stack alone (`operational`), or also of construction, fuel supply
    /// and disposal (`lifecycle`).
    IntensityScope of SignalScope {
        /// Including construction, fuel supply and disposal.
        Lifecycle = "lifecycle",
        /// Stack emissions only.
        Operational = "operational",
        /// Not specified by the source.
        Unspecified = "unspecified",
    }
}

states_of! {
    /// Origin of a carbon intensity: published afterwards from measurements (`measured`, `estimated` if they were incomplete),
    /// published before its time (`forecast`), made by wattune where the source has no value (`fallback`), or generated for
    /// no real grid (`synthetic`).
    IntensityOrigin of Origin {
        /// Published afterwards, from measurements.
        Measured = "measured",
        /// Published afterwards, from incomplete measurements.
        Estimated = "estimated",
        /// Published before its time.
        Forecast = "forecast",
        /// Made by wattune, as the source has no value.
        Fallback = "fallback",
        /// Generated, for no real grid.
        Synthetic = "synthetic",
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
    }
}
