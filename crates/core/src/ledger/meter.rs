//! Energy meter of a GPU: increases of the energy counter where the counter is reliable, integrated power elsewhere.

use crate::domain::EnergySource;
use crate::time::Monotonic;
use crate::units::{Joules, Millijoules, Seconds, Watts};

/// Longest time between two readings that counts as monitored.
const GAP: Seconds = Seconds::new(10.0);

/// Minimum energy that the GPU must draw while its counter does not change for [`GAP`], so that the counter counts as
/// absent.
const MIN_DRAWN: Joules = Joules::new(20.0);

/// Minimum time over which the counter's increase and integrated power are compared.
const CROSS_CHECK: Seconds = Seconds::new(10.0);

/// Ratio of the larger to the smaller mean power, one by the energy counter and one by the power sensor, above which
/// the two disagree.
const DISAGREEMENT: f64 = 1.3;

/// Difference in power that a sensor's offset explains: up to this difference, counter and integrated power agree.
const OFFSET: Watts = Watts::new(5.0);

/// Factor by which short peaks of power may exceed a GPU's highest power limit.
const PEAKS: f64 = 1.5;

/// Time by which a counter may lag behind the energy used: drivers update it 10 to 50 times a second, some less often.
const GRANULARITY: Seconds = Seconds::new(0.5);

/// State of an energy meter: energy since the meter's first reading, by method of measurement. Sums are exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metered {
    /// Increases of the counter over monitored time.
    pub counter: Millijoules,
    /// Energy integrated from power readings.
    pub integrated: Millijoules,
    /// Increases of the counter over unmonitored time.
    pub gap: Millijoules,
    /// Change of the counter's reading, in millijoules, that was not recorded as energy; a reset makes this value
    /// smaller. The reading less this value is the energy recorded from the counter, up to a constant.
    pub rebased_mj: i64,
    /// Number of times that an unknown amount of energy was lost: by a counter reset, an implausible reading or a
    /// change to another counter.
    pub lost: u32,
    /// Number of times that a GPU without a counter was not read for so long that the energy of that time is unknown.
    pub unread: u32,
    /// Energy that was integrated from power while the counter was absent, and that the counter's next increase will
    /// include again.
    pub ahead: Millijoules,
    /// Energy integrated from power before the first reading of the counter.
    pub uncounted: Millijoules,
    /// Total energy as it was used over time, for rates. Unlike the other sums, it does not contain the corrections
    /// that are made when a counter returns after an absence.
    pub drawn: Millijoules,
}

impl Metered {
    /// Returns the total energy.
    pub fn total(&self) -> Millijoules {
        self.counter + self.integrated + self.gap
    }

    /// Returns the energy integrated from power after the meter's earlier state `first` and before the first reading of
    /// the counter.
    pub fn since_opened(&self, first: &Self) -> Millijoules {
        self.uncounted.checked_since(first.uncounted).unwrap_or_default()
    }

    /// Returns the counter's reading at the meter's earlier state `first`, or the counter's first reading after that,
    /// computed back from the present reading `counter`.
    pub fn reading_before(&self, counter: Millijoules, first: &Self) -> Millijoules {
        let recorded = |metered: &Self| signed(metered.counter) + signed(metered.gap) + metered.rebased_mj;
        let shown = signed(counter) - (recorded(self) - recorded(first));
        Millijoules::new(u64::try_from(shown).unwrap_or_default())
    }

    /// Returns the energy metered since the meter's state `earlier`, by method of measurement; methods without energy
    /// are omitted.
    pub fn since(&self, earlier: &Self) -> Vec<(EnergySource, Millijoules)> {
        let parts = [
            (EnergySource::Counter, self.counter, earlier.counter),
            (EnergySource::IntegratedPower, self.integrated, earlier.integrated),
            (EnergySource::CounterGap, self.gap, earlier.gap),
        ];
        let difference = |(source, now, then): (_, Millijoules, _)| Some((source, now.checked_since(then)?));
        parts.into_iter().filter_map(difference).filter(|(_, e)| *e > Millijoules::ZERO).collect()
    }
}

