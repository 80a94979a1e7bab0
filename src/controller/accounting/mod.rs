//! Owns the accounting: intervals of GPUs and CPUs, checkpoints, the ledger's upkeep, emissions of jobs and the node.

mod backlog;
mod budget;
mod checkpoint;
mod cpu;
mod hourly_emissions;
mod intensities;
mod intervals;
mod ledger;
mod recount;
mod recovery;
mod upkeep;
mod zones;

pub(super) use backlog::{Backlog, Downtime, ended_since};
pub(super) use budget::BudgetAccount;
pub use budget::{BudgetSettings, Period};
pub(super) use hourly_emissions::{HourlyEmissions, by_kind};
pub(super) use intensities::Intensities;
pub use ledger::LedgerTerms;
pub(super) use ledger::SHOWN_DAYS;
pub(super) use upkeep::Change;

use ledger::Ledger;
use zones::Processors;

use super::error::in_full;
use super::signal::Signal;
use crate::cpu::watch::CpuHandle;
use crate::store::{Store, StoreError};

/// Owner of the accounting: the ledger's upkeep, rows not written yet, the CPUs' intervals and the carbon budget.
pub(super) struct Accounting {
    ledger: Ledger,
    backlog: Backlog,
    cpu: Processors,
    budget: BudgetAccount,
    store_fault: Option<String>,
}

impl Accounting {
    pub(super) fn new(terms: LedgerTerms, budget: BudgetSettings, cpu: Option<CpuHandle>, backlog: Backlog) -> Self {
        let (ledger, cpu, budget) = (Ledger::new(terms), Processors::new(cpu), BudgetAccount::new(budget));
        Self { ledger, backlog, cpu, budget, store_fault: None }
    }

    /// Returns the node's carbon budget.
    pub(super) fn budget(&self) -> &BudgetAccount {
        &self.budget
    }

    /// Returns the reason why the ledger cannot be read or written; `None` if it can.
    pub(super) fn store_fault(&self) -> Option<&String> {
        self.store_fault.as_ref()
    }

    /// Records that the ledger could not be read or written.
    pub(super) fn record_store_fault(&mut self, error: &StoreError) {
        let text = in_full(error);
        if self.store_fault.as_ref() != Some(&text) {
            tracing::error!("{text}; records are kept in memory until the database can be written");
        }
        self.store_fault = Some(text);
    }

    /// Returns access to the carbon intensities from which emissions are computed.
    pub(super) fn intensities<'a>(&self, signal: &'a Signal, store: &'a Store) -> Intensities<'a> {
        Intensities::new(signal, store, self.store_fault.is_none())
    }
}
