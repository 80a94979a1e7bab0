//! Detects a job's own pauses (evaluation, checkpoint, input) from its power and progress, and splits time and energy
//! between training and pauses.
//!
//! The detector judges intervals between two reports with progress. A report without progress does not end an interval,
//! so a pause begins at the last progress before it. Power dips that are confirmed by progress are pauses, accurate to
//! the second. Pauses that draw about as much power as training are found by comparing intervals at one setting
//! ([`super::pause_detection`]). Intervals with several settings, or with a setting of which little is known, are
//! judged by measured or assumed bounds of their rate; time that may be training or pause is in doubt.

use std::collections::VecDeque;
use std::ops::Range;

use super::dips::{Dip, Reading, SUFFICIENT, parts, runs};
use super::pause_detection::{FEW, IntervalWork, LEAST_PART, LEAST_PART_OF_SOME, STEP_MARGIN, Verdict, judge, step};
use super::progress::{EarlierWork, ProgressAccount};
use super::progress_interval::ProgressInterval;
use super::rate_model::{EnergyInterval, GpuGroups, RateModel, SettingEstimate};
use super::slack::SlowedTraining;
use super::steps::{GroupRange, Setting};
use crate::time::Monotonic;
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Number of latest intervals that are judged anew (training or pause) with each new interval.
const KEPT: usize = 48;
/// Ratio of a pause's mean power to the power limit from which on the limit counts as having lowered the pause's power.
const BOUND: f64 = 0.95;
/// Minimum duration of an energy reading; shorter ones are merged.
const SHORTEST_READING: Seconds = Seconds::new(0.5);
/// Tolerances for rejecting a power dip as a pause, because the interval's samples are too many for the time outside of
/// the dip: a factor on the maximum rate (`FASTER`), and extra time for the dip's edges (`EDGES`).
const FASTER: f64 = 1.1;
const EDGES: Seconds = Seconds::new(0.3);
/// Number of energy readings kept from before the oldest interval, to find dips that began before it and end in it.
const BEFORE: usize = 5;
/// Maximum number of intervals with progress that a pause can overlap.
const MOST_TOUCHED: usize = 3;
/// Maximum fraction of the squared throughput differences between intervals that may remain after the dips are
/// subtracted, if dips are to count as the explanation of these differences.
const EXPLAINED: f64 = 0.25;
/// Number of latest intervals; the longest of them is taken as the usual report interval.
const USUAL: usize = 6;

/// Latest energy reading of a job's GPUs.
#[derive(Clone, Copy, Debug)]
struct LastReading {
    at: Monotonic,
    energy: Option<Joules>,
}

/// Splits a job's time and energy between training and its own pauses. Reads no clock: times are arguments.
#[derive(Clone, Debug)]
pub struct StallDetector {
    groups: GpuGroups,
    /// Account of older intervals, which are no longer judged anew.
    finalised: ProgressAccount,
    recent: VecDeque<ProgressInterval>,
    open: ProgressInterval,
    last_reading: Option<LastReading>,
    /// Energy readings since the oldest recent interval.
    drawn: VecDeque<EnergyInterval>,
    latest_pauses: Option<LatestPauses>,
}

/// Pauses that the power shows in the latest interval between reports.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatestPauses {
    /// Total time and energy of these pauses.
    pub paused: Dip,
    /// True if the interval contains no pause but ends at low power: a pause may begin there.
    pub ends_low: bool,
}

impl StallDetector {
    /// Creates a detector that continues from an earlier account.
    pub fn new(account: ProgressAccount) -> Self {
        Self {
            groups: GpuGroups::default(),
            finalised: account,
            recent: VecDeque::new(),
            // The energy since the last report before a restart of the daemon is unknown.
            open: ProgressInterval { energy: None, ..ProgressInterval::open(Monotonic::default()) },
            last_reading: None,
            drawn: VecDeque::new(),
            latest_pauses: None,
        }
    }

    /// Sets the job's GPUs per group. Their maximum usable limits are the reference setting.
    pub fn set_groups(&mut self, groups: &[GroupRange]) {
        self.groups = GpuGroups::of(groups);
    }

