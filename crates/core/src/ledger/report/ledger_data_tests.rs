//! Tests of the ledger data of a report: parts of its span, gaps, unsettled energy, restatements.

use chrono::TimeDelta;
use proptest::prelude::*;

use super::span::{by_boundary, edges, in_force, whole_days};
use super::tests::{at, data, device, id, request, span};
use super::*;
use crate::domain::Slot;
use crate::domain::{EnergySource, SignalKind};
use crate::ledger::Share;
use crate::ledger::chain::Digest;
use crate::ledger::confidence::ConfidenceInterval;
use crate::ledger::due::DueReason;
use crate::ledger::entry::Lost;
use crate::ledger::entry::{Boundary, Terms};
use crate::ledger::{Interval, Settings};
use crate::units::{Micrograms, Millijoules};

#[test]
fn a_changed_boundary_applies_from_the_next_full_hour() {
    let minute = |minutes| at(0) + TimeDelta::minutes(minutes);
    let terms = |minutes: i64, pue: f64| {
        let boundary = Boundary { pue, ..Boundary::default() };
        Terms { boundary, ..Settings::default().terms(minute(minutes), "node", Digest::of("settings")) }
    };
    let cut = |terms: &[Terms]| -> Vec<(Slot, f64)> {
        by_boundary(terms, &span(0, 10)).into_iter().map(|(part, boundary)| (part, boundary.pue)).collect()
    };
    let first = terms(10, 1.0);
    assert_eq!(cut(&[first.clone(), terms(61, 1.5)]), [(span(0, 2), 1.0), (span(2, 10), 1.5)]);
    assert_eq!(cut(&[first.clone(), terms(120, 1.5)]), [(span(0, 2), 1.0), (span(2, 10), 1.5)]);
    // The last of several changes within an hour counts; an unchanged boundary divides nothing.
    assert_eq!(cut(&[first.clone(), terms(61, 1.5), terms(62, 1.2)]), [(span(0, 2), 1.0), (span(2, 10), 1.2)]);
    assert_eq!(cut(&[first.clone(), terms(61, 1.0)]), [(span(0, 10), 1.0)]);
    assert_eq!(cut(&[first.clone(), terms(599, 1.5)]), [(span(0, 10), 1.0)]);
    let all = [first, terms(60, 1.2), terms(600, 1.5)];
    let in_force = |from, to| in_force(all.clone(), &span(from, to)).iter().map(|t| t.boundary.pue).collect::<Vec<_>>();
    assert_eq!((in_force(0, 1), in_force(0, 2), in_force(1, 10)), (vec![1.0], vec![1.0, 1.2], vec![1.2]));
    assert_eq!((in_force(-3, 0), in_force(11, 12)), (vec![1.0], vec![1.5]));
}

proptest! {
    #[test]
    fn whole_days_and_edges_make_up_a_span(from in 0i64..96, hours in 1i64..96) {
        let whole = span(from, from + hours);
        let mut parts: Vec<Slot> = edges(&whole).into_iter().chain(whole_days(&whole)).collect();
        parts.sort();
        prop_assert_eq!((parts[0].start(), parts[parts.len() - 1].end()), (whole.start(), whole.end()));
        prop_assert!(parts.windows(2).all(|pair| pair[0].end() == pair[1].start()));
        prop_assert!(edges(&whole).iter().all(|edge| whole_days(edge).is_none()));
    }
}

fn energy(slot: Slot, mj: u64, share: Share) -> Interval {
    let source = EnergySource::CounterGap;
    Interval { device: device(0), share, slot, energy: Millijoules::new(mj), source }
}

#[test]
fn parts_of_a_gap_are_joined_and_lost_energy_is_listed_beside_it() {
    let rows = [
        (energy(span(2, 3), 4, Share::Idle), true),
        (energy(span(1, 2), 1, Share::Idle), false),
        (energy(span(1, 2), 2, Share::Job(id(1))), false),
        (energy(span(5, 6), 8, Share::Idle), false),
    ];
    let lost = |at_: i64, from, until, why: &str| Lost {
        at: at(at_),
        device: device(1),
        from: at(from),
        until: at(until),
        why: why.into(),
    };
    let lost = [lost(9, -3, 0, "over"), lost(9, 4, 5, "first"), lost(10, 4, 5, "found again")];
    let gap = |slot, mj, is_rolled_up| {
        let energy = Ok(Millijoules::new(mj));
        Gap { device: device(0), slot, is_rolled_up, energy }
    };
    let unknown = Gap { device: device(1), slot: span(4, 5), is_rolled_up: false, energy: Err("found again".into()) };
    assert_eq!(gaps(rows, lost, &span(0, 24)), [gap(span(1, 3), 7, true), unknown, gap(span(5, 6), 8, false)]);
}

#[test]
fn unsettled_energy_has_emissions() {
    assert_eq!(unsettled_after(DueReason::Intensity, Some(3)), None);
    assert_eq!(
        [unsettled_after(DueReason::Energy, None), unsettled_after(DueReason::Correction, Some(3))],
        [Some(0), Some(3)]
    );
    let request = request(Grouping::Job);
    let mut data =
        data(vec![BoundaryPeriod { span: request.span, boundary: Boundary::default(), sums: Vec::new() }], Vec::new());
    (data.hours_with_energy, data.recorded_span) = (1, Some(span(0, 1)));
    let rows = [energy(span(0, 1), 5, Share::Idle), energy(span(2, 3), 7, Share::Job(id(1)))];
    let unsettled = Unsettled::of(&rows);
    assert_eq!(unsettled.span(), Some(span(0, 3)));
    data.add_hours(&unsettled, 1, at(2));
    assert_eq!((data.hours_with_energy, data.recorded_span), (2, Some(span(0, 2))));
    data.add_emissions(&unsettled, SignalKind::Average, &[]);
    let sums = &data.periods[0].sums;
    assert_eq!(sums.iter().map(|sum| sum.average.unknown.get()).collect::<Vec<_>>(), [5, 7]);
    assert_eq!((&sums[1].owner, data.synthetic), (&Owner::Job(id(1)), false));
}

#[test]
fn a_saving_computed_before_a_correction_is_not_reported() {
    let saved = Saved::from(ConfidenceInterval { low: 1.0, mean: 2.0, high: 3.0 });
    let outcome = NewestOutcome { entry: 5, saved: Some(saved) };
    assert_eq!([None, Some(4), Some(6)].map(|corrected| outcome.saved(corrected)), [Some(saved), Some(saved), None]);
}

#[test]
fn emissions_are_restated_beyond_the_threshold_or_where_they_fall_to_zero() {
    let restated = |before, after| is_restated(Micrograms::new(before), Micrograms::new(after), 5.0);
    assert!(!restated(100, 105) && restated(100, 106) && restated(100, 94) && restated(1, 0) && restated(0, 1));
    assert!(!restated(0, 0) && is_restated(Micrograms::new(1), Micrograms::ZERO, 500.0));
}

#[test]
fn a_rolled_up_device_begins_with_the_ledger() {
    assert_eq!(span::first_of(Some(at(3)), Some(at(2)), Some(at(1))), Some(at(2)));
    assert_eq!(span::first_of(None, Some(at(0)), Some(at(1))), Some(at(1)));
    assert_eq!(span::first_of(None, None, Some(at(1))), None);
}
