//! The command line, from clap's tree of commands.

use clap::{Arg, Command, CommandFactory};

use super::{cell, check, opening, table};

fn described(long: Option<&clap::builder::StyledStr>, short: Option<&clap::builder::StyledStr>) -> String {
    long.or(short).map(ToString::to_string).unwrap_or_default()
}

/// `--zone <ZONE>`, `-h` or `[FILTER]`.
fn name(arg: &Arg) -> String {
    let values =
        arg.get_value_names().unwrap_or_default().iter().map(|v| format!("<{v}>")).collect::<Vec<_>>().join(" ");
    let takes = arg.get_action().takes_values();
    match arg.get_long() {
        Some(long) if takes && arg.is_require_equals_set() => format!("`--{long}[={values}]`"),
        Some(long) if takes => format!("`--{long} {values}`"),
        Some(long) => format!("`--{long}`"),
        None => format!("`{values}`"),
    }
}

fn meaning(arg: &Arg) -> String {
    let mut text = described(arg.get_long_help(), arg.get_help());
    if !text.ends_with(['.', ']']) {
        text.push('.');
    }
    let values = arg.get_possible_values();
    if arg.get_action().takes_values() && !values.is_empty() && !arg.is_hide_possible_values_set() {
        let each = values.iter().filter(|v| !v.is_hide_set()).map(|v| match v.get_help() {
            Some(help) => format!("`{}`: {help}", v.get_name()),
            None => format!("`{}`", v.get_name()),
        });
        text += &format!(" One of {}.", each.collect::<Vec<_>>().join("; "));
    }
    if arg.is_required_set() {
        text += " Required.";
    }
    cell(&text)
}

fn row(arg: &Arg) -> Vec<String> {
    let default = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect::<Vec<_>>().join(",");
    let shown = arg.get_action().takes_values() && !default.is_empty();
    let default = if shown { format!("`{default}`") } else { String::new() };
    let variable = arg.get_env().map(|v| format!("`{}`", v.to_string_lossy())).unwrap_or_default();
    vec![name(arg), meaning(arg), default, variable]
}

fn describe(command: &Command, called: &str, into: &mut String) {
    let about = described(command.get_long_about(), command.get_about());
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace("\n       ", "\n");
    *into += &format!("\n## {called}\n\n{about}\n\n```text\n{usage}\n```\n");
    let shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let rows: Vec<_> = command.get_arguments().filter(shown).map(row).collect();
    if !rows.is_empty() {
        *into += "\n";
        *into += &table(&["argument", "meaning", "default", "variable"], &rows);
    }
    for inner in command.get_subcommands().filter(|c| c.get_name() != "help" && !c.is_hide_set()) {
        describe(inner, &format!("{called} {}", inner.get_name()), into);
    }
}

#[test]
fn the_page_of_the_command_line_is_what_clap_knows() {
    let mut command = wattune::cli::Cli::command();
    command.build();
    let mut text = opening("Command line", "the definitions of the commands in `src/cli`");
    text += "\n[Commands](commands.md) has the overview and the exit codes. All commands take `--help`.\n";
    describe(&command, "wattune", &mut text);
    check("cli.md", &text);
}
