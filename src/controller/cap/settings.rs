//! Settings of the node's cap, and demand-response events in requests.

use chrono::{DateTime, Utc, Weekday};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::controller::datetime_serde::{datetime, optional_datetime};
use wattune_core::domain::{
    ConfiguredCap, DemandResponse, EventId, InvalidJob, Level, Rebound, Slot, Window, check_level,
};
use wattune_core::units::{Seconds, Watts};

/// `[cap]`: maximum sum of the power limits of all GPUs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CapSettings {
    /// Cap that holds at all times, in watts.
    pub limit_w: Option<f64>,
    /// Cap that holds at all times, in percent of the sum of the GPUs' maximum limits.
    pub limit_pct: Option<f64>,
    /// Windows of the week and spans of time with caps of their own.
    pub schedule: Vec<ScheduleEntry>,
    /// Demand-response events that are known in advance.
    pub events: Vec<NewEvent>,
    /// Minimum time by which the GPUs' limits are lowered before the cap falls.
    pub lead_s: Seconds,
    /// Handling of original limits that do not fit under the cap when the daemon ends.
    pub on_exit: OnExit,
}

impl Default for CapSettings {
    fn default() -> Self {
        Self {
            limit_w: None,
            limit_pct: None,
            schedule: Vec::new(),
            events: Vec::new(),
            lead_s: Seconds::new(5.0),
            on_exit: OnExit::default(),
        }
    }
}

/// Handling of original limits that do not fit under the cap when the daemon ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExit {
    /// The daemon restores original limits as far as the cap allows; the journal keeps the rest for a later restore.
    #[default]
    Keep,
    /// The daemon restores original limits in full.
    Restore,
}

/// One entry of `schedule`: a window of the week (`from`, `to`, perhaps `days`) or a span (`start`, `end`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleEntry {
    /// The days on which the window begins: "mon" to "sun"; every day if absent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<String>,
    /// Time of day at which the window begins, "HH:MM" in UTC.
    pub from: Option<String>,
    /// Time of day at which the window ends, "HH:MM" in UTC: on the next day if at or before `from`, so 24 h if equal.
    pub to: Option<String>,
    /// Time at which the span of time begins; absent for a window of the week.
    #[serde(deserialize_with = "optional_datetime")]
    pub start: Option<DateTime<Utc>>,
    /// Time at which the span of time ends; absent for a window of the week.
    #[serde(deserialize_with = "optional_datetime")]
    pub end: Option<DateTime<Utc>>,
    /// Cap within the window or the span of time, in watts.
    pub limit_w: Option<f64>,
    /// Cap within the window or the span of time, in percent of the sum of the GPUs' maximum limits.
    pub limit_pct: Option<f64>,
}

/// A demand-response event: for some time the limits of all GPUs may add up to no more than a target.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewEvent {
    /// Id of the event: 1 to 64 letters, digits, '-', '_', '.' and ':'. The same id again replaces the event.
    #[schema(example = "dr-2026-12-01", min_length = 1, max_length = 64)]
    pub id: String,
    /// Time from which the target holds.
    #[serde(deserialize_with = "datetime")]
    pub start: DateTime<Utc>,
    /// Time at which the target ends.
    #[serde(deserialize_with = "datetime")]
    pub end: DateTime<Utc>,
    /// Target for the sum of all GPUs' limits. Give either this or `target_pct`.
    #[serde(default)]
    pub target_w: Option<f64>,
    /// Target relative to the sum of the GPUs' maximum limits: 70 allows 70 % of that sum.
    #[serde(default)]
    pub target_pct: Option<f64>,
    /// Time before the start from which plans consider the event. If absent, they consider it at once.
    #[serde(default)]
    pub notice_s: Option<f64>,
    /// Duration of the cap's linear fall to the target before the start, and of its linear rise after the end; 0 if
    /// absent. Limits are down at the start in any case.
    #[serde(default)]
    pub ramp_s: Option<f64>,
    /// Cap on the sum of all GPUs' limits for `rebound_s` after the end.
    #[serde(default)]
    pub rebound_w: Option<f64>,
    /// Cap for `rebound_s` after the end, relative to the sum of the GPUs' maximum limits.
    #[serde(default)]
    pub rebound_pct: Option<f64>,
    /// Duration of the rebound limit after the end.
    #[serde(default)]
    pub rebound_s: Option<f64>,
}

