//! Runs the feed's steps on values that a parser accepted during fuzzing. These functions panic if a series is out of
//! order or out of range.

use super::outliers::{quarantine, quarantine_past};
use super::source_state::merged;
use crate::providers::client::json::notes;
use wattune_core::domain::{Forecast, Origin, Quoted, SignalKind, SignalScope, SignalValue, Slot, TimeSeries, Zone};

/// Makes a forecast of rows, as a source does whose response holds only rows, and passes it to [`follow`].
pub(in crate::providers) fn follow_rows<V: SignalValue>(rows: impl IntoIterator<Item = (Slot, V)>) {
    let quoted = |(slot, value)| (slot, Quoted { value, origin: Origin::Forecast });
    let (expected, problems) = TimeSeries::from_points(rows.into_iter().map(quoted).collect());
    assert!(notes(&problems).len() <= 6, "notes are few");
    check_series(&expected);
    let (Some(start), Ok(zone)) = (expected.start(), Zone::new("DE")) else { return };
    follow(&Forecast {
        zone,
        source: "fuzz".to_owned(),
        kind: SignalKind::Average,
        scope: SignalScope::Unspecified,
        issued_at: start,
        retrieved_at: start,
        provenance: Default::default(),
        expected,
        actual: TimeSeries::default(),
    });
}

/// Passes a forecast through the outlier detection, and merges it over an older one of the same zone.
pub(in crate::providers) fn follow<V: SignalValue>(forecast: &Forecast<V>) {
    let (Some(start), Some(end)) = (forecast.expected.start(), forecast.expected.end()) else { return };
    let middle = start + (end - start) / 2;
    let mut newest = forecast.clone();
    quarantine(None, &mut newest, None, 4.0, middle);
    let mut actuals = newest.expected.clone();
    quarantine_past(forecast, &mut actuals, 4.0, middle);
    check_series(&actuals);
    let known = merged(forecast, newest, middle).known_values();
    assert!(known.points().len() <= 4 * forecast.expected.points().len(), "nothing multiplies");
    check_series(&known);
}

/// Panics if slots are out of order or values out of range.
pub(in crate::providers) fn check_series<V: SignalValue>(series: &TimeSeries<Quoted<V>>) {
    for (slot, quoted) in series.points() {
        assert!(slot.start() < slot.end(), "{slot} is empty");
        assert!(V::checked(quoted.value.number()).is_some(), "{} is no value", quoted.value.number());
    }
    for pair in series.points().windows(2) {
        assert!(pair[0].0.end() <= pair[1].0.start(), "{} overlaps {}", pair[0].0, pair[1].0);
    }
}
