//! Circles between the files of one room: files that depend on each other cannot be read, tested or moved alone.
//!
//! A `mod.rs` that only declares and re-exports depends on nobody; one whose code names its children depends on them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::source::{CORE, LAB, Source};
use super::uses::{Files, Module, Use};

/// Who uses whom in a room.
type Graph<'g> = BTreeMap<&'g Module, BTreeMap<&'g Module, Use>>;

/// A message for each strongly connected component of the room's files, with the shortest circle in it.
pub(super) fn circles(files: &Files<'_>, room: &str) -> Vec<String> {
    let graph: Graph<'_> = files.of_room(room).map(|module| (module, files.uses(module))).collect();
    let mut shortest: BTreeMap<BTreeSet<&Module>, Vec<&Module>> = BTreeMap::new();
    for module in graph.keys() {
        let Some(circle) = circle_through(&graph, module) else { continue };
        let component = graph.keys().filter(|other| reaches(&graph, module, other) && reaches(&graph, other, module));
        let known = shortest.entry(component.copied().collect()).or_insert_with(|| circle.clone());
        if circle.len() < known.len() {
            *known = circle;
        }
    }
    shortest.iter().map(|(component, circle)| describe(files, &graph, component.len(), circle)).collect()
}

fn describe(files: &Files<'_>, graph: &Graph<'_>, component: usize, circle: &[&Module]) -> String {
    let next = circle.iter().skip(1).chain(circle.first());
    let step = |(from, to): (&&Module, &&Module)| {
        let Use { path, line } = &graph[*from][*to];
        format!("{}:{line} uses {path} of {}", files.source(from).path, files.source(to).path)
    };
    let steps: Vec<String> = circle.iter().zip(next).map(step).collect();
    let more = match component - circle.len() {
        0 => String::new(),
        _ => format!("; in all {component} files depend on each other"),
    };
    let line = graph[circle[0]][circle[1]].line;
    files.source(circle[0]).at(line, format_args!("a circle: {}{more}", steps.join(", ")))
}

/// The shortest way from a file back to itself.
fn circle_through<'g>(graph: &Graph<'g>, start: &'g Module) -> Option<Vec<&'g Module>> {
    let mut before: BTreeMap<&Module, &Module> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for next in graph[at].keys().copied() {
            if next == start {
                let mut way = vec![at];
                while let Some(last) = way.last().filter(|last| **last != start) {
                    way.push(before[*last]);
                }
                way.reverse();
                return Some(way);
            }
            if !before.contains_key(next) {
                before.insert(next, at);
                queue.push_back(next);
            }
        }
    }
    None
}

/// Whether a file depends on another, directly or through others.
fn reaches(graph: &Graph<'_>, from: &Module, to: &Module) -> bool {
    let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(at) = open.pop() {
        if at == to {
            return true;
        }
        open.extend(graph[at].keys().copied().filter(|next| seen.insert(next)));
    }
    false
}

/// Files with their code.
type Written = &'static [(&'static str, &'static str)];

/// The circles in the room `plan` of a core with these files, without the place of each message.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let sources: Vec<Source> = files.iter().map(|(path, code)| Source::new(&CORE, path, code)).collect();
    let circles = circles(&Files::of(&sources), "plan");
    circles.iter().map(|c| c.split_once(" a circle: ").expect("a message").1.to_owned()).collect()
}

