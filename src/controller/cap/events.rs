//! Demand-response events: announcement, replacement, withdrawal.

use chrono::{DateTime, TimeDelta, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Cap, NewEvent};
use crate::controller::error::ControlError;
use crate::store::Store;
use wattune_core::domain::{DemandResponse, EventId, InvalidJob};

/// Maximum number of announced events, those of the settings not counted.
const MOST_EVENTS: usize = 1000;
/// Time for which announced events are kept after their end.
pub(crate) const KEPT: TimeDelta = TimeDelta::days(7);

/// Demand-response event and its state.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct EventView {
    /// The event as announced.
    #[serde(flatten)]
    pub event: NewEvent,
    /// State of the event now.
    pub state: EventState,
    /// Origin of the event: the API or the settings.
    pub origin: EventOrigin,
}

/// State of a demand-response event: `active` from the beginning of its ramp to the end of its target, then `returning`
/// during its second ramp and its rebound limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventState {
    /// The ramp to the target has not begun.
    Announced,
    /// The ramp to the target, or the target itself, is in force.
    Active,
    /// The target has ended; the ramp back or the rebound limit is in force.
    Returning,
    /// The ramp back and the rebound limit have ended too.
    Over,
}

/// Origin of a demand-response event: the `api`, or the `settings`, whose events cannot be withdrawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventOrigin {
    /// A request over the API announced the event.
    Api,
    /// The settings contain the event; requests cannot withdraw it.
    Settings,
}

/// Result of announcing a demand-response event.
#[derive(Clone, Debug, PartialEq)]
pub struct Announced {
    /// The announced event and its state.
    pub view: EventView,
    /// True if the id is new; false if the announcement replaced an event.
    pub is_new: bool,
}

/// Returns an event as the API shows it.
pub fn event_view(event: &DemandResponse, origin: EventOrigin, now: DateTime<Utc>) -> EventView {
    let state = match () {
        () if now >= event.ends_at() => EventState::Over,
        () if now >= event.slot.end() => EventState::Returning,
        () if now >= event.slot.start() - event.ramp.to_delta() => EventState::Active,
        () => EventState::Announced,
    };
    EventView { event: event.into(), state, origin }
}

impl Cap {
    /// Returns all events in order of start: those of the settings, and those announced and kept.
    pub(crate) fn events(&self, now: DateTime<Utc>) -> Vec<EventView> {
        let fixed = self.fixed.iter().map(|e| event_view(e, EventOrigin::Settings, now));
        let announced = self.events.values().map(|e| event_view(e, EventOrigin::Api, now));
        let mut all: Vec<EventView> = fixed.chain(announced).collect();
        all.sort_by(|a, b| a.event.start.cmp(&b.event.start).then_with(|| a.event.id.cmp(&b.event.id)));
        all
    }

    /// Returns an announced event; `None` if there is none with this id.
    pub(crate) fn announced(&self, id: &EventId) -> Option<&DemandResponse> {
        self.events.get(id)
    }

    /// Adds an event, or replaces the one with the same id, and stores it.
    pub(crate) async fn announce(
        &mut self,
        event: DemandResponse,
        store: &Store,
        now: DateTime<Utc>,
    ) -> Result<Announced, ControlError> {
        if event.slot.end() <= now {
            let why = format!(
                "is {}, which has passed; it is {} now",
                event.slot.end().format("%FT%TZ"),
                now.format("%FT%TZ")
            );
            return Err(ControlError::Invalid(InvalidJob { field: "end", why }));
        }
        self.refuse_fixed(&event.id)?;
        self.events.retain(|_, e| e.ends_at() + KEPT > now);
        let is_new = !self.events.contains_key(&event.id);
        if is_new && self.events.len() >= MOST_EVENTS {
            let why = format!("there are {MOST_EVENTS} events already; withdraw some");
            return Err(ControlError::Conflict(why));
        }
        store.save_event(&event).await?;
        let view = event_view(&event, EventOrigin::Api, now);
        self.events.insert(event.id.clone(), event);
        Ok(Announced { view, is_new })
    }

    /// Removes an announced event, even while it is active, and returns it.
    pub(crate) async fn withdraw(
        &mut self,
        id: &EventId,
        store: &Store,
        now: DateTime<Utc>,
    ) -> Result<EventView, ControlError> {
        self.refuse_fixed(id)?;
        let Some(event) = self.events.get(id).cloned() else {
            let hint = "; GET /v1/demand-response lists the events".to_owned();
            return Err(ControlError::NotFound { what: "event", given: id.to_string(), hint });
        };
        store.delete_event(id).await?;
        self.events.remove(id);
        Ok(event_view(&event, EventOrigin::Api, now))
    }

    fn refuse_fixed(&self, id: &EventId) -> Result<(), ControlError> {
        if self.fixed.iter().any(|e| e.id == *id) {
            let why = format!(
                "event {id} is configured in the settings ([[cap.events]]); change it there and restart the daemon"
            );
            return Err(ControlError::Conflict(why));
        }
        Ok(())
    }
}
