//! `WATTUNE_…` variables that no setting uses: probably typing errors.

use std::collections::BTreeSet;

use clap::CommandFactory;

use super::Cli;
use wattune_core::domain::nearest;

const PREFIX: &str = "WATTUNE_";

/// Variables with wattune's prefix that wattune does not use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OddVariables {
    /// Variables that resemble one of wattune's, with that one.
    pub(super) mistyped: Vec<(String, String)>,
    /// The others.
    pub(super) unknown: Vec<String>,
}

impl OddVariables {
    /// Returns those of this process that are not empty.
    pub(super) fn present() -> Self {
        let set = std::env::vars_os().filter(|(_, value)| !value.is_empty());
        Self::among(set.filter_map(|(name, _)| name.into_string().ok()), &known())
    }

    fn among(names: impl Iterator<Item = String>, known: &BTreeSet<String>) -> Self {
        let mut odd = Self::default();
        for name in names.filter(|name| !known.contains(name)) {
            let upper = name.to_uppercase();
            match upper.strip_prefix(PREFIX) {
                // Kubernetes sets these in each pod of a service called wattune.
                Some(rest) if rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_") => {}
                Some(rest) => match nearest(rest, known.iter().filter_map(|name| name.strip_prefix(PREFIX))) {
                    Some(meant) => odd.mistyped.push((name, format!("{PREFIX}{meant}"))),
                    None => odd.unknown.push(name),
                },
                // A misspelt prefix is found only if the rest is correct.
                None => {
                    let parts = upper.split_once('_').filter(|(prefix, _)| nearest(prefix, ["WATTUNE"]).is_some());
                    let meant = parts.map(|(_, rest)| format!("{PREFIX}{rest}")).filter(|name| known.contains(name));
                    odd.mistyped.extend(meant.map(|meant| (name, meant)));
                }
            }
        }
        odd
    }

    /// # Errors
    /// The first misspelt variable: without the intended setting, the command would do something else.
    pub(super) fn refuse_mistyped(&self) -> anyhow::Result<()> {
        match self.mistyped.first() {
            Some((name, meant)) => anyhow::bail!("{name} is not a variable of wattune; did you mean {meant}?"),
            None => Ok(()),
        }
    }

    /// Describes the others in one sentence, if there are any.
    pub(super) fn describe_unknown(&self) -> Option<String> {
        let known = || known().into_iter().collect::<Vec<_>>().join(", ");
        (!self.unknown.is_empty())
            .then(|| format!("{} is set but unused; wattune's variables are {}", self.unknown.join(", "), known()))
    }
}

/// Returns the variables of all commands.
fn known() -> BTreeSet<String> {
    fn collect(command: &clap::Command, into: &mut BTreeSet<String>) {
        let names = command.get_arguments().filter_map(|a| a.get_env()?.to_str());
        into.extend(names.map(str::to_owned));
        command.get_subcommands().for_each(|sub| collect(sub, into));
    }
    let mut names = BTreeSet::new();
    collect(&Cli::command(), &mut names);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_and_unknown_variables_are_found() {
        let known = known();
        assert!(known.contains("WATTUNE_ZONE") && known.contains("WATTUNE_CONFIG"), "{known:?}");
        let among = |names: &[&str]| OddVariables::among(names.iter().map(|n| (*n).to_owned()), &known);
        for (name, meant) in [
            ("WATTUNE_ZNOE", "WATTUNE_ZONE"),
            ("wattune_zone", "WATTUNE_ZONE"),
            ("WATTUEN_ZONE", "WATTUNE_ZONE"),
            ("WATTUNE_STATEDIR", "WATTUNE_STATE_DIR"),
            ("WATTUNE_CARBONFILE", "WATTUNE_CARBON_FILE"),
            ("WATTUNE_OBSERVED", "WATTUNE_OBSERVE"),
            ("WATTUNE_GPU", "WATTUNE_GPUS"),
        ] {
            assert_eq!(among(&[name]).mistyped, [(name.to_owned(), meant.to_owned())], "{name}");
        }
        let fine = ["WATTUNE_ZONE", "HOME", "WATTTIME_USERNAME", "WATTAGE", "WATTUNE_PORT", "WATTUNE_SERVICE_HOST"];
        assert_eq!(among(&fine), OddVariables::default());
        assert_eq!(among(&["WATTUNE_FAVOURITE_COLOUR"]).unknown, ["WATTUNE_FAVOURITE_COLOUR"]);
    }
}