#[test]
fn circles_are_found() {
    const MOD: (&str, &str) = ("plan/mod.rs", "mod a; mod b; pub use a::A; pub(crate) use b::B;");
    let table: [(&str, Written, &str); 11] = [
        (
            "direct",
            &[("plan/a.rs", "use super::b::B; pub struct A;"), ("plan/b.rs", "\npub struct B; use super::a::A;")],
            "plan/a.rs:1 uses crate::plan::b::B of plan/b.rs, plan/b.rs:2 uses crate::plan::a::A of plan/a.rs",
        ),
        (
            "via a re-export",
            &[MOD, ("plan/a.rs", "use super::B; pub struct A;"), ("plan/b.rs", "fn f(a: crate::plan::A) {}")],
            "plan/a.rs:1 uses crate::plan::B of plan/b.rs, plan/b.rs:1 uses crate::plan::A of plan/a.rs",
        ),
        (
            "via a re-export of everything",
            &[
                ("plan/mod.rs", "mod a; mod c; pub use c::*;"),
                ("plan/c/mod.rs", "mod b; pub use self::b::B;"),
                ("plan/a.rs", "pub struct A(super::B);"),
                ("plan/c/b.rs", "use crate::plan::{a::A}; pub struct B;"),
            ],
            "plan/a.rs:1 uses crate::plan::B of plan/c/b.rs, plan/c/b.rs:1 uses crate::plan::a::A of plan/a.rs",
        ),
        (
            "parent and child",
            &[("plan/mod.rs", "mod a; pub struct P; fn f() { a::g() }"), ("plan/a.rs", "use super::P; pub fn g() {}")],
            "plan/mod.rs:1 uses a::g of plan/a.rs, plan/a.rs:1 uses crate::plan::P of plan/mod.rs",
        ),
        (
            "a re-export that is used too",
            &[("plan/mod.rs", "mod a; pub use a::g; pub fn f() { g() }"), ("plan/a.rs", "pub fn g() { super::f() }")],
            "plan/mod.rs:1 uses a::g of plan/a.rs, plan/a.rs:1 uses crate::plan::f of plan/mod.rs",
        ),
        (
            "by other names",
            &[
                ("plan/mod.rs", "mod a; mod b; pub use b::B as Bee;"),
                ("plan/a.rs", "use super::Bee as Second; pub struct A;"),
                ("plan/b.rs", "use super::a as first; pub struct B(first::A);"),
            ],
            "plan/a.rs:1 uses crate::plan::Bee of plan/b.rs, plan/b.rs:1 uses crate::plan::a of plan/a.rs",
        ),
        (
            "by all names of a module",
            &[MOD, ("plan/a.rs", "use super::*; pub struct A(B);"), ("plan/b.rs", "use super::a::*; pub struct B(A);")],
            "plan/a.rs:1 uses plan::B of plan/b.rs, plan/b.rs:1 uses plan::a::A of plan/a.rs",
        ),
        (
            "from an inline module",
            &[
                ("plan/a.rs", "mod inner { use super::super::b::B; } pub struct A;"),
                ("plan/b.rs", "use super::a::A; pub struct B;"),
            ],
            "plan/a.rs:1 uses crate::plan::b::B of plan/b.rs, plan/b.rs:1 uses crate::plan::a::A of plan/a.rs",
        ),
        (
            "through the parent of one",
            &[
                ("plan/a.rs", "mod deep; pub struct A; fn f(x: deep::D) {}"),
                ("plan/a/deep.rs", "use crate::plan::a::A; pub struct D;"),
            ],
            "plan/a.rs:1 uses deep::D of plan/a/deep.rs, plan/a/deep.rs:1 uses crate::plan::a::A of plan/a.rs",
        ),
        (
            "by all names of a module that are re-exported too",
            &[
                ("plan/mod.rs", "mod a; pub use a::*; pub fn f() -> A { A }"),
                ("plan/a.rs", "pub struct A; fn g() { super::f() }"),
            ],
            "plan/mod.rs:1 uses plan::a::A of plan/a.rs, plan/a.rs:1 uses crate::plan::f of plan/mod.rs",
        ),
        (
            "the shortest of several",
            &[
                ("plan/a.rs", "use super::b::B; pub struct A;"),
                ("plan/b.rs", "use super::{a::A, c::C}; pub struct B;"),
                ("plan/c.rs", "use super::a::A; pub struct C;"),
            ],
            "plan/a.rs:1 uses crate::plan::b::B of plan/b.rs, plan/b.rs:1 uses crate::plan::a::A of plan/a.rs; \
             in all 3 files depend on each other",
        ),
    ];
    for (name, files, expected) in table {
        assert_eq!(found(files), [expected], "{name}");
    }
}

#[test]
fn no_circle_is_made_up() {
    let table: [(&str, Written); 8] = [
        (
            "a restricted visibility",
            &[("plan/mod.rs", "mod a; pub fn f() { a::g() }"), ("plan/a.rs", "pub(in crate::plan) fn g() {}")],
        ),
        (
            "a mod.rs that only re-exports",
            &[
                ("plan/mod.rs", "mod a; mod b; pub use a::A; pub use b::{B, next};"),
                ("plan/a.rs", "pub struct A;"),
                ("plan/b.rs", "use super::A; pub struct B(crate::plan::A);"),
            ],
        ),
        (
            "a method of a re-export's name",
            &[
                ("plan/mod.rs", "mod a; pub use a::next; pub fn f(x: I) { x.next(); I::next(); }"),
                ("plan/a.rs", "use super::f;"),
            ],
        ),
        (
            "test modules",
            &[
                ("plan/a.rs", "pub struct A; #[cfg(test)] mod tests { use super::super::b::B; }"),
                ("plan/b.rs", "use super::a::A; #[cfg(test)] use super::tests::x;"),
                ("plan/tests.rs", "use super::a::A; use super::b::B;"),
                ("plan/a_tests.rs", "use super::*; use crate::plan::b::B;"),
            ],
        ),
        (
            "other rooms",
            &[("plan/a.rs", "use crate::profile::P;"), ("profile/mod.rs", "use crate::plan::a::A; pub struct P;")],
        ),
        (
            "other crates and types of a module's name",
            &[
                ("plan/a.rs", "use b::B; fn f() { c::g(); Self::b(); }"),
                ("plan/b.rs", "use super::a::A;"),
                ("plan/c.rs", "use super::a::A;"),
            ],
        ),
        ("itself", &[("plan/a.rs", "pub struct A; mod inner { use super::A; use crate::plan::a::A as Own; }")]),
        (
            "comments and texts",
            &[
                ("plan/a.rs", "//! [`super::b::B`]\nconst T: &str = \"super::b::B\";"),
                ("plan/b.rs", "use super::a::T;"),
            ],
        ),
    ];
    for (name, files) in table {
        assert_eq!(found(files), Vec::<String>::new(), "{name}");
    }
}

#[test]
fn a_circle_names_the_file_from_the_root_of_the_repository() {
    for (of, room, place) in
        [(&CORE, "plan", "crates/core/src/plan/a.rs:2"), (&LAB, "study", "crates/lab/src/study/a.rs:2")]
    {
        let files = [("a", "\nuse super::b::B;"), ("b", "pub struct B(super::a::A);")];
        let sources = files.map(|(name, code)| Source::new(of, &format!("{room}/{name}.rs"), code));
        let circles = circles(&Files::of(&sources), room);
        assert!(circles[0].starts_with(&format!("{place}: a circle: ")), "{circles:?}");
    }
}
