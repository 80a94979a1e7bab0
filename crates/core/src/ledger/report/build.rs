//! Construction of a report's rows from ledger data.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Datelike, TimeDelta, Utc};

use super::holding_time::{HoldingTime, holding_times};
use super::job::{JobFacts, Saved, SavedEffects};
use super::ledger_data::{LedgerData, Owner, Sum};
use super::request::{Grouping, ReportRequest};
use super::row::{Row, RowKey, Split};
use super::score::{ScoreTerms, is_within};
use super::whole_job::WholeJob;
use crate::domain::{DeviceId, DeviceKind, GpuId, JobId, Slot};
use crate::ledger::Total;
use crate::ledger::apportion::day_of;
use crate::ledger::block::DeviceBalance;
use crate::ledger::entry::{Boundary, Embodied};
use crate::units::{GramsCo2e, Joules, Millijoules, Samples, Seconds};

/// A report: rows of energy and emissions, and the ledger data that they were made from.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Request that the report answers.
    pub request: ReportRequest,
    /// Rows: first the groups of the request (such as jobs or days), then idle and unattributed energy.
    pub rows: Vec<Row>,
    /// Sum of the rows.
    pub total: Row,
    /// Embodied emissions of a GPU by the newest settings; absent if they declare none.
    pub embodied: Option<Embodied>,
    /// Ledger data of the report's span, for the context that reports state.
    pub data: LedgerData,
}

/// Builds a report from ledger data.
pub fn build(request: ReportRequest, data: LedgerData) -> Report {
    let embodied = data.terms.last().and_then(|terms| terms.boundary.embodied.clone());
    let mut builder = ReportBuilder::new(&request, &data);
    for period in &data.periods {
        for sum in &period.sums {
            builder.add(sum, &period.boundary);
        }
    }
    for job in WholeJob::all(&data.jobs) {
        builder.count(&job);
    }
    builder.add_holding_times();
    let (rows, total) = builder.finish();
    Report { request, rows, total, embodied, data }
}

struct ReportBuilder<'a> {
    request: &'a ReportRequest,
    data: &'a LedgerData,
    /// True if the settings declared embodied emissions at any time of the report's span.
    has_embodied: bool,
    jobs: BTreeMap<&'a JobId, &'a JobFacts>,
    /// Jobs of whose energy the report's span contains all: they began and ended in it, with all of their parts.
    whole: BTreeSet<&'a JobId>,
    rows: BTreeMap<RowKey, Draft>,
    total: Draft,
    has_marginal: bool,
}

#[derive(Default)]
struct Draft {
    average: Total,
    marginal: Total,
    split: Split,
    /// First: market-based emissions by the electricity contract. Second: energy used while no contract was declared.
    market: (GramsCo2e, Millijoules),
    facility: (Joules, GramsCo2e),
    occupied: Seconds,
    embodied: GramsCo2e,
    /// Time of GPUs for which no embodied emissions were declared.
    undeclared: Seconds,
    jobs: u64,
    ended: u64,
    saved: Option<(Saved, u64)>,
    /// First: effects of the savings. Second: number of jobs whose effects are included.
    effects: (SavedEffects, u64),
    score_terms: ScoreTerms,
}

impl<'a> ReportBuilder<'a> {
    fn new(request: &'a ReportRequest, data: &'a LedgerData) -> Self {
        let jobs = data.jobs.iter().map(|job| (&job.id, job)).collect();
        let sums = || data.periods.iter().flat_map(|p| &p.sums);
        let has_marginal = sums().any(|s| s.marginal.energy > Millijoules::ZERO);
        let has_embodied = data.periods.iter().any(|p| p.boundary.embodied.is_some());
        let is_whole = |job: &WholeJob<'_>| job.parts().iter().all(|part| is_within(part, request));
        let whole = WholeJob::all(&data.jobs).into_iter().filter(is_whole);
        let whole = whole.flat_map(|job| job.parts().to_vec()).map(|part| &part.id).collect();
        let (rows, total) = (BTreeMap::new(), Draft::default());
        Self { request, data, has_embodied, jobs, whole, rows, total, has_marginal }
    }

    fn job_key(&self, id: &JobId) -> RowKey {
        match (&self.request.by, self.jobs.get(id)) {
            (Grouping::Name, Some(job)) => RowKey::Name(job.name.clone()),
            (Grouping::Tag(key), Some(job)) => {
                job.tags.get(key).map_or(RowKey::Untagged, |value| RowKey::Tag(value.clone()))
            }
            (Grouping::Tag(_), None) => RowKey::Untagged,
            (_, known) => {
                // All parts of a job have the row of the first one.
                let id = known.map_or(id, |job| job.first());
                let known = self.jobs.get(id).or(known);
                let unnamed = || crate::domain::JobName::new(id.as_str()).expect("an id is a name");
                RowKey::Job(known.map_or_else(unnamed, |job| job.name.clone()), id.clone())
            }
        }
    }

