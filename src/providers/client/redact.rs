//! Secrets that were sent to a source and that no message may show: keys, tokens, passwords, user names.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Minimum length of a text that is hidden, in characters: shorter secrets, and shorter beginnings of secrets, occur in
/// many ordinary words.
const SHORTEST: usize = 6;

/// Maximum number of texts that are kept as secrets; the oldest are dropped, because tokens are renewed.
const MOST: usize = 64;

/// Text that replaces a secret.
const HIDDEN: &str = "…";

#[derive(Default)]
pub(in crate::providers) struct Secrets(Mutex<VecDeque<KnownSecret>>);

#[derive(Clone, PartialEq)]
struct KnownSecret {
    text: Vec<char>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A key or token: a text that holds only its beginning is hidden too.
    Key,
    /// Several words: their beginning alone, which may be an ordinary word, is hidden only where the text was cut off.
    Phrase,
    /// A user name: hidden in external texts only; its beginning alone, only where the text was cut off.
    Name,
    /// A password: like a key, but of 4 characters or more, because people choose short ones.
    Password,
}

impl Kind {
    fn shortest(self) -> usize {
        if self == Self::Password { 4 } else { SHORTEST }
    }
}

/// Shows no secret.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(…)")
    }
}

impl Secrets {
    /// Adds the secrets in a header value: the whole value, the key after the scheme ("Bearer"), and user name and
    /// password for the scheme "Basic".
    pub(in crate::providers) fn learn(&self, value: &str) {
        let value = value.trim();
        let Some((scheme, rest)) = value.split_once(char::is_whitespace) else { return self.add(value, Kind::Key) };
        self.add(value, Kind::Phrase);
        let rest = rest.trim();
        let kind = if rest.contains(char::is_whitespace) { Kind::Phrase } else { Kind::Key };
        self.add(rest, kind);
        self.add(rest.split_whitespace().next_back().unwrap_or_default(), Kind::Key);
        if scheme.eq_ignore_ascii_case("basic")
            && let Some(account) = from_base64(rest)
            && let Some((user, password)) = account.split_once(':')
        {
            self.add(&account, Kind::Phrase);
            self.add(user, Kind::Name);
            self.add(password, Kind::Password);
        }
    }

    fn add(&self, text: &str, kind: Kind) {
        let json = serde_json::to_string(text).unwrap_or_default();
        let json = json.trim_matches('"');
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
        let percent = text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") });
        let percent = percent.collect::<String>();
        let slashes = json.replace('/', "\\/");
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for form in [text, json, &slashes, &percent] {
            let new = KnownSecret { text: form.chars().collect(), kind };
            if new.text.len() < kind.shortest() {
                continue;
            }
            known.retain(|k| k.text != new.text);
            known.push_back(new);
        }
        while known.len() > MOST {
            known.pop_front();
        }
    }

    /// Returns an external text in which secrets, and beginnings of secrets, are replaced.
    pub(in crate::providers) fn without(&self, text: &str) -> String {
        self.replaced(text, true)
    }

    /// Returns a text in which only whole secrets are replaced, because beginnings of secrets may be ordinary words
    /// there.
    pub(in crate::providers) fn without_whole(&self, text: &str) -> String {
        self.replaced(text, false)
    }

    fn replaced(&self, text: &str, cut: bool) -> String {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_empty() {
            return text.to_owned();
        }
        let chars: Vec<char> = text.chars().collect();
        let (mut out, mut rest) = (String::with_capacity(text.len()), chars.as_slice());
        while let Some((first, after)) = rest.split_first() {
            let longest = known.iter().map(|known| known.hides(rest, cut)).max().unwrap_or(0);
            if longest == 0 {
                out.push(*first);
                rest = after;
            } else {
                out.push_str(HIDDEN);
                rest = &rest[longest..];
            }
        }
        out
    }
}

impl KnownSecret {
    /// Returns the number of characters to hide at the start of `text`; `cut` is true if beginnings of secrets are
    /// hidden too.
    fn hides(&self, text: &[char], cut: bool) -> usize {
        let same = self.text.iter().zip(text).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count();
        if same == self.text.len() {
            return if cut || (self.kind != Kind::Name && same >= SHORTEST) { same } else { 0 };
        }
        let at_cut = || {
            let next: String = text[same..].iter().take(3).collect();
            next.is_empty() || next.starts_with(['…', '*']) || next == "..."
        };
        let hidden = cut && same >= SHORTEST && (matches!(self.kind, Kind::Key | Kind::Password) || at_cut());
        if hidden { same } else { 0 }
    }
}

/// Decodes base64 (RFC 4648, both alphabets, with or without padding); `None` if `text` is no base64 of UTF-8 text.
fn from_base64(text: &str) -> Option<String> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0u32, 0u8);
    for letter in text.trim_end_matches('=').bytes() {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).ok()?);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_of_a_secret_is_repeated_is_hidden() {
        let secrets = Secrets::default();
        secrets.learn("SECRET\"KEY/123");
        secrets.learn("Bearer t0ken.of.today");
        secrets.learn("Basic ZnJlZGRvOnRoZV9mcm9nIQ==");
        secrets.learn("2");
        for (text, clean) in [
            ("key SECRET\"KEY/123 is wrong", "key … is wrong"),
            (r#"{"a":"SECRET\"KEY/123"}"#, r#"{"a":"…"}"#),
            (r"SECRET\u0022 or SECRET\", "…u0022 or …"),
            ("key=SECRET%22KEY%2F123", "key=…"),
            ("secret\"ke", "…"),
            ("Bearer t0ken.of.today, t0ken.of.today, t0ken.…", "…, …, ……"),
            ("Basic ZnJlZGRvOnRoZV9mcm9nIQ==; ZnJlZGRvOn", "…; …"),
            ("freddo:the_frog!, freddo and the_frog! 2", "…, … and … 2"),
            ("a bearer of 2 tokens in SECRE", "a bearer of 2 tokens in SECRE"),
        ] {
            assert_eq!(secrets.without(text), clean, "{text}");
        }
        assert_eq!(secrets.without_whole("freddo, SECRET and t0ken.of.today"), "freddo, SECRET and …");
        assert!(!format!("{secrets:?}").contains("SECRET"));
        assert_eq!(from_base64("no base64"), None);
    }
}
