//! Open intervals, whose energy is still being metered; the ledger rows that are created when an interval closes; and
//! the rows for energy of unmonitored times.

use chrono::{DateTime, TimeDelta, Utc};

use super::apportion::{by_hour, by_time};
use super::attribution::AttributionRule;
use super::interval::{Interval, to_micros};
use super::meter::Metered;
use crate::domain::{DeviceId, EnergySource, JobId, Slot};
use crate::time::{Monotonic, Now};
use crate::units::{Millijoules, Seconds, Watts};

/// Minimum duration of an interval: GPU sensors do not measure faster.
const MIN_DURATION: Seconds = Seconds::new(0.2);

/// Difference between wall clock and monotonic clock above which the wall clock counts as having been set.
const CLOCK_STEP: Seconds = Seconds::new(2.0);

/// Longest plausible time between two readings of a counter.
pub const LONGEST_GAP: TimeDelta = TimeDelta::days(366);

/// Open interval of one device: the time since the last close, whose energy is still being metered. Pure. Durations
/// come from the monotonic clock, start and end times from the wall clock.
///
/// The attribution rule, which decides who the energy belongs to, may change while the device cannot be read. Energy
/// that is metered later is then divided over the times before and after the change in proportion to their durations,
/// and each part is attributed by the rule that applied in its time.
#[derive(Clone, Debug)]
pub struct OpenInterval {
    device: DeviceId,
    start: DateTime<Utc>,
    since: Monotonic,
    metered: Metered,
    /// Rules that applied before the present one, each with the time at which it ended, oldest first.
    earlier_rules: Vec<(Monotonic, AttributionRule)>,
}

impl OpenInterval {
    /// Opens the first interval of a device. `metered` is the state of the device's meter; the energy in it was used
    /// before and is not part of the interval.
    pub fn open(device: DeviceId, now: Now, metered: Metered) -> Self {
        Self { device, start: to_micros(now.utc), since: now.monotonic, metered, earlier_rules: Vec::new() }
    }

    /// Records that the attribution rule `rule` applied up to `at`. The rule for the time after `at` is given by the
    /// next call, or by [`Self::close`]. Ignored unless `at` is later than the last change.
    pub fn change_rule(&mut self, at: Monotonic, rule: AttributionRule) {
        if at > self.last_rule_change() {
            self.earlier_rules.push((at, rule));
        }
    }

    /// Returns true if the attribution rule changed within the interval.
    pub fn has_rule_changes(&self) -> bool {
        !self.earlier_rules.is_empty()
    }

    /// Returns true if the interval is long enough to be closed: at least 200 ms.
    pub fn can_close(&self, now: Now) -> bool {
        self.age(now) >= MIN_DURATION
    }

    /// Returns true if, at the time `at`, the interval was opened and its rule last changed at least 200 ms ago (the
    /// response time of sensors) and at least twice the sampling period `pace` ago.
    pub fn is_unread(&self, at: Monotonic, pace: Seconds) -> bool {
        at.since(self.last_rule_change()) >= MIN_DURATION.max(pace * 2.0)
    }

    /// Returns the time from which the present rule applies: the last change, or the start of the interval.
    pub fn last_rule_change(&self) -> Monotonic {
        self.earlier_rules.last().map_or(self.since, |(until, _)| *until)
    }

    /// Returns the time since the interval was opened.
    pub fn age(&self, now: Now) -> Seconds {
        now.monotonic.since(self.since)
    }

    /// Returns the mean power from the start of the interval to `at`, at which the device's meter shows `metered`.
    pub fn mean_power(&self, at: Now, metered: Metered) -> Watts {
        metered.drawn.checked_since(self.metered.drawn).unwrap_or_default().to_joules() / self.age(at)
    }

    /// Returns the start of the interval.
    pub fn start(&self) -> DateTime<Utc> {
        self.start
    }

    /// Returns true if the device used an unknown amount of energy since the interval was opened; `metered` is the
    /// present state of the device's meter.
    pub fn has_lost_energy(&self, metered: Metered) -> bool {
        metered.lost > self.metered.lost || self.was_unread(metered)
    }

    /// Returns true if, since the interval was opened, a device without a counter was not read for so long that its
    /// energy is unknown; `metered` is the present state of the device's meter.
    pub fn was_unread(&self, metered: Metered) -> bool {
        metered.unread > self.metered.unread
    }

