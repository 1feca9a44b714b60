//! Which file of a crate a path of its code leads to.

use crate::tidy::syntax::{Source, leaves};
use std::collections::{BTreeMap, BTreeSet};
use syn::Item;

/// A `use` that leads to a `use` is followed so often.
const HOPS_MAX: usize = 8;

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file, as its number in the list that the modules were made of.
    pub file: usize,
    /// The item in it; none for the module itself.
    pub name: Option<String>,
}

/// The modules of one crate.
pub struct Modules {
    modules: BTreeMap<Vec<String>, Module>,
}

#[derive(Default)]
struct Module {
    file: usize,
    /// What is declared here.
    items: BTreeSet<String>,
    /// What a `use` brings in, and the path from the root of the crate where it is from.
    names: BTreeMap<String, Vec<String>>,
    /// What is opened by `use …::*`.
    globs: Vec<Vec<String>>,
}

impl Modules {
    /// The modules of the crate that these sources are.
    pub fn new(sources: &[&Source]) -> Modules {
        let mut all = Modules { modules: BTreeMap::new() };
        for (file, source) in sources.iter().enumerate() {
            // A `main.rs` beside a `lib.rs` is a crate of its own, which nobody imports from.
            if !all.modules.contains_key(&source.module) {
                all.declare(file, &source.module, &source.items);
            }
        }
        for source in sources {
            all.import(&source.module, &source.items);
        }
        all
    }

    fn declare(&mut self, file: usize, at: &[String], items: &[Item]) {
        let module =
            Module { file, items: items.iter().filter_map(name).collect(), ..Module::default() };
        self.modules.insert(at.to_vec(), module);
        for (name, items) in inline(items) {
            self.declare(file, &[at, &[name]].concat(), items);
        }
    }

    fn import(&mut self, at: &[String], items: &[Item]) {
        for item in items {
            let Item::Use(item) = item else { continue };
            for leaf in leaves(&item.tree) {
                let Some(path) = self.absolute(at, &leaf.path) else { continue };
                let module = self.modules.get_mut(at).expect("all are declared");
                match leaf.name {
                    Some(name) => drop(module.names.insert(name, path)),
                    None => module.globs.push(path),
                }
            }
        }
        for (name, items) in inline(items) {
            self.import(&[at, &[name]].concat(), items);
        }
    }

    /// Where a path leads that is written in module `at`; none if that is outside of the crate.
    pub fn find(&self, at: &[String], path: &[String]) -> Option<Place> {
        Some(self.follow(&self.absolute(at, path)?, HOPS_MAX))
    }

    /// A path as it is written in module `at`, from the root of the crate.
    fn absolute(&self, at: &[String], path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => return Some(rest.to_vec()),
            "self" => return Some([at, rest].concat()),
            "super" => {
                let ups = path.iter().take_while(|word| *word == "super").count();
                let parent = at.get(..at.len().checked_sub(ups)?)?;
                return Some([parent, &path[ups..]].concat());
            }
            _ => {}
        }
        let module = self.modules.get(at)?;
        if self.has(at, first) {
            return Some([at, path].concat());
        }
        if let Some(from) = module.names.get(first) {
            return Some([from, rest].concat());
        }
        let opened = module.globs.iter().find(|glob| self.has(glob, first))?;
        Some([opened, path].concat())
    }

    /// Whether `name` is declared in this module.
    fn has(&self, at: &[String], name: &String) -> bool {
        self.modules.contains_key(&[at, std::slice::from_ref(name)].concat())
            || self.modules.get(at).is_some_and(|module| module.items.contains(name))
    }

    fn follow(&self, path: &[String], hops: usize) -> Place {
        let mut at = Vec::new();
        for (depth, word) in path.iter().enumerate() {
            at.push(word.clone());
            if self.modules.contains_key(&at) {
                continue;
            }
            at.pop();
            let module = &self.modules[&at];
            if !module.items.contains(word) && hops > 0 {
                let opened = module.globs.iter().find(|glob| self.has(glob, word));
                let from = match (module.names.get(word), opened) {
                    (Some(from), _) => Some(from.clone()),
                    (None, Some(glob)) => Some([glob, std::slice::from_ref(word)].concat()),
                    (None, None) => None,
                };
                if let Some(from) = from {
                    return self.follow(&[&from, &path[depth + 1..]].concat(), hops - 1);
                }
            }
            return Place { file: module.file, name: Some(word.clone()) };
        }
        Place { file: self.modules[&at].file, name: None }
    }
}

/// The modules that are written out among these items.
fn inline(items: &[Item]) -> impl Iterator<Item = (String, &[Item])> {
    items.iter().filter_map(|item| match item {
        Item::Mod(module) => {
            module.content.as_ref().map(|(_, items)| (module.ident.to_string(), &items[..]))
        }
        _ => None,
    })
}

fn name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}
