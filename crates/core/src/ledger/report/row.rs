//! Rows of a report: energy, emissions, and figures derived from them.

use chrono::{DateTime, Utc};

use super::job::{Saved, SavedEffects};
use super::ledger_data::Owner;
use super::score::Score;
use crate::domain::{DeviceId, DeviceKind, JobId, JobName};
use crate::ledger::Total;
use crate::ledger::entry::Finality;
use crate::units::{GramsCo2e, Joules, Micrograms, Millijoules, Seconds};

/// Subject of a report's row. The order of the variants is the order of the rows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKey {
    /// The row covers the UTC day or month that starts at this time.
    Time(DateTime<Utc>),
    /// The row covers one GPU, CPU package or memory.
    Device(DeviceId),
    /// The row covers the job with this name and identifier.
    Job(JobName, JobId),
    /// The row covers all jobs with this name.
    Name(JobName),
    /// The row covers all jobs with this value of the label by which the report groups.
    Tag(String),
    /// The row covers all jobs without the label by which the report groups.
    Untagged,
    /// The row covers energy of devices on which no job was registered and no process ran.
    Idle,
    /// The row covers energy whose owner is unknown.
    Unattributed,
    /// The row is the sum of all rows.
    Total,
}

/// Energy split by kind of hardware, and the same energy split by owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// Energy of GPUs.
    pub gpu: Millijoules,
    /// Energy of CPU packages.
    pub cpu: Millijoules,
    /// Energy of memory.
    pub dram: Millijoules,
    /// Energy of jobs.
    pub jobs: Millijoules,
    /// Energy without an owner.
    pub idle: Millijoules,
    /// Energy whose owner is unknown.
    pub unattributed: Millijoules,
    /// Part of the energy that simulated devices used.
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
    /// Subject of the row, for example a job, a day or a device.
    pub key: RowKey,
    /// Energy, and location-based emissions with average carbon intensities.
    pub total: Total,
    /// Energy split by kind of hardware and by owner.
    pub split: Split,
    /// First: emissions with marginal carbon intensities. Second: energy without a marginal intensity. Absent if no
    /// marginal intensities were used.
    pub marginal: Option<(Micrograms, Millijoules)>,
    /// Market-based emissions; absent unless an electricity contract was declared for all of the energy.
    pub market: Option<GramsCo2e>,
    /// Energy of the facility: energy of the devices × node factor × PUE.
    pub facility_energy: Joules,
    /// Emissions of the facility: location-based emissions of the devices × node factor × PUE.
    pub facility_carbon: GramsCo2e,
    /// Time on GPUs: an hour on two GPUs is two hours. Time on a shared GPU is divided evenly between its jobs.
    pub occupied: Seconds,
    /// Embodied emissions for the time `occupied`, by the settings in force; absent unless declared for all of this
    /// time.
    pub embodied: Option<GramsCo2e>,
    /// Number of jobs; in a row of a day or month, the number of jobs that ended then.
    pub jobs: u64,
    /// Number of the row's jobs that ended in the report's span of time.
    pub ended: u64,
    /// First: emissions saved by the row's jobs. Second: number of jobs whose saving is known and included. A saving
    /// counts in the report whose span contains the end of the job; absent if no saving is known.
    pub saved: Option<(Saved, u64)>,
    /// Effects whose sum is the mean of `saved`; absent unless known for all jobs of `saved`.
    pub effects: Option<SavedEffects>,
    /// SCI score, or the reason why there is none.
    pub score: Result<Score, String>,
}

impl Row {
    /// Returns the energy whose carbon intensity has the finality `state`.
    pub fn in_state(&self, state: Finality) -> Millijoules {
        match state {
            Finality::Forecast => self.total.forecast,
            Finality::Provisional => self.total.provisional,
            Finality::Final => self.total.final_,
        }
    }

    /// Returns lower and upper end of the energy: ±5 % for energy from monitored counters (gain error of GPU sensors:
    /// Yang, Adámek, Armour, SC'24), ±10 % for the rest. Gain errors are systematic and therefore added, not averaged.
    pub fn energy_interval(&self) -> (Joules, Joules) {
        let energy = self.total.energy.to_joules();
        let error = energy * self.uncertainty();
        (energy - error, energy + error)
    }

    /// Returns lower and upper end of the emissions due to the error of the energy alone: sources state no error of
    /// carbon intensities.
    pub fn carbon_interval(&self) -> (GramsCo2e, GramsCo2e) {
        let carbon = self.total.carbon.to_grams();
        let error = carbon * self.uncertainty();
        (carbon - error, carbon + error)
    }

    /// Returns the relative uncertainty of the energy: 0.05 is 5 %; 0 without energy.
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
