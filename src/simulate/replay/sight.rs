//! What can be known of a recorded grid at a moment of the past.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};

use wattune_core::domain::{CarbonSeries, Issued, Slot};
use wattune_core::forecast::{ErrorPaths, HorizonPolicy, Model, ModelPolicy};
use wattune_core::plan::{PlanSlot, Settings, slots_ahead};
use wattune_core::units::{GramsPerKwh, Seconds};

/// How far back a model learns, and a day more for the slots cut by it.
const BACK: TimeDelta = TimeDelta::days(29);
/// How far ahead a rolling forecast is known: as far as the longest that sources with rolling forecasts give.
const ROLLING_REACH: TimeDelta = TimeDelta::hours(72);

/// What a source said about a recorded grid.
#[derive(Clone, Debug, PartialEq)]
pub enum Sayings {
    /// There is none.
    Nothing,
    /// A value for each slot, known up to 72 hours before it.
    Rolling(CarbonSeries),
    /// Forecasts with the time of each, in that order.
    Issued(Vec<Issued>),
}

impl Sayings {
    /// The first moment about which anything is said.
    pub fn start(&self) -> Option<DateTime<Utc>> {
        match self {
            Self::Nothing => None,
            Self::Rolling(series) => series.start(),
            Self::Issued(issued) => issued.iter().filter_map(|i| i.series.start()).min(),
        }
    }

    /// The first moment about which nothing is said any more.
    pub fn end(&self) -> Option<DateTime<Utc>> {
        match self {
            Self::Nothing => None,
            Self::Rolling(series) => series.end(),
            Self::Issued(issued) => issued.iter().filter_map(|i| i.series.end()).max(),
        }
    }
}

/// A grid as files recorded it.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedGrid {
    /// What it is called in results.
    pub name: String,
    /// What came.
    pub actual: CarbonSeries,
    said: Sayings,
    /// What had last been said of each slot when it began.
    when_begun: CarbonSeries,
}

impl RecordedGrid {
    /// A grid with what came and what was said.
    pub fn new(name: String, actual: CarbonSeries, mut said: Sayings) -> Self {
        let when_begun = match &mut said {
            Sayings::Nothing => CarbonSeries::default(),
            Sayings::Rolling(series) => series.clone(),
            Sayings::Issued(issued) => {
                issued.sort_by_key(|i| i.issued_at);
                let mut begun = CarbonSeries::default();
                issued.iter().for_each(|i| begun.overwrite(&ahead(i, i.issued_at)));
                begun
            }
        };
        Self { name, actual, said, when_begun }
    }

    /// What was said of it.
    pub fn said(&self) -> &Sayings {
        &self.said
    }

    /// What had been said by `now`: of slots that have begun in the last weeks as it stood when they did, of later
    /// ones as it stands.
    fn said_at(&self, now: DateTime<Utc>) -> CarbonSeries {
        let begun = |until| {
            let points = Slot::new(now - BACK, until).map_or(&[][..], |span| self.when_begun.overlapping(&span));
            CarbonSeries::from_points(points.to_vec()).0
        };
        match &self.said {
            Sayings::Nothing => CarbonSeries::default(),
            Sayings::Rolling(_) => begun(now + ROLLING_REACH),
            Sayings::Issued(issued) => {
                let mut said = begun(now + TimeDelta::microseconds(1));
                let known = &issued[..issued.partition_point(|i| i.issued_at <= now)];
                let reaching = known.iter().filter(|i| i.series.end().is_some_and(|end| end > now));
                reaching.for_each(|i| said.overwrite(&ahead(i, now)));
                said
            }
        }
    }

    /// The forecasts issued by `now`.
    fn issues_by(&self, now: DateTime<Utc>) -> Vec<&Issued> {
        match &self.said {
            Sayings::Issued(issued) => issued.iter().take_while(|i| i.issued_at <= now).collect(),
            Sayings::Nothing | Sayings::Rolling(_) => Vec::new(),
        }
    }

    /// The outcomes of the last weeks' slots that had ended by `now`.
    fn came_by(&self, now: DateTime<Utc>) -> CarbonSeries {
        let points = Slot::new(now - BACK, now).map_or(&[][..], |span| self.actual.overlapping(&span));
        CarbonSeries::from_points(points.iter().filter(|(slot, _)| slot.end() <= now).copied().collect()).0
    }
}