impl CapSettings {
    /// Returns whether the settings contain no cap at all.
    pub fn is_empty(&self) -> bool {
        self.limit_w.is_none() && self.limit_pct.is_none() && self.schedule.is_empty() && self.events.is_empty()
    }

    /// Checks the values that the types of the fields do not restrict; the error begins with the key and states what is
    /// valid.
    pub fn check(&self) -> Result<(), String> {
        self.lead_s.check("lead_s", 0.0, 300.0)?;
        self.configured()?;
        let events = self.events()?;
        match (1..events.len()).find(|&i| events[..i].iter().any(|e| e.id == events[i].id)) {
            Some(twice) => Err(format!("events[{twice}].id {} is used by an earlier event", events[twice].id)),
            None => Ok(()),
        }
    }

    /// Returns the cap of the settings without demand-response events.
    pub fn configured(&self) -> Result<ConfiguredCap, String> {
        let constant = level(("limit_w", self.limit_w), ("limit_pct", self.limit_pct)).map_err(|e| describe("", &e))?;
        let mut cap = ConfiguredCap { constant, ..ConfiguredCap::default() };
        for (i, entry) in self.schedule.iter().enumerate() {
            let at = format!("schedule[{i}]");
            let inside = format!("{at}.");
            let named =
                level(("limit_w", entry.limit_w), ("limit_pct", entry.limit_pct)).map_err(|e| describe(&inside, &e))?;
            let Some(level) = named else { return Err(format!("{at} has no cap: give limit_w or limit_pct")) };
            match entry {
                ScheduleEntry { from: Some(from), to: Some(to), start: None, end: None, days, .. } => {
                    let days = days.iter().map(|d| weekday(d)).collect::<Result<_, _>>();
                    let days = days.map_err(|why| format!("{inside}days {why}"))?;
                    let from = time_of_day(from).map_err(|why| format!("{inside}from {why}"))?;
                    let to = time_of_day(to).map_err(|why| format!("{inside}to {why}"))?;
                    cap.windows.push(Window { days, from, to, level });
                }
                ScheduleEntry { from: None, to: None, start: Some(start), end: Some(end), days, .. }
                    if days.is_empty() =>
                {
                    let Some(slot) = Slot::new(*start, *end) else {
                        return Err(format!("{inside}end is not after start"));
                    };
                    cap.spans.push((slot, level));
                }
                _ => {
                    return Err(format!(
                        "{at} is neither a window of the week (from and to, perhaps days) nor a span (start and end)"
                    ));
                }
            }
        }
        Ok(cap)
    }

    /// Returns the demand-response events of the settings.
    pub fn events(&self) -> Result<Vec<DemandResponse>, String> {
        let checked = |(i, e): (usize, &NewEvent)| {
            DemandResponse::try_from(e.clone()).map_err(|e| format!("events[{i}].{} {}", e.field, e.why))
        };
        self.events.iter().enumerate().map(checked).collect()
    }
}

impl TryFrom<NewEvent> for DemandResponse {
    type Error = InvalidJob;

    fn try_from(new: NewEvent) -> Result<Self, InvalidJob> {
        let invalid = |field, why: String| InvalidJob { field, why };
        let id = EventId::new(new.id).map_err(|e| invalid("id", e.to_string()))?;
        let slot = Slot::new(new.start, new.end);
        let slot = slot.ok_or_else(|| invalid("end", format!("is {}, not after start", new.end.format("%FT%TZ"))))?;
        let target = level(("target_w", new.target_w), ("target_pct", new.target_pct))?;
        let target = target.ok_or_else(|| {
            invalid("target_w", "is missing; give target_w or target_pct, the maximum sum of all GPUs' limits".into())
        })?;
        let seconds = |field, value: f64| {
            Seconds::try_new(value).ok_or_else(|| invalid(field, "is not a finite number of seconds".into()))
        };
        let rebound = level(("rebound_w", new.rebound_w), ("rebound_pct", new.rebound_pct))?;
        let rebound = match (rebound, new.rebound_s) {
            (None, None) => None,
            (Some(level), Some(lasts)) => Some(Rebound { level, lasts: seconds("rebound_s", lasts)? }),
            (Some(_), None) => {
                return Err(invalid(
                    "rebound_s",
                    "is missing; give the duration of the rebound limit in seconds".into(),
                ));
            }
            (None, Some(_)) => {
                let why = "needs a level to return to: set rebound_w or rebound_pct too".into();
                return Err(invalid("rebound_s", why));
            }
        };
        let notice = new.notice_s.map(|s| seconds("notice_s", s)).transpose()?;
        let ramp = new.ramp_s.map_or(Ok(Seconds::ZERO), |s| seconds("ramp_s", s))?;
        Self { id, slot, target, notice, ramp, rebound }.check()
    }
}

