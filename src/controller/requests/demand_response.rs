//! Announcing and withdrawing demand-response events.

use crate::controller::cap::{Announced, EventView};
use crate::controller::requests::Caller;
use crate::controller::{ControlError, Controller};
use wattune_core::domain::{DemandResponse, EventId};

impl Controller {
    /// Adds an event, or replaces the one with the same id. It survives restarts.
    ///
    /// # Errors
    /// If it is over already, if the settings have an event of that id, or if it cannot be stored: then nothing changes.
    pub async fn announce(&mut self, event: DemandResponse, by: Caller) -> Result<Announced, ControlError> {
        let now = self.now().utc;
        let (id, slot) = (event.id.clone(), event.slot);
        let announced = self.cap.announce(event, &self.store, now).await?;
        tracing::info!(caller = %by, "demand-response event {id} from {slot}: announced");
        self.follow_cap().await;
        Ok(announced)
    }

    /// Removes an event, also while it is active, and returns it.
    ///
    /// # Errors
    /// If there is none of that id, if it is one of the settings, or if the store fails.
    pub async fn withdraw(&mut self, id: &EventId, by: Caller) -> Result<EventView, ControlError> {
        let now = self.now().utc;
        let withdrawn = self.cap.withdraw(id, &self.store, now).await?;
        tracing::info!(caller = %by, "demand-response event {id}: withdrawn");
        self.follow_cap().await;
        Ok(withdrawn)
    }

    /// Applies the cap at once, without waiting for a tick.
    async fn follow_cap(&mut self) {
        self.act();
        self.plan().await;
        self.act();
    }
}
