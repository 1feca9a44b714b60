//! Variants of enums that nobody builds: code that matches on them is dead, and tells a reader of
//! things that never happen.
//!
//! Enums are told apart by their names alone. So of two that have a name and a variant in common,
//! one that is built hides the other; none is complained about wrongly.

use super::syntax::{Source, expressions, leaves, words};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Attribute, BinOp, Expr, ItemEnum, Meta};

/// What somebody is about to build, or must be there although nobody builds it: package, variant,
/// reason. A line that is no longer needed fails.
const UNBUILT: [(&str, &str, &str); 1] =
    [("crates/host", "Tls::On", "the server can do it, and no configuration asks for it")];

/// Macros that make a value of an enum out of bytes or text.
const MAKERS: [&str; 7] =
    ["Deserialize", "FromBytes", "Parser", "Subcommand", "TryFromBytes", "ValueEnum", "Args"];
/// Macros that compare what they are given.
const COMPARING: [&str; 4] = ["assert_eq", "assert_ne", "debug_assert_eq", "debug_assert_ne"];
/// What these build to test others proves nothing for them.
const TESTERS: [&str; 2] = ["crates/sim", "fuzz"];

/// Name of an enum, name of a variant.
type Variant = (String, String);

/// Looks for variants that nobody builds.
pub fn check(sources: &[Source], found: &mut Vec<String>) {
    compare(&unbuilt(sources), &UNBUILT, found);
}

fn compare(
    unbuilt: &BTreeSet<(String, String)>,
    listed: &[(&str, &str, &str)],
    found: &mut Vec<String>,
) {
    let is_listed = |package: &str, variant: &str| {
        listed.iter().any(|line| (line.0, line.1) == (package, variant))
    };
    for (package, variant) in unbuilt.iter().filter(|entry| !is_listed(&entry.0, &entry.1)) {
        found.push(format!("{package}: nobody builds {variant}: build it or delete it"));
    }
    for (package, variant, _) in listed {
        if !unbuilt.contains(&(package.to_string(), variant.to_string())) {
            found.push(format!(
                "xtask/src/tidy/variants.rs: {variant} of {package} is built or gone: its line \
                 is no longer needed"
            ));
        }
    }
}

/// The variants that nobody builds: package, and name with that of its enum.
fn unbuilt(sources: &[Source]) -> BTreeSet<(String, String)> {
    let mut declared: BTreeMap<&str, BTreeSet<Variant>> = BTreeMap::new();
    let mut built: BTreeMap<&str, BTreeSet<Variant>> = BTreeMap::new();
    for source in sources {
        let mut names = Names::default();
        source.items.iter().for_each(|item| names.visit_item(item));
        let mut reader = Reader { names: &names, own: None, built: BTreeSet::new() };
        source.items.iter().for_each(|item| reader.visit_item(item));
        built.entry(&source.package).or_default().extend(reader.built);
        declared.entry(&source.package).or_default().extend(names.declared);
    }
    let mut unbuilt = BTreeSet::new();
    for (&package, variants) in &declared {
        for variant in variants {
            let builds = |(&by, all): (&&str, &BTreeSet<Variant>)| {
                all.contains(variant) && (by == package || !TESTERS.contains(&by))
            };
            if !built.iter().any(builds) {
                unbuilt.insert((package.to_owned(), format!("{}::{}", variant.0, variant.1)));
            }
        }
    }
    unbuilt
}