    /// Closes the interval and opens the next one. `metered` is the present state of the device's meter. The energy is
    /// attributed by `rule`, or by the earlier rules for the times before a change; the rows add up exactly to the
    /// metered energy. Rows are split at full hours.
    ///
    /// Returns `None`, and the interval stays open, while it is shorter than sensors can resolve (200 ms).
    pub fn close(&mut self, now: Now, metered: Metered, rule: &AttributionRule) -> Option<Vec<Interval>> {
        if self.can_close(now) { self.close_last(now, metered, rule) } else { None }
    }

    /// Closes the interval however short it is, because the daemon ends; else works as [`Self::close`]. The energy of a
    /// counter that stood still is metered all at once, so that even a short interval may hold much of it.
    ///
    /// Returns `None` if no time has passed since the interval was opened.
    pub fn close_last(&mut self, now: Now, metered: Metered, rule: &AttributionRule) -> Option<Vec<Interval>> {
        let age = self.age(now);
        let end = to_micros(self.start + age.to_delta());
        let slot = Slot::new(self.start, end)?;
        let (parts, rules): (Vec<Slot>, Vec<&AttributionRule>) =
            self.parts(slot, now.monotonic, rule).into_iter().unzip();
        let mut rows = Vec::new();
        for (source, energy) in metered.since(&self.metered) {
            for ((part, rule), energy) in parts.iter().zip(&rules).zip(by_time(energy, &parts)) {
                rows.extend(split(&self.device, *part, energy, source, rule).into_iter().flat_map(by_hour));
            }
        }
        self.earlier_rules.retain(|(until, _)| *until > now.monotonic);
        self.metered = metered;
        self.since = now.monotonic;
        // Consecutive intervals are contiguous, unless the wall clock was set in between.
        let off = Seconds::from_delta(now.utc - end).abs();
        self.start = if off <= CLOCK_STEP { end } else { to_micros(now.utc) };
        Some(rows)
    }

    /// Returns the parts of `slot` between changes of the attribution rule, each with the rule that applied in it:
    /// `rule` after the last change. `end` is the end of `slot` by the monotonic clock.
    fn parts<'a>(&'a self, slot: Slot, end: Monotonic, rule: &'a AttributionRule) -> Vec<(Slot, &'a AttributionRule)> {
        let mut from = slot.start();
        let earlier_rules = self.earlier_rules.iter().map(|(until, rule)| (*until, rule));
        let mut parts = Vec::new();
        for (until, rule) in earlier_rules.chain([(end, rule)]) {
            let until =
                if until < end { to_micros(self.start + until.since(self.since).to_delta()) } else { slot.end() };
            parts.extend(Slot::new(from, until).map(|part| (part, rule)));
            from = from.max(until);
        }
        parts
    }
}

/// Time during which a job is on a device, by the wall clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OccupancySpan {
    /// Job that is on the device.
    pub job: JobId,
    /// Start of the job's time on the device.
    pub from: DateTime<Utc>,
    /// End of the job's time on the device; absent while it lasts.
    pub until: Option<DateTime<Utc>>,
}

/// Returns rows for energy that a hardware counter measured between `from` and `to`, while no daemon ran or the device
/// did not answer. The time is divided wherever a job in `occupancy` begins or ends, and the energy is divided over
/// these parts in proportion to their durations. The energy of each part is attributed to the jobs that are on the
/// device throughout the part; without a job it is unattributed.
///
/// If the times show that the wall clock was set meanwhile, the energy is recorded right before `to`, for the jobs
/// without an end, because the ends of other jobs are unknown: in one second if `to` is not later than `from`, and in an
/// hour if more than [`LONGEST_GAP`] lies between them.
pub fn gap_intervals(
    device: &DeviceId,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
    energy: Millijoules,
    occupancy: &[OccupancySpan],
) -> Vec<Interval> {
    let (from, to) = (to_micros(from), to_micros(to));
    let within = Slot::new(from, to).filter(|_| to - from <= LONGEST_GAP);
    let instead = if from < to { TimeDelta::hours(1) } else { TimeDelta::seconds(1) };
    let Some(slot) = within.or_else(|| Slot::new(to - instead, to)) else { return Vec::new() };
    let known: Vec<(DateTime<Utc>, DateTime<Utc>, &JobId)> = occupancy
        .iter()
        .filter_map(|span| match within {
            Some(_) => Some((to_micros(span.from), span.until.map_or(slot.end(), to_micros), &span.job)),
            None => span.until.is_none().then(|| (slot.start(), slot.end(), &span.job)),
        })
        .collect();
    let mut edges: Vec<DateTime<Utc>> = known.iter().flat_map(|(from, until, _)| [*from, *until]).collect();
    edges.retain(|edge| slot.start() < *edge && *edge < slot.end());
    edges.extend([slot.start(), slot.end()]);
    edges.sort_unstable();
    edges.dedup();
    let parts: Vec<Slot> = edges.windows(2).filter_map(|pair| Slot::new(pair[0], pair[1])).collect();
    let rows = parts.iter().zip(by_time(energy, &parts)).flat_map(|(part, energy)| {
        let there = known.iter().filter(|(from, until, _)| *from <= part.start() && *until >= part.end());
        let jobs = there.map(|(_, _, job)| (*job).clone()).collect();
        let rule = AttributionRule::Holders { jobs, unknown_user: true, used: None };
        split(device, *part, energy, EnergySource::CounterGap, &rule)
    });
    rows.flat_map(by_hour).collect()
}

