//! Lifecycle of a recurring job: trials begin, report and end, in any order and any number at a time.
//!
//! [`Job`] holds the entire state; the present time is an argument of each call. Each call first ends the trials whose
//! lease (longest time between two reports) has expired, so that a client that died does not block others. Calls are
//! idempotent: a client that missed a response repeats its call, and nothing is counted twice.

use chrono::{DateTime, Utc};

use super::refused::{MAX_RUNNING, Refused, is_late, refuse_contradiction, refuse_impossible};
use super::{
    Choice, Cost, Ending, Generator, MeteringJob, NoneConverges, Outcome, PolicyName, Report, Run, State, Terms, Trial,
    Verdict, exceeds_beta, next, patience,
};
use crate::domain::Owners;

/// Number of lost runs with the same batch size from which on that batch size counts as the cause of the losses, if
/// none of its runs completed an epoch. The default batch size is exempt.
const MAX_LOST_WITHOUT_EPOCH: usize = 3;
/// Cost that Zeus's policy charges to a run that cannot reach the target, as a multiple of the cost limit of runs
/// (`beta` times the cheapest successful run). The value is that of the reference implementation's simulator
/// (`zeus-simulator.md`, 3c).
const FAILURE: f64 = 100.0;
/// Zeus's value of `beta`, from which the charge is computed if the job sets no `beta`.
const DEFAULT_BETA: f64 = 2.0;

/// Recurring job with all its trials.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Terms that the job's owner set.
    pub terms: Terms,
    /// Random generator of the policy.
    pub generator: Generator,
    /// Highest trial number of an earlier, deleted job with the same name; 0 if there was none. New trials have higher
    /// numbers, so that a late report for a trial of the earlier job is not taken for a report of this job.
    pub earlier: u32,
    /// Ended trials that are loaded only with the data that policies need, in order of their numbers.
    pub past_trials: Vec<Trial>,
    /// All other trials, loaded with all data, in order of their numbers.
    pub runs: Vec<Run>,
}

/// Trial that a call of [`Job::begin`] began, or that an earlier call with the same key began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Number of the trial.
    pub number: u32,
    /// True if an earlier call with the same key began the trial.
    pub again: bool,
}

impl Job {
    /// Returns a job without trials. `seed` seeds the random generator if the terms contain no seed.
    pub fn new(terms: Terms, seed: u64) -> Self {
        let generator = Generator::new(terms.seed.unwrap_or(seed));
        Self { terms, generator, earlier: 0, past_trials: Vec::new(), runs: Vec::new() }
    }

    /// Returns all trials in order of their numbers, with the data that policies need.
    pub fn trials(&self) -> Vec<Trial> {
        self.trials_but(None)
    }

    fn trials_but(&self, number: Option<u32>) -> Vec<Trial> {
        let mut trials: Vec<Trial> = self.all().filter(|t| Some(t.number) != number).cloned().collect();
        // `past_trials` and `runs` are each sorted already; the stable sort merges them in one pass.
        trials.sort_by_key(|t| t.number);
        trials
    }

    /// Returns all trials in no particular order.
    pub(super) fn all(&self) -> impl Iterator<Item = &Trial> {
        self.past_trials.iter().chain(self.runs.iter().map(|r| &r.trial))
    }

    /// Returns the trial with this number if all its data are loaded.
    pub fn run(&self, number: u32) -> Option<&Run> {
        self.place(number).map(|i| &self.runs[i])
    }

    /// Adds all data of a trial. If the trial is among `past_trials`, it is no longer one of them.
    pub fn complete(&mut self, run: Run) {
        let number = run.trial.number;
        if let Ok(i) = self.past_trials.binary_search_by_key(&number, |t| t.number) {
            self.past_trials.remove(i);
        }
        if let Err(i) = self.runs.binary_search_by_key(&number, |r| r.trial.number) {
            self.runs.insert(i, run);
        }
    }