impl From<&DemandResponse> for NewEvent {
    fn from(event: &DemandResponse) -> Self {
        let split = |level: Option<Level>| match level {
            Some(Level::Watts(w)) => (Some(w.get()), None),
            Some(Level::Share(share)) => (None, Some(100.0 * share)),
            None => (None, None),
        };
        let (target_w, target_pct) = split(Some(event.target));
        let (rebound_w, rebound_pct) = split(event.rebound.map(|r| r.level));
        Self {
            id: event.id.to_string(),
            start: event.slot.start(),
            end: event.slot.end(),
            target_w,
            target_pct,
            notice_s: event.notice.map(Seconds::get),
            ramp_s: Some(event.ramp.get()),
            rebound_w,
            rebound_pct,
            rebound_s: event.rebound.map(|r| r.lasts.get()),
        }
    }
}

/// Returns a level given in watts or in percent; `None` if neither is given. Each pair is a key and its value.
fn level(
    watts: (&'static str, Option<f64>),
    percent: (&'static str, Option<f64>),
) -> Result<Option<Level>, InvalidJob> {
    match (watts.1, percent.1) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) => {
            let why = format!("and {} are both given; give only one", watts.0);
            Err(InvalidJob { field: percent.0, why })
        }
        (Some(w), None) => {
            let finite =
                Watts::try_new(w).ok_or_else(|| InvalidJob { field: watts.0, why: "is not a number".into() })?;
            check_level(watts.0, percent.0, Level::Watts(finite)).map(Some)
        }
        (None, Some(p)) => check_level(watts.0, percent.0, Level::Share(p / 100.0)).map(Some),
    }
}

fn describe(at: &str, error: &InvalidJob) -> String {
    format!("{at}{} {}", error.field, error.why)
}

fn weekday(text: &str) -> Result<Weekday, String> {
    text.parse()
        .map_err(|_| format!("names {text:?}, not a day of the week; write mon, tue, wed, thu, fri, sat or sun"))
}

