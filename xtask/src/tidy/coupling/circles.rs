//! Circles of imports: files of a crate that cannot be understood one after the other, because each
//! names something of the next.

use super::modules::Modules;
use crate::tidy::syntax::{Source, expressions, leaves, words};
use std::collections::BTreeSet;
use syn::visit::{self, Visit};

/// The files of the largest circle, as numbers in `sources`; no circle is smaller than two files.
pub fn largest(sources: &[&Source], modules: &Modules) -> Vec<usize> {
    let mut reached = vec![vec![false; sources.len()]; sources.len()];
    for (file, source) in sources.iter().enumerate() {
        let mut imports =
            Imports { modules, module: source.module.clone(), files: BTreeSet::new() };
        source.items.iter().for_each(|item| imports.visit_item(item));
        imports.files.iter().for_each(|&to| reached[file][to] = to != file);
    }
    for over in 0..sources.len() {
        let onwards = reached[over].clone();
        for from in reached.iter_mut().filter(|from| from[over]) {
            from.iter_mut().zip(&onwards).for_each(|(reached, onwards)| *reached |= onwards);
        }
    }
    let circle = |file: usize| -> Vec<usize> {
        (0..sources.len()).filter(|&other| reached[file][other] && reached[other][file]).collect()
    };
    // The first of the largest ones, whatever the number of circles: the ratchet names its files.
    (0..sources.len()).rev().map(circle).max_by_key(Vec::len).unwrap_or_default()
}

/// Gathers the files that one file names.
struct Imports<'a> {
    modules: &'a Modules,
    module: Vec<String>,
    files: BTreeSet<usize>,
}

impl Imports<'_> {
    fn note(&mut self, path: &[String]) {
        self.files.extend(self.modules.find(&self.module, path).map(|place| place.file));
    }
}

impl<'ast> Visit<'ast> for Imports<'_> {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        leaves(&item.tree).iter().for_each(|leaf| self.note(&leaf.path));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.note(&words(path));
        }
        visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        for expression in expressions(call).unwrap_or_default() {
            self.visit_expr(&expression);
        }
    }

    /// `pub(in crate::op)` imports nothing.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
}