/// Energy meter of a GPU. Pure: each reading carries its time.
///
/// A counter that shows less than before was reset (driver reload, lost GPU). If the readings before and after the
/// reset are close together, the energy between them is estimated as power × time. Otherwise the new reading is
/// recorded, which is the energy used after the reset, and the energy from the old reading to the reset counts as lost.
/// A decrease is never recorded as an increase (`abs()`). Without a counter, energy between power readings that are far
/// apart is lost too.
///
/// While a counter that was read before is absent, the meter integrates power instead. When the counter returns, only
/// its increase beyond the integrated energy is recorded. If more energy was integrated than the counter gained,
/// recording from the counter resumes once the counter has caught up. A counter that does not change while power is
/// drawn counts as absent. If such a counter has not changed since the meter began, its next increase may include
/// energy from before the meter began; the meter then records only the integrated energy, unless it continues an
/// earlier ledger.
///
/// An increase of the counter by more than the GPU can draw is implausible. The meter then integrates power for the
/// time of the increase, and continues from the counter's new reading.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    last: Option<Sample>,
    base: Option<Base>,
    still: Option<Standstill>,
    /// True if the meter continues an earlier ledger, or the counter has changed since the meter began.
    has_known_origin: bool,
    metered: Metered,
    /// Energy below a millijoule that integration has not recorded yet.
    carry: Joules,
    resets: u32,
    check: CrossCheck,
    bound: Option<PowerBound>,
    jump: Option<CounterJump>,
}

/// Upper bound of the energy that a GPU can use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerBound {
    /// Highest power that the GPU's limits allow.
    pub highest: Watts,
    /// Error of the time between two readings, for example because the driver may answer slowly.
    pub slack: Seconds,
}

impl PowerBound {
    /// Returns the maximum plausible increase of a counter in `span`.
    pub fn energy_within(&self, span: Seconds) -> Joules {
        self.highest * (span + self.slack + GRANULARITY) * PEAKS
    }
}

/// Increase of a counter by more than the GPU can draw, which the meter does not record as energy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CounterJump {
    /// Time of the reading that shows the increase.
    pub at: Monotonic,
    /// Increase of the counter.
    pub gained: Millijoules,
    /// Time in which the counter increased.
    pub span: Seconds,
    /// Maximum plausible increase in the time `span`.
    pub possible: Joules,
}

/// Difference between the energy counter and the power sensor of a GPU that measurement errors do not explain.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disagreement {
    /// Mean power by the energy counter.
    pub counter: Watts,
    /// Mean power by the power sensor.
    pub sensor: Watts,
}

/// Last time at which the device answered, with its power at that time if known.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: Monotonic,
    power: Option<Watts>,
}

/// Last reading of the counter, and the energy recorded after it.
#[derive(Clone, Copy, Debug)]
struct Base {
    at: Monotonic,
    counter: Millijoules,
    /// Energy integrated from power after the reading.
    estimated: Millijoules,
    /// True if, for a part of the time after the reading, neither counter nor power was available.
    has_hole: bool,
}

/// Time over which the counter has not changed.
#[derive(Clone, Copy, Debug)]
struct Standstill {
    since: Monotonic,
    /// Energy drawn since the counter last changed, integrated from power.
    drawn: Joules,
    /// True if the counter counts as absent because of this standstill.
    is_absent: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct CrossCheck {
    counter: Joules,
    integrated: Joules,
    span: Seconds,
    ratio: Option<f64>,
    /// First: disagreement in the last comparison. Second: number of comparisons in a row that disagreed in the same
    /// direction.
    disagreement: Option<(Disagreement, u32)>,
}

impl Meter {
    /// Processes a reading of the GPU's energy counter and of its power draw; either may be absent.
    pub fn observe(&mut self, at: Monotonic, counter: Option<Millijoules>, power: Option<Watts>) {
        // A counter that did not change for some time may include the energy of that time in its next increase.
        let (still_since, was_absent) = (self.still.map(|still| still.since), self.still_since().is_some());
        let counter = counter.filter(|counter| !self.stands_still(at, *counter, power));
        let base = counter.map(|counter| Base { at, counter, estimated: Millijoules::ZERO, has_hole: false });
        let before = self.base;
        self.base = base.or(before);
        let Some(last) = self.last else {
            self.last = Some(Sample { at, power });
            return;
        };
        if counter.is_none() && power.is_none() {
            // The device did not answer: the unmonitored time grows.
            return;
        }
        self.last = Some(Sample { at, power });
        match (before, counter) {
            (Some(before), Some(counter)) => match counter.checked_since(before.counter) {
                Some(_) if was_absent && !self.has_known_origin => {
                    self.has_known_origin = true;
                    self.skip(before, counter, last, at, power);
                }
                Some(gained) => {
                    self.has_known_origin |= gained > Millijoules::ZERO;
                    let span = at.since(still_since.map_or(before.at, |since| since.min(before.at)));
                    match self.possible(span, last, power).filter(|possible| gained.to_joules() > *possible) {
                        Some(possible) => {
                            self.jump = Some(CounterJump { at, gained, span, possible });
                            self.skip(before, counter, last, at, power);
                        }
                        None => self.count(before, gained, last, at, power),
                    }
                }
                None => self.restart(before, counter, last, at, power),
            },
            (Some(before), None) => {
                let used = self.integrate(last, at, power);
                self.metered.ahead += used.unwrap_or_default();
                let estimated = before.estimated + used.unwrap_or_default();
                self.base = Some(Base { estimated, has_hole: before.has_hole || used.is_none(), ..before });
            }
            (None, _) => match self.integrate(last, at, power) {
                Some(used) => self.metered.uncounted += used,
                None if at.since(last.at) > GAP => self.metered.unread += 1,
                None => {}
            },
        }
    }