fn split(
    device: &DeviceId,
    slot: Slot,
    energy: Millijoules,
    source: EnergySource,
    rule: &AttributionRule,
) -> Vec<Interval> {
    if energy == Millijoules::ZERO {
        return Vec::new();
    }
    let row = |(share, energy)| Interval { device: device.clone(), share, slot, energy, source };
    rule.split(energy, source).into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ledger::{Share, within};

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

    fn holders(jobs: &[JobId], unknown_user: bool) -> AttributionRule {
        AttributionRule::Holders { jobs: jobs.to_vec(), unknown_user, used: None }
    }

    fn open() -> OpenInterval {
        OpenInterval::open(DeviceId::new("GPU-0").expect("an id"), now(0.0), Metered::default())
    }

    #[test]
    fn idle_unattributed_and_jobs_are_kept_apart() {
        let mut interval = open();
        assert_eq!(interval.close(now(0.1), counter(5), &holders(&[], false)), None, "too short to be measured");
        let mut close = |at, mj, jobs: &[JobId], unknown| {
            interval.close(now(at), counter(mj), &holders(jobs, unknown)).expect("long enough")
        };
        assert_eq!(close(60.0, 100, &[], false)[0].share, Share::Idle);
        assert_eq!(close(120.0, 200, &[], true)[0].share, Share::Unattributed);
        let rows = close(180.0, 307, &[job("a"), job("b")], false);
        let split: Vec<_> = rows.iter().map(|r| (r.share.clone(), r.energy.get())).collect();
        assert_eq!(split, [(Share::Job(job("a")), 54), (Share::Job(job("b")), 53)]);
    }

    #[test]
    fn the_last_interval_is_closed_however_short_it_is() {
        let mut interval = open();
        let rule = holders(&[job("a")], false);
        assert_eq!(interval.close_last(now(0.0), counter(7), &rule), None, "no time has passed");
        let rows = interval.close_last(now(0.001), counter(2_000_000), &rule).expect("a millisecond");
        assert_eq!(rows.iter().map(|r| r.energy.get()).sum::<u64>(), 2_000_000);
        assert_eq!(interval.close_last(now(0.001), counter(2_000_000), &rule), None, "nothing is left");
    }

    #[test]
    fn a_part_of_the_ledger_is_divided_by_time() {
        let mut interval = open();
        let rows = interval.close(now(60.0), counter(600), &holders(&[job("a")], false)).expect("long enough");
        let span = Slot::new(now(45.0).utc, now(90.0).utc).expect("from < to");
        let part = within(&rows, &span);
        assert_eq!(
            (part.len(), part[0].energy, part[0].slot.duration()),
            (1, Millijoules::new(150), Seconds::new(15.0))
        );
        assert_eq!(within(&rows, &Slot::new(now(60.0).utc, now(61.0).utc).expect("from < to")), []);
    }

    #[test]
    fn a_clock_set_back_makes_no_negative_interval() {
        let mut interval = open();
        let mut later = now(60.0);
        later.utc -= chrono::TimeDelta::hours(1);
        let rows = interval.close(later, counter(10), &holders(&[], false)).expect("long enough");
        assert_eq!(rows[0].slot.duration(), Seconds::new(60.0));
        assert_eq!(interval.start(), later.utc);
    }

    #[test]
    fn energy_of_an_unresponsive_time_is_divided_over_the_jobs_on_the_gpu() {
        let mut interval = open();
        let at = |seconds| now(seconds).monotonic;
        interval.change_rule(at(10.0), holders(&[job("a")], false));
        interval.change_rule(at(15.0), holders(&[], false));
        interval.change_rule(at(15.0), holders(&[job("nobody"), job("ever")], false));
        assert!(interval.has_rule_changes() && !interval.is_unread(at(15.1), Seconds::ZERO));
        // A close before the last change of rule leaves that change to the next interval.
        let metered = Metered { gap: Millijoules::new(1_201), ..Metered::default() };
        let mut rows = interval.close(now(12.0), metered, &holders(&[job("b")], false)).expect("long enough");
        let metered = Metered { counter: Millijoules::new(7), gap: Millijoules::new(2_001), ..metered };
        rows.extend(interval.close(now(20.0), metered, &holders(&[job("b")], false)).expect("long enough"));
        assert!(!interval.has_rule_changes());
        let since = |t: DateTime<Utc>| (t - DateTime::UNIX_EPOCH).num_seconds();
        let found: Vec<_> = rows
            .iter()
            .map(|r| (r.share.clone(), since(r.slot.start()), since(r.slot.end()), r.energy.get(), r.source))
            .collect();
        let (gap, counter) = (EnergySource::CounterGap, EnergySource::Counter);
        assert_eq!(
            found,
            [
                (Share::Job(job("a")), 0, 10, 1_001, gap),
                (Share::Unattributed, 10, 12, 200, gap),
                (Share::Idle, 12, 15, 3, counter),
                (Share::Job(job("b")), 15, 20, 4, counter),
                (Share::Unattributed, 12, 15, 300, gap),
                (Share::Job(job("b")), 15, 20, 500, gap),
            ]
        );
    }

    #[test]
    fn jobs_that_came_or_went_without_a_daemon_get_the_energy_of_their_time() {
        let device = DeviceId::new("GPU-0").expect("an id");
        let at = |seconds| now(seconds).utc;
        let span =
            |name, from, until: Option<f64>| OccupancySpan { job: job(name), from: at(from), until: until.map(at) };
        let occupancy = [span("a", 0.0, Some(130.0)), span("b", 170.0, None)];
        let rows_of = |from, to, energy| -> Vec<_> {
            let rows = gap_intervals(&device, at(from), at(to), Millijoules::new(energy), &occupancy);
            rows.iter().map(|r| (r.share.clone(), r.slot.duration().get(), r.energy.get())).collect()
        };
        let (a, b) = (Share::Job(job("a")), Share::Job(job("b")));
        assert_eq!(
            rows_of(100.0, 200.0, 1_000),
            [(a, 30.0, 300), (Share::Unattributed, 40.0, 400), (b.clone(), 30.0, 300)]
        );
        assert_eq!(rows_of(200.0, 300.0, 5), [(b.clone(), 100.0, 5)]);
        // The wall clock was set back, or years ahead: the ends of jobs are unknown.
        assert_eq!(rows_of(200.0, 150.0, 5), [(b.clone(), 1.0, 5)]);
        let years = 20.0 * 366.0 * 86_400.0;
        assert_eq!(rows_of(100.0, years, 5), [(b, 3600.0, 5)]);
        assert_eq!(rows_of(100.0, 200.0, 0), []);
    }

    proptest! {
        #[test]
        fn no_energy_of_an_unresponsive_time_goes_to_absent_jobs(
            turns in prop::collection::vec((1u32..9_000, 0usize..4), 0..6),
            readings in prop::collection::vec((1u32..20_000, 0u64..10_000_000, any::<bool>()), 1..6),
        ) {
            // Times at which the set of jobs on the GPU changes.
            let names = [job("a"), job("b"), job("c"), job("d")];
            let (mut occupancy, mut at) = (vec![(0, holders(&[], false))], 0);
            for (ms, count) in turns {
                at += ms;
                occupancy.push((at, holders(&names[..count], false)));
            }
            let rule_at = |ms: u32| occupancy.iter().rfind(|(from, _)| *from <= ms).expect("from the start").1.clone();
            let (mut interval, mut metered, mut rows, mut noted, mut read) = (open(), Metered::default(), Vec::new(), 0, 0);
            for (ms, energy, silent) in readings {
                read += ms;
                let to = if silent { &mut metered.gap } else { &mut metered.counter };
                *to += Millijoules::new(energy);
                // Record all changes up to the reading, in order.
                for pair in occupancy.windows(2).filter(|pair| noted < pair[1].0 && pair[1].0 <= read) {
                    interval.change_rule(now(f64::from(pair[1].0) / 1e3).monotonic, pair[0].1.clone());
                }
                noted = read;
                rows.extend(interval.close(now(f64::from(read) / 1e3), metered, &rule_at(read)).into_iter().flatten());
            }
            rows.extend(interval.close(now(f64::from(read + 500) / 1e3), metered, &rule_at(read)).into_iter().flatten());
            prop_assert_eq!(rows.iter().map(|r| r.energy).sum::<Millijoules>(), metered.total());
            for row in &rows {
                let edge = |t: DateTime<Utc>| u32::try_from((t - DateTime::UNIX_EPOCH).num_milliseconds()).expect("small");
                let (from, to) = (edge(row.slot.start()), edge(row.slot.end()));
                prop_assert!(occupancy.iter().all(|(turn, _)| *turn <= from || *turn >= to || *turn > read), "{row:?} of {occupancy:?}");
                let AttributionRule::Holders { jobs, .. } = rule_at(from) else { unreachable!() };
                match &row.share {
                    Share::Job(id) => prop_assert!(jobs.contains(id), "{row:?} of {occupancy:?}"),
                    _ => prop_assert!(jobs.is_empty(), "{row:?} of {occupancy:?}"),
                }
            }
        }

        #[test]
        fn a_gap_is_divided_to_the_millijoule_and_only_over_present_jobs(
            length in 1i64..20_000_000, energy in 0u64..10_000_000_000,
            occupancy in prop::collection::vec((0i64..20_000_000, 1i64..20_000_000, any::<bool>()), 0..6),
        ) {
            let at = |ms| DateTime::UNIX_EPOCH + chrono::TimeDelta::milliseconds(ms);
            let device = DeviceId::new("GPU-0").expect("an id");
            let span = |(i, (from, long, ended)): (usize, &(i64, i64, bool))| {
                let until = ended.then(|| at(from - 10_000_000 + long));
                OccupancySpan { job: job(&format!("j{i}")), from: at(from - 10_000_000), until }
            };
            let occupancy: Vec<OccupancySpan> = occupancy.iter().enumerate().map(span).collect();
            let rows = gap_intervals(&device, at(0), at(length), Millijoules::new(energy), &occupancy);
            prop_assert_eq!(rows.iter().map(|r| r.energy.get()).sum::<u64>(), energy);
            for row in rows {
                let there = |span: &&OccupancySpan| {
                    span.from <= row.slot.start() && span.until.is_none_or(|until| until >= row.slot.end())
                };
                let jobs: Vec<Share> = occupancy.iter().filter(there).map(|span| Share::Job(span.job.clone())).collect();
                match row.share {
                    Share::Job(_) => prop_assert!(jobs.contains(&row.share)),
                    _ => prop_assert!(jobs.is_empty() && row.share == Share::Unattributed),
                }
            }
        }

        #[test]
        fn intervals_add_up_to_the_meter_and_are_contiguous(
            steps in prop::collection::vec((1u32..90_000, 0u64..10_000_000, 0usize..4), 1..40)
        ) {
            let names = [job("a"), job("b"), job("c")];
            let (mut interval, mut at, mut total, mut rows) = (open(), 0.0, 0, Vec::new());
            for (ms, energy, count) in steps {
                at += f64::from(ms) / 1e3;
                total += energy;
                rows.extend(interval.close(now(at), counter(total), &holders(&names[..count], false)).into_iter().flatten());
            }
            rows.extend(interval.close(now(at + 1.0), counter(total), &holders(&[], false)).into_iter().flatten());
            prop_assert_eq!(rows.iter().map(|r| r.energy.get()).sum::<u64>(), total);
            for pair in rows.windows(2) {
                prop_assert!(pair[1].slot.start() >= pair[0].slot.start());
                prop_assert!(pair[1].slot == pair[0].slot || pair[1].slot.start() >= pair[0].slot.end());
            }
        }
    }
}
