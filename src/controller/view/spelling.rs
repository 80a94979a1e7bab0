//! Names in the API that serde spells.

/// Returns a unit variant as serde spells it.
pub(in crate::controller) fn spelled<T: serde::Serialize>(value: &T) -> Option<String> {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => Some(text),
        _ => None,
    }
}