    /// Keeps of the ended trials only the data that policies need, and moves them to `past_trials`.
    pub fn forget_ended(&mut self) {
        for Run { trial, .. } in self.runs.extract_if(.., |r| !r.trial.is_running()) {
            if let Err(i) = self.past_trials.binary_search_by_key(&trial.number, |t| t.number) {
                self.past_trials.insert(i, trial);
            }
        }
    }

    /// Returns the batch size that the next trial would get, and the reason for it, without beginning a trial.
    ///
    /// # Errors
    /// If no batch size is left to try.
    pub fn outlook(&self) -> Result<Choice, NoneConverges> {
        next(&self.terms.spec, &self.trials(), &mut self.generator.clone())
    }

    /// Ends the running trials whose lease has expired: they count as lost.
    pub fn expire(&mut self, now: DateTime<Utc>) {
        for i in 0..self.runs.len() {
            let run = &self.runs[i];
            if run.trial.is_running() && run.lease_until < now {
                let reason = format!("its lease expired at {}", run.lease_until.format("%FT%TZ"));
                self.lose(i, reason, now);
            }
        }
    }

    /// Begins a trial, or returns the trial that was begun with the same `key`, if there is one.
    ///
    /// # Errors
    /// If no batch size is left to try, too many trials run, or the trial with this key was lost or withdrawn.
    pub fn begin(&mut self, key: Option<&str>, now: DateTime<Utc>) -> Result<Begun, Refused> {
        self.expire(now);
        if let Some(known) = self.runs.iter().find(|r| r.key.is_some() && r.key.as_deref() == key) {
            let number = known.trial.number;
            return if known.is_over() { Err(void(known)) } else { Ok(Begun { number, again: true }) };
        }
        if self.runs.iter().filter(|r| r.trial.is_running()).count() >= MAX_RUNNING {
            return Err(Refused::TooMany);
        }
        let mut generator = self.generator.clone();
        let choice = next(&self.terms.spec, &self.trials(), &mut generator)?;
        self.generator = generator;
        let newest =
            self.past_trials.last().into_iter().chain(self.runs.last().map(|r| &r.trial)).map(|t| t.number).max();
        let number = newest.unwrap_or(0).max(self.earlier) + 1;
        self.push(number, choice, key, now);
        Ok(Begun { number, again: false })
    }

    /// Adds a trial that begins now.
    pub(super) fn push(&mut self, number: u32, choice: Choice, key: Option<&str>, now: DateTime<Utc>) {
        let trial = Trial {
            number,
            batch_size: choice.batch_size,
            kind: choice.kind,
            state: State::Running,
            cost: Cost::ZERO,
            epochs: 0,
            epoch_cost: None,
            ended_at: None,
        };
        let run = Run {
            trial,
            energy: Default::default(),
            time: Default::default(),
            metric: None,
            first: None,
            key: key.map(str::to_owned),
            job: None,
            earlier_jobs: Vec::new(),
            begun_at: now,
            lease_until: now + self.terms.lease.to_delta(),
            reason: "it has not reported yet".into(),
            owners: Owners::default(),
        };
        self.runs.push(run);
    }

    /// Records to whom a trial belongs, which must be loaded completely.
    pub fn assign(&mut self, number: u32, owners: Owners) {
        if let Some(i) = self.place(number) {
            self.runs[i].owners = owners;
        }
    }

    /// Returns the number of epochs after which a trial is stopped, by current estimates: at least 1, or 0 if no
    /// completely loaded trial has this number.
    pub fn max_epochs(&self, number: u32) -> u32 {
        let Some(own) = self.run(number) else { return 0 };
        let others = self.trials_but(Some(number));
        let same = |t: &&Trial| t.batch_size == own.trial.batch_size;
        let earlier = || others.iter().rev().filter(same).find_map(|t| t.epoch_cost);
        match own.trial.epoch_cost.or_else(earlier) {
            Some(each) => patience(&self.terms.spec, &others, own.trial.batch_size, each).max(1),
            None => self.terms.spec.max_epochs,
        }
    }

