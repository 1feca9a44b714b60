use super::*;
use crate::tidy::File;
use crate::tidy::syntax;

/// What is beyond the limits in a crate of these files.
fn measured(files: &[(&str, &str)]) -> (Vec<Excess>, Vec<String>) {
    let file = |&(path, text): &(&str, &str)| File {
        path: format!("crates/engine/src/{path}"),
        text: text.into(),
    };
    let files: Vec<File> = files.iter().map(file).collect();
    let mut found = Vec::new();
    let sources = syntax::parse(&files, &mut found);
    assert!(found.is_empty(), "{found:?}");
    (measure(&sources, &mut found), found)
}

fn counted(files: &[(&str, &str)], kind: &str) -> Option<(usize, String)> {
    let engine = ("engine.rs", "pub struct Engine { now: u64 }");
    let with_engine = [files, &[engine]].concat();
    let (excesses, found) = measured(&with_engine);
    assert!(found.is_empty(), "{found:?}");
    excesses.into_iter().find(|e| e.kind == kind).map(|e| (e.number, e.counted))
}

/// Four files in a circle, each by another way to name the next.
const CIRCLE: [(&str, &str); 5] = [
    ("lib.rs", "mod a; mod b; mod engine; pub use b::c::D;"),
    ("a.rs", "use crate::b::{self, B};"),
    ("b.rs", "mod c; mod d; pub struct B; fn f() -> c::D { x() }"),
    ("b/c.rs", "pub struct D; fn g() { assert!(super::d::is_so(1, 2)); }"),
    ("b/d.rs", "#[cfg(test)] use crate::b::B; impl X { fn h(x: &crate::a::A) {} }"),
];

#[test]
fn a_circle_of_imports_is_found_whichever_way_it_is_named() {
    assert_eq!(counted(&CIRCLE, "circle"), Some((4, "a.rs, b.rs, b/c.rs, b/d.rs".into())));
    for cut in 1..CIRCLE.len() {
        let mut files = CIRCLE;
        files[cut].1 = match cut {
            1 => "pub struct A;",
            2 => "mod c; mod d; pub struct B;",
            3 => "pub struct D;",
            _ => "#[cfg(test)] use crate::a::A;",
        };
        assert_eq!(counted(&files, "circle"), None, "without the import of {}", files[cut].0);
    }
}

#[test]
fn a_name_that_is_handed_on_leads_to_where_it_is_from() {
    // Each names `crate::D`; the root of the crate is no part of a circle for that.
    let mut files = CIRCLE;
    files[1].1 = "use crate::D; fn f(b: super::b::B) {}";
    assert_eq!(counted(&files, "circle"), Some((4, "a.rs, b.rs, b/c.rs, b/d.rs".into())));
    files[1].1 = "use crate::D;";
    assert_eq!(counted(&files, "circle"), None, "c.rs and d.rs and a.rs alone");
}

const OWNER: (&str, &str) = (
    "log.rs",
    "pub struct Log { pub(crate) head: u64, pub pace: Pace, pub limit: Limit } \
     pub struct Pace { pub(crate) due: u64 } impl Pace { fn stir(&mut self) {} } \
     pub struct Limit { pub(crate) most: u64 } impl Limit { fn is(&self) {} } \
     impl Log { fn own(&mut self) -> u64 { self.pace.due } }",
);

fn strangers(code: &str) -> Option<(usize, String)> {
    let text = format!("use crate::log::Log; struct Shard {{ log: Box<Log>, n: u64 }} {code}");
    counted(&[OWNER, ("shard.rs", &text)], "fields")
}

#[test]
fn files_that_name_a_field_of_anothers_are_counted() {
    let named = |name: &str| Some((1, format!("shard.rs ({name})")));
    let method = |body: &str| strangers(&format!("impl Shard {{ fn f(&mut self) {{ {body} }} }}"));
    assert_eq!(method("self.log.head += 1;"), named("log.head"));
    assert_eq!(method("assert_eq!(self.log.pace.due, 1);"), named("log.pace"));
    assert_eq!(method("let log = &mut self.log; log.pace.due = 1;"), named("pace.due"));
    assert_eq!(strangers("fn f(shard: &Shard) -> u64 { shard.log.head }"), named("log.head"));
    assert_eq!(method("self.n = 1; self.log.head(); other.log.head;"), None);
    assert_eq!(strangers("fn f(limit: &Limit) -> u64 { limit.most }"), None);
    assert_eq!(
        strangers(
            "struct A { limit: crate::log::Limit } impl A { fn f(&self) { self.limit.most } }"
        ),
        None
    );
    assert_eq!(strangers("#[cfg(test)] fn f(shard: &Shard) -> u64 { shard.log.head }"), None);
}

#[test]
fn open_fields_of_the_top_struct_are_counted() {
    let engine = |open: usize| {
        let fields: String = (0..open).map(|n| format!("pub(crate) f{n}: u64, ")).collect();
        let text = format!("pub struct Engine {{ {fields} pub now: u64, private: u64 }}");
        measured(&[("engine.rs", &text)])
    };
    assert_eq!(engine(10), (Vec::new(), Vec::new()));
    let (excesses, _) = engine(11);
    assert_eq!((excesses[0].kind, excesses[0].number), ("open", 11));
    let (_, found) = measured(&[("shard.rs", "pub struct Shard;")]);
    assert_eq!(found.len(), 1, "the top struct is gone, and nobody said what is in its place");
}