    /// Records the state of the job's GPUs. `setting` is the setting in force, `None` if equal GPUs differ or one does
    /// not respond. `energy` is the cumulative energy, `None` if unknown. `idle` means that the daemon paused the job.
    /// Call this at each tick and right before [`Self::report`].
    pub fn observe(&mut self, at: Monotonic, setting: Option<&Setting>, energy: Option<Joules>, idle: bool) {
        let Some(before) = self.last_reading.replace(LastReading { at, energy }) else { return };
        let span = at.since(before.at);
        if idle {
            self.open.idle += span;
        }
        self.open.energy = match (self.open.energy, before.energy, energy) {
            (Some(sum), Some(from), Some(to)) => Some(sum + (to - from)),
            _ => None,
        };
        self.open.to = at;
        let Some(setting) = setting else { return };
        if let (Some(from), Some(to), false) = (before.energy, energy, idle) {
            self.draw(EnergyInterval { from: before.at, to: at, setting: setting.clone(), energy: to - from });
        }
        match self.open.settings.iter_mut().find(|(set, _)| set == setting) {
            Some((_, time)) => *time += span,
            None => self.open.settings.push((setting.clone(), span)),
        }
    }

    /// Stores an energy reading, merged with the previous one if either is short, because counters update in coarse
    /// steps. A stored reading never extends over two intervals.
    fn draw(&mut self, drawn: EnergyInterval) {
        let within = self.open.from;
        let joins = |last: &&mut EnergyInterval| {
            let is_short = last.span() < SHORTEST_READING || drawn.span() < SHORTEST_READING;
            last.from >= within && last.to == drawn.from && last.setting == drawn.setting && is_short
        };
        match self.drawn.back_mut().filter(joins) {
            Some(last) => {
                last.to = drawn.to;
                last.energy += drawn.energy;
            }
            None => self.drawn.push_back(drawn),
        }
    }

    fn reopened(&self) -> ProgressInterval {
        ProgressInterval::open(self.open.to)
    }

    /// Starts the account at the first report; earlier time and energy do not count.
    pub fn begin(&mut self) {
        self.open = self.reopened();
    }

    /// Counts a span within the next report's span as time in which the daemon wanted no work, such as a suspension.
    pub fn count_idle_time(&mut self, span: Seconds) {
        self.open.idle += span;
    }

    /// Adds a report of `samples_done` samples in `span` since the previous one and returns the account up to it.
    /// `known` returns the estimated throughput and power at a setting.
    pub fn report(
        &mut self,
        span: Seconds,
        samples_done: Samples,
        known: &dyn Fn(&Setting) -> Option<SettingEstimate>,
    ) -> ProgressAccount {
        self.open.span += span;
        self.open.samples_done += samples_done;
        self.open.idle = self.open.idle.min(self.open.span);
        let ends = samples_done > Samples::ZERO || self.open.idle > Seconds::ZERO;
        if ends {
            let next = self.reopened();
            self.recent.push_back(std::mem::replace(&mut self.open, next));
        } else {
            self.open.waited = true;
        }
        self.account(known, ends)
    }

    /// Sets the part of the account from before the job changed.
    pub fn set_earlier(&mut self, earlier: EarlierWork) {
        self.finalised.set_earlier(earlier);
    }

    /// Finalises the account of all reported work, because the ceilings (maximum usable limits) change, and returns it.
    /// `reference` is the throughput at the ceilings until now, if measured; it stays that of this work. Call this before
    /// [`Self::set_groups`]. `known` is as in [`Self::report`].
    pub fn note_other_ceilings(
        &mut self,
        reference: Option<SamplesPerSecond>,
        known: &dyn Fn(&Setting) -> Option<SettingEstimate>,
    ) -> ProgressAccount {
        let model = RateModel::new(&self.groups, &self.drawn, known);
        let judged = self.judged(&model, &self.dips(&model, &self.readings(&model)));
        let (_, mut account) = self.sums(&judged);
        if account.samples > Samples::ZERO {
            account.has_other_ceilings = true;
            let fixed = reference.map(|reference| account.as_earlier(reference));
            account.at_other_ceilings = fixed.or(account.at_other_ceilings);
        }
        self.finalise(self.recent.len(), account);
        account.plus(&self.open_interval())
    }