    /// Processes a trial's report, which renews the trial's lease and may end the trial. `job` is the training run
    /// whose ledger account measured the energy; the report then has the energy of this training run alone, and those
    /// that reported before are added. `None` if the client measured energy and time. If the trial has already ended,
    /// the report changes nothing, and the response tells the client to stop.
    ///
    /// # Errors
    /// If the trial does not exist, is lost or withdrawn, or the report is impossible, contradicts the previous one, or
    /// names a training run of another trial. Then the report changes nothing.
    pub fn report(
        &mut self,
        number: u32,
        report: &Report,
        job: Option<&MeteringJob>,
        now: DateTime<Utc>,
    ) -> Result<Verdict, Refused> {
        self.expire(now);
        let i = self.place(number).ok_or(Refused::NoSuchTrial(number))?;
        let trial = &self.runs[i].trial;
        if self.runs[i].is_over() {
            return Err(void(&self.runs[i]));
        }
        let (allowed, late) = if trial.is_running() {
            (self.apply(i, report, job, now)?, false)
        } else {
            (0, is_late(&self.runs[i], report, job.map(|job| &job.id))?)
        };
        let trial = &self.runs[i].trial;
        let max_epochs = if trial.is_running() { allowed } else { trial.epochs };
        Ok(Verdict { stop: !trial.is_running(), reached: trial.reached(), max_epochs, late })
    }

    /// Ends a trial, after an optional last report. A trial that has ended already stays as it is.
    ///
    /// # Errors
    /// In the same cases as [`Self::report`], except that withdrawing a lost or withdrawn trial is no error.
    pub fn end(
        &mut self,
        number: u32,
        last: Option<&Report>,
        job: Option<&MeteringJob>,
        ending: Ending,
        now: DateTime<Utc>,
    ) -> Result<(), Refused> {
        self.expire(now);
        let i = self.place(number).ok_or(Refused::NoSuchTrial(number))?;
        if self.runs[i].is_over() {
            return if ending == Ending::Withdrawn { Ok(()) } else { Err(void(&self.runs[i])) };
        }
        if let Some(report) = last {
            self.report(number, report, job, now)?;
        }
        match (self.runs[i].trial.state, ending) {
            (State::Running, Ending::NotReached) => {
                self.fail(i, "its client reported that the target is out of reach", now)
            }
            (State::Running, Ending::Withdrawn) => self.finish(i, Outcome::Withdrawn, "it was withdrawn".into(), now),
            (State::Ended(_), _) => {}
        }
        Ok(())
    }

    /// Processes the report of a running trial. Returns the number of epochs after which the trial is stopped.
    fn apply(
        &mut self,
        i: usize,
        report: &Report,
        job: Option<&MeteringJob>,
        now: DateTime<Utc>,
    ) -> Result<u32, Refused> {
        let spec = &self.terms.spec;
        let mut run = self.runs[i].clone();
        let report = job.map_or(*report, |job| run.total(report, job));
        refuse_contradiction(&run, &report)?;
        refuse_impossible(spec, &report)?;
        if report.epochs > 0 && spec.knob.cost(report.energy, report.time) <= Cost::ZERO {
            let why = "and time_s give no cost after an epoch; give joules and seconds since the trial began".into();
            return Err(Refused::Contradiction { field: "energy_j", why });
        }
        if let Some(MeteringJob { id, .. }) = job {
            let other = self.runs.iter().find(|r| r.trial.number != run.trial.number && r.has_job(id));
            if let Some(other) = other {
                return Err(Refused::Taken { job: id.clone(), number: other.trial.number });
            }
        }
        run.apply(&report, &spec.knob);
        run.lease_until = now + self.terms.lease.to_delta();
        self.runs[i] = run;
        let (epochs, most) = (report.epochs, spec.max_epochs);
        let run = &self.runs[i];
        // Before the first epoch ends, the cost of the run so far is a lower bound of the cost of one epoch.
        let hopeless = epochs == 0 && run.trial.cost > Cost::ZERO && {
            let others = self.trials_but(Some(run.trial.number));
            exceeds_beta(spec, &others, run.trial.batch_size, run.trial.cost)
        };
        let allowed = self.max_epochs(run.trial.number);
        if epochs > 0 && self.terms.target.is_reached(report.metric) {
            let why = format!("it reached its target after {epochs} epochs");
            self.finish(i, Outcome::Reached, why, now);
        } else if epochs >= most {
            self.finish(i, Outcome::NotReached, format!("it did not reach its target within {most} epochs"), now);
        } else if hopeless || (epochs > 0 && epochs >= allowed) {
            let why = format!(
                "stopped after {epochs} epochs: it would probably cost more than a run with the best batch size, or more \
                 than beta allows"
            );
            self.finish(i, Outcome::Stopped, why, now);
        } else {
            self.runs[i].reason = format!("it has not reached its target, and may run up to {allowed} epochs");
        }
        Ok(allowed)
    }

