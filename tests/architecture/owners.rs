//! The controller has owners: its own code connects them in few files, and it holds few parts.

use super::source::{DAEMON, Source};
use super::tokens::{Token, tokens, without_tests};

/// The files that may have code of the controller itself; of `requests/` all may.
const OF_THE_CONTROLLER: [&str; 3] = ["controller/mod.rs", "controller/start.rs", "controller/run.rs"];
const REQUESTS: &str = "controller/requests/";

/// The most parts that the controller holds.
const MOST_FIELDS: usize = 12;

/// Everything that is wrong with a source of the daemon, a line each.
pub(super) fn violations(source: &Source) -> Vec<String> {
    let tokens = without_tests(tokens(&source.text));
    let mut found = Vec::new();
    if !OF_THE_CONTROLLER.contains(&source.path.as_str()) && !source.path.starts_with(REQUESTS) {
        let places = (0..tokens.len()).filter(|place| is_impl_of_the_controller(&tokens, *place));
        let message = "code of Controller belongs into an owner, or into mod.rs, start.rs, run.rs or requests/";
        found.extend(places.map(|place| source.at(tokens[place].line, message)));
    }
    if let Some((line, fields)) = fields(&tokens).filter(|(_, fields)| *fields > MOST_FIELDS) {
        found.push(source.at(line, format_args!("Controller has {fields} fields; {MOST_FIELDS} are enough")));
    }
    found
}

/// Whether an item begins here that implements something for the controller.
fn is_impl_of_the_controller(tokens: &[Token], place: usize) -> bool {
    let begins =
        place.checked_sub(1).is_none_or(|before| ["}", ";", "]", "{", "unsafe"].contains(&text(tokens, before)));
    if text(tokens, place) != "impl" || !begins {
        return false;
    }
    // The type is what stands outside of angle brackets, after `for` where a trait is implemented.
    let (mut depth, mut name) = (0_i32, "");
    for token in &tokens[place + 1..] {
        match token.text.as_str() {
            "{" | "where" if depth == 0 => break,
            "<" => depth += 1,
            ">" => depth -= 1,
            word if depth == 0 => name = word,
            _ => {}
        }
    }
    name == "Controller"
}

/// How many fields the struct `Controller` has, and its line.
fn fields(tokens: &[Token]) -> Option<(usize, usize)> {
    let is_it = |w: &[Token]| w[0].text == "struct" && w[1].text == "Controller" && w[2].text == "{";
    let start = tokens.windows(3).position(is_it)?;
    let (mut depth, mut count) = (0, 0);
    for token in &tokens[start + 2..] {
        match token.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            ":" if depth == 1 => count += 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    Some((tokens[start].line, count))
}

fn text(tokens: &[Token], place: usize) -> &str {
    &tokens[place].text
}

fn found(path: &str, code: &str) -> Vec<String> {
    violations(&Source::new(&DAEMON, path, code))
}

#[test]
fn code_of_the_controller_in_an_owner_is_found() {
    for code in [
        "impl Controller { fn f() {} }",
        "use super::Controller;\n#[allow(x)]\nimpl Controller {}",
        "impl<T> Of<T> for Controller {}",
        "impl super::Controller {}",
        "struct A;\nimpl From<Vec<u8>> for crate::controller::Controller where u8: Copy {}",
        "mod inner { impl super::Controller {} }",
    ] {
        let found = found("controller/cap/view.rs", code);
        assert!(found.len() == 1 && found[0].contains("belongs into an owner"), "{code}: {found:?}");
    }
}

#[test]
fn what_is_no_code_of_the_controller_is_left_alone() {
    for (path, code) in [
        ("controller/requests/end.rs", "impl Controller { fn end() {} }"),
        ("controller/run.rs", "impl Controller {}"),
        ("controller/cap/view.rs", "impl From<Controller> for View {}"),
        ("controller/cap/view.rs", "impl Of<Controller> {}"),
        ("controller/cap/view.rs", "fn f(ask: impl FnOnce(&mut Controller)) {}"),
        ("controller/cap/view.rs", "// impl Controller {}"),
        ("controller/cap/view.rs", "#[cfg(test)]\nmod tests { impl Controller {} }"),
    ] {
        assert_eq!(found(path, code), Vec::<String>::new(), "{code}");
    }
}

#[test]
fn a_controller_of_many_parts_is_found() {
    let of = |count: usize| {
        let fields: String = (0..count).map(|i| format!("f{i}: Arc<dyn Fn(a::B) -> [u8; 3]>, ")).collect();
        found("controller/mod.rs", &format!("//! A file.\npub struct Controller {{ {fields} }}"))
    };
    assert_eq!(of(12), Vec::<String>::new());
    assert_eq!(of(13), ["src/controller/mod.rs:2: Controller has 13 fields; 12 are enough"]);
}
