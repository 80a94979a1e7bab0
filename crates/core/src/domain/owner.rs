//! Owners of jobs and of recurring jobs: who may report for them and end them without further rights.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Owner of a job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Owner {
    /// User of this machine, by number.
    User(u32),
    /// Subject of access tokens.
    Token(String),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user {user}"),
            Self::Token(subject) => write!(f, "the tokens of {subject:?}"),
        }
    }
}

/// Owners of one job. A job without owners has no known owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Owners(BTreeSet<Owner>);

impl Owner {
    /// Root, who registers jobs for others.
    pub const ROOT: Self = Self::User(0);
}

impl Owners {
    /// Returns the owners whose keys and places a job uses: root only if there is no other.
    pub fn principals(&self) -> impl Iterator<Item = &Owner> {
        let has_others = self.0.iter().any(|owner| *owner != Owner::ROOT);
        self.0.iter().filter(move |owner| !has_others || **owner != Owner::ROOT)
    }

    /// Returns true if keys of the jobs of these owners and of `others` are in one namespace.
    pub fn share_keys_with(&self, others: &Self) -> bool {
        (self.is_empty() && others.is_empty())
            || self.principals().any(|own| others.principals().any(|other| own == other))
    }

    /// Returns true if `owner` is one of them.
    pub fn contains(&self, owner: &Owner) -> bool {
        self.0.contains(owner)
    }

    /// Adds an owner.
    #[must_use]
    pub fn with(mut self, owner: Owner) -> Self {
        self.0.insert(owner);
        self
    }

    /// Adds the owners of `others`; returns true if one of them is new.
    pub fn join(&mut self, others: &Self) -> bool {
        let before = self.0.len();
        self.0.extend(others.0.iter().cloned());
        self.0.len() > before
    }

    /// Returns true if an owner is among `others`, too.
    pub fn overlap(&self, others: &Self) -> bool {
        !self.0.is_disjoint(&others.0)
    }

    /// Returns true if no owner is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Sender of a request, as far as ownership matters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// Identities of the sender; empty if unknown.
    pub owners: Owners,
    /// True if the sender may also change what belongs to others.
    pub has_control: bool,
}

impl Actor {
    /// Returns true if the sender may change what belongs to `owners`.
    pub fn may_change(&self, owners: &Owners) -> bool {
        self.has_control || self.owners.overlap(owners)
    }
}

impl FromIterator<Owner> for Owners {
    fn from_iter<I: IntoIterator<Item = Owner>>(owners: I) -> Self {
        Self(owners.into_iter().collect())
    }
}

impl fmt::Display for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("an unknown user");
        }
        for (i, owner) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { " and " };
            write!(f, "{separator}{owner}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_described_and_compared() {
        let ada = Owners::default().with(Owner::User(1000)).with(Owner::Token("ada".into()));
        let bob = Owners::default().with(Owner::User(1001));
        assert_eq!(ada.to_string(), "user 1000 and the tokens of \"ada\"");
        assert_eq!(Owners::default().to_string(), "an unknown user");
        assert!(!ada.overlap(&bob) && !ada.overlap(&Owners::default()));
        assert!(!Owners::default().overlap(&Owners::default()), "unknown owners are not the same");
        let mut both = bob.clone();
        assert!(both.join(&ada) && !both.join(&ada) && both.overlap(&ada));
        let by_root = |user| Owners::default().with(Owner::ROOT).with(Owner::User(user));
        let root = Owners::default().with(Owner::ROOT);
        assert!(by_root(1).share_keys_with(&by_root(1)) && root.share_keys_with(&root));
        assert!(!by_root(1).share_keys_with(&by_root(2)) && !by_root(1).share_keys_with(&root));
        assert!(Owners::default().share_keys_with(&Owners::default()) && !Owners::default().share_keys_with(&ada));
        let text = serde_json::to_string(&ada).expect("JSON");
        assert_eq!(text, r#"[{"user":1000},{"token":"ada"}]"#);
        assert_eq!(serde_json::from_str::<Owners>(&text).expect("owners"), ada);
    }
}
