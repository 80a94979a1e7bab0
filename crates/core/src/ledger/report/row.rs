//! A row of a report: energy and emissions with everything that is derived from them.

use chrono::{DateTime, Utc};

use super::books::Whose;
use super::saved::Saved;
use super::score::Score;
use crate::domain::{DeviceId, DeviceKind, JobId, JobName};
use crate::ledger::Total;
use crate::ledger::entry::State;
use crate::units::{GramsCo2e, Joules, Micrograms, Millijoules, Seconds};

/// What a row is about. Ordered as rows are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A UTC day or month.
    Time(DateTime<Utc>),
    /// A device.
    Device(DeviceId),
    /// A job.
    Job(JobName, JobId),
    /// A name.
    Name(JobName),
    /// A label's value.
    Tag(String),
    /// Jobs without the label.
    Untagged,
    /// Nobody's energy.
    Idle,
    /// Energy of somebody who cannot be named.
    Unattributed,
    /// Everything.
    Total,
}

/// Energy by the kind of hardware that used it, and by whose it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// GPUs.
    pub gpu: Millijoules,
    /// Processor packages.
    pub cpu: Millijoules,
    /// Memory.
    pub dram: Millijoules,
    /// Jobs.
    pub jobs: Millijoules,
    /// Nobody.
    pub idle: Millijoules,
    /// Somebody who cannot be named.
    pub unattributed: Millijoules,
    /// Simulated devices: no hardware used it.
    pub simulated: Millijoules,
}

impl Split {
    pub(super) fn add(&mut self, device: &DeviceId, whose: &Whose, energy: Millijoules) {
        if device.is_simulated() {
            self.simulated += energy;
        }
        let of_kind = match device.kind() {
            DeviceKind::Gpu => &mut self.gpu,
            DeviceKind::Cpu => &mut self.cpu,
            DeviceKind::Dram => &mut self.dram,
        };
        *of_kind += energy;
        let of_holder = match whose {
            Whose::Job(_) | Whose::Jobs => &mut self.jobs,
            Whose::Idle => &mut self.idle,
            Whose::Unattributed => &mut self.unattributed,
        };
        *of_holder += energy;
    }
}

/// A row of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it is about.
    pub key: Key,
    /// Energy and location-based emissions with average intensities.
    pub total: Total,
    /// The energy, split.
    pub split: Split,
    /// Emissions with marginal intensities, and the energy that has none; absent where the span has no such book.
    pub marginal: Option<(Micrograms, Millijoules)>,
    /// Emissions by a contract's factor; absent unless one was in force for all of the energy.
    pub market: Option<GramsCo2e>,
    /// The energy times node factor and PUE.
    pub facility_energy: Joules,
    /// The location-based emissions times the same.
    pub facility_carbon: GramsCo2e,
    /// Time in which boards were held: an hour of two boards is two hours; shared boards are split evenly.
    pub held: Seconds,
    /// The part of embodied emissions that falls on that time, by what was declared then; absent unless something was for all
    /// of it.
    pub embodied: Option<GramsCo2e>,
    /// The jobs in it; of a day or month those that ended then.
    pub jobs: u64,
    /// Of them, those that ended in the span.
    pub ended: u64,
    /// What its jobs saved, and of how many of them that is known. It is counted where the job ended.
    pub saved: Option<(Saved, u64)>,
    /// Grams per functional unit with the number of units, or why there is no score.
    pub score: Result<Score, String>,
}

impl Row {
    /// The energy whose intensity is in a state.
    pub fn in_state(&self, state: State) -> Millijoules {
        match state {
            State::Forecast => self.total.forecast,
            State::Provisional => self.total.provisional,
            State::Final => self.total.final_,
        }
    }

    /// The energy as an interval: ±5 % of what was read off watched counters (the gain error of boards' sensors: Yang,
    /// Adámek, Armour, SC'24), ±10 % of the rest. Errors of gain do not average out, so they add up.
    pub fn energy_interval(&self) -> (Joules, Joules) {
        let energy = self.total.energy.to_joules();
        let error = energy * self.uncertainty();
        (energy - error, energy + error)
    }

    /// The emissions as an interval, by the uncertainty of the energy alone: sources of intensities state none.
    pub fn carbon_interval(&self) -> (GramsCo2e, GramsCo2e) {
        let carbon = self.total.carbon.to_grams();
        let error = carbon * self.uncertainty();
        (carbon - error, carbon + error)
    }

    /// The energy's relative uncertainty: 0.05 is 5 %.
    pub fn uncertainty(&self) -> f64 {
        let (energy, estimated) = (self.total.energy.to_joules(), self.total.estimated.to_joules());
        if energy > Joules::ZERO { 0.05 + 0.05 * (estimated / energy) } else { 0.0 }
    }

    /// Percent of the row's energy.
    pub fn pct(&self, part: Millijoules) -> f64 {
        let energy = self.total.energy.to_joules();
        if energy > Joules::ZERO { 100.0 * (part.to_joules() / energy) } else { 0.0 }
    }
}
