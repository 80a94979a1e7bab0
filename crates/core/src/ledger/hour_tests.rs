use proptest::prelude::*;

use super::*;
use crate::domain::{EnergySource, Origin, SignalScope, Zone};
use crate::ledger::entry::Finality;
use crate::units::GramsPerKwh;

fn at(minutes: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
}

fn slot(from: i64, to: i64) -> Slot {
    Slot::new(at(from), at(to)).expect("from < to")
}

fn factor(source: &str, from: i64, to: i64, value: f64) -> Factor {
    Factor {
        start: at(from),
        end: at(to),
        g_per_kwh: GramsPerKwh::new(value),
        received: None,
        origin: Origin::Measured,
        state: Finality::Provisional,
        source: source.into(),
        zone: Zone::new("X").expect("a zone"),
        scope: SignalScope::Lifecycle,
        issued_at: at(0),
        retrieved_at: at(0),
        provenance: Default::default(),
    }
}

fn row(from: i64, energy: u64, share: Share) -> Interval {
    let (device, slot) = (DeviceId::new("GPU-0").expect("an id"), slot(from, from + 1));
    Interval { device, share, slot, energy: Millijoules::new(energy), source: EnergySource::Counter }
}

fn key(source: &str) -> SourceKey {
    let zone = Zone::new("X").expect("a zone");
    SourceKey { source: source.into(), zone, kind: SignalKind::Average, scope: SignalScope::Lifecycle }
}

fn settling(sources: &[SourceKey], why: DueReason) -> SettlementInput<'_> {
    SettlementInput { kind: SignalKind::Average, sources, silent: &[], at: at(70), why }
}

fn version(before: Option<&Settlement>, energy: &[Interval], factors: Vec<Factor>) -> Option<Settlement> {
    next_version(at(0), &settling(&[], DueReason::Intensity), 1, before, energy, factors)
}

#[test]
fn a_new_version_requires_a_difference() {
    let rows = [row(0, 3_600_000, Share::Idle)];
    assert_eq!(version(None, &[], vec![factor("a", 0, 60, 300.0)]), None, "an hour without energy");
    let first = version(None, &rows, vec![factor("a", 0, 60, 300.0)]).expect("the first");
    assert_eq!((first.version, first.reason.as_str(), first.through_block), (1, "first", 1));
    let later = Factor { retrieved_at: at(90), ..factor("a", 0, 60, 300.0) };
    assert_eq!(version(Some(&first), &rows, vec![later]), None, "a later retrieval alone is no difference");
    let second = version(Some(&first), &rows, vec![factor("a", 0, 60, 200.0)]).expect("another intensity");
    assert_eq!((second.version, second.reason.as_str()), (2, "intensities were published or revised"));
    assert_eq!(version(Some(&second), &[], vec![]).expect("all energy went").parts, []);
}

#[test]
fn marginal_settlements_begin_with_a_source() {
    let sources = [key("a")];
    let before = version(None, &[row(0, 1, Share::Idle)], vec![]).expect("the first");
    let marginal = |sources, before| has_begun(SignalKind::Marginal, sources, before);
    assert!(!marginal(&[], None) && marginal(&sources, None) && marginal(&[], Some(&before)));
    assert!(has_begun(SignalKind::Average, &[], None));
}

#[test]
fn a_correction_keeps_intensities_and_other_reasons_read_them_again() {
    let (hour, sources) = (slot(60, 120), [key("a")]);
    let factors = vec![factor("a", 60, 120, 300.0)];
    let before =
        Settlement { hour: at(60), ..version(None, &[row(0, 1, Share::Idle)], factors.clone()).expect("first") };
    let found = |why, sources, before| intensities(&hour, before, &settling(sources, why));
    assert_eq!(found(DueReason::Correction, &sources, Some(&before)), IntensityChoice::Kept(factors.clone()));
    assert_eq!(found(DueReason::Energy, &[], Some(&before)), IntensityChoice::Kept(factors));
    assert_eq!(found(DueReason::Energy, &sources, Some(&before)), IntensityChoice::Published);
    assert_eq!(found(DueReason::Correction, &sources, None), IntensityChoice::AroundHour(slot(60 - 24 * 60, 120)));
}

