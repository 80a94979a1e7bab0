//! What jobs save: the references frozen when a job is planned first, and what came of it.

use std::collections::BTreeSet;

use super::job::Job;
use super::{ControlError, Controller};
use crate::domain::CarbonSeries;
use crate::domain::{DeviceKind, GpuId, JobId, PowerLimit, SetPoint, Slot};
use crate::ledger::entry::Entry;
use crate::ledger::frozen::{Compared, Counterfactual, Finding, Outcome, RULE, Reference, Said, Savings};
use crate::ledger::savings::{Basis, BatchEffect, Epoch, batch_effect, saving};
use crate::ledger::{self, Done, Emissions, Interval};
use crate::plan::Plan;
use crate::profile::ladder::Setting;
use crate::profile::{Curve, Evidence};
use crate::store::{StoreError, StoredJob};
use crate::units::{GramsCo2e, Joules, Seconds};

/// Nobody else may have been on a board meanwhile; intervals beside the job's own touch it for no longer than this.
const TOUCH: chrono::TimeDelta = chrono::TimeDelta::seconds(1);

/// Which of a job's references.
#[derive(Clone, Copy)]
enum Which {
    Found,
    Max,
}

impl Counterfactual {
    fn of(&self, which: Which) -> &Reference {
        match which {
            Which::Found => &self.found,
            Which::Max => &self.max,
        }
    }
}

/// What an account is told from.
pub(super) struct Sources<'a> {
    pub(super) stored: &'a StoredJob,
    /// The job as it runs or ran, with its profile.
    pub(super) job: &'a Job,
    pub(super) rows: &'a [Interval],
    pub(super) series: &'a CarbonSeries,
    pub(super) emissions: &'a Emissions,
}

impl Controller {
    /// Writes down against what the jobs will be compared that have a plan and were not frozen yet, or were profiled anew.
    pub(super) async fn freeze_references(&mut self) {
        let is_due = |job: &&Job| {
            let restarts = job.profiler.as_ref().map(|p| p.restarts());
            job.spec.control && job.plan.is_some() && job.is_profiled() && job.frozen.is_none_or(|n| Some(n) < restarts)
        };
        let due: Vec<JobId> = self.jobs.values().filter(is_due).map(|j| j.id.clone()).collect();
        for id in due {
            let earlier = match self.counterfactuals(&id).await {
                Ok(earlier) => earlier,
                Err(error) => return self.note_store_fault(&error),
            };
            let Some(job) = self.jobs.get(&id) else { continue };
            // After a restart of the daemon it stands in the ledger already.
            let is_known = job.frozen.is_none() && !earlier.is_empty();
            let why = if earlier.is_empty() { "its first plan" } else { "it was profiled anew" };
            let entry = match &job.plan {
                Some(plan) if !is_known => Some(self.counterfactual(job, plan, earlier.len(), why)),
                _ => None,
            };
            if let Some(job) = self.jobs.get_mut(&id) {
                job.frozen = job.profiler.as_ref().map(|p| p.restarts());
            }
            if let Some(entry) = entry {
                self.write_note(Entry::Counterfactual(Box::new(entry))).await;
            }
        }
    }

    fn counterfactual(&self, job: &Job, plan: &Plan, earlier: usize, why: &str) -> Counterfactual {
        let reference = |which| {
            let (limits, measured) = match self.reference_limits(job, which) {
                Ok(limits) => {
                    let evidence = self.evidence_at(job, &limits);
                    (limits, evidence)
                }
                Err(why) => (Vec::new(), Err(why)),
            };
            let expected = measured.as_ref().ok().and_then(|at| expected(plan, at));
            let (expected_energy_j, expected_carbon_g) = expected.unzip();
            Reference { limits, measured: measured.into(), expected_energy_j, expected_carbon_g }
        };
        let said = |f: &crate::domain::Forecast| Said {
            source: f.source.clone(),
            zone: f.zone.clone(),
            issued_at: f.issued_at,
        };
        Counterfactual {
            at: self.now().utc,
            job: job.id.clone(),
            version: u32::try_from(earlier + 1).unwrap_or(u32::MAX),
            why: why.into(),
            rule: RULE.into(),
            samples: plan.samples_done,
            found: reference(Which::Found),
            max: reference(Which::Max),
            planned_energy_j: plan.expected.energy,
            planned_carbon_g: plan.expected.carbon,
            planned_end: plan.expected.ends_at,
            forecast: self.forecast.as_deref().map(said),
        }
    }

