//! `wattune carbon zones`: the zones of each source.

use crate::cli::output::Exit;
use crate::cli::settings::ShowFlags;
use crate::clock::{Clock, SystemClock};
use crate::providers::{self, SourceZones};

/// Lists the zones of each source, in the form in which the setting carbon.zone accepts them.
///
/// Sources that need a key are queried if the settings have the key; the zones of all other sources are built in.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only zones whose code or name contains this text.
    filter: Option<String>,
    #[command(flatten)]
    show: ShowFlags,
}

/// Prints the zones.
pub(super) async fn run(args: Args) -> anyhow::Result<Exit> {
    let settings = args.show.overrides.settings()?;
    let now = SystemClock::start().utc();
    let mut all = providers::zones(&settings.carbon, Some(&settings.state_dir()), now).await;
    if let Some(filter) = args.filter.as_ref().map(|f| f.to_lowercase()) {
        for source in &mut all {
            source.zones.retain(|z| format!("{} {}", z.code, z.name).to_lowercase().contains(&filter));
        }
    }
    let nothing = args.filter.as_ref().filter(|_| all.iter().all(|source| source.zones.is_empty()));
    let nothing = nothing.map(|filter| format!("No zone matches {filter:?}.\n")).unwrap_or_default();
    args.show.format.print(&all, || table(&all) + &nothing).map(|()| Exit::Done)
}

fn table(all: &[SourceZones]) -> String {
    let mut table = String::new();
    for source in all {
        table += &format!("{} ({})\n", source.source, source.what);
        for zone in &source.zones {
            table += &format!("  {:<20} {}\n", zone.code, zone.name);
        }
        if let Some(problem) = &source.problem {
            table += &format!("  {problem}\n");
        }
    }
    table + "Coordinates (52.52,13.40) work with every networked source.\n"
}
