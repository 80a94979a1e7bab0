//! Hash chain over the lines of the ledger. Each digest covers its line and the previous digest, so that any person who
//! keeps one digest can later detect a change of any line up to that digest.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// SHA-256 digest of a line of the chain and of all lines before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// Digest that precedes the first line: 32 zero bytes.
    pub const GENESIS: Self = Self([0; 32]);

    /// Returns the chain extended by a line: SHA-256 of this digest's 32 bytes and the line's bytes.
    #[must_use]
    pub fn then(&self, line: &str) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0);
        hasher.update(line.as_bytes());
        Self(hasher.finalize().into())
    }

    /// Returns the SHA-256 digest of `bytes` alone.
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns the 32 bytes that the database stores.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the digest with these bytes; `None` unless there are exactly 32 of them.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Error: the text is not a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a digest; expected 64 lower-case hexadecimal digits")]
pub struct InvalidDigest;

impl FromStr for Digest {
    type Err = InvalidDigest;

    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        let digit = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(InvalidDigest),
        };
        let mut bytes = [0; 32];
        if text.len() != 64 {
            return Err(InvalidDigest);
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidDigest;
    fn try_from(text: String) -> Result<Self, InvalidDigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_sha_256_and_parse_from_text() {
        // FIPS 180-4's example.
        let abc = Digest::of("abc").to_string();
        assert_eq!(abc, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(abc.parse(), Ok(Digest::of("abc")));
        assert_eq!(abc.to_uppercase().parse::<Digest>(), Err(InvalidDigest));
        let chain = Digest::GENESIS.then("a").then("b");
        assert_ne!(chain, Digest::GENESIS.then("b").then("a"));
        assert_eq!(Digest::from_bytes(chain.as_bytes()), Some(chain));
    }
}