    /// The limit of each group that a reference is at.
    fn reference_limits(&self, job: &Job, which: Which) -> Result<Vec<PowerLimit>, String> {
        let of = |id: &GpuId| {
            let gpu = self.gpus.get(id)?;
            match which {
                Which::Found => gpu.found(&self.journal),
                Which::Max => gpu.range().map(|range| range.max),
            }
        };
        let one = |members: &[GpuId]| {
            let limits: Option<BTreeSet<PowerLimit>> = members.iter().map(of).collect();
            match limits.ok_or("a board does not tell its limits")?.into_iter().collect::<Vec<_>>().as_slice() {
                [only] => Ok(*only),
                _ if matches!(which, Which::Found) => Err("its boards were found at different limits"),
                _ => Err("its boards have different maximum limits"),
            }
        };
        let limits: Result<Vec<_>, &str> = job.groups.iter().map(|g| one(&g.members)).collect();
        match limits {
            Ok(limits) if limits.is_empty() => Err("its boards have no power limit to set".into()),
            limits => limits.map_err(Into::into),
        }
    }

    /// What the profile measured with the groups at these limits.
    fn evidence_at(&self, job: &Job, limits: &[PowerLimit]) -> Result<Evidence, String> {
        let words: Vec<String> = limits.iter().map(ToString::to_string).collect();
        let words = words.join(" + ");
        if let Some(group) =
            job.groups.iter().zip(limits).find(|(g, l)| **l > g.range.ceiling && !l.same_as(g.range.ceiling))
        {
            return Err(format!(
                "nothing is measured at {words}: wattune goes no higher than {}, the limit that was found or that a cap \
                 leaves",
                group.0.range.ceiling
            ));
        }
        let profiler = job.profiler.as_ref().ok_or("its boards have no power limit to set")?;
        // Boards may show a limit rounded.
        let is_there = |setting: &Setting| {
            let alike = |(set, limit): (&SetPoint, &PowerLimit)| set.same_as((*limit).into());
            setting.len() == limits.len() && setting.iter().zip(limits).all(alike)
        };
        let profile = profiler.profile();
        let setting = profile.points.iter().map(|p| &p.setting).find(|s| is_there(s));
        let evidence = setting.and_then(|s| profiler.evidence(s));
        evidence.ok_or_else(|| format!("the profile has no measurement at {words}"))
    }

    /// What a job saved; why not, where that cannot be told.
    ///
    /// # Errors
    /// If the books cannot be read.
    pub(super) async fn savings(
        &self,
        from: &Sources<'_>,
        done: Result<Done, String>,
    ) -> Result<Savings, ControlError> {
        let id = &from.stored.id;
        let written = self.outcome(id).await?;
        if let Some(outcome) = written.filter(|_| from.stored.ended.is_some()) {
            let savings = outcome.savings;
            // Hours say too little of a job's first and last minutes: what was reckoned from minutes stands.
            if self.store.is_rolled_up(id).await? {
                return Ok(savings);
            }
            let again = |before: Finding<Compared>| match (before, &done) {
                (Finding::Known(c), Ok(done)) => {
                    let as_frozen_pct = c.as_frozen_pct;
                    let found = saving(done, &c.basis, from.series);
                    found.map(|saving| Compared { saving, as_frozen_pct, ..c }).into()
                }
                (Finding::Known(_), Err(why)) => Finding::Unknown { unknown: why.clone() },
                (unknown, _) => unknown,
            };
            return Ok(Savings {
                against_found: again(savings.against_found),
                against_max: again(savings.against_max),
                batch_size_effect: savings.batch_size_effect,
            });
        }
        let frozen = self.counterfactuals(id).await?;
        let against = |which| -> Finding<Compared> {
            let compared = done.as_ref().map_err(Clone::clone).and_then(|d| self.compared(from, d, &frozen, which));
            compared.into()
        };
        Ok(Savings {
            against_found: against(Which::Found),
            against_max: against(Which::Max),
            batch_size_effect: self.batch_size_effect(from).await?.map(Into::into),
        })
    }