    /// Returns the pauses in the interval that the last report ended; `None` if that report showed no progress and so
    /// ended none.
    pub fn latest_pauses(&self) -> Option<LatestPauses> {
        self.latest_pauses
    }

    /// Returns the account up to the last report and finalises old intervals.
    fn account(&mut self, known: &dyn Fn(&Setting) -> Option<SettingEstimate>, ends: bool) -> ProgressAccount {
        let model = RateModel::new(&self.groups, &self.drawn, known);
        let readings = self.readings(&model);
        let found = self.dips(&model, &readings);
        let paused = found.last().map_or(Dip::default(), |shown| shown.dip);
        let ends_low = tail(&readings).is_some_and(|tail| tail.is_low())
            && paused.span <= Seconds::ZERO
            && !runs(&readings).last().is_some_and(|run| run.end == readings.len() && self.makes_progress_in(run));
        let latest_pauses = LatestPauses { paused, ends_low };
        let judged = self.judged(&model, &found);
        self.latest_pauses = ends.then_some(latest_pauses);
        let (oldest, account) = self.sums(&judged);
        if let Some((end, oldest)) = oldest.filter(|_| self.recent.len() > KEPT) {
            self.finalise(end, oldest);
        }
        account.plus(&self.open_interval())
    }

    /// Returns the account up to the end of the first interval, with the number of recent intervals until then (first), and
    /// that of all intervals (second). Consecutive intervals with pauses count as one, because a pause may span several of
    /// them.
    fn sums(&self, judged: &[IntervalVerdict]) -> (Option<(usize, ProgressAccount)>, ProgressAccount) {
        let (mut oldest, mut account, mut at) = (None, self.finalised, 0);
        while at < judged.len() {
            let end = (at..judged.len()).find(|i| !judged[*i].paused).unwrap_or(judged.len()).max(at + 1);
            account = account.plus(&self.split(&judged[at..end], at));
            oldest.get_or_insert((end, account));
            at = end;
        }
        (oldest, account)
    }

    /// Sets the account up to the end of the first `count` recent intervals, and drops these.
    fn finalise(&mut self, count: usize, account: ProgressAccount) {
        self.finalised = account;
        self.recent.drain(..count);
        let oldest = self.recent.front().unwrap_or(&self.open).from;
        // Readings before the oldest interval show the beginning of a dip that ends in it.
        while self.drawn.get(BEFORE).is_some_and(|drawn| drawn.to <= oldest) {
            self.drawn.pop_front();
        }
    }

    /// Judges for each recent interval whether it contains pauses.
    fn judged(&self, model: &RateModel<'_>, shown: &[IntervalDips]) -> Vec<IntervalVerdict> {
        let quantum = step(&self.recent.iter().zip(shown).map(|(of, shown)| of.work(&shown.dip)).collect::<Vec<_>>());
        let by_rates =
            |(of, shown): (&ProgressInterval, &IntervalDips)| IntervalVerdict::by_rates(of, shown, quantum, model);
        let mut judged: Vec<IntervalVerdict> = self.recent.iter().zip(shown).map(by_rates).collect();
        let mut settings: Vec<&Setting> = Vec::new();
        for setting in self.recent.iter().filter_map(ProgressInterval::setting) {
            if !settings.contains(&setting) {
                settings.push(setting);
            }
        }
        for setting in settings {
            let mut places: Vec<usize> =
                (0..self.recent.len()).filter(|i| self.recent[*i].setting() == Some(setting)).collect();
            let prior = model.estimate(setting);
            while places.iter().filter(|i| self.recent[**i].samples_done > Samples::ZERO).count() >= FEW {
                let intervals: Vec<IntervalWork> =
                    places.iter().map(|i| self.recent[*i].work(&shown[*i].dip)).collect();
                let mut verdict = judge(&intervals, prior.map(|k| k.throughput.get()));
                let later = verdict.changed_at.map_or_else(Vec::new, |start| places.split_off(start));
                verdict.paused.truncate(places.len());
                self.apply(&mut judged, &places, &verdict, prior);
                places = later;
            }
        }
        // A pause may have begun in the interval before the one that took too long.
        for i in 1..judged.len() {
            if judged[i].took_too_long && self.recent[i - 1].idle <= Seconds::ZERO {
                judged[i - 1].paused = true;
            }
        }
        judged
    }

