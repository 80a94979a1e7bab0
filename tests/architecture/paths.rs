//! The paths of a source file, with groups taken apart and `self` and `super` followed.

use std::collections::BTreeSet;

use super::tokens::{Token, tokens};

/// A path such as `["crate", "units", "Watts"]`; a glob ends with `*`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Named {
    pub(super) names: Vec<String>,
    pub(super) line: usize,
    /// Its name in the file where a `use` gives it one.
    pub(super) import: Option<Import>,
}

/// The name that a `use` gives to a path.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Import {
    /// `*` for all names of a module, `_` for none.
    pub(super) name: String,
    /// Whether others can see it: `pub use`, `pub(crate) use`.
    pub(super) is_re_export: bool,
}

/// What a file names.
#[derive(Debug, Default)]
pub(super) struct Paths {
    /// All imports, and all other paths of at least two names.
    pub(super) named: Vec<Named>,
    /// Words outside of `use` that may be names from an import: fields, methods and later parts of paths are not.
    pub(super) words: BTreeSet<String>,
    /// Items of the file itself.
    pub(super) defined: BTreeSet<String>,
}

/// Words before the name of an item.
const ITEMS: [&str; 9] = ["const", "enum", "fn", "mod", "static", "struct", "trait", "type", "union"];

impl Paths {
    /// Reads the tokens of the file that is `module`.
    pub(super) fn of(tokens: &[Token], module: &[&str]) -> Self {
        let mut paths = Self::default();
        // Inline modules that are open, with the depth of braces at which each ends.
        let (mut depth, mut inline): (usize, Vec<(&str, usize)>) = (0, Vec::new());
        let text = |i: usize| tokens.get(i).map_or("", |t| t.text.as_str());
        let mut i = 0;
        while i < tokens.len() {
            let here: Vec<&str> = module.iter().copied().chain(inline.iter().map(|(name, _)| *name)).collect();
            let before = if i == 0 { "" } else { text(i - 1) };
            match text(i) {
                "use" => {
                    let is_re_export = before == "pub" || is_restricted_pub(&tokens[..i]);
                    let start = i + if text(i + 1) == "::" { 2 } else { 1 };
                    let mut tree = Tree { tokens, here: &here, is_re_export, found: &mut paths.named };
                    i = tree.read(start, &[]);
                    continue;
                }
                "mod" if text(i + 2) == "{" => {
                    depth += 1;
                    inline.push((text(i + 1), depth));
                    i += 3;
                    continue;
                }
                // A restricted visibility names who may see an item, and depends on nobody.
                "in" if before == "(" && text(i.wrapping_sub(2)) == "pub" => {
                    i = path(tokens, i + 1).1;
                    continue;
                }
                "{" => depth += 1,
                "}" => {
                    inline.retain(|(_, at)| *at != depth);
                    depth = depth.saturating_sub(1);
                }
                word if tokens[i].is_name() => {
                    if ITEMS.contains(&before) {
                        paths.defined.insert(word.to_owned());
                    } else if ![".", "::"].contains(&before) && !ITEMS.contains(&word) && word != "pub" {
                        paths.words.insert(word.to_owned());
                    }
                    if text(i + 1) == "::" {
                        let (names, end) = path(tokens, i);
                        let names = resolve(names, &here);
                        paths.named.push(Named { names, line: tokens[i].line, import: None });
                        i = end;
                        continue;
                    }
                }
                _ => {}
            }
            i += 1;
        }
        paths
    }
}

/// Whether tokens end with `pub(…)`.
fn is_restricted_pub(before: &[Token]) -> bool {
    let open = before.iter().rposition(|t| t.text == "(");
    let closes = before.last().is_some_and(|t| t.text == ")");
    closes && open.is_some_and(|open| open > 0 && before[open - 1].text == "pub")
}

/// The names of the path that starts at a token, and the place after it.
fn path(tokens: &[Token], start: usize) -> (Vec<String>, usize) {
    let (mut names, mut i) = (vec![tokens[start].text.clone()], start + 1);
    while tokens.get(i).is_some_and(|t| t.text == "::") && tokens.get(i + 1).is_some_and(Token::is_name) {
        names.push(tokens[i + 1].text.clone());
        i += 2;
    }
    (names, i)
}

/// The tree of one `use`.
struct Tree<'a> {
    tokens: &'a [Token],
    here: &'a [&'a str],
    is_re_export: bool,
    found: &'a mut Vec<Named>,
}