    fn compared(
        &self,
        from: &Sources<'_>,
        done: &Done,
        frozen: &[Counterfactual],
        which: Which,
    ) -> Result<Compared, String> {
        let Some(newest) = frozen.last() else {
            return Err(match from.stored.ended {
                None => "its first plan is not made yet".into(),
                Some(_) => "it ended before it was planned, or before savings were kept in the ledger".into(),
            });
        };
        let known = |f: &Counterfactual| match &f.of(which).measured {
            Finding::Known(at) => Ok(*at),
            Finding::Unknown { unknown } => Err(unknown.clone()),
        };
        let limits = newest.of(which).limits.clone();
        // Since it was frozen, the newest reference was measured better.
        let newest_now = self.evidence_at(from.job, &limits).or_else(|why| known(newest).map_err(|_| why))?;
        let mut points: Vec<Evidence> = frozen[..frozen.len() - 1].iter().map(known).collect::<Result<_, _>>()?;
        points.push(newest_now);
        let epochs: Vec<Epoch> = frozen
            .iter()
            .enumerate()
            .map(|(point, f)| Epoch { from: if point == 0 { Default::default() } else { f.samples }, point })
            .collect();
        let same_sensors = from.job.measured_itself();
        let as_frozen: Result<Vec<Evidence>, String> = frozen.iter().map(known).collect();
        let as_frozen = as_frozen.and_then(|points| {
            saving(done, &Basis { points, epochs: epochs.clone(), mix: vec![], same_sensors }, from.series)
        });
        let mix = if epochs.len() == 1 { self.mix(from.job, done, &limits, &mut points) } else { Vec::new() };
        let basis = Basis { points, epochs, mix, same_sensors };
        let saving = saving(done, &basis, from.series)?;
        Ok(Compared { limits, basis, saving, as_frozen_pct: as_frozen.ok().map(|s| s.carbon_reduction_pct.mean) })
    }

    /// The settings of the best constant mix of a job's throughput, as places in `points`; those that are not the
    /// reference are added to them. Empty where something of it is not measured.
    fn mix(&self, job: &Job, done: &Done, limits: &[PowerLimit], points: &mut Vec<Evidence>) -> Vec<usize> {
        let (Some(profiler), Some(curve)) = (&job.profiler, Curve::from_profile(&job.profile())) else {
            return Vec::new();
        };
        let Some(mix) = curve.mix_at(done.samples / done.active) else { return Vec::new() };
        let profile = job.profile();
        let mut places = Vec::new();
        for (part, _) in &mix.parts {
            let setting = &profile.points[part.index].setting;
            let is_reference = setting.iter().zip(limits).all(|(set, limit)| set.same_as((*limit).into()));
            match profiler.evidence(setting) {
                Some(_) if is_reference => places.push(0),
                Some(evidence) => {
                    places.push(points.len());
                    points.push(evidence);
                }
                None => return Vec::new(),
            }
        }
        places
    }