    fn readings(&self, model: &RateModel<'_>) -> Vec<Reading> {
        let levels: Vec<(&Setting, Option<Watts>)> = model.training_powers();
        let level = |setting: &Setting| levels.iter().find(|(of, _)| *of == setting).and_then(|(_, level)| *level);
        let reading = |d: &EnergyInterval| Reading { span: d.span(), energy: d.energy, training: level(&d.setting) };
        self.drawn.iter().map(reading).collect()
    }

    /// Returns, for each recent interval between reports, the power dips that progress confirms as pauses.
    fn dips(&self, model: &RateModel<'_>, readings: &[Reading]) -> Vec<IntervalDips> {
        let mut sums = vec![Dip::default(); self.recent.len()];
        let mut net: Vec<Vec<Seconds>> =
            self.recent.iter().map(|of| of.settings.iter().map(|(_, time)| *time).collect()).collect();
        for run in runs(readings) {
            if self.makes_progress_in(&run) {
                continue;
            }
            for (place, dip) in parts(readings, run) {
                let drawn = &self.drawn[place];
                let all = self.recent.iter().zip(sums.iter_mut().zip(&mut net));
                for (of, (sum, net)) in all.filter(|(of, _)| of.from < drawn.to && drawn.from < of.to) {
                    let dip = dip.times(drawn.overlap(of) / drawn.span());
                    sum.add(dip);
                    if let Some(at) = of.settings.iter().position(|(setting, _)| *setting == drawn.setting) {
                        net[at] = (net[at] - dip.span).max(Seconds::ZERO);
                    }
                }
            }
        }
        let explained_by_dips = self.explained_by_dips(&sums);
        for (place, (of, dip)) in self.recent.iter().zip(&mut sums).enumerate() {
            dip.span = dip.span.min(of.trainable());
            if dip.span <= Seconds::ZERO {
                continue;
            }
            let rates = model.rates(of, &net[place]);
            let too_fast =
                || rates.is_none_or(|rates| of.samples_done > rates.most * (of.span - dip.span + EDGES) * FASTER);
            if of.idle > Seconds::ZERO || !explained_by_dips[place] && too_fast() {
                *dip = Dip::default();
                net[place] = of.settings.iter().map(|(_, time)| *time).collect();
            }
        }
        sums.into_iter().zip(net).map(|(dip, net)| IntervalDips { dip, net }).collect()
    }

    /// Returns true if the job reports progress several times during the dip of the readings in `run`: it is not paused.
    fn makes_progress_in(&self, run: &Range<usize>) -> bool {
        let (from, to) = (self.drawn[run.start].from, self.drawn[run.end - 1].to);
        let touched = self.recent.iter().filter(|of| of.from < to && from < of.to && of.samples_done > Samples::ZERO);
        touched.count() > MOST_TOUCHED
    }

