//! Construction of a report's rows from ledger data.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Datelike, TimeDelta, Utc};

use super::books::{Books, Sum, Whose};
use super::grouping::By;
use super::held::{Hold, holds};
use super::job::JobFacts;
use super::row::{Key, Row, Split};
use super::saved::Saved;
use super::score::{Scored, is_whole};
use super::wanted::Wanted;
use crate::domain::{DeviceId, DeviceKind, JobId, Slot};
use crate::ledger::Total;
use crate::ledger::apportion::day_of;
use crate::ledger::entry::{Boundary, Embodied};
use crate::units::{GramsCo2e, Joules, Millijoules, Seconds};

/// A report.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Request.
    pub wanted: Wanted,
    /// Rows: jobs and other owners first, then idle and unattributed energy.
    pub rows: Vec<Row>,
    /// Sum of the rows.
    pub total: Row,
    /// Embodied emissions of the newest terms, where declared.
    pub embodied: Option<Embodied>,
    /// Ledger data of the span.
    pub books: Books,
}

/// Builds a report from ledger data.
pub fn build(wanted: Wanted, books: Books) -> Report {
    let embodied = books.terms.last().and_then(|terms| terms.boundary.embodied.clone());
    let mut making = Making::new(&wanted, &books);
    for piece in &books.pieces {
        for sum in &piece.sums {
            making.add(sum, &piece.boundary);
        }
    }
    for job in &books.jobs {
        making.count(job);
    }
    making.hold();
    let (rows, total) = making.finish();
    Report { wanted, rows, total, embodied, books }
}

struct Making<'a> {
    wanted: &'a Wanted,
    books: &'a Books,
    /// True if embodied emissions were declared at any time.
    has_embodied: bool,
    jobs: BTreeMap<&'a JobId, &'a JobFacts>,
    rows: BTreeMap<Key, Draft>,
    total: Draft,
    has_marginal: bool,
}

#[derive(Default)]
struct Draft {
    average: Total,
    marginal: Total,
    split: Split,
    /// Emissions by contract, and the energy without a contract.
    market: (GramsCo2e, Millijoules),
    facility: (Joules, GramsCo2e),
    held: Seconds,
    embodied: GramsCo2e,
    /// Time without declared embodied emissions.
    undeclared: Seconds,
    jobs: u64,
    ended: u64,
    saved: Option<(Saved, u64)>,
    scored: Scored,
}

impl<'a> Making<'a> {
    fn new(wanted: &'a Wanted, books: &'a Books) -> Self {
        let jobs = books.jobs.iter().map(|job| (&job.id, job)).collect();
        let sums = || books.pieces.iter().flat_map(|p| &p.sums);
        let has_marginal = sums().any(|s| s.marginal.energy > Millijoules::ZERO);
        let has_embodied = books.pieces.iter().any(|p| p.boundary.embodied.is_some());
        Self { wanted, books, has_embodied, jobs, rows: BTreeMap::new(), total: Draft::default(), has_marginal }
    }

    fn job_key(&self, id: &JobId) -> Key {
        match (&self.wanted.by, self.jobs.get(id)) {
            (By::Name, Some(job)) => Key::Name(job.name.clone()),
            (By::Tag(key), Some(job)) => job.tags.get(key).map_or(Key::Untagged, |value| Key::Tag(value.clone())),
            (By::Tag(_), None) => Key::Untagged,
            (_, known) => {
                let unnamed = || crate::domain::JobName::new(id.as_str()).expect("an id is a name");
                Key::Job(known.map_or_else(unnamed, |job| job.name.clone()), id.clone())
            }
        }
    }

    fn time_key(&self, day: DateTime<Utc>) -> Key {
        Key::Time(if self.wanted.by == By::Month { day.with_day(1).unwrap_or(day) } else { day })
    }

    fn key(&self, day: DateTime<Utc>, device: &DeviceId, whose: &Whose) -> Key {
        match (&self.wanted.by, whose) {
            (By::Device, _) => Key::Device(device.clone()),
            (By::Day | By::Month, _) => self.time_key(day),
            (_, Whose::Job(id)) => self.job_key(id),
            (_, Whose::Jobs) => Key::Untagged,
            (_, Whose::Idle) => Key::Idle,
            (_, Whose::Unattributed) => Key::Unattributed,
        }
    }

    fn add(&mut self, sum: &Sum, boundary: &Boundary) {
        let key = self.key(sum.day, &sum.device, &sum.whose);
        let whole = match &sum.whose {
            Whose::Job(id) => self.jobs.get(id).is_some_and(|job| is_whole(job, self.wanted)),
            _ => false,
        };
        for draft in [self.rows.entry(key).or_default(), &mut self.total] {
            draft.add(sum, boundary, whole);
        }
    }

    /// Counts a job that ran within the span, or has energy there: recorded shortly after its end, or by a correction.
    fn count(&mut self, job: &JobFacts) {
        let span = &self.wanted.span;
        if !job.ran_within(span) && !self.books.holders.contains(&job.id) {
            return;
        }
        let keys: Vec<Key> = match self.wanted.by {
            By::Device => job.gpus.iter().map(|gpu| Key::Device(DeviceId::from(gpu))).collect(),
            By::Day | By::Month => {
                let end = job.ended_at.filter(|_| job.ended_within(span));
                // A job that ends at midnight belongs to the day before.
                let day = |end: DateTime<Utc>| day_of(end - TimeDelta::microseconds(1));
                end.map(|end| self.time_key(day(end))).into_iter().collect()
            }
            _ => vec![self.job_key(&job.id)],
        };
        self.total.count(job, span, true);
        // The distribution of a saving over several GPUs is unknown.
        let has_saving = self.wanted.by != By::Device || job.gpus.len() == 1;
        for key in &keys {
            if let Some(row) = self.rows.get_mut(key) {
                row.count(job, span, has_saving);
            }
        }
        // A job without energy has no row, and no score.
        let has_row = keys.iter().any(|key| self.rows.contains_key(key));
        let Some(unit) = self.wanted.unit.filter(|_| has_row && is_whole(job, self.wanted)) else { return };
        let has_holes = self.has_holes(job);
        self.total.scored.count(job, unit, has_holes);
        for key in &keys {
            if let Some(row) = self.rows.get_mut(key) {
                row.scored.count(job, unit, has_holes);
            }
        }
    }

