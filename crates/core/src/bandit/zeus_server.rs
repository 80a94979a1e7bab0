//! Lifecycle of trials as Zeus's batch size server has it, for jobs that a Zeus client registered
//! ([`Spec::zeus`](super::Spec)).
//!
//! Reports are judged by the cost so far, not by a forecast of whole epochs, and need not increase from one to the
//! next. A trial whose lease expired counts as lost, so that it does not block the pruning; it is in progress again as
//! soon as its client reports. `zeus-protocols.md` of the book lists the differences to Zeus's own server.

use chrono::{DateTime, Utc};

use super::refused::MAX_RUNNING;
use super::zeus::{self, Draw};
use super::{Cost, Job, Kind, Outcome, Run, State, ZeusRefused, ZeusReport, ZeusVerdict};
use crate::units::{Joules, Seconds};

/// Upper bound of the energy in joules and of the time in seconds that are stored of a report.
const MOST: f64 = 1e30;

impl Job {
    /// Begins a trial of a job that a Zeus client registered. Returns its number, and the draw that chose its batch
    /// size. If too many trials run, the oldest counts as lost.
    ///
    /// # Errors
    /// If no batch size can be tried.
    pub fn begin_for_zeus(&mut self, now: DateTime<Utc>) -> Result<(u32, Draw), ZeusRefused> {
        self.expire(now);
        let trials = self.trials();
        let mut generator = self.generator.clone();
        let drawn = zeus::draw(&self.terms.spec, &trials, &mut generator)?;
        self.generator = generator;
        let mut running = (0..self.runs.len()).filter(|i| self.runs[*i].trial.is_running());
        let (oldest, others) = (running.next(), running.count());
        if let Some(oldest) = oldest.filter(|_| others + 1 >= MAX_RUNNING) {
            let reason = format!("it was the oldest of {MAX_RUNNING} running trials");
            self.finish(oldest, Outcome::Lost, reason, now);
        }
        // The numbers of a job that was deleted begin anew, as on Zeus's server.
        let number = trials.last().map_or(0, |t| t.number) + 1;
        self.push(number, drawn.choice, None, now);
        Ok((number, drawn))
    }

    /// Processes the report of a Zeus client, which may end the trial. A lost trial is in progress again.
    ///
    /// # Errors
    /// If the trial does not exist or was withdrawn, or if a report that ends the trial has no valid cost. Then the
    /// report changes nothing.
    pub fn report_for_zeus(
        &mut self,
        number: u32,
        batch_size: u64,
        report: &ZeusReport,
        now: DateTime<Utc>,
    ) -> Result<ZeusVerdict, ZeusRefused> {
        self.expire(now);
        let i = self.zeus_place(number, batch_size).ok_or(ZeusRefused::NoSuchTrial)?;
        match self.runs[i].trial.state {
            State::Running | State::Ended(Outcome::Lost) => {}
            State::Ended(Outcome::Withdrawn) => return Err(ZeusRefused::Withdrawn),
            State::Ended(outcome) => return Ok(ZeusVerdict::Ended { reached: outcome == Outcome::Reached }),
        }
        let spec = &self.terms.spec;
        let cost = spec.knob.cost_of(report.energy, report.time).get();
        let limit = spec.beta.zip(zeus::cheapest(self.all()).map(|(least, _)| least.get()));
        let is_within = limit.map_or(f64::INFINITY, |(beta, least)| beta * least) >= cost;
        let is_target = self.terms.target.is_reached(Some(report.metric));
        let max_epochs = spec.zeus.as_ref().map_or(i64::from(spec.max_epochs), |zeus| zeus.max_epochs);
        if is_within && report.epoch < max_epochs && !is_target {
            self.resume(i);
            self.progress(i, report, now);
            return Ok(ZeusVerdict::Continue);
        }
        let is_wrong = |value: f64| value.is_nan() || value < 0.0;
        let (time, energy) = (is_wrong(report.time), is_wrong(report.energy));
        if time || energy {
            return Err(ZeusRefused::NotAQuantity { time, energy });
        }
        let verdict = match (is_within, limit) {
            (true, _) if is_target => ZeusVerdict::Reached,
            (false, Some((beta, least))) => ZeusVerdict::TooExpensive { cost, beta, least },
            _ => ZeusVerdict::NotReached { max_epochs },
        };
        self.resume(i);
        self.progress(i, report, now);
        let epochs = self.runs[i].trial.epochs.max(1);
        self.runs[i].trial.epochs = epochs;
        let (outcome, reason) = match verdict {
            ZeusVerdict::Reached => (Outcome::Reached, format!("it reached its target after {epochs} epochs")),
            ZeusVerdict::TooExpensive { cost, beta, least } => {
                let why = format!("stopped after {epochs} epochs: {cost:.0} J is more than {beta} times {least:.0} J");
                (Outcome::Stopped, why)
            }
            _ => (Outcome::NotReached, format!("it did not reach its target within {max_epochs} epochs")),
        };
        self.finish(i, outcome, reason, now);
        Ok(verdict)
    }