/// The slots of a forecast that begin at `from` or later.
fn ahead(issued: &Issued, from: DateTime<Utc>) -> CarbonSeries {
    let points = issued.series.points().iter().filter(|(slot, _)| slot.start() >= from);
    CarbonSeries::from_points(points.copied().collect()).0
}

/// How much is known of what is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foresight {
    /// What had been said by then, corrected and weighed as the daemon does.
    AsIssued,
    /// What came.
    Perfect,
    /// Only the past.
    Nothing,
}

/// A grid seen with so much foresight. What was once worked out for a moment is kept.
pub struct Sight<'a> {
    grid: &'a RecordedGrid,
    foresight: Foresight,
    reach: Seconds,
    outlooks: Mutex<BTreeMap<DateTime<Utc>, Arc<Outlook>>>,
}

struct Outlook {
    slots: Vec<PlanSlot>,
    /// How forecasts like it erred lately.
    errors: ErrorPaths,
    /// What the source says of the present.
    given: Option<GramsPerKwh>,
}

impl<'a> Sight<'a> {
    /// Looks `reach` ahead of each moment.
    pub fn new(grid: &'a RecordedGrid, foresight: Foresight, reach: Seconds) -> Self {
        Self { grid, foresight, reach, outlooks: Mutex::default() }
    }

    /// What came, in the past and in the future.
    pub fn actual(&self) -> &'a CarbonSeries {
        &self.grid.actual
    }

    /// What the daemon would plan with at `now`: contiguous slots, of which the first may have
    /// begun before.
    pub fn expected(&self, now: DateTime<Utc>) -> Vec<PlanSlot> {
        self.outlook(now).slots.clone()
    }

    /// How forecasts made at `now` erred on the days before.
    pub fn errors(&self, now: DateTime<Utc>) -> ErrorPaths {
        self.outlook(now).errors.clone()
    }

    /// The forecast for the slot of `now` as the source gives it, without correction; without a source, what
    /// [`Self::expected`] begins with. `None` if nothing is known.
    pub fn given(&self, now: DateTime<Utc>) -> Option<GramsPerKwh> {
        let outlook = self.outlook(now);
        let expected = || outlook.slots.iter().find(|s| s.slot.contains(now)).map(|s| s.intensity);
        outlook.given.or_else(expected)
    }

    /// What comes from `now` on: for bounds alone.
    pub fn future(&self, now: DateTime<Utc>) -> Vec<PlanSlot> {
        let span = Slot::new(now, later(now, self.reach));
        let part = span.map(|span| self.grid.actual.within(&span)).unwrap_or_default();
        part.points().iter().map(|(slot, i)| PlanSlot { slot: *slot, intensity: i.value }).collect()
    }

    fn outlook(&self, now: DateTime<Utc>) -> Arc<Outlook> {
        let known = self.outlooks.lock().unwrap_or_else(PoisonError::into_inner).get(&now).cloned();
        if let Some(known) = known {
            return known;
        }
        let made = Arc::new(self.look(now));
        self.outlooks.lock().unwrap_or_else(PoisonError::into_inner).insert(now, Arc::clone(&made));
        made
    }

    fn look(&self, now: DateTime<Utc>) -> Outlook {
        let said = match self.foresight {
            Foresight::Perfect => {
                let slots = self.future(now);
                return Outlook { given: slots.first().map(|s| s.intensity), slots, errors: ErrorPaths::default() };
            }
            Foresight::AsIssued => self.grid.said_at(now),
            Foresight::Nothing => CarbonSeries::default(),
        };
        let issues = if self.foresight == Foresight::AsIssued { self.grid.issues_by(now) } else { Vec::new() };
        let model = Model::fit(&said, &issues, &self.grid.came_by(now), now, &ModelPolicy::default());
        let span = (now, later(now, self.reach));
        let slots = slots_ahead(&model, &said, span, &HorizonPolicy::default(), &Settings::default());
        Outlook { slots, errors: model.error_paths(), given: said.at(now).map(|(_, i)| i.value) }
    }
}

fn later(t: DateTime<Utc>, seconds: Seconds) -> DateTime<Utc> {
    t.checked_add_signed(seconds.to_delta()).unwrap_or(DateTime::<Utc>::MAX_UTC)
}
