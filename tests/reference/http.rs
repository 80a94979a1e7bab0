//! The HTTP API, from the description that the daemon serves.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{cell, check, opening, table};
use crate::support::{Daemon, wattune};

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn entries<'v>(value: &'v Value, key: &str) -> impl Iterator<Item = (&'v String, &'v Value)> {
    value.get(key).and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

/// The name of the schema that a reference leads to, as a link to its table.
fn link(reference: &str) -> String {
    let name = reference.rsplit('/').next().unwrap_or_default();
    format!("[{name}](#{})", name.to_lowercase())
}

/// A schema in a few words: `number or null`, `list of` a link.
fn kind(schema: &Value) -> String {
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        return link(reference);
    }
    for key in ["oneOf", "anyOf", "allOf"] {
        if let Some(options) = schema.get(key).and_then(Value::as_array) {
            return options.iter().map(kind).collect::<Vec<_>>().join(" or ");
        }
    }
    if let Some(options) = schema.get("enum").and_then(Value::as_array) {
        let each = options.iter().map(|o| format!("`{}`", o.as_str().map_or_else(|| o.to_string(), str::to_owned)));
        return each.collect::<Vec<_>>().join(", ");
    }
    let one = |name: &str| match (name, text(schema, "format")) {
        ("array", _) => format!("list of {}", schema.get("items").map(kind).unwrap_or_default()),
        ("object", _) => match schema.get("additionalProperties").filter(|inner| inner.is_object()) {
            Some(inner) => format!("map to {}", kind(inner)),
            None => "object".to_owned(),
        },
        ("string", "date-time") => "time".to_owned(),
        (name, _) => name.to_owned(),
    };
    match schema.get("type") {
        Some(Value::String(name)) => one(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(one).collect::<Vec<_>>().join(" or "),
        _ => "anything".to_owned(),
    }
}

/// A field's description with its default and bounds.
fn meaning(schema: &Value) -> String {
    let inner = schema.get("oneOf").and_then(|o| o.get(0)).filter(|_| text(schema, "description").is_empty());
    let mut said = cell(text(inner.unwrap_or(schema), "description"));
    if let Some(default) = schema.get("default").filter(|d| !d.is_null()) {
        said += &format!(" Default: `{default}`.");
    }
    said
}

/// The schema of a body, of whichever type of content it is.
fn body(holder: &Value) -> Option<String> {
    let (content, schema) = entries(holder, "content").next()?;
    let shape = schema.get("schema").map(kind).filter(|shape| shape != "anything");
    Some(match (content.as_str(), shape) {
        ("application/json" | "application/problem+json", Some(shape)) => shape,
        (content, _) => format!("`{content}`"),
    })
}

/// The status in words, for problems that say no more.
fn reason(status: &str) -> &str {
    match status {
        "403" => "Not permitted",
        "404" => "Not found",
        "409" => "In conflict with what is there",
        "422" => "A field or a parameter is wrong",
        "429" => "Too many",
        "503" => "Not available now",
        _ => "Refused",
    }
}

fn operation(method: &str, path: &str, operation: &Value) -> String {
    let mut page = format!("\n### {} {path}\n\n{}\n", method.to_uppercase(), cell(text(operation, "summary")));
    let more = text(operation, "description");
    if !more.is_empty() {
        page += &format!("\n{}\n", cell(more));
    }
    let rows: Vec<_> = operation
        .get("parameters")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|p| {
            let schema = p.get("schema").cloned().unwrap_or_default();
            let place = if text(p, "in") == "path" { "path" } else { "query" };
            vec![format!("`{}`", text(p, "name")), place.to_owned(), kind(&schema), cell(text(p, "description"))]
        })
        .collect();
    if !rows.is_empty() {
        page += &format!("\n{}", table(&["parameter", "in", "type", "meaning"], &rows));
    }
    if let Some(shape) = operation.get("requestBody").and_then(body) {
        page += &format!("\nBody: {shape}\n");
    }
    let answers: Vec<_> = entries(operation, "responses")
        .filter(|(status, _)| *status != "default")
        .map(|(status, answer)| {
            let problem = answer.get("$ref").is_some();
            let shape = if problem { link("Problem") } else { body(answer).unwrap_or_default() };
            let said = if problem { reason(status) } else { text(answer, "description") };
            let said = if said == text(operation, "summary") { "" } else { said };
            vec![status.clone(), shape, cell(said)]
        })
        .collect();
    page += &format!("\n{}", table(&["status", "body", "when"], &answers));
    page
}

fn schema(name: &str, schema: &Value) -> String {
    let mut page = format!("\n### {name}\n\n{}\n", cell(text(schema, "description")));
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let field = |(field, of): (&String, &Value)| {
        let must = if required.contains(&field.as_str()) { "yes" } else { "" };
        vec![format!("`{field}`"), kind(of), must.to_owned(), meaning(of)]
    };
    let rows: Vec<_> = entries(schema, "properties").map(field).collect();
    if rows.is_empty() {
        page += &format!("\n{}\n", kind(schema));
    } else {
        page += &format!("\n{}", table(&["field", "type", "required", "meaning"], &rows));
    }
    page
}

fn rendered(document: &Value) -> String {
    let mut page = opening("Routes and fields", "the OpenAPI document that `GET /openapi.json` answers with");
    page += "\n[HTTP conventions](http-conventions.md) has what is common to all routes. Every other answer is a [Problem](#problem). Required fields of answers are always there.\n";
    let mut groups: BTreeMap<&str, String> = BTreeMap::new();
    for (path, item) in entries(document, "paths") {
        for (method, of) in item.as_object().into_iter().flatten() {
            let tag = of["tags"][0].as_str().unwrap_or_default();
            *groups.entry(tag).or_default() += &operation(method, path, of);
        }
    }
    for tag in document["tags"].as_array().into_iter().flatten() {
        let (name, about) = (text(tag, "name"), text(tag, "description"));
        page += &format!("\n## {}\n\n{}.\n{}", capital(name), cell(about), groups.remove(name).unwrap_or_default());
    }
    assert!(groups.is_empty(), "routes without a group that is described: {:?}", groups.keys());
    page += "\n## Schemas\n";
    for (name, of) in entries(&document["components"], "schemas") {
        page += &schema(name, of);
    }
    page
}

fn capital(name: &str) -> String {
    if name == "gpus" {
        return "GPUs".to_owned();
    }
    let mut letters = name.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_the_api_is_its_description() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("state");
    let mut command = wattune(&["serve", "--gpus", "simulated", "--listen", "127.0.0.1:0", "--state-dir"]);
    command.arg(&state);
    let daemon = Daemon::start(command, dir.path()).await;
    let document = daemon.get("/openapi.json").await.expect(200);
    check("http.md", &rendered(&document));
}
