//! Connections to the embedded database.

use super::audit::AuditLog;
use super::connection::ConnectionPool;
use super::recurring::RecurringConnection;

/// Name of the database file in the state directory.
pub const FILE_NAME: &str = "wattune.db";

/// The embedded database.
#[derive(Clone, Debug)]
pub struct Store {
    /// The only connection that writes, apart from those of `recurring`.
    pub(super) write: ConnectionPool,
    /// Connections for short reads.
    pub(super) short_reads: ConnectionPool,
    /// Connection for long reads; reports queue for it.
    pub(super) reports: ConnectionPool,
    pub(super) recurring: RecurringConnection,
    pub(super) audit: AuditLog,
}

impl Store {
    /// Returns the audit log.
    pub fn audit(&self) -> &AuditLog {
        &self.audit
    }

    /// Waits for all pending work to be written, and closes the file.
    pub async fn close(&self) {
        self.audit.close().await;
        // The connection that closes last copies the write-ahead log into the database, so it must be one that can
        // write.
        self.reports.close().await;
        self.short_reads.close().await;
        self.recurring.close().await;
        self.write.close().await;
    }
}
