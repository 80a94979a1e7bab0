//! The configuration, from the annotated file, of which a test of the settings says that it has every key with its default.

use super::{cell, check, opening, table};

/// One table of the file.
struct Section {
    name: String,
    about: String,
    /// Key, meaning, default, example.
    keys: Vec<Vec<String>>,
}

impl Section {
    fn new(name: &str, about: String) -> Self {
        Self { name: name.to_owned(), about, keys: Vec::new() }
    }
}

/// The file's tables in its order, and the comment that it begins with.
fn sections(text: &str) -> (String, Vec<Section>) {
    let (mut opening, mut sections) = (String::new(), vec![Section::new("", String::new())]);
    let mut comment: Vec<&str> = Vec::new();
    for line in text.lines() {
        let key = line.strip_prefix("#: ").map(|key| (key, false)).or_else(|| {
            let key = !line.starts_with(['#', '[', ' ']) && line.contains(" = ");
            key.then_some((line, true))
        });
        if let Some((written, is_default)) = key {
            let (name, value) = written.split_once(" = ").expect("a key and a value");
            let value = format!("`{value}`");
            let (default, example) = if is_default { (value, String::new()) } else { ("none".to_owned(), value) };
            let row = vec![format!("`{name}`"), cell(&comment.join(" ")), default, example];
            sections.last_mut().expect("one").keys.push(row);
            comment.clear();
        } else if let Some(said) = line.strip_prefix('#') {
            comment.push(said.trim());
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            sections.push(Section::new(name, comment.join(" ")));
            comment.clear();
        } else if opening.is_empty() && sections.len() == 1 && sections[0].keys.is_empty() && line.is_empty() {
            opening = comment.join(" ");
            comment.clear();
        }
    }
    (opening, sections)
}

#[test]
fn the_page_of_the_configuration_is_the_annotated_file() {
    let (_, sections) = sections(include_str!("../../config/wattune.toml"));
    let mut text = opening("Configuration", "`config/wattune.toml`, the annotated file of all settings");
    text += "\nThe daemon reads `/etc/wattune/wattune.toml` if it is there, or the file named by `--config` or `WATTUNE_CONFIG`. A file \
             needs only what differs; an unknown key is an error with its line. Flags and `WATTUNE_…` variables win over the file. Powers \
             are in watts, times in seconds, intensities in gCO2e/kWh.\n";
    for section in sections {
        match section.name.as_str() {
            "" => text += "\n## Top level\n",
            name => text += &format!("\n## `[{name}]`\n"),
        }
        if !section.about.is_empty() {
            text += &format!("\n{}\n", cell(&section.about));
        }
        if !section.keys.is_empty() {
            text += "\n";
            text += &table(&["key", "meaning", "default", "example"], &section.keys);
        }
    }
    check("configuration.md", &text);
}
