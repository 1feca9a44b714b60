//! The sources of the workspace as a parser sees them, without what only tests compile.

use super::File;
use syn::parse::{ParseStream, Result};
use syn::{Attribute, Expr, ImplItem, Item, Macro, Pat, Token, UseTree};

/// One Rust file below the `src` of a package.
pub struct Source {
    /// Directory of the package: `crates/engine`.
    pub package: String,
    /// Path from the root of the workspace.
    pub path: String,
    /// The module that the file holds: `["op", "read"]`; empty for the root of the crate.
    pub module: Vec<String>,
    /// What is in it.
    pub items: Vec<Item>,
}

/// One name that a `use` brings in.
pub struct Leaf {
    /// The path as it is written.
    pub path: Vec<String>,
    /// The name that it has from then on; none for `*`, and then `path` is what is opened.
    pub name: Option<String>,
}

/// Parses all sources. What is no Rust is complained about.
pub fn parse(files: &[File], found: &mut Vec<String>) -> Vec<Source> {
    let mut sources = Vec::new();
    for file in files {
        let Some((package, rest)) = file.path.split_once("/src/") else { continue };
        let Some(module) = rest.strip_suffix(".rs") else { continue };
        if is_test(&file.path) {
            continue;
        }
        let module = match module {
            "lib" | "main" => Vec::new(),
            module => module.split('/').map(str::to_owned).collect(),
        };
        let (package, path) = (package.to_owned(), file.path.clone());
        match syn::parse_file(&file.text) {
            Ok(parsed) => {
                sources.push(Source { package, path, module, items: without_tests(parsed.items) });
            }
            Err(error) => found.push(format!("{path}: it cannot be parsed: {error}")),
        }
    }
    sources
}

/// Whether a file is compiled for tests alone.
pub fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs")
}

fn without_tests(items: Vec<Item>) -> Vec<Item> {
    let mut kept: Vec<Item> =
        items.into_iter().filter(|item| !is_for_tests(attributes(item))).collect();
    for item in &mut kept {
        match item {
            Item::Mod(module) => {
                if let Some((_, items)) = &mut module.content {
                    *items = without_tests(std::mem::take(items));
                }
            }
            Item::Impl(block) => block.items.retain(|item| match item {
                ImplItem::Fn(function) => !is_for_tests(&function.attrs),
                ImplItem::Const(constant) => !is_for_tests(&constant.attrs),
                _ => true,
            }),
            _ => {}
        }
    }
    kept
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[cfg(test)]` or `#[cfg(all(test, …))]`.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Ok(list) = attribute.meta.require_list() else { return false };
        let condition = list.tokens.to_string().replace(' ', "");
        list.path.is_ident("cfg") && (condition == "test" || condition.starts_with("all(test,"))
    })
}

/// The names that a `use` brings in.
pub fn leaves(tree: &UseTree) -> Vec<Leaf> {
    let mut found = Vec::new();
    gather(tree, &mut Vec::new(), &mut found);
    found
}

fn gather(tree: &UseTree, before: &mut Vec<String>, found: &mut Vec<Leaf>) {
    let mut leaf = |last: &str, name: String| {
        let mut path = before.clone();
        if last != "self" {
            path.push(last.to_owned());
        }
        let name = if name == "self" { path.last().cloned() } else { Some(name) };
        found.push(Leaf { path, name });
    };
    match tree {
        UseTree::Name(name) => leaf(&name.ident.to_string(), name.ident.to_string()),
        UseTree::Rename(name) => leaf(&name.ident.to_string(), name.rename.to_string()),
        UseTree::Glob(_) => found.push(Leaf { path: before.clone(), name: None }),
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            gather(&path.tree, before, found);
            before.pop();
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| gather(tree, before, found));
        }
    }
}

/// The expressions that a macro is given, as most macros take them: `assert!(a, b)`, `vec![a; n]`,
/// and of `matches!(a, PATTERN if b)` those that are no pattern.
///
/// # Errors
/// If its tokens are something else.
pub fn expressions(call: &Macro) -> Result<Vec<Expr>> {
    let has_pattern = call.path.is_ident("matches");
    call.parse_body_with(|input: ParseStream<'_>| {
        let mut expressions = Vec::new();
        if has_pattern {
            expressions.push(input.parse()?);
            input.parse::<Token![,]>()?;
            Pat::parse_multi_with_leading_vert(input)?;
            if input.parse::<Option<Token![if]>>()?.is_some() {
                expressions.push(input.parse()?);
            }
            input.parse::<Option<Token![,]>>()?;
            return Ok(expressions);
        }
        while !input.is_empty() {
            expressions.push(input.parse()?);
            if input.parse::<Option<Token![;]>>()?.is_none() && !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(expressions)
    })
}

/// The words of a path, without what is in angle brackets.
pub fn words(path: &syn::Path) -> Vec<String> {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}
