//! The books: intervals of GPUs and CPUs, what is open over a kill, the ledger's upkeep, what jobs and the node emitted.

mod attribution;
mod backlog;
mod budget;
mod budget_count;
mod checkpoint;
mod cpu;
mod hourly_emissions;
mod intensities;
mod intervals;
mod ledger;
mod occupancy;
mod recount;
mod upkeep;
mod zones;

pub(super) use backlog::Backlog;
pub(super) use budget::BudgetBook;
pub use budget::{BudgetSettings, Period};
pub(super) use hourly_emissions::{HourlyEmissions, by_kind};
pub(super) use intensities::Intensities;
pub use ledger::Bookkeeping;
pub(super) use ledger::SHOWN_DAYS;
pub(super) use occupancy::{Downtime, gone_since};
pub(super) use upkeep::Change;

use ledger::Ledger;
use zones::Processors;

use super::error::in_full;
use super::signal::Signal;
use crate::cpu::watch::CpuHandle;
use crate::store::{Store, StoreError};

/// Owns the books.
pub(super) struct Accounting {
    ledger: Ledger,
    /// Books that could not be written yet, and what the last daemon left.
    backlog: Backlog,
    cpu: Processors,
    budget: BudgetBook,
    store_fault: Option<String>,
}

impl Accounting {
    pub(super) fn new(keeping: Bookkeeping, budget: BudgetSettings, cpu: Option<CpuHandle>, backlog: Backlog) -> Self {
        let (ledger, cpu, budget) = (Ledger::new(keeping), Processors::new(cpu), BudgetBook::new(budget));
        Self { ledger, backlog, cpu, budget, store_fault: None }
    }

    /// The node's carbon budget.
    pub(super) fn budget(&self) -> &BudgetBook {
        &self.budget
    }

    /// Why nothing can be written, if that is so.
    pub(super) fn store_fault(&self) -> Option<&String> {
        self.store_fault.as_ref()
    }

    /// Notes that something could not be read or written.
    pub(super) fn note_store_fault(&mut self, error: &StoreError) {
        let text = in_full(error);
        if self.store_fault.as_ref() != Some(&text) {
            tracing::error!("{text}; what is booked is kept in memory until it can be written");
        }
        self.store_fault = Some(text);
    }

    /// What grams are reckoned with.
    pub(super) fn intensities<'a>(&self, signal: &'a Signal, store: &'a Store) -> Intensities<'a> {
        Intensities::new(signal, store, self.store_fault.is_none())
    }
}