    /// Returns the time since which the counter has not changed; `None` unless the counter counts as absent because of
    /// that.
    pub fn still_since(&self) -> Option<Monotonic> {
        self.still.filter(|still| still.is_absent).map(|still| still.since)
    }

    /// Returns true if the counter counts as absent because its reading `counter` has not changed for too long. When
    /// the counter first counts as absent, the energy drawn since its last change is recorded by integration.
    fn stands_still(&mut self, at: Monotonic, counter: Millijoules, power: Option<Watts>) -> bool {
        let (Some(base), Some(last)) = (self.base, self.last) else { return false };
        if base.counter != counter {
            self.still = None;
            return false;
        }
        let mut still = self.still.unwrap_or(Standstill { since: last.at, drawn: Joules::ZERO, is_absent: false });
        let drawn = still.drawn;
        let mean = mean_power(last.power, power).filter(|_| at.since(last.at) <= GAP).unwrap_or_default();
        still.drawn += mean * at.since(last.at);
        let is_drawing = mean > Watts::ZERO && still.drawn >= MIN_DRAWN;
        if !still.is_absent && at.since(still.since) > GAP && is_drawing {
            still.is_absent = true;
            let filled = Millijoules::from_joules(drawn);
            self.metered.integrated += filled;
            self.metered.ahead += filled;
            self.metered.drawn += filled;
            self.base = Some(Base { estimated: base.estimated + filled, ..base });
        }
        self.still = Some(still);
        still.is_absent
    }

    /// Continues the ledger of an earlier meter, which has already recorded the energy `ahead` of the counter's future
    /// increase.
    pub fn continue_ledger(&mut self, ahead: Millijoules) {
        self.metered.ahead += ahead;
        self.has_known_origin = true;
    }

    /// Records the counter's increase `gained` since the reading `before`, less the energy that integration has
    /// recorded already.
    fn count(&mut self, before: Base, gained: Millijoules, last: Sample, at: Monotonic, power: Option<Watts>) {
        let paid = gained.min(self.metered.ahead);
        let used = gained.checked_since(paid).unwrap_or_default();
        self.metered.ahead = self.metered.ahead.checked_since(paid).unwrap_or_default();
        self.metered.rebased_mj += signed(paid);
        match at.since(before.at) <= GAP {
            true => self.metered.counter += used,
            false => self.metered.gap += used,
        }
        let span = at.since(last.at);
        if before.estimated > Millijoules::ZERO {
            let drawn = mean_power(last.power, power).map_or(Joules::ZERO, |mean| mean * span);
            self.metered.drawn += Millijoules::from_joules(drawn);
            return;
        }
        self.metered.drawn += gained;
        if span <= GAP {
            self.cross_check(gained.to_joules(), last.power, power, span);
        }
    }

    /// Sets the upper bound of the GPU's energy. Without a bound, every increase of the counter is plausible.
    pub fn set_bound(&mut self, bound: PowerBound) {
        self.bound = Some(bound);
    }

    /// Returns the maximum plausible increase of the counter in `span`; `None` if no bound was set.
    fn possible(&self, span: Seconds, last: Sample, power: Option<Watts>) -> Option<Joules> {
        let bound = self.bound?;
        let highest = [last.power, power].into_iter().flatten().fold(bound.highest, Watts::max);
        Some(PowerBound { highest, ..bound }.energy_within(span))
    }

    /// Continues from the implausible reading `counter` without recording the counter's increase; integrates power
    /// instead.
    fn skip(&mut self, before: Base, counter: Millijoules, last: Sample, at: Monotonic, power: Option<Watts>) {
        self.metered.ahead = Millijoules::ZERO;
        let filled = self.integrate(last, at, power);
        self.metered.lost += u32::from(before.has_hole || filled.is_none());
        let change = rebased(before.counter, counter, Millijoules::ZERO);
        self.metered.rebased_mj = self.metered.rebased_mj.saturating_add(change);
        let gained = counter.checked_since(before.counter).unwrap_or_default();
        if filled.is_some() && before.estimated == Millijoules::ZERO {
            self.cross_check(gained.to_joules(), last.power, power, at.since(last.at));
        }
    }

