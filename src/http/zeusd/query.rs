//! Reads query strings, with the refusals that Zeus's daemon gives for each mistake.

use super::answer::Refusal;

/// Type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    Flag,
}

/// Value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Text(String),
    Number(u32),
    Flag(bool),
}

/// Parameter of a route.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameter {
    name: &'static str,
    kind: Kind,
    is_required: bool,
}

impl Parameter {
    pub(super) const fn text(name: &'static str) -> Self {
        Self { name, kind: Kind::Text, is_required: true }
    }

    pub(super) const fn number(name: &'static str) -> Self {
        Self { name, kind: Kind::Number, is_required: true }
    }

    pub(super) const fn flag(name: &'static str) -> Self {
        Self { name, kind: Kind::Flag, is_required: true }
    }

    pub(super) const fn optional(self) -> Self {
        Self { is_required: false, ..self }
    }
}

/// Parameters of a request.
#[derive(Debug)]
pub(super) struct Query<'p> {
    parameters: &'p [Parameter],
    values: Vec<Option<Value>>,
}

impl<'p> Query<'p> {
    /// Parses a query string, parameter by parameter. The error is the first mistake.
    pub(super) fn parse(text: &str, parameters: &'p [Parameter]) -> Result<Self, Refusal> {
        let mut values = vec![None; parameters.len()];
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let name = decode(name);
            let Some(place) = parameters.iter().position(|parameter| parameter.name == name) else {
                return Err(Refusal::Query(format!("unknown field `{name}`, expected {}", names(parameters))));
            };
            if values[place].is_some() {
                return Err(Refusal::Query(format!("duplicate field `{name}`")));
            }
            values[place] = Some(read(parameters[place].kind, decode(value)).map_err(Refusal::Query)?);
        }
        let missing =
            parameters.iter().zip(&values).find(|(parameter, value)| parameter.is_required && value.is_none());
        match missing {
            Some((parameter, _)) => Err(Refusal::Query(format!("missing field `{}`", parameter.name))),
            None => Ok(Self { parameters, values }),
        }
    }

    fn value(&self, name: &str) -> Option<&Value> {
        let place = self.parameters.iter().position(|parameter| parameter.name == name)?;
        self.values[place].as_ref()
    }

    /// Returns a required number.
    pub(super) fn number(&self, name: &str) -> u32 {
        match self.value(name) {
            Some(Value::Number(number)) => *number,
            _ => 0,
        }
    }

    /// Returns a required flag.
    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.value(name), Some(Value::Flag(true)))
    }

    /// Returns a list of indices, sorted and without duplicates; `None` if the parameter is absent. `what` is the kind of
    /// device in messages.
    pub(super) fn indices(&self, name: &str, what: &str) -> Result<Option<Vec<u64>>, Refusal> {
        let Some(Value::Text(text)) = self.value(name) else { return Ok(None) };
        if text.trim().is_empty() {
            return Err(Refusal::Error(format!("{name} must contain at least one {what} index")));
        }
        let mut indices = Vec::new();
        for entry in text.split(',').map(str::trim) {
            if entry.is_empty() {
                return Err(Refusal::Error(format!("{name} contains an empty {what} index")));
            }
            let index = entry.parse().map_err(|_| Refusal::Error(format!("Invalid {what} index: {entry}")))?;
            indices.push(index);
        }
        indices.sort_unstable();
        indices.dedup();
        Ok(Some(indices))
    }
}

fn read(kind: Kind, text: String) -> Result<Value, String> {
    match kind {
        Kind::Text => Ok(Value::Text(text)),
        Kind::Number => text.parse().map(Value::Number).map_err(|error: std::num::ParseIntError| error.to_string()),
        Kind::Flag => text.parse().map(Value::Flag).map_err(|error: std::str::ParseBoolError| error.to_string()),
    }
}

fn names(parameters: &[Parameter]) -> String {
    let quoted: Vec<String> = parameters.iter().map(|parameter| format!("`{}`", parameter.name)).collect();
    match quoted.as_slice() {
        [only] => only.clone(),
        [first, second] => format!("{first} or {second}"),
        all => format!("one of {}", all.join(", ")),
    }
}

/// Decodes a part of a query string: `+` is a blank, `%2C` a comma; an incomplete escape stands for itself.
fn decode(text: &str) -> String {
    let hex =
        |digit: Option<&u8>| digit.and_then(|digit| char::from(*digit).to_digit(16)).and_then(|d| u8::try_from(d).ok());
    let (bytes, mut decoded, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let escaped = (*byte == b'%').then(|| Some(hex(bytes.get(at + 1))? * 16 + hex(bytes.get(at + 2))?)).flatten();
        match (byte, escaped) {
            (_, Some(escaped)) => {
                decoded.push(escaped);
                at += 2;
            }
            (b'+', None) => decoded.push(b' '),
            (byte, None) => decoded.push(*byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARAMETERS: [Parameter; 3] =
        [Parameter::text("gpu_ids"), Parameter::number("power_limit_mw"), Parameter::flag("block")];

    #[test]
    fn escapes_are_decoded_and_incomplete_ones_left() {
        let table = [
            ("0%2C1", "0,1"),
            ("a+b", "a b"),
            ("%", "%"),
            ("%4", "%4"),
            ("%zz", "%zz"),
            ("%C3%A9", "é"),
            ("%ff", "\u{fffd}"),
        ];
        for (text, decoded) in table {
            assert_eq!(decode(text), decoded, "{text}");
        }
    }

    #[test]
    fn the_first_mistake_in_the_order_of_the_request_counts() {
        let refusal = |text| match Query::parse(text, &PARAMETERS) {
            Err(Refusal::Query(reason)) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(refusal("block=x&nothing=1"), "provided string was not `true` or `false`");
        assert_eq!(
            refusal("nothing=1&block=x"),
            "unknown field `nothing`, expected one of `gpu_ids`, `power_limit_mw`, `block`"
        );
        assert_eq!(refusal("block=true&block=x"), "duplicate field `block`");
        assert_eq!(refusal("&&block=true&"), "missing field `gpu_ids`");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            if let Ok(query) = Query::parse(&text, &PARAMETERS) {
                let _ = query.indices("gpu_ids", "GPU");
            }
        }
    }
}