impl Tree<'_> {
    /// Reads one branch, whose first names are `before`. Returns the place after it.
    fn read(&mut self, start: usize, before: &[String]) -> usize {
        let (mut names, mut i) = (before.to_vec(), start);
        loop {
            match self.text(i) {
                "{" => {
                    i += 1;
                    while !["}", ""].contains(&self.text(i)) {
                        i = if self.text(i) == "," { i + 1 } else { self.read(i, &names) };
                    }
                    return i + 1;
                }
                "" | ";" | "}" => return i + 1,
                name => names.push(name.to_owned()),
            }
            i += 1;
            if self.text(i) != "::" {
                break;
            }
            i += 1;
        }
        // `a::{self}` is `a`.
        if names.len() > 1 && names.last().is_some_and(|n| n == "self") {
            names.pop();
        }
        let mut name = names.last().cloned().unwrap_or_default();
        if self.text(i) == "as" {
            name = self.text(i + 1).to_owned();
            i += 2;
        }
        let line = self.tokens.get(start).map_or(0, |t| t.line);
        let import = Some(Import { name, is_re_export: self.is_re_export });
        self.found.push(Named { names: resolve(names, self.here), line, import });
        i
    }

    fn text(&self, i: usize) -> &str {
        self.tokens.get(i).map_or("", |t| t.text.as_str())
    }
}

/// Follows `self` and `super` from the module `here`.
fn resolve(names: Vec<String>, here: &[&str]) -> Vec<String> {
    let ups = names.iter().take_while(|n| ["self", "super"].contains(&n.as_str())).count();
    if ups == 0 {
        return names;
    }
    let supers = names[..ups].iter().filter(|n| *n == "super").count();
    let base = &here[..here.len().saturating_sub(supers)];
    let rest = &names[ups..];
    std::iter::once("crate".to_owned())
        .chain(base.iter().map(|b| (*b).to_owned()).chain(rest.iter().cloned()))
        .collect()
}

fn read(code: &str) -> Paths {
    Paths::of(&tokens(code), &["plan", "dual"])
}

/// The imports as `path as name`, re-exports with a `+`; other paths as they are.
fn named(code: &str) -> Vec<String> {
    let show = |n: &Named| match &n.import {
        None => n.names.join("::"),
        Some(Import { name, is_re_export }) => {
            format!("{}{} as {name}", if *is_re_export { "+" } else { "" }, n.names.join("::"))
        }
    };
    read(code).named.iter().map(show).collect()
}

#[test]
fn groups_are_taken_apart_and_self_and_super_are_followed() {
    let table: [(&str, &[&str]); 9] = [
        ("use super::problem::Problem;", &["crate::plan::problem::Problem as Problem"]),
        (
            "use crate::{units::Watts, a::{b, c as d, *}};",
            &["crate::units::Watts as Watts", "crate::a::b as b", "crate::a::c as d", "crate::a::* as *"],
        ),
        ("use self::inner::{self, X};", &["crate::plan::dual::inner as inner", "crate::plan::dual::inner::X as X"]),
        ("pub use a::b; pub(crate) use c; pub(in crate::plan) use d as e;", &["+a::b as b", "+c as c", "+d as e"]),
        ("fn f() { super::super::store::open() }", &["crate::store::open"]),
        ("mod inner { use super::X; } use super::Y;", &["crate::plan::dual::X as X", "crate::plan::Y as Y"]),
        ("use ::tokio::time as t; use crate as house;", &["tokio::time as t", "crate as house"]),
        ("fn f(x: &dyn ::tokio::Read) -> Vec::<crate::a::B> {}", &["tokio::Read", "Vec", "crate::a::B"]),
        ("use a::T as _;", &["a::T as _"]),
    ];
    for (code, expected) in table {
        assert_eq!(named(code), expected, "{code}");
    }
}

#[test]
fn words_and_items_are_reported_apart() {
    let paths = read("pub use a::next; mod next; fn f(x: Y) { x.next(); Z::next(); call(Q) }");
    let words: Vec<&str> = paths.words.iter().map(String::as_str).collect();
    assert_eq!(words, ["Q", "Y", "Z", "call", "x"]);
    assert_eq!(paths.defined.iter().map(String::as_str).collect::<Vec<_>>(), ["f", "next"]);
}