    /// What a job did between its first report and its last; stalls are left out.
    pub(super) async fn done(&self, from: &Sources<'_>) -> Result<Result<Done, String>, StoreError> {
        let stored = from.stored;
        if !stored.spec.control {
            return Ok(Err("registered with \"control\": false: its boards are another's to steer".into()));
        }
        let span = stored.progress.started_at.zip(stored.progress.last.map(|l| l.received));
        let Some(span) = span.and_then(|(start, end)| Slot::new(start, end)) else {
            return Ok(Err("it has not reported progress yet".into()));
        };
        if let Some(inner) = Slot::new(span.start() + TOUCH, span.end() - TOUCH) {
            for gpu in &stored.spec.gpus {
                if self.store.was_shared(gpu, &stored.id, &inner).await? {
                    let why = "another job, or somebody unknown, was on its boards: what each drew is shared by a rule";
                    return Ok(Err(why.into()));
                }
            }
        }
        Ok(done(from, &span))
    }

    /// What a trial's batch size did; `None` for what is no trial of a recurring job.
    async fn batch_size_effect(&self, from: &Sources<'_>) -> Result<Option<Result<BatchEffect, String>>, StoreError> {
        let Some(recurring) = self.store.recurring_of(&from.stored.id).await? else { return Ok(None) };
        let runs = &recurring.job.runs;
        let Some(own) = runs.iter().find(|r| r.job.as_ref() == Some(&from.stored.id)) else { return Ok(None) };
        let default = recurring.job.terms.spec.default_batch_size;
        if own.trial.batch_size == default {
            return Ok(Some(Err("it ran with the default batch size".into())));
        }
        if !own.trial.reached() {
            return Ok(Some(Err("it has not reached its target".into())));
        }
        let before = own.ended_at.unwrap_or(self.now().utc);
        let past = runs.iter().filter(|r| {
            r.trial.batch_size == default && r.trial.reached() && r.ended_at.is_some_and(|ended| ended <= before)
        });
        let (mut energies, mut same_sensors) = (Vec::new(), true);
        let boards: BTreeSet<&GpuId> = from.stored.spec.gpus.iter().collect();
        for run in past {
            energies.push(run.energy);
            let job = match &run.job {
                Some(job) => self.store.job(job).await?,
                None => None,
            };
            same_sensors &= job.is_some_and(|j| j.spec.gpus.iter().collect::<BTreeSet<_>>() == boards);
        }
        let Some(intensity) = from.emissions.mean_intensity().filter(|_| from.emissions.unknown <= Joules::ZERO) else {
            return Ok(Some(Err("an intensity is unknown for part of the time".into())));
        };
        Ok(Some(batch_effect(&energies, own.energy, intensity, same_sensors)))
    }

    /// Writes down what came of a job that ended. What cannot be written now is, at a later tick.
    pub(super) async fn note_outcome(&mut self, job: &Job, stored: &StoredJob, why: &str) {
        let outcome = match self.reckon(job, stored, why).await {
            Ok(Some(outcome)) => outcome,
            Ok(None) => return,
            Err(ControlError::Store(error)) => return self.note_store_fault(&error),
            Err(_) => return,
        };
        self.write_note(Entry::Outcome(Box::new(outcome))).await;
    }

    async fn reckon(&self, job: &Job, stored: &StoredJob, why: &str) -> Result<Option<Outcome>, ControlError> {
        let earlier = self.outcome(&stored.id).await?;
        // A job that was never planned has nothing to be compared with.
        if self.counterfactuals(&stored.id).await?.is_empty() {
            return Ok(None);
        }
        let rows = self.rows_of(&stored.id).await?;
        let (emissions, series) = self.settle(&rows).await?;
        let sources = Sources { stored, job, rows: &rows, series: &series, emissions: &emissions };
        let done = self.done(&sources).await?;
        let savings = self.savings(&sources, done).await?;
        if earlier.as_ref().is_some_and(|before| before.savings == savings) {
            return Ok(None);
        }
        Ok(Some(Outcome {
            at: self.now().utc,
            job: stored.id.clone(),
            version: earlier.map_or(0, |before| before.version) + 1,
            why: why.into(),
            active_s: stored.progress.account.active,
            samples: stored.progress.account.samples,
            savings,
        }))
    }