    fn time_key(&self, day: DateTime<Utc>) -> RowKey {
        RowKey::Time(if self.request.by == Grouping::Month { day.with_day(1).unwrap_or(day) } else { day })
    }

    fn key(&self, day: DateTime<Utc>, device: &DeviceId, owner: &Owner) -> RowKey {
        match (&self.request.by, owner) {
            (Grouping::Device, _) => RowKey::Device(device.clone()),
            (Grouping::Day | Grouping::Month, _) => self.time_key(day),
            (_, Owner::Job(id)) => self.job_key(id),
            (_, Owner::Jobs) => RowKey::Untagged,
            (_, Owner::Idle) => RowKey::Idle,
            (_, Owner::Unattributed) => RowKey::Unattributed,
        }
    }

    fn add(&mut self, sum: &Sum, boundary: &Boundary) {
        let key = self.key(sum.day, &sum.device, &sum.owner);
        let whole = match &sum.owner {
            Owner::Job(id) => self.whole.contains(id),
            _ => false,
        };
        for draft in [self.rows.entry(key).or_default(), &mut self.total] {
            draft.add(sum, boundary, whole);
        }
    }

    /// Counts a job if one of its parts ran within the report's span or has energy in that span. A part may have energy
    /// after its end: recorded shortly afterwards, or attributed by a correction.
    fn count(&mut self, job: &WholeJob<'_>) {
        let span = &self.request.span;
        let is_counted = |part: &&JobFacts| part.ran_within(span) || self.data.holders.contains(&part.id);
        let parts: Vec<&JobFacts> = job.parts().iter().copied().filter(is_counted).collect();
        let Some(last) = parts.last() else { return };
        let keys: BTreeSet<RowKey> = match self.request.by {
            Grouping::Device => {
                parts.iter().flat_map(|part| &part.gpus).map(|gpu| RowKey::Device(DeviceId::from(gpu))).collect()
            }
            Grouping::Day | Grouping::Month => {
                let end = job.ended_at().filter(|_| job.ended_within(span));
                // A job that ends at midnight belongs to the day before.
                let day = |end: DateTime<Utc>| day_of(end - TimeDelta::microseconds(1));
                end.map(|end| self.time_key(day(end))).into_iter().collect()
            }
            _ => BTreeSet::from([self.job_key(&last.id)]),
        };
        self.total.count(job, span, true);
        // The saving of a job on several GPUs cannot be divided between them.
        let gpus: BTreeSet<&GpuId> = job.parts().iter().flat_map(|part| &part.gpus).collect();
        let has_saving = self.request.by != Grouping::Device || gpus.len() == 1;
        for key in &keys {
            if let Some(row) = self.rows.get_mut(key) {
                row.count(job, span, has_saving);
            }
        }
        let Some(unit) = self.request.unit.filter(|_| self.whole.contains(&last.id)) else { return };
        let has_holes = parts.iter().any(|part| self.has_holes(part));
        // A part without energy may have no row, and no score.
        let with_rows = || parts.iter().rev().filter(|part| self.rows.contains_key(&self.job_key(&part.id)));
        // The job counts with the last part that did some work.
        let counted = with_rows().find(|part| part.samples > Samples::ZERO).or_else(|| with_rows().next());
        let Some(counted) = counted.map(|part| part.id.clone()) else { return };
        for part in &parts {
            let (is_counted, key) = (part.id == counted, self.job_key(&part.id));
            let Some(row) = self.rows.get_mut(&key) else { continue };
            for terms in [&mut row.score_terms, &mut self.total.score_terms] {
                terms.count(part, unit, has_holes && is_counted, !is_counted);
            }
        }
    }

    /// Returns true if an unknown amount of energy was used by one of the job's GPUs while the job held them.
    fn has_holes(&self, job: &JobFacts) -> bool {
        let occupied = Slot::new(job.registered_at, job.ended_at.unwrap_or(self.request.now));
        let occupied = occupied.map(|occupied| job.present_within(&occupied)).unwrap_or_default();
        self.data.gaps.iter().any(|gap| occupied.iter().any(|slot| gap.is_hole_of(&job.gpus, slot)))
    }

    fn add_holding_times(&mut self) {
        let Some(recorded_span) = &self.data.recorded_span else { return };
        // A GPU that was removed keeps its checkpoint, and so has balances without energy.
        let used = |d: &&DeviceBalance| d.jobs + d.idle + d.unattributed > Millijoules::ZERO;
        let mut gpus: BTreeSet<DeviceId> = self.data.devices.iter().filter(used).map(|d| d.device.clone()).collect();
        let there = self.data.jobs.iter().filter(|job| job.ran_within(&self.request.span));
        gpus.extend(there.flat_map(|job| &job.gpus).map(DeviceId::from));
        gpus.retain(|device| device.kind() == DeviceKind::Gpu);
        let in_node = |device: DeviceId| {
            let first = *self.data.first_seen.get(&device)?;
            let last = self.data.last_seen.get(&device).copied().unwrap_or(DateTime::<Utc>::MAX_UTC);
            Some((device, Slot::new(first, last)?))
        };
        let gpus: BTreeMap<DeviceId, Slot> = gpus.into_iter().filter_map(in_node).collect();
        for period in &self.data.periods {
            let Some(part) = period.span.intersection(recorded_span) else { continue };
            for hold in holding_times(&self.data.jobs, &gpus, &part) {
                self.add_holding_time(&hold, period.boundary.embodied.as_ref());
            }
        }
    }

