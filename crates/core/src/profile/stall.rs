//! Finds pauses of a job's own (evaluation, checkpoint, input) in its power and its progress, and splits time and energy
//! at them.
//!
//! The unit is a stretch: the time between two reports at which samples had grown. Reports without progress extend it,
//! so that a pause begins at the last sample before it, whatever was reported meanwhile. Dips of the power that the
//! progress bears out are pauses, to the second. Where pauses draw about as much as training, stretches at one setting
//! are compared with each other, see [`super::pace`]. Stretches at several settings, or at one of which little is known,
//! go by what is known of these settings, or by what it must be at the least and at the most; time that may be either
//! stays in doubt.

use std::collections::VecDeque;

use super::dips::{Dip, Reading, parts, runs};
use super::drawn::{Drawn, Equipment, Ground, Known};
use super::ladder::{GroupRange, Setting};
use super::pace::{FEW, LEAST_PART, LEAST_PART_OF_SOME, Pace, STEP_MARGIN, Verdict, judge, step};
use super::progress::ProgressAccount;
use super::slack::Lost;
use super::stretch::Stretch;
use crate::time::Monotonic;
use crate::units::{Joules, Samples, SamplesPerSecond, Seconds, Watts};

/// Stretches that are kept and judged again with each new one.
const KEPT: usize = 48;
/// Of the mean power in a pause over the limit: from here on the limit lowers it.
const BOUND: f64 = 0.95;
/// Energy is compared over so much time at least.
const MOMENT: Seconds = Seconds::new(0.5);
/// Work in a stretch may be faster than known by this factor, beside as much time at the edges of a dip.
const FASTER: f64 = 1.1;
const EDGES: Seconds = Seconds::new(0.3);
/// Readings that are kept from before the oldest stretch.
const BEFORE: usize = 5;
/// A pause begins in one stretch and ends in the next, or a moment off.
const MOST_TOUCHED: usize = 3;
/// Dips leave at most this part of the squared differences of pace where they explain them.
const EXPLAINED: f64 = 0.25;
/// Newest stretches by which the time between reports is known.
const USUAL: usize = 6;

/// The last reading of a job's GPUs.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Monotonic,
    energy: Option<Joules>,
}

/// Splits a job's time and energy between training and pauses of its own. Pure: times are arguments.
#[derive(Clone, Debug)]
pub struct Stalls {
    equipment: Equipment,
    /// The account of all that is not judged again.
    settled: ProgressAccount,
    recent: VecDeque<Stretch>,
    open: Stretch,
    seen: Option<Seen>,
    /// What was drawn since the first of the recent stretches began.
    drawn: VecDeque<Drawn>,
    newest: Newest,
}

/// What the power shows of the newest stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Newest {
    /// Pauses.
    pub paused: Dip,
    /// Whether a pause seems to begin at its end, of which nothing more is known yet.
    pub ends_low: bool,
}

impl Stalls {
    /// Starts with an account of what was before.
    pub fn new(account: ProgressAccount) -> Self {
        Self {
            equipment: Equipment::default(),
            settled: account,
            recent: VecDeque::new(),
            open: Stretch::open(Monotonic::default()),
            seen: None,
            drawn: VecDeque::new(),
            newest: Newest::default(),
        }
    }

    /// Says how many GPUs are in each group, and the highest limit of each of them: the reference, below which time is
    /// lost.
    pub fn equip(&mut self, groups: &[GroupRange]) {
        self.equipment = Equipment::of(groups);
    }