    /// Jobs whose minutes are about to be rolled up are reckoned a last time, with the intensities known now.
    pub(super) async fn reckon_before_roll_up(&mut self, ids: Vec<JobId>) -> Result<(), StoreError> {
        for id in ids {
            let Some(stored) = self.store.job(&id).await?.filter(|j| j.ended.is_some()) else { continue };
            if self.outcome(&id).await?.is_none() || self.store.is_rolled_up(&id).await? {
                continue;
            }
            let (spec, progress) = (stored.spec.clone(), stored.progress);
            let Ok(job) = self.make_job(id, spec, progress, stored.registered_at).await else { continue };
            self.note_outcome(&job, &stored, "its minutes are rolled up").await;
        }
        Ok(())
    }

    /// A job's references as they were frozen, oldest first.
    async fn counterfactuals(&self, id: &JobId) -> Result<Vec<Counterfactual>, StoreError> {
        let written = self.store.entries_of("counterfactual", id).await?;
        let is_one = |entry: Entry| match entry {
            Entry::Counterfactual(it) if it.job == *id => Some(*it),
            _ => None,
        };
        Ok(written.into_iter().chain(self.ledger.notes.iter().cloned()).filter_map(is_one).collect())
    }

    /// What came of a job, as written last.
    async fn outcome(&self, id: &JobId) -> Result<Option<Outcome>, StoreError> {
        let written = self.store.entries_of("outcome", id).await?;
        let is_one = |entry: Entry| match entry {
            Entry::Outcome(it) if it.job == *id => Some(*it),
            _ => None,
        };
        Ok(written.into_iter().chain(self.ledger.notes.iter().cloned()).filter_map(is_one).last())
    }

    /// Writes an entry now if that is possible, else at a later tick.
    async fn write_note(&mut self, entry: Entry) {
        self.ledger.notes.push(entry);
        if self.store_fault.is_none()
            && let Err(error) = self.write_notes().await
        {
            self.note_store_fault(&error);
        }
    }
}

/// What a job did in the span of its reports, from its books.
fn done(from: &Sources<'_>, span: &Slot) -> Result<Done, String> {
    let account = from.stored.progress.account;
    let mut rows = ledger::within(from.rows, span);
    rows.retain(|r| r.device.kind() == DeviceKind::Gpu);
    let spans: BTreeSet<_> = rows.iter().map(|r| (&r.device, r.slot)).collect();
    let covered: Seconds = spans.iter().map(|(_, slot)| slot.duration()).sum();
    let booked = ledger::emissions(&rows, from.series);
    // Boards are read a moment before or after a job reports; more than that is a hole.
    let active = account.active * (from.stored.spec.gpus.len() as f64) / covered;
    if !(active.is_finite() && active < 1.1) {
        return Err("the books do not cover the time between its first report and its last".into());
    }
    if booked.unknown > Joules::ZERO {
        return Err("an intensity is unknown for part of the time".into());
    }
    Ok(Done {
        started: span.start(),
        active: account.active,
        samples: account.samples,
        energy: booked.energy * active,
        carbon: booked.carbon * active,
    })
}

/// What the work of a plan would use and emit at a reference, by the plan's intensities.
fn expected(plan: &Plan, at: &Evidence) -> Option<(Joules, GramsCo2e)> {
    let time = plan.expected.samples / at.throughput;
    let span = Slot::new(plan.made_at, plan.made_at.checked_add_signed(time.to_delta())?)?;
    let (mut covered, mut carbon) = (Seconds::ZERO, GramsCo2e::ZERO);
    for segment in &plan.segments {
        let Some(part) = segment.slot.intersection(&span) else { continue };
        covered += part.duration();
        carbon += at.power * part.duration() * segment.intensity;
    }
    ((time - covered).abs() < Seconds::new(1.0)).then_some((at.power * time, carbon))
}
