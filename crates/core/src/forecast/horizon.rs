//! Planning horizon: slots without gaps, each with the basis of its value (the data that it comes from).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::domain::Slot;
use crate::units::GramsPerKwh;

/// Basis of a slot's value (the data that it comes from), from best to poorest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The source published the value; it is not corrected, for lack of data about the source's recent errors.
    Given,
    /// The source published the value; it is corrected for the source's recent errors and blended with the local
    /// forecaster.
    Corrected,
    /// The slot lies in a gap of the source's forecast; it is filled from the same time of day on the nearest known
    /// day.
    FilledFromOtherDay,
    /// The slot lies in a gap of the source's forecast or beyond the forecast's end; it is filled from neighbouring
    /// values or the mean of all values.
    FilledFromNeighbours,
    /// The local forecaster made the value from actual values at most a day old; the slot lies beyond the end of the
    /// source's forecast, or there is no such forecast.
    Local,
    /// The value comes from the daily profile of actual values more than a day old, or of other days of the source's
    /// forecast.
    DailyShape,
    /// The value is the configured constant, for lack of any data.
    Constant,
}

/// Forecast of one slot of a horizon.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HorizonSlot {
    /// Time span of the slot.
    pub slot: Slot,
    /// Expected carbon intensity, never negative.
    pub intensity: GramsPerKwh,
    /// Lower bound of the 80 % prediction interval.
    pub low: GramsPerKwh,
    /// Upper bound of the 80 % prediction interval.
    pub high: GramsPerKwh,
    /// Basis of the value: the data that it comes from.
    pub basis: Basis,
}

/// Planning horizon: contiguous slots in time order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Horizon {
    /// Slots, each starting at the end of the previous one.
    pub slots: Vec<HorizonSlot>,
}

/// Carbon intensity assumed without any data: the world average.
pub const FALLBACK: GramsPerKwh = GramsPerKwh::new(475.0);

/// Number of slots of a horizon per basis (data that their values come from). Displays as a sentence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HorizonSummary {
    /// Slots with [`Basis::Given`].
    pub given: usize,
    /// Slots with [`Basis::Corrected`].
    pub corrected: usize,
    /// Slots with [`Basis::FilledFromOtherDay`].
    pub filled_from_other_day: usize,
    /// Slots with [`Basis::FilledFromNeighbours`].
    pub filled_from_neighbours: usize,
    /// Slots with [`Basis::Local`].
    pub local: usize,
    /// Slots with [`Basis::DailyShape`].
    pub daily_shape: usize,
    /// Slots with [`Basis::Constant`].
    pub constant: usize,
}

impl fmt::Display for HorizonSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = |n: usize| if n == 1 { "1 slot".to_owned() } else { format!("{n} slots") };
        let parts = [
            (self.given, "as published"),
            (self.corrected, "corrected for recent errors"),
            (self.filled_from_other_day, "filled from the same time on another day"),
            (self.filled_from_neighbours, "filled from neighbouring values"),
            (self.local, "by the local forecaster"),
            (self.daily_shape, "by the daily profile"),
            (self.constant, "at the configured constant, for lack of data"),
        ];
        let published: Vec<_> =
            parts.iter().filter(|p| p.0 > 0).map(|(n, how)| format!("{} {how}", slots(*n))).collect();
        f.write_str(if published.is_empty() { "no slots" } else { "" })?;
        f.write_str(&published.join(", "))
    }
}

impl Horizon {
    /// Returns the time-weighted mean intensity; `None` without slots.
    pub fn mean(&self) -> Option<GramsPerKwh> {
        let seconds: f64 = self.slots.iter().map(|s| s.slot.duration().get()).sum();
        let weighted: f64 = self.slots.iter().map(|s| s.slot.duration().get() * s.intensity.get()).sum();
        (seconds > 0.0).then(|| GramsPerKwh::new(weighted / seconds))
    }

    /// Counts the slots per basis.
    pub fn summary(&self) -> HorizonSummary {
        let mut summary = HorizonSummary::default();
        for slot in &self.slots {
            *match slot.basis {
                Basis::Given => &mut summary.given,
                Basis::Corrected => &mut summary.corrected,
                Basis::FilledFromOtherDay => &mut summary.filled_from_other_day,
                Basis::FilledFromNeighbours => &mut summary.filled_from_neighbours,
                Basis::Local => &mut summary.local,
                Basis::DailyShape => &mut summary.daily_shape,
                Basis::Constant => &mut summary.constant,
            } += 1;
        }
        summary
    }
}
