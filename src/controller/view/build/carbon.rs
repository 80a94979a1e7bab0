//! Builders of the views of the carbon signal and the price.

use chrono::{DateTime, TimeDelta, Utc};

use crate::controller::error::ControlError;
use crate::controller::signal::{BasisLevel, PastForecasts, PriceSignal, SignalBasis};
use crate::controller::snapshot::Snapshot;
use crate::controller::view::{
    CarbonView, Circuit, Finality, IntensityView, PresentPrice, PriceSlotView, PriceView, ScoreView, SourceView,
};
use crate::providers::{Currency, FeedState, Freshness, SourceState};
use wattune_core::domain::{CarbonSeries, Forecast, Intensity, InvalidJob, Origin, Slot};
use wattune_core::forecast::{Basis, Horizon, Model};
use wattune_core::units::{GramsPerKwh, PricePerMwh, Seconds};

/// Length of the forecast that the API shows, from now on.
const AHEAD: TimeDelta = TimeDelta::hours(48);

impl Snapshot<'_> {
    /// Returns the carbon signal now.
    pub(crate) fn carbon_now(&self) -> CarbonView {
        let state = self.signal.state();
        self.at_present(&state).view()
    }

    /// Returns the forecast carbon intensity from now on.
    pub(crate) fn carbon_forecast(&self) -> Vec<IntensityView> {
        let state = self.signal.state();
        self.at_present(&state).ahead()
    }

    fn at_present<'s>(&'s self, state: &'s FeedState) -> SignalAtPresent<'s> {
        SignalAtPresent {
            now: self.now.utc,
            state,
            forecast: self.signal.forecast(),
            model: self.signal.model(),
            basis: self.signal.basis(),
            scores: self.signal.scores(),
            past_forecasts: self.signal.past_forecasts(),
            fallback: self.signal.fallback(),
        }
    }

    /// Returns the carbon intensities of the last `hours` hours. Fails unless `hours` is more than 0 and at most 8784.
    pub(crate) async fn carbon_history(&self, hours: f64) -> Result<Vec<IntensityView>, ControlError> {
        if !(hours > 0.0 && hours <= 8784.0) {
            let why = format!("is {hours}; it must be more than 0 and at most 8784 (a year)");
            return Err(ControlError::Invalid(InvalidJob { field: "hours", why }));
        }
        let now = self.now.utc;
        let Some(span) = Slot::new(now - Seconds::new(hours * 3600.0).to_delta(), now) else { return Ok(Vec::new()) };
        let series = self.intensities().best(&span).await?.within(&span);
        let mut finals = Vec::new();
        for key in self.signal.accounting_series().sources() {
            let own = self.store.intensities(std::slice::from_ref(key), &span).await?;
            finals.push((own, self.store.final_until(key).await?));
        }
        // A value is final once the source that published it declared it final.
        let is_final = |slot: &Slot, intensity: &Intensity| {
            let has = |own: &CarbonSeries| own.at(slot.start()).is_some_and(|(_, i)| i == intensity);
            let source = finals.iter().find(|(own, _)| has(own));
            source.is_some_and(|(_, until)| until.is_some_and(|until| slot.end() <= until))
        };
        let state = |slot: &Slot, intensity: &Intensity| match intensity.origin {
            Origin::Forecast | Origin::Fallback => Finality::Forecast,
            _ if is_final(slot, intensity) => Finality::Final,
            _ => Finality::Provisional,
        };
        let point = |(slot, i): &(Slot, Intensity)| IntensityView {
            start: slot.start(),
            end: slot.end(),
            intensity_g_per_kwh: i.value.get(),
            origin: i.origin.into(),
            low_g_per_kwh: None,
            high_g_per_kwh: None,
            state: Some(state(slot, i)),
        };
        Ok(series.points().iter().map(point).collect())
    }

    /// Returns the view of the day-ahead price; `None` unless the settings name a source of prices.
    pub(crate) fn price_now(&self) -> Option<PriceView> {
        let PriceSignal { state, currency } = self.signal.price()?;
        Some(price_view(&state.borrow(), currency, self.now.utc))
    }

    /// Returns the price of the present slot (time step of the price data); `None` without a source or a price for now.
    pub(super) fn price_of_the_present(&self) -> Option<PresentPrice> {
        let PriceSignal { state, currency } = self.signal.price()?;
        let forecast = state.borrow().forecast.clone()?;
        let (_, price) = forecast.best_at(self.now.utc)?;
        let (zone, currency) = (forecast.zone.to_string(), currency.as_str().to_owned());
        Some(PresentPrice { zone, currency, price_per_mwh: price.value.get() })
    }
}

