//! How entangled a crate is: numbers for the ratchet, each with what it counts.

mod circles;
mod fields;
mod modules;

use super::syntax::Source;
use fields::Structs;
use modules::Modules;

/// Most files in a circle of imports.
pub const CIRCLE_FILES_MAX: usize = 3;
/// Most fields of the engine's top struct that its whole crate may reach into.
pub const OPEN_FIELDS_MAX: usize = 10;
/// What is measured: who decides, and who runs that. In a tool that does many things, one file for
/// each, the file that starts them is in a circle with all.
const MEASURED: [&str; 2] = ["crates/daemon", "crates/engine"];
/// The struct that holds the owners of its crate.
const TOP: (&str, &str) = ("crates/engine", "Engine");

/// One number that is too great.
#[derive(Debug, PartialEq, Eq)]
pub struct Excess {
    /// `circle`, `fields` or `open`.
    pub kind: &'static str,
    /// Directory of the package.
    pub package: String,
    /// The struct, for `open`; else `-`.
    pub name: String,
    /// The number.
    pub number: usize,
    /// What was counted.
    pub counted: String,
}

/// What is beyond the limits. `found` takes the names of structs that are gone.
pub fn measure(sources: &[Source], found: &mut Vec<String>) -> Vec<Excess> {
    let mut excesses = Vec::new();
    for package in MEASURED {
        let own: Vec<&Source> = sources.iter().filter(|source| source.package == package).collect();
        let modules = Modules::new(&own);
        let structs = Structs::new(&own, &modules);
        let mut note = |kind, name: &str, number, counted: Vec<String>| {
            let (package, name) = (package.to_owned(), name.to_owned());
            excesses.push(Excess { kind, package, name, number, counted: counted.join(", ") });
        };
        let short = |file: usize| own[file].path[package.len() + "/src/".len()..].to_owned();
        let circle = circles::largest(&own, &modules);
        if circle.len() > CIRCLE_FILES_MAX {
            note("circle", "-", circle.len(), circle.iter().map(|&file| short(file)).collect());
        }
        let strangers = structs.strangers(&own, &modules);
        if !strangers.is_empty() {
            let named = strangers.iter().map(|(&file, name)| format!("{} ({name})", short(file)));
            note("fields", "-", strangers.len(), named.collect());
        }
        let (of, top) = TOP;
        match structs.open_fields(top) {
            Some(open) if of == package && open > OPEN_FIELDS_MAX => {
                note("open", top, open, Vec::new());
            }
            None if of == package => found.push(format!(
                "{package} has no struct {top}: say in xtask/src/tidy/coupling.rs what took its \
                 place"
            )),
            _ => {}
        }
    }
    excesses
}

#[cfg(test)]
mod tests;