/// What one file declares and imports.
#[derive(Default)]
struct Names {
    declared: BTreeSet<Variant>,
    /// Other names that enums and variants have here: the last two words of their paths.
    renamed: BTreeMap<String, Vec<String>>,
    /// What is opened by `use …::*`.
    opened: BTreeSet<String>,
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        let derived = derived(&item.attrs);
        if derived.iter().any(|name| MAKERS.contains(&&name[..])) {
            return;
        }
        let is_default = |attributes: &[Attribute]| {
            attributes.iter().any(|attribute| attribute.path().is_ident("default"))
        };
        // `#[from]` of thiserror builds the variant where `?` stands.
        let is_from = |field: &syn::Field| field.attrs.iter().any(|a| a.path().is_ident("from"));
        let is_made = |variant: &syn::Variant| {
            is_default(&variant.attrs) || variant.fields.iter().any(is_from)
        };
        for variant in item.variants.iter().filter(|variant| !is_made(variant)) {
            self.declared.insert((item.ident.to_string(), variant.ident.to_string()));
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        for leaf in leaves(&item.tree) {
            let last = leaf.path[leaf.path.len().saturating_sub(2)..].to_vec();
            match leaf.name {
                Some(name) => drop(self.renamed.insert(name, last)),
                None => self.opened.extend(last.into_iter().next_back()),
            }
        }
    }
}

fn derived(attributes: &[Attribute]) -> Vec<String> {
    let mut names = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("derive")) {
        let Meta::List(list) = &attribute.meta else { continue };
        let words = list.tokens.to_string();
        names.extend(words.split([',', ' ', ':']).map(str::to_owned));
    }
    names
}

/// Gathers what one file builds.
struct Reader<'a> {
    names: &'a Names,
    /// What `Self` is.
    own: Option<String>,
    built: BTreeSet<Variant>,
}

impl Reader<'_> {
    fn note(&mut self, words: &[String]) {
        match words {
            [.., of, variant] => {
                let of = match &of[..] {
                    "Self" => self.own.clone().unwrap_or_default(),
                    _ => self
                        .names
                        .renamed
                        .get(of)
                        .and_then(|path| path.last())
                        .unwrap_or(of)
                        .clone(),
                };
                self.built.insert((of, variant.clone()));
            }
            [name] => {
                if let Some([of, variant]) = self.names.renamed.get(name).map(|path| &path[..]) {
                    self.built.insert((of.clone(), variant.clone()));
                }
                let opened = self.names.opened.iter().map(|of| (of.clone(), name.clone()));
                self.built.extend(opened);
            }
            [] => {}
        }
    }

    /// The operand of a comparison: a variant that stands there alone is not built.
    fn compared(&mut self, operand: &Expr) {
        match operand {
            Expr::Path(_) => {}
            Expr::Reference(inner) => self.compared(&inner.expr),
            Expr::Paren(inner) => self.compared(&inner.expr),
            other => self.visit_expr(other),
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        self.note(&words(&path.path));
    }

    fn visit_expr_struct(&mut self, made: &'ast syn::ExprStruct) {
        self.note(&words(&made.path));
        visit::visit_expr_struct(self, made);
    }

    fn visit_expr_binary(&mut self, operation: &'ast syn::ExprBinary) {
        if matches!(operation.op, BinOp::Eq(_) | BinOp::Ne(_)) {
            self.compared(&operation.left);
            self.compared(&operation.right);
        } else {
            visit::visit_expr_binary(self, operation);
        }
    }

    /// A pattern builds nothing.
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let own = match &*item.self_ty {
            syn::Type::Path(path) => words(&path.path).pop(),
            _ => None,
        };
        let before = std::mem::replace(&mut self.own, own);
        visit::visit_item_impl(self, item);
        self.own = before;
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let compares = call
            .path
            .get_ident()
            .is_some_and(|name| COMPARING.iter().any(|comparing| name == comparing));
        match expressions(call) {
            Ok(all) if compares => all.iter().for_each(|operand| self.compared(operand)),
            Ok(all) => all.iter().for_each(|expression| self.visit_expr(expression)),
            Err(_) => {
                let text = call.tokens.to_string().replace(" :: ", "::");
                let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
                for path in text.split(|c| !is_name(c)).filter(|path| path.contains("::")) {
                    let words: Vec<String> = path.split("::").map(str::to_owned).collect();
                    self.note(&words);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