/// Returns the view of a price feed's state.
pub fn price_view(state: &FeedState<PricePerMwh>, currency: &Currency, now: DateTime<Utc>) -> PriceView {
    let shown = state.source().or(state.sources.first());
    let forecast = state.forecast.as_deref();
    let ahead = forecast.map(|f| f.expected.points()).unwrap_or_default();
    let ahead = ahead.iter().filter(|(slot, _)| now < slot.end());
    PriceView {
        source: forecast.map(|f| f.source.clone()),
        zone: forecast.map(|f| f.zone.to_string()),
        currency: currency.as_str().to_owned(),
        price_per_mwh: forecast.and_then(|f| f.best_at(now)).map(|(_, p)| p.value.get()),
        freshness: state.freshness(now).into(),
        fetched_at: shown.and_then(|s| s.fetched_at),
        last_error: shown.and_then(|s| s.last_error.clone()),
        notes: shown.map(|s| s.notes.clone()).unwrap_or_default(),
        slots: ahead
            .map(|(slot, p)| PriceSlotView { start: slot.start(), end: slot.end(), price_per_mwh: p.value.get() })
            .collect(),
    }
}

/// Returns two views of a carbon feed's state, for use without a daemon: first the signal now, second its forecast.
pub fn describe_feed(state: &FeedState, fallback: GramsPerKwh, now: DateTime<Utc>) -> (CarbonView, Vec<IntensityView>) {
    let forecast = state.forecast.as_deref();
    let model = forecast.map(|f| Model::fit(&f.expected, &[], &f.actual, now));
    let model = model.unwrap_or_default();
    let basis = SignalBasis::of(&model, forecast, state, fallback, now);
    let past_forecasts = PastForecasts::default();
    let signal = SignalAtPresent {
        now,
        state,
        forecast,
        model: &model,
        basis,
        scores: &[],
        past_forecasts: &past_forecasts,
        fallback,
    };
    (signal.view(), signal.ahead())
}

/// Carbon signal at the time `now`, with the data from which its views are built.
struct SignalAtPresent<'a> {
    now: DateTime<Utc>,
    state: &'a FeedState,
    forecast: Option<&'a Forecast>,
    model: &'a Model,
    basis: SignalBasis,
    scores: &'a [ScoreView],
    past_forecasts: &'a PastForecasts,
    fallback: GramsPerKwh,
}