    /// Ends a trial whose client's process ends: a trial without a result is withdrawn, any other stays as it is.
    ///
    /// # Errors
    /// If the trial does not exist.
    pub fn end_for_zeus(&mut self, number: u32, batch_size: u64, now: DateTime<Utc>) -> Result<(), ZeusRefused> {
        self.expire(now);
        let i = self.zeus_place(number, batch_size).ok_or(ZeusRefused::NoSuchTrial)?;
        if matches!(self.runs[i].trial.state, State::Running | State::Ended(Outcome::Lost)) {
            self.finish(i, Outcome::Withdrawn, "its process ended before the trial did".into(), now);
        }
        Ok(())
    }

    fn zeus_place(&self, number: u32, batch_size: u64) -> Option<usize> {
        self.place(number).filter(|i| self.runs[*i].trial.batch_size == batch_size)
    }

    /// Sets a lost trial in progress again. If its batch size is being explored anew, pruning ignores the trial.
    fn resume(&mut self, i: usize) {
        let Run { trial, .. } = &self.runs[i];
        if trial.is_running() {
            return;
        }
        let is_explored_anew = self.all().any(|other| {
            other.batch_size == trial.batch_size && other.kind == Kind::Exploration && other.number > trial.number
        });
        let trial = &mut self.runs[i].trial;
        (trial.state, trial.ended_at) = (State::Running, None);
        if is_explored_anew && trial.kind == Kind::Exploration {
            trial.kind = Kind::Concurrent;
        }
    }

    /// Stores the values of a report, as far as they are valid, and renews the trial's lease.
    fn progress(&mut self, i: usize, report: &ZeusReport, now: DateTime<Utc>) {
        let (knob, lease) = (self.terms.spec.knob, self.terms.lease.to_delta());
        let max_epochs = self.terms.spec.max_epochs;
        let run = &mut self.runs[i];
        run.lease_until = now + lease;
        run.metric = Some(report.metric).filter(|m| m.is_finite());
        // Each process of a distributed training reports, and not all of them have completed the same epoch.
        let epoch = u32::try_from(report.epoch.clamp(0, i64::from(max_epochs))).unwrap_or(max_epochs);
        run.trial.epochs = run.trial.epochs.max(epoch);
        if report.energy >= 0.0 && report.time >= 0.0 {
            run.trial.cost = knob.cost_of(report.energy, report.time).min(Cost::MOST);
            (run.energy, run.time) = (Joules::new(report.energy.min(MOST)), Seconds::new(report.time.min(MOST)));
            let epochs = run.trial.epochs;
            if epochs > 0 {
                let each = Cost::new(run.trial.cost.get() / f64::from(epochs));
                run.first.get_or_insert((epochs, run.trial.cost));
                run.trial.epoch_cost = (each > Cost::ZERO).then_some(each);
            }
        }
        run.reason = "it has not reached its target".into();
    }
}
