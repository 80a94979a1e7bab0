//! Caller of a request: who asks, as far as it is known, and whether the jobs of others are open to it.

use std::fmt;
use std::sync::Arc;

use wattune_core::domain::{Actor, Owner, Owners, Process};

/// Number of the user root, who could become any user.
pub(super) const ROOT: u32 = 0;

/// Caller of a request, as the ledger and the log state it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The daemon itself, or the program that contains it.
    Local,
    /// A client of the daemon's own API.
    Client(Client),
    /// A client of Zeus's protocols.
    Zeus(Client),
}

/// Client of the daemon, as far as the connection and the token of its request identify it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Number of the client's user; `None` if the kernel does not report the user.
    pub user: Option<u32>,
    /// Process of the client; `None` over TCP, where it is unknown.
    pub process: Option<Process>,
    /// Subject of the client's access token; `None` without a token.
    pub subject: Option<Arc<str>>,
    /// True if the client may also change jobs that belong to others.
    pub has_control: bool,
}

impl Client {
    /// Returns the owners of the jobs that the client registers.
    pub fn owners(&self) -> Owners {
        let user = self.user.map(Owner::User);
        let token = self.subject.as_deref().map(|subject| Owner::Token(subject.to_owned()));
        user.into_iter().chain(token).collect()
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.subject.as_ref().map(|subject| format!("token of {subject:?}")));
        parts.extend(self.user.map(|user| format!("user {user}")));
        parts.extend(self.process.map(|process| format!("process {}", process.pid)));
        f.write_str(&if parts.is_empty() { "an unknown user".to_owned() } else { parts.join(", ") })
    }
}

impl Caller {
    /// Returns true for clients of Zeus's protocols.
    pub const fn is_zeus(&self) -> bool {
        matches!(self, Self::Zeus(_))
    }

    /// Returns the process of a client of Zeus's protocols, if it is known.
    pub fn zeus_process(&self) -> Option<Process> {
        match self {
            Self::Zeus(client) => client.process,
            Self::Local | Self::Client(_) => None,
        }
    }

    /// Returns the owners of the jobs that the caller registers.
    pub fn owners(&self) -> Owners {
        match self {
            Self::Local => Owners::default(),
            Self::Client(client) | Self::Zeus(client) => client.owners(),
        }
    }

    /// Returns true if the jobs of others are open to the caller.
    pub fn has_control(&self) -> bool {
        match self {
            Self::Local => true,
            Self::Client(client) | Self::Zeus(client) => client.has_control,
        }
    }

    /// Returns the number of the caller's user; `None` if it is unknown.
    pub fn user(&self) -> Option<u32> {
        match self {
            Self::Local => None,
            Self::Client(client) | Self::Zeus(client) => client.user,
        }
    }

    /// Returns true if the processes and GPUs of others are open to the caller: with control, and for root.
    pub(super) fn may_use_all(&self) -> bool {
        self.has_control() || self.user() == Some(ROOT)
    }

    /// Returns the caller as far as ownership matters.
    pub fn actor(&self) -> Actor {
        Actor { owners: self.owners(), has_control: self.has_control() }
    }

    /// Returns true if the caller may change a job of these owners.
    pub fn may_change(&self, owners: &Owners) -> bool {
        self.has_control() || self.owners().overlap(owners)
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Client(client) => client.fmt(f),
            Self::Zeus(client @ Client { process: Some(_), .. }) => write!(f, "Zeus client, {client}"),
            Self::Zeus(Client { subject: None, user: None, .. }) => f.write_str("Zeus client over TCP"),
            Self::Zeus(client) => write!(f, "Zeus client over TCP, {client}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_changed_by_their_owners_and_by_those_with_control() {
        let client = |user, subject: Option<&str>, has_control| {
            let subject = subject.map(Arc::from);
            Caller::Client(Client { user, subject, process: None, has_control })
        };
        let ada = client(Some(1000), None, false);
        let jobs = [ada.owners(), client(None, Some("ada"), false).owners(), Owners::default()];
        let table = [
            (ada, [true, false, false]),
            (client(Some(1001), None, false), [false, false, false]),
            (client(None, None, false), [false, false, false]),
            (client(None, Some("ada"), false), [false, true, false]),
            (client(Some(1000), Some("ada"), false), [true, true, false]),
            (client(Some(1000), Some("bob"), false), [true, false, false]),
            (client(None, None, true), [true, true, true]),
            (Caller::Local, [true, true, true]),
        ];
        for (caller, may) in table {
            assert_eq!(jobs.each_ref().map(|owners| caller.may_change(owners)), may, "{caller}");
        }
    }
}
