use chrono::TimeDelta;
use proptest::prelude::*;

use super::*;
use crate::domain::{SignalKind, Slot};
use crate::ledger::Interval;
use crate::ledger::block::{balances, cells};
use crate::ledger::due::DueReason;
use crate::ledger::entry::Corrected;
use crate::ledger::hour::{SettlementInput, next_version};
use crate::units::Millijoules;

fn at(minutes: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
}

fn device() -> DeviceId {
    DeviceId::new("GPU-0").expect("an id")
}

fn row(from: i64, mj: u64, share: Share) -> Interval {
    let slot = Slot::new(at(from), at(from + 1)).expect("from < to");
    Interval { device: device(), share, slot, energy: Millijoules::new(mj), source: EnergySource::Counter }
}

fn close(block: u64, at: DateTime<Utc>, rows: &[Interval]) -> Entry {
    let cells = cells(rows);
    let balances = balances(&cells, &BTreeMap::new());
    let details = Digest::GENESIS;
    Entry::Close(Close { block, at, rows: rows.len() as u64, details, cells, balances })
}

fn settlement(before: Option<&Settlement>, rows: &[Interval], through: u64) -> Settlement {
    let with =
        SettlementInput { kind: SignalKind::Average, sources: &[], silent: &[], at: at(200), why: DueReason::Energy };
    next_version(at(0), &with, through, before, rows, Vec::new()).expect("something new")
}

#[test]
fn the_newest_version_counts_and_later_ones_are_listed() {
    let mut derived = Derived::default();
    let rows = [row(0, 5, Share::Idle), row(1, 7, Share::Idle)];
    let first = settlement(None, &rows[..1], 1);
    let second = settlement(Some(&first), &rows, 2);
    for settled in [&first, &second] {
        derived.apply(&Entry::Settlement(settled.clone()));
    }
    let newest = &derived.settled[&(at(0), "average")];
    assert_eq!((newest.entry, newest.version, newest.through_block, newest.is_final), (2, 2, 2, false));
    assert_eq!((newest.sources.as_str(), newest.total), ("none", second.total()));
    let later = &derived.restated[&(at(0), "average", 2)];
    let change = TotalsChange::of(&first.total(), &second.total());
    assert_eq!((derived.restated.len(), later.change, later.reason.as_str()), (1, change, "more energy was recorded"));
}

#[test]
fn a_days_balance_is_the_sum_of_its_blocks() {
    let mut derived = Derived::default();
    let day = 24 * 60;
    for (block, minute) in [(1, 60), (2, day + 5), (3, day + 60)] {
        derived.apply(&close(block, at(minute), &[row(minute - 30, 4, Share::Idle)]));
    }
    let idle: Vec<u64> = derived.balance_days.values().map(|sum| sum.idle.get()).collect();
    assert_eq!((idle, derived.balances.len()), (vec![8, 4], 3));
}

proptest! {
    #[test]
    fn rolled_up_sums_equal_the_corrected_rows(
        minutes in prop::collection::vec((0i64..180, 0u64..1_000_000, any::<bool>()), 3..30),
        given in any::<prop::sample::Index>(),
    ) {
        let mut rows: Vec<Interval> = minutes.iter()
            .map(|(from, mj, idle)| row(*from, *mj, if *idle { Share::Idle } else { Share::Unattributed })).collect();
        let last = rows.len() as u64;
        let mut derived = Derived::default();
        let (older, newer) = rows.split_at(rows.len() / 2);
        derived.apply(&close(1, at(190), older));
        derived.apply(&close(2, at(200), newer));
        let number = given.index(rows.len());
        let given = &mut rows[number];
        let from = std::mem::replace(&mut given.share, Share::Job(JobId::new("a").expect("an id")));
        let corrected = Corrected {
            row: number as u64 + 1,
            device: device(),
            hour: super::super::apportion::hour_of(given.slot.start()),
            source: given.source,
            energy_mj: given.energy,
        };
        let (who, why, to) = ("a".into(), "b".into(), given.share.clone());
        derived.apply(&Entry::Correction(Correction { at: at(210), who, why, from, to, rows: vec![corrected] }));
        prop_assert_eq!(derived.corrected.len(), 1);
        let rolled = RollUp { at: at(300), first_block: 1, last_block: 2, rows: last };
        derived.apply(&Entry::RollUp(rolled));
        prop_assert!(derived.corrected.is_empty());
        let mut expected: BTreeMap<CellKey, i64> = BTreeMap::new();
        for cell in cells(&rows) {
            *expected.entry((cell.hour, cell.device, cell.share, cell.source)).or_default() += signed(cell.energy_mj);
        }
        expected.retain(|_, energy| *energy != 0);
        derived.rolled_up.retain(|_, energy| *energy != 0);
        prop_assert_eq!(derived.rolled_up, expected);
    }
}
