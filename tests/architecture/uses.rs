//! Which file of a room depends on which: the one that *defines* what it names, also where a re-export lies between.

use std::collections::BTreeMap;

use super::paths::{Import, Named, Paths};
use super::source::Source;
use super::tokens::{tokens, without_tests};

/// Re-exports of re-exports are followed so far.
const DEEPEST: usize = 8;

pub(super) type Module = Vec<String>;

/// A file depends on another: the path that it names, and the line.
#[derive(Clone, Debug)]
pub(super) struct Use {
    pub(super) path: String,
    pub(super) line: usize,
}

/// The files of a crate by their modules, without those of tests.
pub(super) struct Files<'a> {
    by_module: BTreeMap<Module, (&'a Source, Paths)>,
}

impl<'a> Files<'a> {
    /// Reads all sources of one crate.
    pub(super) fn of(sources: &'a [Source]) -> Self {
        let read = |source: &'a Source| {
            let module = source.module();
            let paths = Paths::of(&without_tests(tokens(&source.text)), &module);
            (module.iter().map(|name| (*name).to_owned()).collect(), (source, paths))
        };
        Self { by_module: sources.iter().filter(|s| !s.is_test()).map(read).collect() }
    }

    /// The modules of a room that are files.
    pub(super) fn of_room(&self, room: &str) -> impl Iterator<Item = &Module> {
        self.by_module.keys().filter(move |module| module.first().is_some_and(|first| first == room))
    }

    /// The source that is a module.
    pub(super) fn source(&self, module: &Module) -> &Source {
        self.by_module[module].0
    }

    /// The files of the same room that a file depends on.
    pub(super) fn uses(&self, module: &Module) -> BTreeMap<&Module, Use> {
        let Some((_, paths)) = self.by_module.get(module) else { return BTreeMap::new() };
        let mut used = BTreeMap::new();
        let mut add = |target: Option<&'_ Module>, named: &Named, path: String| {
            let own = target.filter(|target| *target != module && target.first() == module.first());
            if let Some((target, _)) = own.and_then(|target| self.by_module.get_key_value(target)) {
                used.entry(target).or_insert(Use { path, line: named.line });
            }
        };
        for named in &paths.named {
            match &named.import {
                // Of all names of a module those that are used here.
                Some(Import { name, .. }) if name == "*" => {
                    let from = self.absolute(module, &named.names[..named.names.len() - 1]);
                    for word in &paths.words {
                        let full: Module = from.iter().flatten().chain([word]).cloned().collect();
                        if from.is_some() && self.provides(&full, 0) {
                            add(self.definer(&full, 0), named, full.join("::"));
                        }
                    }
                }
                // A re-export is the way of others to the name, and no use of it here.
                Some(Import { name, is_re_export: true }) if !paths.words.contains(name) => {}
                _ => {
                    let full = self.absolute(module, &named.names);
                    add(full.and_then(|full| self.definer(&full, 0)), named, named.names.join("::"));
                }
            }
        }
        used
    }

    /// A path from the crate's root on; `None` for another crate's.
    fn absolute(&self, module: &Module, names: &[String]) -> Option<Module> {
        let (first, rest) = names.split_first()?;
        if first == "crate" {
            return Some(rest.to_vec());
        }
        let child: Module = module.iter().chain([first]).cloned().collect();
        if self.by_module.contains_key(&child) {
            return Some(child.into_iter().chain(rest.iter().cloned()).collect());
        }
        let (_, paths) = self.by_module.get(module)?;
        let same = |n: &&Named| n.import.as_ref().is_some_and(|i| i.name == *first) && n.names.first() != Some(first);
        let import = paths.named.iter().find(same)?;
        let target = self.absolute(module, &import.names)?;
        Some(target.into_iter().chain(rest.iter().cloned()).collect())
    }

    /// The file that defines what an absolute path names.
    fn definer(&self, path: &[String], depth: usize) -> Option<&Module> {
        let (module, rest) = self.split(path)?;
        let (key, (_, paths)) = self.by_module.get_key_value(module)?;
        let Some(name) = rest.first().filter(|_| depth < DEEPEST) else { return Some(key) };
        for named in paths.named.iter().filter(|n| n.import.is_some()) {
            let import = named.import.as_ref().map(|i| i.name.as_str());
            let of_glob = &named.names[..named.names.len() - 1];
            let target: Option<Module> = match import {
                Some(imported) if imported == name => self.absolute(key, &named.names),
                Some("*") => self.absolute(key, of_glob).map(|m| m.into_iter().chain([name.clone()]).collect()),
                _ => None,
            };
            let full = target.map(|target| target.into_iter().chain(rest[1..].iter().cloned()).collect::<Module>());
            let full = full.filter(|full| full != path && (import != Some("*") || self.provides(full, depth + 1)));
            if let Some(found) = full.and_then(|full| self.definer(&full, depth + 1)) {
                return Some(found);
            }
        }
        Some(key)
    }

    /// Whether the file that an absolute path leads to has the name after that, of its own or by an import.
    fn provides(&self, path: &[String], depth: usize) -> bool {
        let Some((module, rest)) = self.split(path) else { return false };
        let Some(name) = rest.first() else { return true };
        let paths = &self.by_module[module].1;
        let imports = |n: &Named| match n.import.as_ref().map(|i| i.name.as_str()) {
            Some("*") if depth < DEEPEST => {
                let from = self.absolute(&module.to_vec(), &n.names[..n.names.len() - 1]);
                from.is_some_and(|from| self.provides(&[from, vec![name.clone()]].concat(), depth + 1))
            }
            imported => imported == Some(name),
        };
        paths.defined.contains(name) || paths.named.iter().any(imports)
    }

    /// The longest beginning that is a file, and the rest.
    fn split<'p>(&self, path: &'p [String]) -> Option<(&'p [String], &'p [String])> {
        (1..=path.len()).rev().map(|end| path.split_at(end)).find(|(module, _)| self.by_module.contains_key(*module))
    }
}
