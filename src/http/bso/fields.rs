//! Fields of a request, converted and checked as pydantic (version 1) does it for Zeus's server.

use std::collections::HashMap;

use serde::Serialize;

use super::json::Value;
use super::python;

/// A mistake in a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Mistake {
    loc: Vec<Place>,
    msg: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    ctx: Option<Limit>,
}

/// A step of the path from the request to the mistake: a field's name or an index.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Place {
    Name(&'static str),
    Index(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Limit {
    limit_value: i32,
}

impl Mistake {
    pub(super) fn new(place: &[&'static str], kind: &'static str, msg: impl Into<String>) -> Self {
        Self { loc: place.iter().map(|name| Place::Name(name)).collect(), msg: msg.into(), kind, ctx: None }
    }

    /// Creates the mistake that a required field is missing.
    pub(super) fn missing(place: &[&'static str]) -> Self {
        Self::new(place, "value_error.missing", "field required")
    }

    fn below(self, limit_value: i32) -> Self {
        Self { ctx: Some(Limit { limit_value }), ..self }
    }
}

/// The problem of one value: kind, and message.
type Wrong = (&'static str, String);

/// A type that a field of a request can have, read as pydantic reads it.
pub(super) trait Field: Sized {
    fn read(value: Value) -> Result<Self, Vec<(Option<usize>, Wrong)>>;
}

fn wrong<T>(kind: &'static str, message: &str) -> Result<T, Vec<(Option<usize>, Wrong)>> {
    Err(vec![(None, (kind, message.to_owned()))])
}

impl Field for i128 {
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and is finite")]
    fn read(value: Value) -> Result<Self, Vec<(Option<usize>, Wrong)>> {
        let whole = match value {
            Value::Int(number) => Some(number),
            Value::Bool(is) => Some(Self::from(is)),
            Value::Float(number) if number.is_finite() => Some(number as Self),
            Value::Text(text) => digits(&text).and_then(|digits| digits.parse().ok()),
            _ => None,
        };
        whole.map_or_else(|| wrong("type_error.integer", "value is not a valid integer"), Ok)
    }
}

impl Field for f64 {
    #[expect(clippy::cast_precision_loss, reason = "as in Python")]
    fn read(value: Value) -> Result<Self, Vec<(Option<usize>, Wrong)>> {
        let number = match value {
            Value::Float(number) => Some(number),
            Value::Int(number) => Some(number as Self),
            Value::Bool(is) => Some(Self::from(u8::from(is))),
            Value::Text(text) => digits(&text).and_then(|digits| digits.parse().ok()),
            _ => None,
        };
        number.map_or_else(|| wrong("type_error.float", "value is not a valid float"), Ok)
    }
}

impl Field for bool {
    fn read(value: Value) -> Result<Self, Vec<(Option<usize>, Wrong)>> {
        let is = match value {
            Value::Bool(is) => Some(is),
            Value::Int(0) => Some(false),
            Value::Int(1) => Some(true),
            Value::Float(0.0) => Some(false),
            Value::Float(1.0) => Some(true),
            Value::Text(text) => match text.to_lowercase().as_str() {
                "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
                "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
                _ => None,
            },
            _ => None,
        };
        is.map_or_else(|| wrong("type_error.bool", "value could not be parsed to a boolean"), Ok)
    }
}

impl Field for String {
    fn read(value: Value) -> Result<Self, Vec<(Option<usize>, Wrong)>> {
        match value {
            Value::Text(text) => Ok(text),
            Value::Int(number) => Ok(number.to_string()),
            Value::Float(number) => Ok(python::float(number)),
            Value::Bool(is) => Ok(if is { "True" } else { "False" }.to_owned()),
            _ => wrong("type_error.str", "str type expected"),
        }
    }
}

impl<T: Field> Field for Vec<T> {
    fn read(value: Value) -> Result<Self, Vec<(Option<usize>, Wrong)>> {
        let Value::List(entries) = value else { return wrong("type_error.list", "value is not a valid list") };
        let (mut read, mut mistakes) = (Self::new(), Vec::new());
        for (i, entry) in entries.into_iter().enumerate() {
            match present(entry) {
                Ok(entry) => read.push(entry),
                Err(found) => mistakes.extend(found.into_iter().map(|(_, wrong)| (Some(i), wrong))),
            }
        }
        if mistakes.is_empty() { Ok(read) } else { Err(mistakes) }
    }
}

/// Reads a value that must not be null.
fn present<T: Field>(value: Value) -> Result<T, Vec<(Option<usize>, Wrong)>> {
    match value {
        Value::Null => wrong("type_error.none.not_allowed", "none is not an allowed value"),
        value => T::read(value),
    }
}

/// Returns a number's text without the space and the underscores that Python permits; `None` if they are misplaced.
fn digits(text: &str) -> Option<String> {
    let text = text.trim();
    let bytes = text.as_bytes();
    let is_digit = |i: usize| bytes.get(i).is_some_and(u8::is_ascii_digit);
    let misplaced = |i: usize| bytes[i] == b'_' && !(i > 0 && is_digit(i - 1) && is_digit(i + 1));
    (!(0..bytes.len()).any(misplaced)).then(|| text.replace('_', ""))
}

/// The fields of a request's body, and the mistakes found in them so far.
pub(super) struct Fields {
    values: HashMap<String, Value>,
    mistakes: Vec<Mistake>,
}

impl Fields {
    pub(super) fn new(values: HashMap<String, Value>) -> Self {
        Self { values, mistakes: Vec::new() }
    }

    /// Reads a required field. If it is missing or wrong, records a mistake and returns `None`.
    pub(super) fn required<T: Field>(&mut self, name: &'static str) -> Option<T> {
        match self.values.remove(name) {
            Some(value) => self.keep(name, present(value)),
            None => {
                self.mistakes.push(Mistake::missing(&["body", name]));
                None
            }
        }
    }

    /// Reads a field whose default is `default`. If it is wrong, records a mistake and returns `None`.
    pub(super) fn or<T: Field>(&mut self, name: &'static str, default: T) -> Option<T> {
        match self.values.remove(name) {
            Some(value) => self.keep(name, present(value)),
            None => Some(default),
        }
    }

    /// Reads a field that may be null and whose default is `default`. If it is wrong, records a mistake and returns
    /// `None`; null gives `Some(None)`.
    pub(super) fn optional<T: Field>(&mut self, name: &'static str, default: Option<T>) -> Option<Option<T>> {
        match self.values.remove(name) {
            Some(Value::Null) => Some(None),
            Some(value) => self.keep(name, T::read(value)).map(Some),
            None => Some(default),
        }
    }

    /// Records a mistake if `is_above` is false, which means that the value is not above 0.
    pub(super) fn above<T>(&mut self, name: &'static str, value: Option<T>, is_above: bool) -> Option<T> {
        self.limit(name, value, is_above, "value_error.number.not_gt", "ensure this value is greater than 0")
    }

    /// Records a mistake if the value is below 0.
    pub(super) fn at_least_0(&mut self, name: &'static str, value: Option<i128>) -> Option<i128> {
        let message = "ensure this value is greater than or equal to 0";
        self.limit(name, value, value.is_none_or(|v| v >= 0), "value_error.number.not_ge", message)
    }

    fn limit<T>(
        &mut self,
        name: &'static str,
        value: Option<T>,
        holds: bool,
        kind: &'static str,
        message: &str,
    ) -> Option<T> {
        if holds || value.is_none() {
            return value;
        }
        self.mistakes.push(Mistake::new(&["body", name], kind, message).below(0));
        None
    }

    /// Records a mistake with `message` if `holds` returns false for the value.
    pub(super) fn check<T>(
        &mut self,
        name: &'static str,
        value: Option<T>,
        holds: impl Fn(&T) -> bool,
        message: impl Fn(&T) -> String,
    ) -> Option<T> {
        let value = value?;
        if holds(&value) {
            return Some(value);
        }
        self.mistakes.push(Mistake::new(&["body", name], "value_error", message(&value)));
        None
    }

    /// Returns the mistakes. If no single field has one, returns `cross`, the mistake in the combination of several
    /// fields.
    pub(super) fn mistakes(self, cross: Option<String>) -> Vec<Mistake> {
        let of_model = || cross.map(|message| Mistake::new(&["body", "__root__"], "value_error", message));
        if self.mistakes.is_empty() { of_model().into_iter().collect() } else { self.mistakes }
    }

    fn keep<T>(&mut self, name: &'static str, read: Result<T, Vec<(Option<usize>, Wrong)>>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(found) => {
                for (index, (kind, message)) in found {
                    let mut mistake = Mistake::new(&["body", name], kind, message);
                    mistake.loc.extend(index.map(Place::Index));
                    self.mistakes.push(mistake);
                }
                None
            }
        }
    }
}