/// Parses "HH:MM" or "HH:MM:SS" to seconds since midnight.
fn time_of_day(text: &str) -> Result<u32, String> {
    use chrono::{NaiveTime, Timelike};
    let time = NaiveTime::parse_from_str(text, "%H:%M").or_else(|_| NaiveTime::parse_from_str(text, "%H:%M:%S"));
    time.map(|t| t.num_seconds_from_midnight())
        .map_err(|_| format!("is {text:?}; write a time of day in UTC as \"HH:MM\", from \"00:00\" to \"23:59\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        toml::from_str::<CapSettings>(text).expect("parses").check().expect_err("wrong")
    }

    #[test]
    fn settings_become_a_cap() {
        let text = "limit_w = 1200\nschedule = [\n{ days = [\"mon\", \"Friday\"], from = \"17:00\", to = \"20:30\", limit_pct = 50 },\n\
                    { start = 2026-12-01T00:00:00Z, end = 2026-12-02T00:00:00Z, limit_w = 900 }]\n\
                    events = [{ id = \"a\", start = 2026-12-01T00:00:00Z, end = 2026-12-01T01:00:00Z, target_pct = 60, ramp_s = 10 }]\n";
        let text = text.replace("2026-12-01T00:00:00Z", "\"2026-12-01T00:00:00Z\"");
        let text = text.replace("2026-12-01T01:00:00Z", "\"2026-12-01T02:00:00+01:00\"");
        let text = text.replace("2026-12-02T00:00:00Z", "\"2026-12-02T00:00:00Z\"");
        let settings: CapSettings = toml::from_str(&text).expect("parses");
        settings.check().expect("right");
        let cap = settings.configured().expect("right");
        assert_eq!(cap.constant, Some(Level::Watts(Watts::new(1200.0))));
        let window =
            Window { days: vec![Weekday::Mon, Weekday::Fri], from: 61_200, to: 73_800, level: Level::Share(0.5) };
        assert_eq!(cap.windows, [window]);
        assert_eq!(cap.spans.len(), 1);
        let events = settings.events().expect("right");
        assert_eq!(events[0].slot.duration(), Seconds::new(3600.0));
        let again = DemandResponse::try_from(NewEvent::from(&events[0])).expect("right");
        assert_eq!(again, events[0]);
        assert!(!settings.is_empty() && CapSettings::default().is_empty());
    }

    #[test]
    fn mistakes_are_named_by_key() {
        let table = [
            ("limit_w = 0", "limit_w is 0; it must be from 1 to 50000 watts"),
            ("limit_w = 1e-9", "limit_w is 1e-9; it must be from"),
            ("limit_w = 0.5", "limit_w is 0.5; it must be from 1 to 50000 watts; was it given in kilowatts?"),
            ("limit_w = 1e308", "limit_w is 1e308, and the GPUs of one node draw at most 50000 watts"),
            (
                "limit_w = 2000000",
                "limit_w is 2000000, and the GPUs of one node draw at most 50000 watts; in milliwatts: 2000",
            ),
            ("limit_w = nan", "limit_w is not a number"),
            ("limit_pct = nan", "limit_pct is NaN; it must be"),
            ("limit_w = 5\nlimit_pct = 5", "limit_pct and limit_w are both given"),
            ("limit_pct = 120", "limit_pct is 120; it must be more than 0 and at most 100"),
            ("lead_s = -1", "lead_s = -1 must be from"),
            ("schedule = [{ from = \"1:00\", to = \"2:00\" }]", "schedule[0] has no cap"),
            ("schedule = [{ from = \"25:00\", to = \"2:00\", limit_w = 5 }]", "schedule[0].from is \"25:00\""),
            ("schedule = [{ limit_w = 5 }]", "schedule[0] is neither"),
            (
                "schedule = [{ from = \"1:00\", to = \"2:00\", days = [\"funday\"], limit_w = 5 }]",
                "schedule[0].days names \"funday\"",
            ),
            (
                "events = [{ id = \"a\", start = \"2026-12-01T00:00:00Z\", end = \"2026-12-01T00:00:00Z\", target_w = 5 }]",
                "events[0].end is 2026-12-01T00:00:00Z, not after start",
            ),
        ];
        for (text, why) in table {
            let said = refused(text);
            assert!(said.starts_with(why), "{text}: {said}");
        }
    }

    #[test]
    fn events_without_what_they_need_are_refused_by_field() {
        let good = serde_json::json!({"id": "a", "start": "2026-12-01T00:00:00Z", "end": "2026-12-01T01:00:00Z",
                                      "target_w": 500});
        let refused = |fields: serde_json::Value| {
            let mut event = good.clone();
            event.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
            let event: NewEvent = serde_json::from_value(event).expect("parses");
            DemandResponse::try_from(event).expect_err("wrong").field
        };
        assert!(DemandResponse::try_from(serde_json::from_value::<NewEvent>(good.clone()).expect("parses")).is_ok());
        assert_eq!(refused(serde_json::json!({"id": "a b"})), "id");
        assert_eq!(refused(serde_json::json!({"target_w": null})), "target_w");
        assert_eq!(refused(serde_json::json!({"target_pct": 50})), "target_pct");
        assert_eq!(refused(serde_json::json!({"rebound_w": 600})), "rebound_s");
        assert_eq!(refused(serde_json::json!({"rebound_s": 600})), "rebound_s");
        assert_eq!(refused(serde_json::json!({"ramp_s": 60, "notice_s": 30})), "ramp_s");
    }
}