impl SignalAtPresent<'_> {
    fn view(&self) -> CarbonView {
        let Self { now, state, forecast, basis, .. } = *self;
        // Before any source has responded, the first source is shown.
        let shown = state.source().or(state.sources.first());
        let freshness = state.freshness(now);
        let mut notes = shown.map(|s| s.notes.clone()).unwrap_or_default();
        match forecast {
            Some(forecast) => {
                notes.extend(self.outlook_summary());
                let later = forecast.expected.points().iter().find(|(slot, _)| slot.start() > now);
                if let (None, Some((slot, _))) = (forecast.best_at(now), later) {
                    notes.push(format!("no value for the present; the forecast continues at {}", slot.start()));
                }
            }
            None => notes.push(format!("no forecast: all plans use the configured {}", self.fallback)),
        }
        let published = forecast.and_then(|f| f.best_at(now)).map(|(_, i)| (i.value, i.origin));
        let modelled = matches!(basis.level, BasisLevel::Local | BasisLevel::DailyShape);
        let present = published.or_else(|| modelled.then_some((basis.value, Origin::Fallback)));
        let skill = forecast.map(|_| self.model.skill());
        CarbonView {
            zone: forecast.map(|f| f.zone.to_string()),
            source: forecast.map(|f| f.source.clone()),
            kind: forecast.map(|f| f.kind.into()),
            scope: forecast.map(|f| f.scope.into()),
            intensity_g_per_kwh: present.map(|(value, _)| value.get()),
            origin: present.map(|(_, origin)| origin.into()),
            basis: basis.level,
            basis_since: basis.since,
            planned_with_g_per_kwh: basis.value.get(),
            freshness: freshness.into(),
            stale_since: stale_since(freshness),
            fetched_at: shown.and_then(|s| s.fetched_at),
            next_poll_at: shown.map(|s| s.next_poll_at),
            last_error: shown.and_then(|s| s.last_error.clone()),
            followed: skill.map(|s| s.factor),
            bias_g_per_kwh: skill.and_then(|s| s.bias_g_per_kwh),
            fallback_g_per_kwh: self.fallback.get(),
            past_forecasts: self.past_forecasts.of_present.clone(),
            outcome: self.past_forecasts.outcome.clone(),
            notes,
            sources: state.sources.iter().map(|s| source_view(s, state.source(), now)).collect(),
            scores: self.scores.to_vec(),
        }
    }

    fn ahead(&self) -> Vec<IntensityView> {
        intensities(&self.horizon(AHEAD), self.forecast)
    }

    fn horizon(&self, ahead: TimeDelta) -> Horizon {
        let Some(forecast) = self.forecast else { return Horizon::default() };
        self.model.outlook(&forecast.expected, self.now, self.now + ahead, self.fallback)
    }

    fn outlook_summary(&self) -> Option<String> {
        let horizon = self.horizon(TimeDelta::hours(24));
        let summary = horizon.summary();
        let made_up = horizon.slots.len() - summary.given - summary.corrected;
        (made_up > 0).then(|| format!("the next 24 h: {summary}"))
    }
}

/// Returns the intensities of a horizon, without those that are only assumed to be constant. `forecast` is the source's.
pub(super) fn intensities(horizon: &Horizon, forecast: Option<&Forecast>) -> Vec<IntensityView> {
    let published = |at: DateTime<Utc>| forecast.and_then(|f| f.expected.at(at)).map(|(_, i)| i.origin);
    let shown = horizon.slots.iter().filter(|s| s.basis != Basis::Constant);
    let view = shown.map(|s| IntensityView {
        start: s.slot.start(),
        end: s.slot.end(),
        intensity_g_per_kwh: s.intensity.get(),
        origin: match s.basis {
            Basis::Given | Basis::Corrected => published(s.slot.start()).unwrap_or(Origin::Forecast).into(),
            _ => Origin::Fallback.into(),
        },
        low_g_per_kwh: Some(s.low.get()),
        high_g_per_kwh: Some(s.high.get()),
        state: None,
    });
    view.collect()
}

fn source_view(source: &SourceState, followed: Option<&SourceState>, now: DateTime<Utc>) -> SourceView {
    let freshness = source.freshness(now);
    let forecast = source.forecast.as_deref();
    SourceView {
        source: source.source.to_owned(),
        rank: source.group + 1,
        followed: followed.is_some_and(|f| f.source == source.source),
        contributes: source.contributes,
        zone: forecast.map(|f| f.zone.to_string()),
        kind: forecast.map(|f| f.kind.into()),
        scope: forecast.map(|f| f.scope.into()),
        freshness: freshness.into(),
        stale_since: stale_since(freshness),
        fetched_at: source.fetched_at,
        from_cache: source.from_cache,
        forecast_until: forecast.and_then(|f| f.expected.end()).filter(|end| now < *end),
        actual_until: forecast.and_then(|f| f.actual.end()),
        final_until: source.final_until,
        next_poll_at: source.next_poll_at,
        last_error: source.last_error.clone(),
        consecutive_failures: source.consecutive_failures,
        failing_since: source.failing_since,
        circuit: if source.circuit_open() { Circuit::Open } else { Circuit::Closed },
        requests_last_hour: source.requests.map(|r| r.last_hour),
        requests_last_day: source.requests.map(|r| r.last_day),
        requests_allowed_per_hour: source.requests.map(|r| r.allowed_per_hour),
        quarantined: source.quarantined.as_ref().map(ToString::to_string),
        notes: source.notes.clone(),
    }
}

fn stale_since(freshness: Freshness) -> Option<DateTime<Utc>> {
    match freshness {
        Freshness::Stale { since } => Some(since),
        _ => None,
    }
}
