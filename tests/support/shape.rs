//! Whether an answer has the shape that `/openapi.json` gives it.

use serde_json::{Map, Value};

/// The description of the API.
pub(crate) struct Shapes(pub(crate) Value);

impl Shapes {
    /// The addresses that are read with GET.
    pub(crate) fn readable(&self) -> Vec<String> {
        let paths = self.0["paths"].as_object().expect("paths");
        paths.iter().filter(|(_, path)| path["get"].is_object()).map(|(address, _)| address.clone()).collect()
    }

    /// What a method at an address answers with this status, if that is JSON.
    pub(crate) fn of(&self, method: &str, address: &str, status: &str) -> Option<&Value> {
        let schema = &self.0["paths"][address][method]["responses"][status]["content"]["application/json"]["schema"];
        schema.is_object().then_some(schema)
    }

    /// Panics, with the place, where `value` is not as `schema` says. Members that the schema does not know are wrong,
    /// too.
    pub(crate) fn check(&self, schema: &Value, value: &Value, place: &str) {
        if schema.as_object().is_some_and(Map::is_empty) {
            return;
        }
        if let Some(reference) = schema["$ref"].as_str() {
            let target = self.0.pointer(reference.trim_start_matches('#')).expect(reference);
            return self.check(target, value, place);
        }
        if let Some(choices) = schema["oneOf"].as_array() {
            let fits = choices.iter().find(|choice| match value {
                Value::Null => choice["type"] == "null",
                // Of objects, the one whose members are there.
                Value::Object(members) => choice["type"] != "null" && self.has_required(choice, members),
                _ => choice["type"] != "null",
            });
            return self.check(fits.unwrap_or_else(|| panic!("{place}: {value} is none of {choices:?}")), value, place);
        }
        let types: Vec<&str> = match &schema["type"] {
            Value::String(one) => vec![one],
            Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
            _ => panic!("{place}: no type in {schema}"),
        };
        let fits = |t: &&str| match *t {
            "null" => value.is_null(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "string" => value.is_string(),
            "array" => value.is_array(),
            _ => value.is_object(),
        };
        assert!(types.iter().any(fits), "{place}: {value} is none of {types:?}");
        if let (Some(known), false) = (schema["enum"].as_array(), value.is_null()) {
            assert!(known.contains(value), "{place}: {value} is none of {known:?}");
        }
        if schema["format"] == "date-time"
            && let Some(text) = value.as_str()
        {
            // The Carbon Aware SDK writes UTC as an offset.
            let utc = if place.starts_with("/emissions/") { "+00:00" } else { "Z" };
            assert!(text.ends_with(utc) && text.parse::<chrono::DateTime<chrono::Utc>>().is_ok(), "{place}: {text}");
        }
        for (i, item) in value.as_array().into_iter().flatten().enumerate() {
            self.check(&schema["items"], item, &format!("{place}[{i}]"));
        }
        if let Value::Object(members) = value {
            self.check_members(schema, members, place);
        }
    }

    fn has_required(&self, schema: &Value, members: &Map<String, Value>) -> bool {
        let schema = match schema["$ref"].as_str() {
            Some(reference) => self.0.pointer(reference.trim_start_matches('#')).expect(reference),
            None => schema,
        };
        let mut required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        required.all(|name| members.contains_key(name))
    }

    fn check_members(&self, schema: &Value, members: &Map<String, Value>, place: &str) {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            assert!(members.contains_key(name), "{place}: {name} is missing");
        }
        for (name, member) in members {
            let known =
                [&schema["properties"][name], &schema["additionalProperties"]].into_iter().find(|s| s.is_object());
            let schema = known.unwrap_or_else(|| panic!("{place}: {name} is not described"));
            self.check(schema, member, &format!("{place}.{name}"));
        }
    }
}
