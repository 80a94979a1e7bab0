//! Types shared by all modules: plain data, validated on construction, without I/O.

mod cap;
mod gpu;
mod ids;
mod input;
mod job;
mod objective;
mod offer;
mod owner;
mod processes;
mod profile;
mod progress;
mod promise;
mod series;
mod set_point;
mod signal;
mod suspension;

pub use cap::{CapSchedule, CapSource, ConfiguredCap, DemandResponse, Level, Rebound, Window, check_level};
pub use gpu::{EnergySource, EventReasons, GpuIdentity, LimitRange, PowerLimit, SENSOR_GAIN};
pub use ids::{DeviceId, DeviceKind, EventId, GpuId, InvalidName, JobId, JobKey, JobName, SIMULATED_GPU, Zone};
pub use input::{
    InvalidJob, MOST_POWER_PER_NODE, check_intensity, check_power, first_invisible, is_invisible, is_visible, legible,
    name_types_plainly, nearest, with_nearest,
};
pub use job::{JobSpec, MOST_SAMPLES, Work};
pub use objective::{Activity, Objective, Pausing};
pub use offer::{Continuation, Offers, StartOffer, SuspendOffer};
pub use owner::{Actor, Owner, Owners};
pub use processes::{CgroupPath, Process, ProcessSelector, Processes};
pub use profile::{Estimate, OperatingPoint, Profile, ProfileKey};
pub use progress::ProgressSource;
pub use promise::{Broken, Circumstance, Excess, Outcome, Promise};
pub use series::{SeriesProblem, Slot, TimeSeries};
pub use set_point::{ClockLimit, ClockRange, SetPoint};
pub use signal::{
    CarbonSeries, Forecast, Intensity, Issued, Method, Origin, Provenance, Quoted, SignalKind, SignalScope,
    SignalValue, Unit, is_same_quantity,
};
pub use suspension::{LearnedTime, StopCosts};
