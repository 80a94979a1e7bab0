//! Closed intervals: energy of one device over at most a minute, in whole millijoules, written once.

use chrono::{DateTime, SubsecRound, Utc};
use serde::{Deserialize, Serialize};

use super::apportion::by_hour;
use super::{Metered, Rule};
use crate::clock::{Monotonic, Now};
use crate::domain::{DeviceId, EnergySource, JobId, Slot};
use crate::units::{Millijoules, Seconds};

/// Whose energy it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Share {
    /// A registered job's.
    Job(JobId),
    /// Nobody's: no job was registered and no process ran.
    Idle,
    /// Somebody's who cannot be named: an unregistered process, or a time in which nobody looked.
    Unattributed,
}

/// One row of the books.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// What used it.
    pub device: DeviceId,
    /// Whose energy it is.
    pub share: Share,
    /// When it was used.
    pub slot: Slot,
    /// How much.
    pub energy: Millijoules,
    /// How it was found.
    pub source: EnergySource,
}

/// The shortest interval worth closing: sensors are not faster than that.
const SHORTEST: Seconds = Seconds::new(0.2);

/// A wall clock that is this far off what the duration clock expects was set by somebody.
const CLOCK_STEP: Seconds = Seconds::new(2.0);

/// The open interval of one device. Pure; durations come from the monotonic clock, keys from the wall clock.
#[derive(Clone, Debug)]
pub struct OpenInterval {
    device: DeviceId,
    start: DateTime<Utc>,
    since: Monotonic,
    metered: Metered,
}

impl OpenInterval {
    /// Opens the books of a device: what it has metered so far is not part of the interval.
    pub fn open(device: DeviceId, now: Now, metered: Metered) -> Self {
        Self { device, start: to_micros(now.utc), since: now.monotonic, metered }
    }

    /// How long it has been open.
    pub fn age(&self, now: Now) -> Seconds {
        now.monotonic.since(self.since)
    }

    /// Its first moment.
    pub fn start(&self) -> DateTime<Utc> {
        self.start
    }

    /// Whether a reset of the counter took energy with it since it was opened.
    pub fn has_lost(&self, metered: Metered) -> bool {
        metered.lost > self.metered.lost
    }

    /// Closes the interval and opens the next one. The energy is split by `rule`, so that the sum is exact. Rows are cut
    /// at full hours.
    ///
    /// `None`, and it stays open, while it is shorter than sensors can tell (200 ms).
    pub fn close(&mut self, now: Now, metered: Metered, rule: &Rule<'_>) -> Option<Vec<Interval>> {
        let age = self.age(now);
        let end = to_micros(self.start + age.to_delta());
        let slot = Slot::new(self.start, end).filter(|_| age >= SHORTEST)?;
        let parts = metered.since(&self.metered).into_iter();
        let rows = parts.flat_map(|(source, energy)| split(&self.device, slot, energy, source, rule));
        let rows = rows.flat_map(by_hour).collect();
        self.metered = metered;
        self.since = now.monotonic;
        // Consecutive intervals join without a seam, unless the wall clock was set in between.
        let off = Seconds::from_delta(now.utc - end).abs();
        self.start = if off <= CLOCK_STEP { end } else { to_micros(now.utc) };
        Some(rows)
    }
}

/// The energy of a time in which no daemon ran, known from the hardware's counter. It belongs to `holders`; without
/// any it is nobody's who can be named.
pub fn gap_intervals(
    device: &DeviceId,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
    energy: Millijoules,
    holders: &[JobId],
) -> Vec<Interval> {
    let (from, to) = (to_micros(from), to_micros(to));
    // A wall clock that was set back meanwhile must not lose the joules.
    let slot = Slot::new(from, to).or_else(|| Slot::new(to - chrono::TimeDelta::seconds(1), to));
    match slot.filter(|_| energy > Millijoules::ZERO) {
        Some(slot) => {
            let rule = Rule::Holders { jobs: holders, unknown_user: true, used: None };
            let rows = split(device, slot, energy, EnergySource::CounterGap, &rule);
            rows.into_iter().flat_map(by_hour).collect()
        }
        None => Vec::new(),
    }
}