    pub(super) fn place(&self, number: u32) -> Option<usize> {
        self.runs.binary_search_by_key(&number, |r| r.trial.number).ok()
    }

    pub(super) fn finish(&mut self, i: usize, outcome: Outcome, reason: String, now: DateTime<Utc>) {
        let run = &mut self.runs[i];
        (run.trial.state, run.trial.ended_at, run.reason) = (State::Ended(outcome), Some(now), reason);
    }

    /// Ends a trial as unable to reach the target. With Zeus's policy, raises the trial's cost to a multiple of that of
    /// the cheapest successful trial, unless there is none or the trial's cost is higher already. wattune's policy
    /// learns from the failure itself, and does not use its cost.
    fn fail(&mut self, i: usize, reason: &str, now: DateTime<Utc>) {
        let spec = &self.terms.spec;
        let times = FAILURE * spec.beta.unwrap_or(DEFAULT_BETA);
        let reached = self.all().filter(|t| t.reached() && spec.policy == PolicyName::Zeus).map(|t| t.cost);
        let bound = reached.reduce(Cost::min).map(|least| (least * times).min(Cost::MOST));
        let cost = self.runs[i].trial.cost;
        let charged = bound.filter(|b| *b > cost);
        self.runs[i].trial.cost = charged.unwrap_or(cost);
        let charge = charged.map(|charged| {
            let (charged, cost) = (charged.get(), cost.get());
            format!("; its cost counts as {charged:.0} J instead of {cost:.0} J (at most {times:.0} times that of the cheapest \
                 successful trial)")
        });
        let hint = match self.runs[i].trial.epochs {
            0 => "; it completed no epoch: if it was only interrupted, end such a trial with the outcome withdrawn",
            _ => "",
        };
        let reason = format!("{reason}{}{hint}", charge.unwrap_or_default());
        self.finish(i, Outcome::NotReached, reason, now);
    }

    fn lose(&mut self, i: usize, reason: String, now: DateTime<Utc>) {
        self.finish(i, Outcome::Lost, reason, now);
        let batch_size = self.runs[i].trial.batch_size;
        // A Zeus client may still report; its lost trials never count as failures.
        if batch_size == self.terms.spec.default_batch_size || self.terms.spec.zeus.is_some() {
            return;
        }
        let same = || self.all().filter(|t| t.batch_size == batch_size);
        let lived = same().any(|t| t.epochs > 0 || t.has_result());
        let lost = same().filter(|t| t.state == State::Ended(Outcome::Lost)).count();
        if !lived && lost >= MAX_LOST_WITHOUT_EPOCH {
            self.fail(
                i,
                "several runs with this batch size were lost before their first epoch, so the batch size counts as unable \
                 to reach the target",
                now,
            );
        }
    }
}

fn void(run: &Run) -> Refused {
    let at = run.trial.ended_at.unwrap_or(run.lease_until);
    Refused::Void { number: run.trial.number, at, why: run.reason.clone() }
}

#[cfg(test)]
#[path = "job_tests.rs"]
mod tests;
