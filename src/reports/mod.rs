//! Reports of energy and emissions: one data structure, rendered as a table, JSON, CSV, Markdown, an HTML page or a
//! badge, for the command line and the API alike.

mod audit;
mod audit_log;
mod badge;
mod csv;
pub mod document;
mod html;
mod request;
mod table;
mod view;

pub use self::csv::{csv, no_formula};
pub use audit::{
    AccountKind, CompletenessView, CorrectionView, DeviceView, EmbodiedView, GapView, IntensitySourceView, MethodView,
    RestatementView, TermsView, VersionView,
};
pub use audit_log::{AuditEntry, audit_csv, audit_table};
pub use badge::{badge, summary};
pub use html::html;
pub use request::{RESTATED_BY_PCT, exact_span, functional_unit, span};
pub use table::{markdown, table};
pub use view::{ReportRow, ReportView, RowKind, RowState};