    /// Records what the GPUs show: the setting in force, if there is one, and their energy counted so far, `None` if not
    /// all answer. `idle` says that the job is asked to do no work. To be called at each tick and right before
    /// [`Self::report`].
    pub fn see(&mut self, at: Monotonic, setting: Option<&Setting>, energy: Option<Joules>, idle: bool) {
        let Some(before) = self.seen.replace(Seen { at, energy }) else { return };
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
            self.draw(Drawn { from: before.at, to: at, setting: setting.clone(), energy: to - from });
        }
        match self.open.settings.iter_mut().find(|(set, _)| set == setting) {
            Some((_, time)) => *time += span,
            None => self.open.settings.push((setting.clone(), span)),
        }
    }

    /// Keeps what was drawn; counters are too coarse to say anything of a moment alone. No reading goes on beyond a stretch.
    fn draw(&mut self, drawn: Drawn) {
        let within = self.open.from;
        let joins = |last: &&mut Drawn| {
            let is_moment = last.span() < MOMENT || drawn.span() < MOMENT;
            last.from >= within && last.to == drawn.from && last.setting == drawn.setting && is_moment
        };
        match self.drawn.back_mut().filter(joins) {
            Some(last) => {
                last.to = drawn.to;
                last.energy += drawn.energy;
            }
            None => self.drawn.push_back(drawn),
        }
    }

    fn reopened(&self) -> Stretch {
        Stretch::open(self.open.to)
    }

    /// Begins at the first report: what was before it is not the job's.
    pub fn begin(&mut self) {
        self.open = self.reopened();
    }

    /// Adds a report: `done` samples in `span` since the one before. `known` says what a setting is known to do. Returns
    /// the account up to this report.
    pub fn report(
        &mut self,
        span: Seconds,
        done: Samples,
        known: &dyn Fn(&Setting) -> Option<Known>,
    ) -> ProgressAccount {
        self.open.span += span;
        self.open.done += done;
        self.open.idle = self.open.idle.min(self.open.span);
        let ends = done > Samples::ZERO || self.open.idle > Seconds::ZERO;
        if ends {
            let next = self.reopened();
            self.recent.push_back(std::mem::replace(&mut self.open, next));
        } else {
            self.open.waited = true;
        }
        self.account(known, ends)
    }

    /// What the power shows of the stretch that the last report ended.
    pub fn newest(&self) -> Newest {
        self.newest
    }

    /// The account up to the last report; settles what is old.
    fn account(&mut self, known: &dyn Fn(&Setting) -> Option<Known>, ends: bool) -> ProgressAccount {
        let ground = Ground::new(&self.equipment, &self.drawn, known);
        let readings = self.readings(&ground);
        let found = self.dips(&ground, &readings);
        let paused = found.last().map_or(Dip::default(), |shown| shown.dip);
        let ends_low = readings.last().is_some_and(Reading::is_low) && paused.span <= Seconds::ZERO;
        let newest = Newest { paused, ends_low };
        let judged = self.judged(&ground, &found);
        self.newest = if ends { newest } else { Newest::default() };
        let mut sums = self.settled;
        let mut oldest = None;
        let mut at = 0;
        while at < judged.len() {
            let end = (at..judged.len()).find(|i| !judged[*i].paused).unwrap_or(judged.len()).max(at + 1);
            sums = sums.plus(&self.split(&judged[at..end], at));
            if oldest.is_none() {
                oldest = Some((end, sums));
            }
            at = end;
        }
        // A run of pauses is settled as one.
        if let (true, Some((end, sums))) = (self.recent.len() > KEPT, oldest) {
            self.settled = sums;
            self.recent.drain(..end);
            let oldest = self.recent.front().unwrap_or(&self.open).from;
            // A dip that ends in the oldest is known by its beginning.
            while self.drawn.get(BEFORE).is_some_and(|drawn| drawn.to <= oldest) {
                self.drawn.pop_front();
            }
        }
        sums.plus(&self.standing_still())
    }

    /// The verdict on each recent stretch.
    fn judged(&self, ground: &Ground<'_>, shown: &[Shown]) -> Vec<Judged> {
        let quantum = step(&self.recent.iter().zip(shown).map(|(of, shown)| of.pace(&shown.dip)).collect::<Vec<_>>());
        let by_rates = |(of, shown): (&Stretch, &Shown)| Judged::by_rates(of, shown, quantum, ground);
        let mut judged: Vec<Judged> = self.recent.iter().zip(shown).map(by_rates).collect();
        let mut settings: Vec<&Setting> = Vec::new();
        for setting in self.recent.iter().filter_map(Stretch::setting) {
            if !settings.contains(&setting) {
                settings.push(setting);
            }
        }
        for setting in settings {
            let mut places: Vec<usize> =
                (0..self.recent.len()).filter(|i| self.recent[*i].setting() == Some(setting)).collect();
            let prior = ground.known(setting);
            while places.iter().filter(|i| self.recent[**i].done > Samples::ZERO).count() >= FEW {
                let paces: Vec<Pace> = places.iter().map(|i| self.recent[*i].pace(&shown[*i].dip)).collect();
                let mut verdict = judge(&paces, prior.map(|k| k.throughput.get()));
                let later = verdict.changed_at.map_or_else(Vec::new, |start| places.split_off(start));
                verdict.paused.truncate(places.len());
                self.apply(&mut judged, &places, &verdict, prior);
                places = later;
            }
        }
        // A pause may have begun in the stretch before the one that shows it.
        for i in 1..judged.len() {
            if judged[i].alone && self.recent[i - 1].idle <= Seconds::ZERO {
                judged[i - 1].paused = true;
            }
        }
        judged
    }

    fn readings(&self, ground: &Ground<'_>) -> Vec<Reading> {
        let levels: Vec<(&Setting, Option<Watts>)> = ground.levels();
        let level = |setting: &Setting| levels.iter().find(|(of, _)| *of == setting).and_then(|(_, level)| *level);
        let reading = |d: &Drawn| Reading { span: d.span(), energy: d.energy, training: level(&d.setting) };
        self.drawn.iter().map(reading).collect()
    }

    /// Dips of the power in each recent stretch that are pauses by its progress.
    fn dips(&self, ground: &Ground<'_>, readings: &[Reading]) -> Vec<Shown> {
        let mut sums = vec![Dip::default(); self.recent.len()];
        let mut net: Vec<Vec<Seconds>> =
            self.recent.iter().map(|of| of.settings.iter().map(|(_, time)| *time).collect()).collect();
        for run in runs(readings) {
            let (from, to) = (self.drawn[run.start].from, self.drawn[run.end - 1].to);
            // Who reports progress again and again does not pause.
            if self.recent.iter().filter(|of| of.from < to && from < of.to && of.done > Samples::ZERO).count()
                > MOST_TOUCHED
            {
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
        let borne_out = self.borne_out(&sums);
        for (place, (of, dip)) in self.recent.iter().zip(&mut sums).enumerate() {
            dip.span = dip.span.min(of.trainable());
            if dip.span <= Seconds::ZERO {
                continue;
            }
            let rates = ground.rates(of, &net[place]);
            let too_fast = || rates.is_none_or(|rates| of.done > rates.most * (of.span - dip.span + EDGES) * FASTER);
            if of.idle > Seconds::ZERO || !borne_out[place] && too_fast() {
                *dip = Dip::default();
                net[place] = of.settings.iter().map(|(_, time)| *time).collect();
            }
        }
        sums.into_iter().zip(net).map(|(dip, net)| Shown { dip, net }).collect()
    }

    /// For each stretch whether dips explain the differences of pace between those at its setting.
    fn borne_out(&self, sums: &[Dip]) -> Vec<bool> {
        let mut borne_out = vec![false; sums.len()];
        for place in 0..sums.len() {
            let Some(setting) = self.recent[place].setting().filter(|_| !borne_out[place]) else { continue };
            let places: Vec<usize> =
                (place..sums.len()).filter(|i| self.recent[*i].setting() == Some(setting)).collect();
            let spread = |net: bool| {
                let of = |i: &usize| {
                    let span = self.recent[*i].span - if net { sums[*i].span } else { Seconds::ZERO };
                    (span.get(), self.recent[*i].done.get())
                };
                let all: Vec<(f64, f64)> = places.iter().map(of).collect();
                let (span, done) = all.iter().fold((0.0, 0.0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
                all.iter().map(|of| (of.0 - of.1 * span / done.max(f64::MIN_POSITIVE)).powi(2)).sum::<f64>()
            };
            if places.len() > FEW && spread(true) < spread(false) * EXPLAINED {
                places.iter().for_each(|i| borne_out[*i] = true);
            }
        }
        borne_out
    }

    fn apply(&self, judged: &mut [Judged], places: &[usize], verdict: &Verdict, prior: Option<Known>) {
        let (mut span, mut energy) = (Seconds::ZERO, Some(Joules::ZERO));
        for (place, _) in places.iter().zip(&verdict.left_out).filter(|(_, out)| !**out) {
            let (of, dip) = (&self.recent[*place], judged[*place].dip);
            if let (Some(sum), Some(part)) = (energy, of.energy) {
                (span, energy) = (span + of.span - dip.span, Some(sum + part - dip.energy));
            }
        }
        let own = energy.filter(|_| span > Seconds::ZERO).map(|energy| energy / span);
        // What the profile knows is known better, as long as it is still true.
        let near = |known: f64, own: f64| (known / own - 1.0).abs() < LEAST_PART;
        let enough = places.len() >= FEW;
        for (place, slow) in places.iter().zip(&verdict.paused) {
            let rate = verdict.rate.map(SamplesPerSecond::new).filter(|_| enough);
            let it = &mut judged[*place];
            it.alone = *slow;
            it.unclear = verdict.unclear;
            it.paused = *slow;
            it.doubt = Seconds::ZERO;
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

    /// Splits one stretch without a pause, or a run of those with.
    fn split(&self, run: &[Judged], from: usize) -> ProgressAccount {
        let stretches = || self.recent.iter().skip(from).zip(run);
        let mut sums = ProgressAccount::default();
        let (mut training, mut used, mut trained) = (Seconds::ZERO, Some(Joules::ZERO), Some(Joules::ZERO));
        let (mut span, mut idle, mut capped) = (Seconds::ZERO, Seconds::ZERO, Watts::ZERO);
        let mut dips = Dip::default();
        for (of, it) in stretches() {
            sums.samples += of.done;
            sums.unclear += if it.unclear { of.span } else { Seconds::ZERO };
            sums.doubt += it.doubt;
            dips.add(it.dip);
            span += of.span;
            idle += of.idle;
            let work = it.rate.filter(|r| *r > SamplesPerSecond::ZERO).map_or(of.trainable(), |rate| of.done / rate);
            let work = if it.rate.is_none() && of.done <= Samples::ZERO { Seconds::ZERO } else { work };
            training += work;
            used = used.zip(of.energy).map(|(sum, e)| sum + e).filter(|_| of.idle <= Seconds::ZERO);
            trained = match it.power {
                _ if work <= Seconds::ZERO => trained,
                Some(power) => trained.map(|sum| sum + power * work),
                None => None,
            };
            let limit = |(setting, time): &(Setting, Seconds)| (self.equipment.limit_of(setting), *time);
            let longest = of.settings.iter().map(limit).max_by(|a, b| a.1.total_cmp(&b.1));
            capped = longest.map_or(capped, |(watts, _)| watts);
        }
        let below = stretches().any(|(of, _)| !of.is_at(&self.equipment.reference));
        let with_losses = |sums: ProgressAccount| {
            let lost = Lost { below: sums.active, samples: sums.samples };
            ProgressAccount { lost: Some(if below { lost } else { Lost::default() }), ..sums }
        };
        let shown = run.iter().any(|it| it.paused);
        let (stalled, energy) = match shown {
            true => (span - idle - training, used.zip(trained).map(|(used, trained)| used - trained)),
            false => (dips.span, Some(dips.energy)),
        };
        if stalled <= Seconds::ZERO {
            sums.active = span;
            return with_losses(sums);
        }
        sums.active = span - stalled;
        // At the ceiling the limit is the reference's own.
        let bound = Some(capped * BOUND).filter(|_| capped < self.equipment.ceiling * BOUND);
        sums.add_stall(stalled, energy, bound);
        with_losses(sums)
    }

    /// The account of the time since the last progress: a pause once it is longer than a stretch usually is.
    fn standing_still(&self) -> ProgressAccount {
        // What a stretch lost is known once it ends.
        let mut sums = ProgressAccount { lost: Some(Lost::default()), ..ProgressAccount::default() };
        let span = self.open.span;
        let usual = self.recent.iter().rev().take(USUAL).map(|s| s.trainable().get()).fold(0.0, f64::max);
        if self.recent.is_empty() || span.get() <= 2.0 * usual {
            sums.active = span;
        } else {
            sums.add_stall(span, self.open.energy, None);
        }
        sums
    }
}

/// What the power shows of one stretch.
#[derive(Clone, Debug)]
struct Shown {
    /// Pauses.
    dip: Dip,
    /// The rest of the time at each of its settings.
    net: Vec<Seconds>,
}

/// The verdict on one stretch.
#[derive(Clone, Copy, Debug, Default)]
struct Judged {
    /// Whether it holds a pause beside its dips, or the beginning of one.
    paused: bool,
    /// Whether it shows that by itself.
    alone: bool,
    /// Whether pauses cannot be told from training there.
    unclear: bool,
    /// Time that may be training as well as a pause.
    doubt: Seconds,
    dip: Dip,
    rate: Option<SamplesPerSecond>,
    power: Option<Watts>,
}

impl Judged {
    /// By what its settings are known to do, or can do, each for its part of the time.
    fn by_rates(of: &Stretch, shown: &Shown, quantum: f64, ground: &Ground<'_>) -> Self {
        let net = of.trainable() - shown.dip.span;
        let mut it = Self { dip: shown.dip, power: ground.power(of), ..Self::default() };
        let Some(rates) = ground.rates(of, &shown.net) else { return it };
        let least = (of.done + Samples::new(STEP_MARGIN * quantum)) / rates.least;
        it.alone = net > Seconds::ZERO && net - least > net * LEAST_PART_OF_SOME;
        it.paused = it.alone;
        let doubt =
            if it.alone { (of.done / rates.least - of.done / rates.most) * 0.5 } else { net - of.done / rates.most };
        it.doubt = if rates.least < rates.most { doubt.max(Seconds::ZERO) } else { Seconds::ZERO };
        it.rate = Some((rates.least + rates.most) * 0.5);
        it
    }
}
