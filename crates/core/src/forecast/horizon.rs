//! A horizon without gaps, in which every slot says what its value rests on.

use std::fmt;

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

use crate::domain::Slot;
use crate::units::{GramsPerKwh, Seconds};

/// What the value of a slot rests on, from the best to the poorest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The source said it, and there is nothing to correct it by.
    Given,
    /// The source said it; corrected by what it lately got wrong, and mixed with the local forecaster as far as that did
    /// better.
    Corrected,
    /// A hole in the forecast, filled from the same time of day on the nearest known day.
    FilledFromOtherDay,
    /// A hole or the time beyond the end, filled from the known values next to it, or from the mean of all.
    FilledFromNeighbours,
    /// Beyond the forecast's end, or without one: the local forecaster, on outcomes that are a day old at the most.
    Local,
    /// The same on older outcomes, or on what is given of other days: their daily shape.
    DailyShape,
    /// Nothing is known: the configured constant.
    Constant,
}

/// One slot of a horizon.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct HorizonSlot {
    /// When.
    pub slot: Slot,
    /// What to reckon with, in gCO2e/kWh; never negative.
    pub intensity: GramsPerKwh,
    /// The outcome lies at or above this, and at or below `high`, four times in five.
    pub low: GramsPerKwh,
    /// See `low`.
    pub high: GramsPerKwh,
    /// Why.
    pub basis: Basis,
}

/// Contiguous slots, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Horizon {
    /// Each begins where the one before it ends.
    pub slots: Vec<HorizonSlot>,
}

/// How the unknown is cut into slots, and what stands for it when nothing is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HorizonPolicy {
    /// The constant of last resort, in gCO2e/kWh.
    pub fallback: GramsPerKwh,
    /// How far ahead of now slots without a value are short.
    pub near: Seconds,
    /// The length of slots without a value within `near`.
    pub near_step: Seconds,
    /// The length of slots without a value beyond `near`; daily from a month ahead on.
    pub far_step: Seconds,
}

impl Default for HorizonPolicy {
    /// 475 g/kWh (a world average), 1 h slots for two days, then 3 h.
    fn default() -> Self {
        Self {
            fallback: GramsPerKwh::new(475.0),
            near: Seconds::new(48.0 * 3600.0),
            near_step: Seconds::new(3600.0),
            far_step: Seconds::new(3.0 * 3600.0),
        }
    }
}

impl HorizonPolicy {
    /// The length of slots without a value at so much lead.
    pub(super) fn step(&self, lead: TimeDelta) -> TimeDelta {
        let step = if lead >= TimeDelta::days(30) {
            TimeDelta::days(1)
        } else if Seconds::from_delta(lead) < self.near {
            self.near_step.to_delta()
        } else {
            self.far_step.to_delta()
        };
        step.max(TimeDelta::minutes(1))
    }
}

/// How many slots of a horizon rest on what. Displays as a sentence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HorizonSummary {
    /// [`Basis::Given`].
    pub given: usize,
    /// [`Basis::Corrected`].
    pub corrected: usize,
    /// [`Basis::FilledFromOtherDay`].
    pub filled_from_other_day: usize,
    /// [`Basis::FilledFromNeighbours`].
    pub filled_from_neighbours: usize,
    /// [`Basis::Local`].
    pub local: usize,
    /// [`Basis::DailyShape`].
    pub daily_shape: usize,
    /// [`Basis::Constant`].
    pub constant: usize,
}

impl fmt::Display for HorizonSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = |n: usize| if n == 1 { "1 slot".to_owned() } else { format!("{n} slots") };
        let parts = [
            (self.given, "as given"),
            (self.corrected, "as given, corrected by what came before"),
            (self.filled_from_other_day, "filled from the same time on another day"),
            (self.filled_from_neighbours, "filled from the values next to it"),
            (self.local, "by the local forecaster"),
            (self.daily_shape, "by the daily shape"),
            (self.constant, "at the configured constant because nothing is known"),
        ];
        let said: Vec<_> = parts.iter().filter(|p| p.0 > 0).map(|(n, how)| format!("{} {how}", slots(*n))).collect();
        f.write_str(if said.is_empty() { "no slots" } else { "" })?;
        f.write_str(&said.join(", "))
    }
}

impl Horizon {
    /// The time-weighted mean in gCO2e/kWh; `None` without slots.
    pub fn mean(&self) -> Option<GramsPerKwh> {
        let seconds: f64 = self.slots.iter().map(|s| s.slot.duration().get()).sum();
        let weighted: f64 = self.slots.iter().map(|s| s.slot.duration().get() * s.intensity.get()).sum();
        (seconds > 0.0).then(|| GramsPerKwh::new(weighted / seconds))
    }

    /// What the slots rest on.
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
