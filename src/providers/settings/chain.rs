//! `carbon.source`: the sources that are used, in order of preference.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::providers::sources::Source;

/// The word that stands for the automatic choice.
const AUTO: &str = "auto";

/// The order in which sources are used. Users write it as `"auto"`, as one name, or as a list of names. The list may
/// contain inner lists: the sources of an inner list are equals, of which the one with the best recent forecasts is
/// used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Chain {
    /// Chosen automatically: the sources for which the settings hold a file, an address, a key or an account, and those
    /// that need none of these for the zone.
    #[default]
    Auto,
    /// The listed sources, group by group; the sources of a group are equals.
    Listed(Vec<Vec<Source>>),
}

impl Chain {
    /// Returns a chain of one source.
    pub fn only(source: Source) -> Self {
        Self::Listed(vec![vec![source]])
    }

    /// Returns true if the chain is a list that names the source.
    pub fn has(&self, source: Source) -> bool {
        matches!(self, Self::Listed(groups) if groups.iter().flatten().any(|s| *s == source))
    }
}

impl Serialize for Chain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str(AUTO),
            Self::Listed(groups) => match groups.as_slice() {
                [group] if group.len() == 1 => group[0].serialize(serializer),
                groups => {
                    let mut list = serializer.serialize_seq(Some(groups.len()))?;
                    for group in groups {
                        match group.as_slice() {
                            [one] => list.serialize_element(one)?,
                            equals => list.serialize_element(equals)?,
                        }
                    }
                    list.end()
                }
            },
        }
    }
}

fn named<E: de::Error>(name: &str) -> Result<Source, E> {
    Source::ALL.iter().copied().find(|s| s.name() == name).ok_or_else(|| E::unknown_variant(name, Source::CHOICES))
}

/// An element of the list in `carbon.source`: a name, or an inner list of equals.
struct Group(Vec<Source>);

struct GroupVisitor;

impl<'de> Visitor<'de> for GroupVisitor {
    type Value = Group;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a source's name or a list of names")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Group, E> {
        if name == AUTO {
            return Err(E::custom("\"auto\" stands alone; write source = \"auto\", or name the sources"));
        }
        named(name).map(|source| Group(vec![source]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Group, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list)).map(Group)
    }
}

impl<'de> Deserialize<'de> for Group {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(GroupVisitor)
    }
}

struct ChainVisitor;

impl<'de> Visitor<'de> for ChainVisitor {
    type Value = Chain;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"auto\", a source's name, or a list of names in order")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Chain, E> {
        if name == AUTO { Ok(Chain::Auto) } else { named(name).map(Chain::only) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Chain, A::Error> {
        let mut groups: Vec<Vec<Source>> = Vec::new();
        while let Some(Group(group)) = list.next_element()? {
            for (i, source) in group.iter().enumerate() {
                if group[..i].contains(source) || groups.iter().flatten().any(|s| s == source) {
                    return Err(de::Error::custom(format_args!(
                        "\"{}\" is in the list twice; remove one",
                        source.name()
                    )));
                }
            }
            if !group.is_empty() {
                groups.push(group);
            }
        }
        if groups.is_empty() {
            return Err(de::Error::custom("the list is empty; write at least one source, or \"auto\""));
        }
        Ok(Chain::Listed(groups))
    }
}

impl<'de> Deserialize<'de> for Chain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ChainVisitor)
    }
}