    /// Returns one flag per recent interval: true if, at the interval's setting, dips explain the differences in
    /// throughput between intervals.
    fn explained_by_dips(&self, sums: &[Dip]) -> Vec<bool> {
        let mut explained_by_dips = vec![false; sums.len()];
        for place in 0..sums.len() {
            let Some(setting) = self.recent[place].setting().filter(|_| !explained_by_dips[place]) else { continue };
            let places: Vec<usize> =
                (place..sums.len()).filter(|i| self.recent[*i].setting() == Some(setting)).collect();
            let spread = |net: bool| {
                let of = |i: &usize| {
                    let span = self.recent[*i].span - if net { sums[*i].span } else { Seconds::ZERO };
                    (span.get(), self.recent[*i].samples_done.get())
                };
                let all: Vec<(f64, f64)> = places.iter().map(of).collect();
                let (span, done) = all.iter().fold((0.0, 0.0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
                all.iter().map(|of| (of.0 - of.1 * span / done.max(f64::MIN_POSITIVE)).powi(2)).sum::<f64>()
            };
            if places.len() > FEW && spread(true) < spread(false) * EXPLAINED {
                places.iter().for_each(|i| explained_by_dips[*i] = true);
            }
        }
        explained_by_dips
    }

    fn apply(
        &self,
        judged: &mut [IntervalVerdict],
        places: &[usize],
        verdict: &Verdict,
        prior: Option<SettingEstimate>,
    ) {
        let (mut span, mut energy) = (Seconds::ZERO, Some(Joules::ZERO));
        for (place, _) in places.iter().zip(&verdict.excluded).filter(|(_, out)| !**out) {
            let (of, dip) = (&self.recent[*place], judged[*place].dip);
            if let (Some(sum), Some(part)) = (energy, of.energy) {
                (span, energy) = (span + of.span - dip.span, Some(sum + part - dip.energy));
            }
        }
        let own = energy.filter(|_| span > Seconds::ZERO).map(|energy| energy / span);
        // The profile's values are used as long as they agree with those of these intervals, because they are more
        // accurate.
        let near = |known: f64, own: f64| (known / own - 1.0).abs() < LEAST_PART;
        let enough = places.len() >= FEW;
        for (place, slow) in places.iter().zip(&verdict.paused) {
            let rate = verdict.rate.map(SamplesPerSecond::new).filter(|_| enough);
            let it = &mut judged[*place];
            it.took_too_long = *slow;
            it.unclear = verdict.unclear;
            it.paused = *slow;
            it.unclear_time = Seconds::ZERO;
            it.rate = match (prior, rate) {
                (Some(known), Some(own)) if near(known.throughput.get(), own.get()) => Some(known.throughput),
                (known, own) => own.or(known.map(|k| k.throughput)),
            };
            it.power = match (prior, own.filter(|_| enough)) {
                (Some(known), Some(own)) if near(known.power.get(), own.get()) => Some(known.power),
                (known, own) => own.or(known.map(|k| k.power)),
            };
        }
    }

    /// Splits the time and energy of `run` between training and pauses. The run is one interval without a pause, or
    /// successive intervals with pauses; `from` is the index of its first interval.
    fn split(&self, run: &[IntervalVerdict], from: usize) -> ProgressAccount {
        let intervals = || self.recent.iter().skip(from).zip(run);
        let mut sums = ProgressAccount::default();
        let (mut training, mut used, mut trained) = (Seconds::ZERO, Some(Joules::ZERO), Some(Joules::ZERO));
        let (mut span, mut idle, mut capped) = (Seconds::ZERO, Seconds::ZERO, Watts::ZERO);
        let mut dips = Dip::default();
        for (of, it) in intervals() {
            sums.samples += of.samples_done;
            sums.unclear += if it.unclear { of.span } else { Seconds::ZERO };
            sums.unclear_time += it.unclear_time;
            dips.add(it.dip);
            span += of.span;
            idle += of.idle;
            let work =
                it.rate.filter(|r| *r > SamplesPerSecond::ZERO).map_or(of.trainable(), |rate| of.samples_done / rate);
            let work = if it.rate.is_none() && of.samples_done <= Samples::ZERO { Seconds::ZERO } else { work };
            training += work;
            used = used.zip(of.energy).map(|(sum, e)| sum + e).filter(|_| of.idle <= Seconds::ZERO);
            trained = match it.power {
                _ if work <= Seconds::ZERO => trained,
                Some(power) => trained.map(|sum| sum + power * work),
                None => None,
            };
            let limit = |(setting, time): &(Setting, Seconds)| (self.groups.limit_of(setting), *time);
            let longest = of.settings.iter().map(limit).max_by(|a, b| a.1.total_cmp(&b.1));
            capped = longest.map_or(capped, |(watts, _)| watts);
        }
        let below = intervals().any(|(of, _)| !of.is_at(&self.groups.reference));
        let with_losses = |sums: ProgressAccount, energy: Option<Joules>| {
            let (metered, energy) = energy.map_or(Default::default(), |energy| (sums.active, energy));
            let lost = SlowedTraining { below: sums.active, samples: sums.samples, metered, energy };
            ProgressAccount { lost: Some(if below { lost } else { SlowedTraining::default() }), ..sums }
        };
        let shown = run.iter().any(|it| it.paused);
        let (stalled, energy) = match shown {
            true => (span - idle - training, used.zip(trained).map(|(used, trained)| used - trained)),
            false => (dips.span, Some(dips.energy)),
        };
        if stalled <= Seconds::ZERO {
            sums.active = span;
            return with_losses(sums, used);
        }
        sums.active = span - stalled;
        // At the maximum usable limit, pauses draw the same power as in the reference case, so the limit has not
        // lowered it.
        let bound = Some(capped * BOUND).filter(|_| capped < self.groups.ceiling * BOUND);
        // A pause lies in two intervals at most.
        let longest = if shown { stalled * (2.0 / run.len() as f64).min(1.0) } else { stalled };
        sums.add_stall(stalled, longest, energy, bound);
        with_losses(sums, used.zip(energy).map(|(used, stalled)| used - stalled))
    }

    /// Returns the account of the time since the last progress: it counts as training, or as a pause once it is longer
    /// than two usual report intervals.
    fn open_interval(&self) -> ProgressAccount {
        // Time lost against the reference setting counts only once the interval ends.
        let mut sums = ProgressAccount { lost: Some(SlowedTraining::default()), ..ProgressAccount::default() };
        let span = self.open.span;
        let usual = self.recent.iter().rev().take(USUAL).map(|s| s.trainable().get()).fold(0.0, f64::max);
        if self.recent.is_empty() || span.get() <= 2.0 * usual {
            sums.active = span;
        } else {
            sums.add_stall(span, span, self.open.energy, None);
        }
        sums
    }
}

/// Returns the latest readings at the current training power, merged until they last [`SUFFICIENT`]; `None` if they are
/// shorter in total.
fn tail(readings: &[Reading]) -> Option<Reading> {
    let mut tail = *readings.last()?;
    let level = tail.training;
    for earlier in readings.iter().rev().skip(1).take_while(|earlier| earlier.training == level) {
        if tail.span >= SUFFICIENT {
            break;
        }
        tail.span += earlier.span;
        tail.energy += earlier.energy;
    }
    (tail.span >= SUFFICIENT).then_some(tail)
}

/// Power dips in one interval that count as pauses.
#[derive(Clone, Debug)]
struct IntervalDips {
    /// Total time and energy of the dips.
    dip: Dip,
    /// Time outside of the dips at each of the interval's settings.
    net: Vec<Seconds>,
}

/// Result of judging one interval.
#[derive(Clone, Copy, Debug, Default)]
struct IntervalVerdict {
    /// True if the interval contains a pause besides its dips, or possibly the beginning of one.
    paused: bool,
    /// True if the interval itself took longer than its samples explain; false if only the next interval did.
    took_too_long: bool,
    /// True if pauses cannot be distinguished from training in this interval.
    unclear: bool,
    /// Time of the interval that may be training or a pause.
    unclear_time: Seconds,
    dip: Dip,
    rate: Option<SamplesPerSecond>,
    power: Option<Watts>,
}

impl IntervalVerdict {
    /// Judges an interval by the measured or assumed rate bounds of its settings. `shown` are its power dips, `quantum`
    /// the samples of one training step (0 if steps do not matter).
    fn by_rates(of: &ProgressInterval, shown: &IntervalDips, quantum: f64, model: &RateModel<'_>) -> Self {
        let net = of.trainable() - shown.dip.span;
        let mut it = Self { dip: shown.dip, power: model.power(of), ..Self::default() };
        if !of.is_observed() {
            return it;
        }
        let Some(rates) = model.rates(of, &shown.net) else { return it };
        let least = (of.samples_done + Samples::new(STEP_MARGIN * quantum)) / rates.least;
        it.took_too_long = net > Seconds::ZERO && net - least > net * LEAST_PART_OF_SOME;
        it.paused = it.took_too_long;
        let unclear_time = if it.took_too_long {
            (of.samples_done / rates.least - of.samples_done / rates.most) * 0.5
        } else {
            net - of.samples_done / rates.most
        };
        it.unclear_time = if rates.least < rates.most { unclear_time.max(Seconds::ZERO) } else { Seconds::ZERO };
        it.rate = Some((rates.least + rates.most) * 0.5);
        it
    }
}
