//! Sender of a request: the other end of the connection, the token of the request, and the rights of both together.

use std::net::IpAddr;

use super::needs::Need;
use super::token::{Claims, Scope, TokenError};
use crate::controller::Client;
use crate::files;
use crate::http::peer::Transport;
use wattune_core::domain::Process;

/// Token of a request.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::http) enum Token {
    /// The request has none, or this daemon accepts none.
    Absent,
    /// The request has a header `Authorization` that Zeus's daemon does not read as a token's, and this daemon accepts
    /// tokens.
    Unread,
    /// The token is not valid.
    Invalid(TokenError),
    /// The token is valid.
    Valid(Claims),
}

/// Whom a request counts for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::http) enum Identity {
    /// The holder of tokens with this subject.
    Token(String),
    /// A user of this machine, by number.
    User(u32),
    /// A client on another machine, by its address.
    Address(IpAddr),
    /// All others.
    Unknown,
}

/// Sender of a request.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::http) struct Asker {
    pub(in crate::http) transport: Transport,
    /// Number of the user; `None` if the kernel does not report the user.
    pub(in crate::http) user: Option<u32>,
    /// Address of the client, if it is on another machine.
    pub(in crate::http) address: Option<IpAddr>,
    /// Process at the other end; `None` over TCP, where it is unknown.
    pub(in crate::http) process: Option<Process>,
    pub(in crate::http) token: Token,
    pub(in crate::http) rights: Rights,
    /// True if this daemon has keys of tokens.
    pub(in crate::http) takes_tokens: bool,
}

impl Asker {
    /// Returns for whom the request counts: the subject of its token, or else its user or its address.
    pub(in crate::http) fn identity(&self) -> Identity {
        let subject = match &self.token {
            Token::Valid(claims) => Some(Identity::Token(claims.sub.clone())),
            Token::Absent | Token::Unread | Token::Invalid(_) => None,
        };
        let user = || self.user.map(Identity::User);
        subject.or_else(user).or_else(|| self.address.map(Identity::Address)).unwrap_or(Identity::Unknown)
    }

    /// Returns the sender as the controller knows it.
    pub(in crate::http) fn client(&self) -> Client {
        let subject = match &self.token {
            Token::Valid(claims) => Some(claims.sub.as_str().into()),
            Token::Absent | Token::Unread | Token::Invalid(_) => None,
        };
        Client { user: self.user, process: self.process, subject, has_control: self.rights.control }
    }
}

/// Rights of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::http) struct Rights {
    /// Reading everything but the audit log.
    pub(in crate::http) read: bool,
    /// Registering, reporting and ending own jobs and trials.
    pub(in crate::http) jobs: bool,
    /// Limits, clocks, caps, and the jobs of others.
    pub(in crate::http) control: bool,
    /// The audit log.
    pub(in crate::http) admin: bool,
}

impl Rights {
    /// Returns the rights of a connection.
    pub(super) fn of(transport: Transport, user: Option<u32>, loopback_control: bool) -> Self {
        match transport {
            // The mode and the group of the socket decide who can connect at all.
            Transport::Unix => {
                let admin = user.is_some_and(|user| user == 0 || user == files::user());
                Self { read: true, jobs: true, control: true, admin }
            }
            Transport::Loopback => {
                Self { read: true, jobs: loopback_control || user.is_some(), control: loopback_control, admin: false }
            }
            Transport::Remote { .. } => Self::default(),
        }
    }

    /// Returns these rights with those of the token. Without encryption, a token from another machine only reads.
    pub(super) fn with(self, token: &Token, transport: Transport) -> Self {
        let Token::Valid(claims) = token else { return self };
        let has = |scope| claims.scopes.contains(&scope);
        let is_safe = transport != Transport::Remote { is_encrypted: false };
        let admin = has(Scope::Admin);
        let control = admin || has(Scope::GpuControl);
        let jobs = control || has(Scope::Jobs);
        Self {
            read: self.read || jobs || has(Scope::GpuRead),
            jobs: self.jobs || is_safe && jobs,
            control: self.control || is_safe && control,
            admin: self.admin || is_safe && admin,
        }
    }

    /// Returns true if the rights include the need.
    pub(super) const fn allow(self, need: Need) -> bool {
        match need {
            Need::Open | Need::Zeus => true,
            Need::Read => self.read,
            Need::Jobs => self.jobs,
            Need::Control => self.control,
            Need::Admin => self.admin,
        }
    }
}
