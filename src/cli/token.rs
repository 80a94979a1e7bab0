//! `wattune token`: issues, inspects and revokes access tokens.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context, bail};
use chrono::DateTime;
use clap::Subcommand;

use super::ask;
use super::output::{Exit, deliver, say};
use super::settings::Overrides;
use super::values;
use crate::clock::{Clock as _, SystemClock};
use crate::http::{Claims, Scope, TokenError, TokenKeys};
use wattune_core::units::Seconds;

/// Issues, inspects and revokes access tokens, which programs send to the daemon over TCP.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Issues a token, and prints it.
    Issue(IssueArgs),
    /// Shows what a token grants and whether the daemon accepts it. The exit code is 1 if it does not.
    Inspect(InspectArgs),
    /// Revokes a token: daemons with this key refuse it from now on, without a restart.
    ///
    /// Adds the token's id to the list beside the key, such as token.key.revoked.
    Revoke(RevokeArgs),
}

#[derive(Debug, clap::Args)]
struct IssueArgs {
    /// The user or program that gets the token, 1 to 200 characters. Jobs that are registered with a token belong to
    /// this name.
    #[arg(long, value_name = "NAME", value_parser = user_name)]
    user: String,
    /// Scopes of the token, separated by commas: gpu-read, gpu-control, cpu-read, jobs, admin. Without scopes, the
    /// token only names its user.
    #[arg(long, value_name = "SCOPES", value_delimiter = ',')]
    scope: Vec<Scope>,
    /// The time after which the token expires, such as 8h or 30d; `never` for a token that does not expire.
    #[arg(long, value_name = "DURATION", value_parser = expiry)]
    expires: Expiry,
    #[command(flatten)]
    keys: KeyArgs,
}

#[derive(Debug, clap::Args)]
struct InspectArgs {
    /// The token; `-` reads it from standard input [default: WATTUNE_TOKEN, else the file WATTUNE_TOKEN_FILE].
    token: Option<String>,
    #[command(flatten)]
    keys: KeyArgs,
}

#[derive(Debug, clap::Args)]
struct RevokeArgs {
    /// The token; `-` reads it from standard input.
    #[arg(required_unless_present = "id")]
    token: Option<String>,
    /// The token's id, in place of the token: `wattune token issue` and `inspect` print it.
    #[arg(long, value_name = "ID", conflicts_with = "token")]
    id: Option<String>,
    #[command(flatten)]
    keys: KeyArgs,
}

#[derive(Debug, clap::Args)]
struct KeyArgs {
    /// The file with the key [default: those of http.token_keys; the first one signs].
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    #[command(flatten)]
    overrides: Overrides,
}

impl KeyArgs {
    fn load(&self) -> anyhow::Result<TokenKeys> {
        let paths = match &self.key {
            Some(path) => vec![std::path::absolute(path)?],
            None => self.overrides.settings()?.http.token_keys,
        };
        if paths.is_empty() {
            bail!(
                "there is no key: set http.token_keys, or give a file with --key (`openssl rand -base64 48 > FILE` makes one)"
            );
        }
        let keys = TokenKeys::load(&paths)?;
        keys.describe_missing().for_each(|missing| say("token", &missing));
        Ok(keys)
    }
}

/// The life of a token; `None` if it does not expire.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Expiry(Option<Seconds>);

fn expiry(text: &str) -> Result<Expiry, String> {
    match text.trim().to_ascii_lowercase().as_str() {
        "never" => Ok(Expiry(None)),
        text => match values::duration(text) {
            Ok(life) if life >= Seconds::new(1.0) => Ok(Expiry(Some(life))),
            _ => Err("give a duration like 8h, 30d or 1d12h, or `never`".into()),
        },
    }
}

