//! Demand-response events: announced, replaced, withdrawn.

use crate::controller::cap::{Announced, EventView};
use crate::controller::requests::Caller;
use crate::controller::{ControlError, Controller};
use wattune_core::domain::{DemandResponse, EventId};

impl Controller {
    /// Takes an event in, in place of one with the same id. It is kept over restarts.
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

    /// Forgets an event, also in its midst. Answers with what it was.
    ///
    /// # Errors
    /// If there is none of that id, or it stands in the settings, or the store fails.
    pub async fn withdraw(&mut self, id: &EventId, by: Caller) -> Result<EventView, ControlError> {
        let now = self.now().utc;
        let withdrawn = self.cap.withdraw(id, &self.store, now).await?;
        tracing::info!(caller = %by, "demand-response event {id}: withdrawn");
        self.follow_cap().await;
        Ok(withdrawn)
    }

    /// Limits follow at once; no tick is awaited.
    async fn follow_cap(&mut self) {
        self.act();
        self.plan().await;
        self.act();
    }
}