    fn add_holding_time(&mut self, hold: &HoldingTime<'_>, declared: Option<&Embodied>) {
        let owner = hold.job.map_or(Owner::Idle, |job| Owner::Job(job.id.clone()));
        let key = self.key(hold.day, hold.device, &owner);
        let whole = hold.job.is_some_and(|job| self.whole.contains(&job.id));
        if key == RowKey::Idle && declared.is_some() {
            self.rows.entry(RowKey::Idle).or_default();
        }
        let (embodied, undeclared) = match declared {
            Some(declared) => (share(declared, hold.time), Seconds::ZERO),
            None => (GramsCo2e::ZERO, hold.time),
        };
        // Other rows without energy are not added for the sake of their time, but their time counts in the total.
        for draft in self.rows.get_mut(&key).into_iter().chain([&mut self.total]) {
            draft.occupied += hold.time;
            draft.embodied += embodied;
            draft.undeclared += undeclared;
            if whole {
                draft.score_terms.embodied += embodied;
                draft.score_terms.undeclared |= self.has_embodied && declared.is_none();
            }
        }
    }

    fn finish(self) -> (Vec<Row>, Row) {
        let Self { request, has_embodied, has_marginal, rows, total, .. } = self;
        let row = |(key, draft): (RowKey, Draft)| {
            let work = match (&key, request.by.is_of_jobs()) {
                (RowKey::Idle | RowKey::Unattributed, _) => {
                    Err("energy that belongs to no job has no functional unit".into())
                }
                (_, false) if request.unit.is_some() => {
                    Err("a score needs rows of jobs: group by job, name or tag".into())
                }
                _ => draft.score_terms.score(request.unit),
            };
            let (contract, without) = draft.market;
            Row {
                key,
                total: draft.average,
                split: draft.split,
                marginal: has_marginal.then_some((draft.marginal.carbon, without_marginal(&draft))),
                market: (without == Millijoules::ZERO && draft.average.energy > Millijoules::ZERO).then_some(contract),
                facility_energy: draft.facility.0,
                facility_carbon: draft.facility.1,
                occupied: draft.occupied,
                embodied: (has_embodied && draft.undeclared <= Seconds::ZERO).then_some(draft.embodied),
                jobs: draft.jobs,
                ended: draft.ended,
                saved: draft.saved,
                effects: draft.saved.filter(|(_, jobs)| *jobs == draft.effects.1).map(|_| draft.effects.0),
                score: work,
            }
        };
        let total = row((RowKey::Total, total));
        (rows.into_iter().map(row).collect(), total)
    }
}

/// Returns the energy for which no marginal carbon intensity is known.
fn without_marginal(draft: &Draft) -> Millijoules {
    let recorded = draft.average.energy.checked_since(draft.marginal.energy).unwrap_or_default();
    recorded + draft.marginal.unknown
}

/// Returns the part of a GPU's embodied emissions for the time `occupied` on the GPU: `TE · TiR / EL`, total emissions
/// by time over lifetime (SCI, ISO/IEC 21031).
fn share(embodied: &Embodied, occupied: Seconds) -> GramsCo2e {
    GramsCo2e::new(embodied.per_gpu_g * (occupied.get() / embodied.life_s))
}

impl Draft {
    fn add(&mut self, sum: &Sum, boundary: &Boundary, whole: bool) {
        self.average += sum.average;
        self.marginal += sum.marginal;
        let energy = sum.average.energy;
        self.split.add(&sum.device, &sum.owner, energy);
        match boundary.contract_g_per_kwh {
            Some(factor) => self.market.0 += energy.to_joules() * factor,
            None => self.market.1 += energy,
        }
        let factor = boundary.node_factor * boundary.pue;
        let carbon = sum.average.carbon.to_grams() * factor;
        self.facility.0 += energy.to_joules() * factor;
        self.facility.1 += carbon;
        if whole {
            self.score_terms.carbon += carbon;
            self.score_terms.unknown += sum.average.unknown;
        }
    }

    /// Counts a job, and its saving if `has_saving` and the job ended within the span.
    fn count(&mut self, job: &WholeJob<'_>, span: &Slot, has_saving: bool) {
        let has_ended = job.ended_within(span);
        self.jobs += 1;
        self.ended += u64::from(has_ended);
        if let Some(saved) = job.saved().filter(|_| has_ended && has_saving) {
            self.saved = Some(match self.saved {
                Some((before, jobs)) => (before + saved, jobs + 1),
                None => (saved, 1),
            });
            if let Some(effects) = job.effects() {
                self.effects = (self.effects.0 + effects, self.effects.1 + 1);
            }
        }
    }
}