    /// Returns true if some energy of a job's GPUs in its time is unknown.
    fn has_holes(&self, job: &JobFacts) -> bool {
        let held = Slot::new(job.registered_at, job.ended_at.unwrap_or(self.wanted.now));
        held.is_some_and(|held| self.books.gaps.iter().any(|gap| gap.is_hole_of(&job.gpus, &held)))
    }

    fn hold(&mut self) {
        let Some(kept) = &self.books.kept else { return };
        let mut boards: BTreeSet<DeviceId> = self.books.devices.iter().map(|d| d.device.clone()).collect();
        let there = self.books.jobs.iter().filter(|job| job.ran_within(&self.wanted.span));
        boards.extend(there.flat_map(|job| &job.gpus).map(DeviceId::from));
        boards.retain(|device| device.kind() == DeviceKind::Gpu);
        let first = |device: DeviceId| Some((device.clone(), *self.books.first_seen.get(&device)?));
        let boards: BTreeMap<DeviceId, DateTime<Utc>> = boards.into_iter().filter_map(first).collect();
        for piece in &self.books.pieces {
            let Some(part) = piece.span.intersection(kept) else { continue };
            for hold in holds(&self.books.jobs, &boards, &part) {
                self.add_hold(&hold, piece.boundary.embodied.as_ref());
            }
        }
    }

    fn add_hold(&mut self, hold: &Hold<'_>, declared: Option<&Embodied>) {
        let whose = hold.job.map_or(Whose::Idle, |job| Whose::Job(job.id.clone()));
        let key = self.key(hold.day, hold.device, &whose);
        let whole = hold.job.is_some_and(|job| is_whole(job, self.wanted));
        if key == Key::Idle && declared.is_some() {
            self.rows.entry(Key::Idle).or_default();
        }
        let (embodied, undeclared) = match declared {
            Some(declared) => (share(declared, hold.time), Seconds::ZERO),
            None => (GramsCo2e::ZERO, hold.time),
        };
        // Other time without energy adds no row, but counts in the total.
        for draft in self.rows.get_mut(&key).into_iter().chain([&mut self.total]) {
            draft.held += hold.time;
            draft.embodied += embodied;
            draft.undeclared += undeclared;
            if whole {
                draft.scored.embodied += embodied;
                draft.scored.undeclared |= self.has_embodied && declared.is_none();
            }
        }
    }

    fn finish(self) -> (Vec<Row>, Row) {
        let Self { wanted, has_embodied, has_marginal, rows, total, .. } = self;
        let row = |(key, draft): (Key, Draft)| {
            let work = match (&key, wanted.by.is_of_jobs()) {
                (Key::Idle | Key::Unattributed, _) => Err("energy without a job does no work".into()),
                (_, false) if wanted.unit.is_some() => Err("work belongs to jobs: group by job, name or tag".into()),
                _ => draft.scored.score(wanted.unit),
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
                held: draft.held,
                embodied: (has_embodied && draft.undeclared <= Seconds::ZERO).then_some(draft.embodied),
                jobs: draft.jobs,
                ended: draft.ended,
                saved: draft.saved,
                score: work,
            }
        };
        let total = row((Key::Total, total));
        (rows.into_iter().map(row).collect(), total)
    }
}

/// Returns the energy without a marginal intensity.
fn without_marginal(draft: &Draft) -> Millijoules {
    let recorded = draft.average.energy.checked_since(draft.marginal.energy).unwrap_or_default();
    recorded + draft.marginal.unknown
}

/// Returns the part of a GPU's embodied emissions for a holding time: `TE · TiR / EL`.
fn share(embodied: &Embodied, held: Seconds) -> GramsCo2e {
    GramsCo2e::new(embodied.per_gpu_g * (held.get() / embodied.life_s))
}

impl Draft {
    fn add(&mut self, sum: &Sum, boundary: &Boundary, whole: bool) {
        self.average += sum.average;
        self.marginal += sum.marginal;
        let energy = sum.average.energy;
        self.split.add(&sum.device, &sum.whose, energy);
        match boundary.contract_g_per_kwh {
            Some(factor) => self.market.0 += energy.to_joules() * factor,
            None => self.market.1 += energy,
        }
        let factor = boundary.node_factor * boundary.pue;
        let carbon = sum.average.carbon.to_grams() * factor;
        self.facility.0 += energy.to_joules() * factor;
        self.facility.1 += carbon;
        if whole {
            self.scored.carbon += carbon;
            self.scored.unknown += sum.average.unknown;
        }
    }

    /// Counts a job, and its saving if `has_saving`.
    fn count(&mut self, job: &JobFacts, span: &Slot, has_saving: bool) {
        let has_ended = job.ended_within(span);
        self.jobs += 1;
        self.ended += u64::from(has_ended);
        if let Some(saved) = job.saved.filter(|_| has_ended && has_saving) {
            self.saved = Some(match self.saved {
                Some((before, jobs)) => (before + saved, jobs + 1),
                None => (saved, 1),
            });
        }
    }
}
