//! Rows of a report: energy, emissions, and figures derived from them.

use chrono::{DateTime, Utc};

use super::job::Saved;
use super::ledger_data::Owner;
use super::score::Score;
use crate::domain::{DeviceId, DeviceKind, JobId, JobName};
use crate::ledger::Total;
use crate::ledger::entry::Finality;
use crate::units::{GramsCo2e, Joules, Micrograms, Millijoules, Seconds};

/// Subject of a row, in the order of rows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKey {
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
    /// Energy without an owner.
    Idle,
    /// Energy with an unknown owner.
    Unattributed,
    /// All energy.
    Total,
}

/// Energy by kind of hardware and by owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// GPUs.
    pub gpu: Millijoules,
    /// CPU packages.
    pub cpu: Millijoules,
    /// Memory.
    pub dram: Millijoules,
    /// Jobs.
    pub jobs: Millijoules,
    /// Idle.
    pub idle: Millijoules,
    /// Unattributed.
    pub unattributed: Millijoules,
    /// Simulated devices.
    pub simulated: Millijoules,
}

impl Split {
    pub(super) fn add(&mut self, device: &DeviceId, owner: &Owner, energy: Millijoules) {
        if device.is_simulated() {
            self.simulated += energy;
        }
        let of_kind = match device.kind() {
            DeviceKind::Gpu => &mut self.gpu,
            DeviceKind::Cpu => &mut self.cpu,
            DeviceKind::Dram => &mut self.dram,
        };
        *of_kind += energy;
        let of_holder = match owner {
            Owner::Job(_) | Owner::Jobs => &mut self.jobs,
            Owner::Idle => &mut self.idle,
            Owner::Unattributed => &mut self.unattributed,
        };
        *of_holder += energy;
    }
}

/// A row of a report.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Subject.
    pub key: RowKey,
    /// Energy and location-based emissions with average intensities.
    pub total: Total,
    /// Energy by kind of hardware and by owner.
    pub split: Split,
    /// Emissions with marginal intensities, and the energy without one; absent where no marginal intensities were used.
    pub marginal: Option<(Micrograms, Millijoules)>,
    /// Market-based emissions; absent unless a contract was in force for all of the energy.
    pub market: Option<GramsCo2e>,
    /// Energy times node factor and PUE.
    pub facility_energy: Joules,
    /// Location-based emissions times node factor and PUE.
    pub facility_carbon: GramsCo2e,
    /// Holding time of GPUs: an hour of two GPUs is two hours; time of shared GPUs is divided evenly.
    pub held: Seconds,
    /// Embodied emissions of that time by the declarations in force; absent unless declared for all of it.
    pub embodied: Option<GramsCo2e>,
    /// Number of jobs; for a day or month, those that ended then.
    pub jobs: u64,
    /// Number of these jobs that ended in the span.
    pub ended: u64,
    /// Savings of its jobs, and the number of jobs with a known saving. A saving counts where the job ended.
    pub saved: Option<(Saved, u64)>,
    /// Grams per functional unit with the number of units, or the reason why there is no score.
    pub score: Result<Score, String>,
}

impl Row {
    /// Returns the energy whose intensities have a finality.
    pub fn in_state(&self, state: Finality) -> Millijoules {
        match state {
            Finality::Forecast => self.total.forecast,
            Finality::Provisional => self.total.provisional,
            Finality::Final => self.total.final_,
        }
    }

    /// Returns the energy's interval: ±5 % for energy from monitored counters (gain error of GPU sensors: Yang, Adámek,
    /// Armour, SC'24), ±10 % for the rest. Gain errors are systematic and therefore added, not averaged.
    pub fn energy_interval(&self) -> (Joules, Joules) {
        let energy = self.total.energy.to_joules();
        let error = energy * self.uncertainty();
        (energy - error, energy + error)
    }

    /// Returns the emissions' interval due to the energy alone: sources of intensities state no uncertainty.
    pub fn carbon_interval(&self) -> (GramsCo2e, GramsCo2e) {
        let carbon = self.total.carbon.to_grams();
        let error = carbon * self.uncertainty();
        (carbon - error, carbon + error)
    }

    /// Returns the relative uncertainty of the energy: 0.05 is 5 %.
    pub fn uncertainty(&self) -> f64 {
        let (energy, estimated) = (self.total.energy.to_joules(), self.total.estimated.to_joules());
        if energy > Joules::ZERO { 0.05 + 0.05 * (estimated / energy) } else { 0.0 }
    }

    /// Returns `part` in percent of the row's energy.
    pub fn pct(&self, part: Millijoules) -> f64 {
        let energy = self.total.energy.to_joules();
        if energy > Joules::ZERO { 100.0 * (part.to_joules() / energy) } else { 0.0 }
    }
}
