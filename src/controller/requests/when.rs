//! The request when to start a job that may wait.

use chrono::{DateTime, Utc};

use crate::controller::view::{ANY_POWER, WhenView, WindowAhead};
use crate::controller::{ControlError, Controller};
use crate::store::KnownRun;
use wattune_core::domain::{InvalidJob, JobName, Objective};
use wattune_core::plan::{InvalidStart, Latest, StartProfile, StartQuestion};
use wattune_core::units::{Seconds, Watts};

/// Longest time for which a job may wait: ten years.
const LONGEST_WAIT: Seconds = Seconds::new(3650.0 * 86_400.0);

/// Question when to start a job. If it names a job, that job's earlier runs supply the values that the question omits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WhenRequest {
    /// Duration of the job.
    pub duration: Option<Seconds>,
    /// Mean power of the job.
    pub power: Option<Watts>,
    /// Name of the job, whose earlier runs supply its duration and power.
    pub name: Option<JobName>,
    /// Earliest start; `None` for now.
    pub earliest: Option<DateTime<Utc>>,
    /// Latest start or end.
    pub latest: Option<StartBound>,
    /// Minimum gain for which the job waits, as a fraction.
    pub min_gain: Option<f64>,
    /// Maximum probability of a loss for which the job waits.
    pub max_loss_probability: Option<f64>,
    /// Power drawn on the job's behalf while it waits.
    pub idle_power: Option<Watts>,
}

/// Bound of a job's start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StartBound {
    /// The job starts at most this long after the question.
    Within(Seconds),
    /// The job starts at this time at the latest.
    Start(DateTime<Utc>),
    /// The job ends at this time at the latest.
    End(DateTime<Utc>),
}

impl WhenRequest {
    /// Returns the question at `now` (first), and true if its power is known (second). `known` holds the values from
    /// the job's earlier runs.
    ///
    /// # Errors
    /// The first value that is missing or out of range, with the field's name in the API.
    pub fn question(&self, known: &KnownRun, now: DateTime<Utc>) -> Result<(StartQuestion, bool), InvalidJob> {
        let invalid = |field, why: String| InvalidJob { field, why };
        let Some(duration) = self.duration.or(known.duration) else {
            let why = match (&self.name, known.power) {
                (None, _) => "is missing; give the job's duration, or the name of a job with earlier runs".to_owned(),
                (Some(name), None) => {
                    format!("is missing, and no run of {name} was measured here; give the duration")
                }
                (Some(name), Some(_)) => {
                    format!("is missing, and no run of {name} stated its total work; give the duration")
                }
            };
            return Err(invalid("duration_s", why));
        };
        let latest = match self.latest {
            None => {
                let why = "is missing; say how long the job may wait: within_s, latest_start or latest_end".to_owned();
                return Err(invalid("within_s", why));
            }
            Some(StartBound::Within(within)) if !(Seconds::ZERO..=LONGEST_WAIT).contains(&within) => {
                let why = format!("is {within}; it must be from 0 s to ten years");
                return Err(invalid("within_s", why));
            }
            Some(StartBound::Within(within)) => Latest::Start(now + within.to_delta()),
            Some(StartBound::Start(at)) => Latest::Start(at),
            Some(StartBound::End(at)) => Latest::End(at),
        };
        let power = self.power.or(known.power);
        // Limits and start are chosen together where nothing but the earlier runs says what the job needs.
        let is_open = self.duration.is_none() && self.power.is_none();
        let most = Objective::DEFAULT.max_slowdown.unwrap_or_default();
        let profile = known.work.filter(|_| is_open).and_then(|work| StartProfile::of(&known.points, work, most));
        let duration = profile.as_ref().and_then(StartProfile::longest_duration).unwrap_or(duration);
        let default = StartQuestion::new(now, duration, power.unwrap_or(ANY_POWER), latest);
        let question = StartQuestion {
            profile,
            earliest: self.earliest,
            min_gain: self.min_gain.unwrap_or(default.min_gain),
            max_loss_probability: self.max_loss_probability.unwrap_or(default.max_loss_probability),
            idle_power: self.idle_power.unwrap_or(default.idle_power),
            ..default
        };
        if question.idle_power > Watts::ZERO && power.is_none() {
            return Err(invalid(
                "power_w",
                "is missing; idle_power_w, the power while waiting, is weighed against it".to_owned(),
            ));
        }
        question.check().map_err(|error| describe(&error, self.latest))?;
        Ok((question, power.is_some()))
    }
}

/// Names the field of the API that an invalid question concerns.
fn describe(error: &InvalidStart, bound: Option<StartBound>) -> InvalidJob {
    let field = match error {
        InvalidStart::Duration(_) => "duration_s",
        InvalidStart::Power(_) => "power_w",
        InvalidStart::IdlePower(_) => "idle_power_w",
        InvalidStart::MinGain(_) => "min_gain",
        InvalidStart::MaxLossProbability(_) => "max_loss_probability",
        InvalidStart::PriceWeight(_) => "price_weight",
        InvalidStart::EarliestAfterLatest { .. } => "earliest",
        InvalidStart::TooFarAhead(_) => match bound {
            Some(StartBound::Start(_)) => "latest_start",
            Some(StartBound::End(_)) => "latest_end",
            _ => "within_s",
        },
    };
    InvalidJob { field, why: error.to_string() }
}

