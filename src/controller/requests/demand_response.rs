//! Requests to announce and withdraw demand-response events (temporary caps on the sum of all GPUs' limits).

use crate::controller::cap::{Announced, EventView};
use crate::controller::requests::Caller;
use crate::controller::{ControlError, Controller};
use crate::store::{AuditAction, AuditRecord};
use wattune_core::domain::{DemandResponse, EventId};

impl Controller {
    /// Adds a demand-response event, or replaces the event with the same id. The event survives restarts of the daemon.
    ///
    /// # Errors
    /// If the event's end has passed, if the settings have an event with the same id, if there are too many events, or
    /// if the event cannot be stored; then nothing changes.
    pub async fn announce(&mut self, event: DemandResponse, by: Caller) -> Result<Announced, ControlError> {
        let now = self.now().utc;
        let (id, slot) = (event.id.clone(), event.slot);
        let (before, after) = (self.cap.announced(&id).cloned(), event.clone());
        let announced = self.cap.announce(event, &self.store, now).await;
        let record = self.new_record(&by, AuditAction::AnnounceDemandResponse);
        let record = AuditRecord { event: Some(id.to_string()), ..record };
        self.audit_event(record, before.as_ref(), Some(&after), announced.as_ref().map(drop));
        let announced = announced?;
        tracing::info!(caller = %by, "demand-response event {id} announced for {slot}");
        self.follow_cap().await;
        Ok(announced)
    }

    /// Removes a demand-response event, even while it is active, and returns it.
    ///
    /// # Errors
    /// If no event has that id, if the event is configured in the settings, or if the database cannot be written.
    pub async fn withdraw(&mut self, id: &EventId, by: Caller) -> Result<EventView, ControlError> {
        let now = self.now().utc;
        let before = self.cap.announced(id).cloned();
        let withdrawn = self.cap.withdraw(id, &self.store, now).await;
        let record = self.new_record(&by, AuditAction::WithdrawDemandResponse);
        let record = AuditRecord { event: Some(id.to_string()), ..record };
        self.audit_event(record, before.as_ref(), None, withdrawn.as_ref().map(drop));
        let withdrawn = withdrawn?;
        tracing::info!(caller = %by, "demand-response event {id} withdrawn");
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