    /// Continues from the reading `counter` after a reset of the counter at an unknown time since the reading `before`.
    fn restart(&mut self, before: Base, counter: Millijoules, last: Sample, at: Monotonic, power: Option<Watts>) {
        self.resets += 1;
        self.has_known_origin = true;
        self.check = CrossCheck::default();
        self.metered.ahead = Millijoules::ZERO;
        let filled = self.integrate(last, at, power);
        let recorded = if before.has_hole || filled.is_none() {
            // The new reading is the energy used after the reset; a part of that energy may be integrated already.
            let estimated = before.estimated + filled.unwrap_or_default();
            self.metered.lost += 1;
            let possible = self.possible(at.since(before.at), last, power);
            let is_possible = possible.is_none_or(|possible| counter.to_joules() <= possible);
            counter.checked_since(estimated).filter(|_| is_possible).unwrap_or_default()
        } else {
            Millijoules::ZERO
        };
        self.metered.gap += recorded;
        self.metered.drawn += recorded;
        self.metered.rebased_mj += rebased(before.counter, counter, recorded);
    }

    /// Integrates power since the last sample and returns the energy; `None` if power is unknown or the samples are
    /// more than [`GAP`] apart.
    fn integrate(&mut self, last: Sample, at: Monotonic, power: Option<Watts>) -> Option<Millijoules> {
        let span = at.since(last.at);
        let mean = mean_power(last.power, power).filter(|_| span <= GAP)?;
        self.carry += mean * span;
        let whole = Millijoules::from_joules(Joules::new((self.carry.get() * 1e3).floor().max(0.0) / 1e3));
        self.carry -= whole.to_joules();
        self.metered.integrated += whole;
        self.metered.drawn += whole;
        Some(whole)
    }

    fn cross_check(&mut self, used: Joules, before: Option<Watts>, now: Option<Watts>, span: Seconds) {
        let Some(mean) = mean_power(before, now) else { return };
        self.check.counter += used;
        self.check.integrated += mean * span;
        self.check.span += span;
        if self.check.span >= CROSS_CHECK {
            let CrossCheck { counter, integrated, span, disagreement: before, .. } = self.check;
            let ratio = (integrated > Joules::ZERO).then(|| counter / integrated);
            let found = Disagreement { counter: counter / span, sensor: integrated / span };
            let disagreement = found.is_one().then(|| {
                let in_a_row = before.filter(|(before, _)| before.is_above() == found.is_above()).map_or(0, |(_, n)| n);
                (found, in_a_row.saturating_add(1))
            });
            self.check = CrossCheck { ratio, disagreement, ..CrossCheck::default() };
        }
    }

    /// Returns the last implausible increase of the counter; `None` if there was none.
    pub fn jump(&self) -> Option<CounterJump> {
        self.jump
    }

    /// Returns the disagreement of energy counter and power sensor; `None` until two comparisons in a row disagree. One
    /// is not enough, because a change of load at the end of a comparison reaches a slow sensor only in the next
    /// comparison.
    pub fn disagreement(&self) -> Option<Disagreement> {
        self.check.disagreement.filter(|(_, in_a_row)| *in_a_row > 1).map(|(found, _)| found)
    }

    /// Returns the energy since the first reading.
    pub fn metered(&self) -> Metered {
        self.metered
    }

    /// Returns the number of counter resets that this meter has seen.
    pub fn resets(&self) -> u32 {
        self.resets
    }

    /// Returns the ratio of counter to integrated power in the last comparison, over at least ten seconds; `None` if
    /// there was no comparison, or the sensor showed no power. A value far from 1 means that counter or sensor is
    /// wrong.
    pub fn counter_over_power(&self) -> Option<f64> {
        self.check.ratio
    }
}

impl Disagreement {
    fn is_above(&self) -> bool {
        self.counter > self.sensor
    }

    fn is_one(&self) -> bool {
        let (less, more) = (self.counter.min(self.sensor), self.counter.max(self.sensor));
        more > less * DISAGREEMENT && more - less > OFFSET
    }
}

/// Returns the change of a counter's reading from `before` to `now` beyond the energy that was recorded from the
/// counter, in millijoules; negative after a reset.
pub fn rebased(before: Millijoules, now: Millijoules, recorded: Millijoules) -> i64 {
    signed(now) - signed(before) - signed(recorded)
}

pub(super) fn signed(energy: Millijoules) -> i64 {
    i64::try_from(energy.get()).unwrap_or(i64::MAX)
}

fn mean_power(before: Option<Watts>, now: Option<Watts>) -> Option<Watts> {
    match (before, now) {
        (Some(a), Some(b)) => Some((a + b) / 2.0),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