/// Returns true if the text has the form of an id of one of wattune's own tokens: 32 hexadecimal digits.
fn is_own_id(id: &str) -> bool {
    id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the ids that a user may mean by this one. Those of wattune's own tokens are in lower case; another program
/// with the same key may write such ids in capitals.
fn ids_meant_by(id: &str) -> Vec<String> {
    let lower = id.to_ascii_lowercase();
    let is_in_capitals = is_own_id(id) && lower != id;
    std::iter::once(id.to_owned()).chain(is_in_capitals.then_some(lower)).collect()
}

fn user_name(text: &str) -> Result<String, String> {
    let is_name = (1..=200).contains(&text.trim().chars().count()) && !text.contains(char::is_control);
    is_name.then(|| text.to_owned()).ok_or_else(|| "give a name of 1 to 200 characters on one line".into())
}

/// Runs the command.
pub(super) fn run(args: Args) -> anyhow::Result<Exit> {
    match args.command {
        Command::Issue(args) => issue(args),
        Command::Inspect(args) => inspect(args),
        Command::Revoke(args) => revoke(args),
    }
}

fn issue(args: IssueArgs) -> anyhow::Result<Exit> {
    let now = SystemClock::start().utc();
    let exp = args.expires.0.map(|life| u64::try_from((now + life.to_delta()).timestamp())).transpose()?;
    let keys = args.keys.load()?;
    let token = keys.issue(&Claims { sub: args.user, scopes: args.scope, exp })?;
    deliver(format!("{token}\n").as_bytes(), None)?;
    if let Some(id) = keys.examine(&token)?.id {
        say("token", &format!("the token's id is {id}; `wattune token revoke --id {id}` revokes the token"));
    }
    Ok(Exit::Done)
}

/// Returns a token that was given as an argument; `-` stands for standard input.
fn given(token: &str) -> anyhow::Result<String> {
    if token != "-" {
        return Ok(token.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().take(64 << 10).read_to_string(&mut text).context("cannot read standard input")?;
    Ok(text)
}

fn revoke(args: RevokeArgs) -> anyhow::Result<Exit> {
    let keys = args.keys.load()?;
    let (ids, is_foreign) = match (args.id.as_deref().map(str::trim), args.token) {
        (Some(id), _) => (ids_meant_by(id), !is_own_id(id)),
        (None, Some(token)) => {
            let found = keys.examine(given(&token)?.trim()).context("no key of this daemon has signed the token")?;
            let key = found.key.display();
            let id = found.id.with_context(|| {
                format!("the token has no id, since another program issued it; replace its key {key} to revoke it")
            })?;
            (vec![id], false)
        }
        (None, None) => bail!("give a token, `-`, or --id"),
    };
    let mut lists: Vec<String> = Vec::new();
    for id in &ids {
        lists = keys.revoke(id)?.into_iter().map(|list| list.display().to_string()).collect();
    }
    if is_foreign {
        say("token", "added; wattune's own tokens never have such an id");
    }
    deliver(format!("revoked  {}\nlist     {}\n", ids.join(", "), lists.join(", ")).as_bytes(), None)?;
    Ok(Exit::Done)
}

fn inspect(args: InspectArgs) -> anyhow::Result<Exit> {
    let keys = args.keys.load()?;
    let token = match args.token.as_deref() {
        Some(token) => given(token)?,
        None => ask::token()?.context("give a token, `-`, or WATTUNE_TOKEN")?,
    };
    let (text, exit) = match keys.examine(token.trim()) {
        Ok(found) => {
            let Claims { sub, scopes, exp } = found.claims;
            let scopes: Vec<&str> = scopes.iter().map(|scope| scope.as_str()).collect();
            let expiry = exp.map(|at| i64::try_from(at).ok().and_then(|at| DateTime::from_timestamp(at, 0)));
            let expires =
                expiry.map(|at| at.map_or("after the year 9999".into(), |at| at.format("%FT%TZ").to_string()));
            let is_past = expiry.flatten().is_some_and(|at| at <= SystemClock::start().utc());
            let accepted =
                if is_past { "expired, and still accepted for up to a minute, as clocks may differ" } else { "valid" };
            let text = format!(
                "user     {sub}\nscopes   {}\nexpires  {}\nkey      {}\nid       {}\nstate    {}\n",
                scopes.join(", "),
                expires.unwrap_or_else(|| "never".into()),
                found.key.display(),
                found.id.as_deref().unwrap_or("none"),
                found.refused.as_ref().map_or_else(|| accepted.into(), state)
            );
            (text, if found.refused.is_some() { Exit::Failed } else { Exit::Done })
        }
        Err(error) => (format!("state    {}\n", state(&error)), Exit::Failed),
    };
    deliver(text.as_bytes(), None)?;
    Ok(exit)
}

/// Describes the state of a token that is not accepted.
fn state(refused: &TokenError) -> String {
    match refused {
        TokenError::Expired => "expired".into(),
        TokenError::Invalid(why) => format!("invalid: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_line() {
        for name in ["ada", "CI of the lab", "Ådne"] {
            assert_eq!(user_name(name), Ok(name.to_owned()));
        }
        for wrong in ["", " ", "ada\nroot", &"a".repeat(201)] {
            assert!(user_name(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn own_ids_have_32_hexadecimal_digits_in_lower_case() {
        let id = "00112233445566778899aabbccddeeff";
        let capitals = id.to_uppercase();
        assert_eq!((is_own_id(id), ids_meant_by(id)), (true, vec![id.to_owned()]));
        assert_eq!((is_own_id(&capitals), ids_meant_by(&capitals)), (true, vec![capitals.clone(), id.to_owned()]));
        for other in ["", "Ada-7", &id[1..], &format!("{id}0"), "0011223344556677-8899aabbccddeef", &"é".repeat(16)] {
            assert_eq!((is_own_id(other), ids_meant_by(other)), (false, vec![other.to_owned()]));
        }
    }

    #[test]
    fn expiries_are_durations_or_never() {
        for (text, life) in [("never", None), (" Never ", None), ("30d", Some(2_592_000.0)), ("1h", Some(3600.0))] {
            assert_eq!(expiry(text), Ok(Expiry(life.map(Seconds::new))), "{text}");
        }
        // Zero is no word for a token that does not expire: it stands for a duration that is over at once.
        for wrong in ["", "soon", "0", "0s", "0d", "-1h", "0.5"] {
            assert!(expiry(wrong).is_err_and(|why| why.contains("`never`")), "{wrong}");
        }
    }
}