#[test]
fn a_source_that_is_down_withdraws_nothing() {
    let sources = [key("a")];
    let with = settling(&sources, DueReason::Intensity);
    let of = |factors| version(None, &[row(0, 1, Share::Idle)], factors).expect("the first");
    let before = of(vec![factor("a", 0, 60, 300.0)]);
    assert_eq!(sources_to_read(&before, &[factor("a", 0, 30, 1.0), factor("a", 30, 60, 2.0)], &with), None);
    let unnamed = |source| SourceKey { kind: SignalKind::Unspecified, ..key(source) };
    let joined = Some(vec![key("a"), unnamed("a")]);
    assert_eq!(sources_to_read(&before, &[factor("a", 0, 30, 1.0)], &with), joined, "half of the hour is missing");
    let before = of(vec![factor("b", 0, 60, 300.0)]);
    let joined = Some(vec![key("a"), key("b"), unnamed("b")]);
    assert_eq!(sources_to_read(&before, &[factor("a", 0, 60, 1.0)], &with), joined, "another source was used");
}

#[test]
fn rolled_up_energy_keeps_its_settled_distribution() {
    let rows = [row(0, 100, Share::Idle), row(59, 300, Share::Idle)];
    let factors = vec![factor("a", 0, 30, 300.0), factor("a", 30, 60, 100.0)];
    let before = version(None, &rows, factors.clone()).expect("the first");
    let sum = Interval { slot: slot(0, 60), ..row(0, 400, Share::Idle) };
    let late = (row(10, 7, Share::Idle), 2);
    let found = energy(vec![sum.clone()], vec![late.clone()], Some(&before));
    let of: Vec<(Slot, u64)> = found.iter().map(|row| (row.slot, row.energy.get())).collect();
    assert_eq!(of, [(slot(0, 30), 100), (slot(30, 60), 300), (slot(10, 11), 7)]);
    assert_eq!(energy(vec![sum.clone()], vec![late.clone()], None), [sum, late.0]);
}

proptest! {
    #[test]
    fn changes_of_a_day_add_up_to_the_newest_version(
        versions in prop::collection::vec(prop::collection::vec((0i64..60, 0u64..10_000_000, 0u8..3), 0..6), 1..5),
        cut in 1i64..59,
    ) {
        let mut before: Option<Settlement> = None;
        let mut sums: BTreeMap<(DeviceId, Share), [i128; 7]> = BTreeMap::new();
        for (number, rows) in versions.iter().enumerate() {
            let share = |of: u8| match of {
                0 => Share::Idle,
                1 => Share::Unattributed,
                _ => Share::Job(crate::domain::JobId::new("a").expect("an id")),
            };
            let rows: Vec<Interval> = rows.iter().map(|(from, mj, of)| row(*from, *mj, share(*of))).collect();
            let factors = vec![factor("a", 0, cut, 300.0 + number as f64)];
            let Some(after) = version(before.as_ref(), &rows, factors) else { continue };
            prop_assert_eq!(after.version, before.as_ref().map_or(0, |b| b.version) + 1);
            for ((device, share), changes) in day_changes(before.as_ref(), &after) {
                let sum = sums.entry((device.clone(), share.clone())).or_default();
                sum.iter_mut().zip(changes).for_each(|(sum, more)| *sum += more);
            }
            before = Some(after);
        }
        sums.retain(|_, sum| *sum != [0; 7]);
        let holds: BTreeMap<_, _> = before.iter().flat_map(|held| day_changes(None, held))
            .map(|((device, share), sum)| ((device.clone(), share.clone()), sum)).collect();
        prop_assert_eq!(sums, holds);
        if let Some(held) = before {
            let total = held.total();
            prop_assert_eq!(Total::of_figures(total.figures()), total);
        }
    }
}
