use super::*;
use crate::tidy::{File, syntax};

/// The variants of `E` in crate `a` that nobody builds, where somebody in `package` does so.
fn left(package: &str, code: &str) -> Vec<String> {
    let file = |path: String, text: &str| File { path, text: text.into() };
    let files = [
        file("crates/a/src/lib.rs".into(), "pub enum E { A(u8), B { x: u8 }, #[default] C }"),
        file(format!("crates/{package}/src/x.rs"), code),
    ];
    let mut found = Vec::new();
    let sources = syntax::parse(&files, &mut found);
    assert!(found.is_empty(), "{found:?}");
    unbuilt(&sources).into_iter().map(|(_, variant)| variant).collect()
}

#[test]
fn a_variant_that_nobody_builds_is_found() {
    assert_eq!(left("b", ""), ["E::A", "E::B"]);
    assert_eq!(left("b", "fn f() -> a::E { a::E::A(1) }"), ["E::B"]);
    assert_eq!(left("b", "fn f() { vec![1].map(a::E::A); g(E::B { x: 1 }) }"), [""; 0]);
    assert_eq!(left("a", "impl E { fn f() { (Self::A(1), Self::B { x: 1 }); } }"), [""; 0]);
    assert_eq!(left("b", "use a::E as F; fn f() { F::A(1) }"), ["E::B"]);
    assert_eq!(left("b", "use a::E::A as D; fn f() { D(1) }"), ["E::B"]);
    assert_eq!(left("b", "use a::E::*; fn f() { A(1) }"), ["E::B"]);
    assert_eq!(left("b", "fn f() { println!(\"{}\", E::A(1)); m!(x => E::B { x: 1 }) }"), [""; 0]);
}

#[test]
fn patterns_comparisons_and_tests_build_nothing() {
    let both = ["E::A", "E::B"];
    assert_eq!(
        left("b", "fn f(e: E) { match e { E::A(1) => {} E::B { .. } => {} _ => {} } }"),
        both
    );
    assert_eq!(
        left("b", "fn f(e: E) { if let E::A(x) = e {}; matches!(e, E::B { x: 1 }); }"),
        both
    );
    assert_eq!(left("b", "fn f(e: E) { e == E::A; assert_eq!(e, &E::B); }"), both);
    let plain =
        "enum F { X } fn f(f: F) { match f { F::X => {} } let G::Y(F::X) = f else { g() }; }";
    assert!(left("b", plain).contains(&"F::X".into()));
    assert_eq!(left("b", "#[cfg(test)] mod tests { fn f() { E::A(1); } }"), both);
    assert_eq!(left("b", "impl X { #[cfg(test)] fn f() { E::A(1); } }"), both);
    assert_eq!(left("b/tests", "fn f() { E::A(1); }"), both);
    assert_eq!(left("sim", "fn f() { E::A(1); }"), both);
}

#[test]
fn what_bytes_or_text_are_made_into_is_built() {
    let others = |code| left("b", code).iter().filter(|name| !name.starts_with("E::")).count();
    assert_eq!(others("pub enum F { A, B }"), 2);
    assert_eq!(others("#[derive(Clone, clap::ValueEnum)] pub enum F { A, B }"), 0);
    assert_eq!(others("pub enum F { A(#[from] std::io::Error), B }"), 1);
}

#[test]
fn the_list_of_the_unbuilt_names_no_others() {
    let unbuilt: BTreeSet<_> =
        ["E::A", "E::B"].map(|v| ("crates/a".to_string(), v.to_string())).into();
    let found = |listed: &[(&str, &str, &str)]| {
        let mut found = Vec::new();
        compare(&unbuilt, listed, &mut found);
        found
    };
    assert_eq!(found(&[]).len(), 2);
    assert_eq!(found(&[("crates/a", "E::A", "why"), ("crates/a", "E::B", "why")]).len(), 0);
    let stale = found(&[
        ("crates/a", "E::A", "why"),
        ("crates/a", "E::B", "why"),
        ("crates/a", "E::C", "why"),
    ]);
    assert_eq!(stale.len(), 1);
    assert!(stale[0].contains("E::C"), "{stale:?}");
}