impl Controller {
    /// Returns the advice when to start a job. `zone`, if given, must be the daemon's own.
    ///
    /// # Errors
    /// If the request is invalid, or the database cannot be read.
    pub async fn when(&self, request: &WhenRequest, zone: Option<&str>) -> Result<WhenView, ControlError> {
        let own = self.snapshot().carbon_now().zone;
        if let Some(given) = zone.filter(|given| !own.as_deref().is_some_and(|own| own.eq_ignore_ascii_case(given))) {
            let own = own.map_or_else(|| "no zone yet".to_owned(), |own| format!("the zone {own:?} only"));
            let why =
                format!("is {given:?}; this daemon has {own}. `wattune when --zone` asks sources for other zones");
            return Err(ControlError::Invalid(InvalidJob { field: "zone", why }));
        }
        let known = match &request.name {
            Some(name) => self.store.known_run(name).await?,
            None => KnownRun::default(),
        };
        let (question, power_known) = request.question(&known, self.now().utc)?;
        Ok(self.snapshot().when(&question, power_known).map_err(|error| describe(&error, request.latest))?)
    }

    /// Returns the best starts of jobs of usual durations within the next day; empty while nothing is known.
    pub fn windows_ahead(&self) -> Vec<WindowAhead> {
        self.snapshot().windows_ahead()
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use wattune_core::domain::{Estimate, OperatingPoint, PowerLimit};
    use wattune_core::units::{Samples, SamplesPerSecond};

    use super::*;

    fn now() -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000)
    }

    fn request() -> WhenRequest {
        WhenRequest {
            duration: Some(Seconds::new(3600.0)),
            latest: Some(StartBound::Within(Seconds::new(7200.0))),
            ..WhenRequest::default()
        }
    }

    #[test]
    fn earlier_runs_fill_in_what_is_left_open() {
        let known =
            KnownRun { duration: Some(Seconds::new(600.0)), power: Some(Watts::new(250.0)), ..KnownRun::default() };
        let open = WhenRequest { duration: None, ..request() };
        let (question, power_known) = open.question(&known, now()).expect("a question");
        assert_eq!((question.duration, question.power, power_known), (Seconds::new(600.0), Watts::new(250.0), true));
        assert_eq!(question.profile, None, "nothing was measured");
        let point = |mw, rate, power| OperatingPoint {
            setting: vec![PowerLimit::from_milliwatts(mw).into()],
            throughput: Estimate { mean: SamplesPerSecond::new(rate), relative_error: 0.0 },
            power: Estimate { mean: Watts::new(power), relative_error: 0.0 },
            measured: Seconds::new(10.0),
        };
        let measured = KnownRun {
            points: vec![point(200_000, 8.0, 160.0), point(300_000, 10.0, 250.0)],
            work: Some(Samples::new(6000.0)),
            ..known.clone()
        };
        let (question, _) = open.question(&measured, now()).expect("a question");
        let profile = question.profile.expect("limits are chosen with the start");
        assert_eq!((profile.points.len(), profile.power()), (2, Some(Watts::new(250.0))));
        assert!((question.duration.get() - 618.0).abs() < 1e-6, "3 % more than at the fastest point");
        let stated = WhenRequest { power: Some(Watts::new(90.0)), ..request() };
        assert_eq!(stated.question(&measured, now()).expect("a question").0.profile, None, "the caller knows better");
        let (question, _) = stated.question(&known, now()).expect("a question");
        assert_eq!((question.duration, question.power), (Seconds::new(3600.0), Watts::new(90.0)));
        assert!(!request().question(&KnownRun::default(), now()).expect("a question").1);
    }

    #[test]
    fn refusals_name_the_field() {
        let name = || JobName::new("lm").ok();
        let no_duration = WhenRequest { duration: None, ..request() };
        let table = [
            (no_duration.clone(), "duration_s", "give the job's duration"),
            (WhenRequest { name: name(), ..no_duration.clone() }, "duration_s", "no run of lm was"),
            (WhenRequest { duration: Some(Seconds::ZERO), ..request() }, "duration_s", "above 0"),
            (WhenRequest { latest: None, ..request() }, "within_s", "latest_end"),
            (WhenRequest { latest: Some(StartBound::Within(Seconds::new(-1.0))), ..request() }, "within_s", "from 0"),
            (WhenRequest { latest: Some(StartBound::Within(Seconds::new(1e12))), ..request() }, "within_s", "from 0"),
            (WhenRequest { earliest: Some(now() + TimeDelta::hours(3)), ..request() }, "earliest", "after"),
            (WhenRequest { power: Some(Watts::ZERO), ..request() }, "power_w", "above 0 W"),
            (WhenRequest { power: Some(Watts::new(1e308)), ..request() }, "power_w", "at most 1 GW"),
            (WhenRequest { idle_power: Some(Watts::new(9.0)), ..request() }, "power_w", "is missing"),
            (WhenRequest { min_gain: Some(2.0), ..request() }, "min_gain", "2 %"),
            (WhenRequest { max_loss_probability: Some(-0.1), ..request() }, "max_loss_probability", "from 0 to 1"),
        ];
        for (request, field, why) in table {
            let refused = request.question(&KnownRun::default(), now()).expect_err(field);
            assert_eq!(refused.field, field, "{refused}");
            assert!(refused.why.contains(why), "{refused}");
        }
    }
}
