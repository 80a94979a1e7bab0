//! Best published carbon intensity for each time, and its finality.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::entry::{Factor, Finality};
use super::sources::SourceKey;
use crate::domain::{Intensity, Origin, Provenance, Slot, TimeSeries};

/// A carbon intensity that a source published, as stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// Carbon intensity and its origin.
    pub intensity: Intensity,
    /// Time at which the source published the value.
    pub issued_at: DateTime<Utc>,
    /// Time at which wattune fetched the value.
    pub retrieved_at: DateTime<Utc>,
    /// Number of the value's row in the database.
    pub row: i64,
}

/// Values of one source, separate by origin. For each origin and time, the newest value applies.
#[derive(Clone, Debug, Default)]
pub struct SourceValues {
    layers: BTreeMap<Origin, TimeSeries<Value>>,
}

impl SourceValues {
    /// Adds the next value; values are added in the order in which they were stored.
    pub fn publish(&mut self, slot: Slot, value: Value) {
        self.layers.entry(value.intensity.origin).or_default().insert(slot, value);
    }

    /// Removes the values in the time `slot` that the source withdrew. The withdrawal of an actual value removes actual
    /// values of any origin, but no forecasts; the withdrawal of a forecast removes no actual values.
    pub fn withdraw(&mut self, slot: Slot, origin: Origin) {
        let alike = |layer: &Origin| layer.is_measured() == origin.is_measured();
        self.layers.iter_mut().filter(|(layer, _)| alike(layer)).for_each(|(_, series)| series.remove(slot));
    }
}

/// Returns the best value for each time, preceded by the index of its source. All sources are of one kind and scope,
/// the preferred one first. An actual value of any source outranks all forecasts. Among several actual values, or
/// several forecasts, the preferred source decides, then the most trusted origin, then the newest value.
pub fn best(sources: Vec<SourceValues>) -> TimeSeries<(usize, Value)> {
    let (mut expected, mut actual) = (TimeSeries::default(), TimeSeries::default());
    for (place, source) in sources.into_iter().enumerate().rev() {
        for (origin, layer) in source.layers {
            let series = if origin.is_measured() { &mut actual } else { &mut expected };
            series.overwrite(&layer.map(|value| (place, *value)));
        }
    }
    expected.overwrite(&actual);
    expected
}

/// Returns the carbon intensity of the time `slot` with its provenance and finality. Actual values are final if `slot`
/// ends by `final_until`, the time up to which the source declared its values final; `None` if it declared none final.
pub fn factor(
    slot: &Slot,
    value: &Value,
    key: &SourceKey,
    final_until: Option<DateTime<Utc>>,
    provenance: Provenance,
) -> Factor {
    let Intensity { value: g_per_kwh, origin } = value.intensity;
    Factor {
        start: slot.start(),
        end: slot.end(),
        g_per_kwh,
        received: provenance.unit.map(|unit| unit.received(g_per_kwh)),
        origin,
        state: Finality::of(origin, final_until.is_some_and(|until| slot.end() <= until)),
        source: key.source.clone(),
        zone: key.zone.clone(),
        scope: key.scope,
        issued_at: value.issued_at,
        retrieved_at: value.retrieved_at,
        provenance,
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::domain::{SignalKind, SignalScope, Zone};
    use crate::units::GramsPerKwh;

    fn slot(from: i64, to: i64) -> Slot {
        let at = |minutes| DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes);
        Slot::new(at(from), at(to)).expect("from < to")
    }

    fn value(row: i64, g_per_kwh: f64, origin: Origin) -> Value {
        let at = DateTime::UNIX_EPOCH + TimeDelta::minutes(row);
        let intensity = Intensity { value: GramsPerKwh::new(g_per_kwh), origin };
        Value { intensity, issued_at: at, retrieved_at: at, row }
    }

    fn rows(sources: &[SourceValues]) -> Vec<(usize, i64)> {
        best(sources.to_vec()).points().iter().map(|(_, (place, value))| (*place, value.row)).collect()
    }

    #[test]
    fn actual_values_precede_forecasts_until_they_are_withdrawn() {
        let (mut preferred, mut other) = (SourceValues::default(), SourceValues::default());
        other.publish(slot(0, 60), value(1, 100.0, Origin::Forecast));
        preferred.publish(slot(0, 60), value(2, 200.0, Origin::Forecast));
        assert_eq!(rows(&[preferred.clone(), other.clone()]), [(0, 2)]);
        other.publish(slot(0, 60), value(3, 300.0, Origin::Estimated));
        assert_eq!(rows(&[preferred.clone(), other.clone()]), [(1, 3)]);
        other.publish(slot(0, 60), value(4, 310.0, Origin::Measured));
        other.publish(slot(0, 60), value(5, 320.0, Origin::Estimated));
        assert_eq!(rows(&[preferred.clone(), other.clone()]), [(1, 4)], "the more trusted one holds");
        other.withdraw(slot(0, 60), Origin::Measured);
        assert_eq!(rows(&[preferred, other]), [(0, 2)]);
    }

    #[test]
    fn only_actual_values_up_to_the_sources_final_time_are_final() {
        let zone = Zone::new("X").expect("a zone");
        let key = SourceKey { source: "file".into(), zone, kind: SignalKind::Average, scope: SignalScope::Lifecycle };
        let (hour, at) = (slot(0, 60), |minutes| Some(DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)));
        let state = |origin, until| factor(&hour, &value(1, 1.0, origin), &key, until, Provenance::default()).state;
        assert_eq!(state(Origin::Measured, at(60)), Finality::Final);
        assert_eq!(state(Origin::Measured, at(59)), Finality::Provisional);
        assert_eq!(state(Origin::Measured, None), Finality::Provisional);
        assert_eq!(state(Origin::Forecast, at(60)), Finality::Forecast);
        assert_eq!(state(Origin::Synthetic, at(60)), Finality::Provisional);
    }
}