/// The part of the books that lies in `span`. Within an interval power is taken as even: for views, not for the books.
pub fn within(intervals: &[Interval], span: &Slot) -> Vec<Interval> {
    let part = |row: &Interval| {
        let slot = row.slot.intersection(span)?;
        let energy = row.energy.to_joules() * (slot.duration() / row.slot.duration());
        Some(Interval { slot, energy: Millijoules::from_joules(energy), ..row.clone() })
    };
    intervals.iter().filter_map(part).collect()
}

/// The books' times are whole microseconds.
fn to_micros(t: DateTime<Utc>) -> DateTime<Utc> {
    t.trunc_subsecs(6)
}

fn split(device: &DeviceId, slot: Slot, energy: Millijoules, source: EnergySource, rule: &Rule<'_>) -> Vec<Interval> {
    let row = |(share, energy)| Interval { device: device.clone(), share, slot, energy, source };
    rule.split(energy, source).into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn now(seconds: f64) -> Now {
        let span = Seconds::new(seconds);
        Now { utc: DateTime::UNIX_EPOCH + span.to_delta(), monotonic: Monotonic::default().after(span) }
    }

    fn counter(mj: u64) -> Metered {
        Metered { counter: Millijoules::new(mj), ..Metered::default() }
    }

    fn job(name: &str) -> JobId {
        JobId::new(name).expect("an id")
    }

    fn held(jobs: &[JobId], unknown_user: bool) -> Rule<'_> {
        Rule::Holders { jobs, unknown_user, used: None }
    }

    fn open() -> OpenInterval {
        OpenInterval::open(DeviceId::new("GPU-0").expect("an id"), now(0.0), Metered::default())
    }

    #[test]
    fn idle_unattributed_and_jobs_are_kept_apart() {
        let mut books = open();
        assert_eq!(books.close(now(0.1), counter(5), &held(&[], false)), None, "too short to be measured");
        let mut close = |at, mj, holders: &[JobId], unknown| {
            books.close(now(at), counter(mj), &held(holders, unknown)).expect("long enough")
        };
        assert_eq!(close(60.0, 100, &[], false)[0].share, Share::Idle);
        assert_eq!(close(120.0, 200, &[], true)[0].share, Share::Unattributed);
        let rows = close(180.0, 307, &[job("a"), job("b")], false);
        let split: Vec<_> = rows.iter().map(|r| (r.share.clone(), r.energy.get())).collect();
        assert_eq!(split, [(Share::Job(job("a")), 54), (Share::Job(job("b")), 53)]);
    }

    #[test]
    fn a_part_of_the_books_is_cut_by_time() {
        let mut books = open();
        let rows = books.close(now(60.0), counter(600), &held(&[job("a")], false)).expect("long enough");
        let span = Slot::new(now(45.0).utc, now(90.0).utc).expect("from < to");
        let part = within(&rows, &span);
        assert_eq!(
            (part.len(), part[0].energy, part[0].slot.duration()),
            (1, Millijoules::new(150), Seconds::new(15.0))
        );
        assert_eq!(within(&rows, &Slot::new(now(60.0).utc, now(61.0).utc).expect("from < to")), []);
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_negative_interval() {
        let mut books = open();
        let mut later = now(60.0);
        later.utc -= chrono::TimeDelta::hours(1);
        let rows = books.close(later, counter(10), &held(&[], false)).expect("long enough");
        assert_eq!(rows[0].slot.duration(), Seconds::new(60.0));
        assert_eq!(books.start(), later.utc);
    }

    proptest! {
        #[test]
        fn intervals_add_up_to_the_meter_and_join_without_a_seam(
            steps in prop::collection::vec((1u32..90_000, 0u64..10_000_000, 0usize..4), 1..40)
        ) {
            let names = [job("a"), job("b"), job("c")];
            let (mut books, mut at, mut total, mut rows) = (open(), 0.0, 0, Vec::new());
            for (ms, energy, holders) in steps {
                at += f64::from(ms) / 1e3;
                total += energy;
                rows.extend(books.close(now(at), counter(total), &held(&names[..holders], false)).into_iter().flatten());
            }
            rows.extend(books.close(now(at + 1.0), counter(total), &held(&[], false)).into_iter().flatten());
            prop_assert_eq!(rows.iter().map(|r| r.energy.get()).sum::<u64>(), total);
            for pair in rows.windows(2) {
                prop_assert!(pair[1].slot.start() >= pair[0].slot.start());
                prop_assert!(pair[1].slot == pair[0].slot || pair[1].slot.start() >= pair[0].slot.end());
            }
        }
    }
}
