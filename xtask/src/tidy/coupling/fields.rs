//! Fields of an owner that other files than its own name: `self.OWNER.FIELD`.
//!
//! An owner is a struct with a verb, which is a method that takes `&mut self`. A struct without one
//! is a value: whoever has it may look at it.

use super::modules::{Modules, Place};
use crate::tidy::syntax::{Source, expressions, words};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{
    Expr, FnArg, ImplItem, ItemStruct, Member, Pat, Receiver, ReceiverKind, Signature, Type,
    Visibility,
};

/// What a type around another one does not change about its fields.
const TRANSPARENT: [&str; 3] = ["Arc", "Box", "Rc"];

/// The structs of a crate, by where they are declared.
pub struct Structs {
    structs: BTreeMap<Place, BTreeMap<String, Field>>,
    owners: BTreeSet<Place>,
}

struct Field {
    /// `pub(crate)`, `pub(super)`, `pub(in …)`: the crate may reach in.
    open: bool,
    /// The struct that it holds, if that is one of the crate.
    of: Option<Place>,
}

impl Structs {
    /// All structs of these sources.
    pub fn new(sources: &[&Source], modules: &Modules) -> Structs {
        let structs = Structs { structs: BTreeMap::new(), owners: BTreeSet::new() };
        let mut gather = Gather { modules, at: Vec::new(), structs };
        for source in sources {
            gather.at = source.module.clone();
            source.items.iter().for_each(|item| gather.visit_item(item));
        }
        gather.structs
    }

    /// How many fields of a struct are open, over all structs of this name.
    pub fn open_fields(&self, name: &str) -> Option<usize> {
        let of_name = |place: &&Place| place.name.as_deref() == Some(name);
        let mut all = self.structs.keys().filter(of_name).peekable();
        all.peek()?;
        let open = |place: &Place| self.structs[place].values().filter(|field| field.open).count();
        Some(all.map(open).sum())
    }

    /// The files that name fields of an owner that is declared in another file, as numbers in
    /// `sources`, each with the first of those fields.
    pub fn strangers(&self, sources: &[&Source], modules: &Modules) -> BTreeMap<usize, String> {
        let mut named = BTreeMap::new();
        for (file, source) in sources.iter().enumerate() {
            let mut reader = Reader {
                structs: self,
                modules,
                at: source.module.clone(),
                file,
                own: None,
                locals: BTreeMap::new(),
                named: BTreeSet::new(),
            };
            source.items.iter().for_each(|item| reader.visit_item(item));
            if let Some(first) = reader.named.pop_first() {
                named.insert(file, first);
            }
        }
        named
    }
}

fn is_mutable(receiver: &Receiver) -> bool {
    matches!(receiver.kind, ReceiverKind::Reference(_, _, Some(_)))
}

/// The struct that a type names: through references and boxes, not through what may be empty.
fn struct_of(ty: &Type, at: &[String], modules: &Modules) -> Option<Place> {
    match ty {
        Type::Reference(reference) => struct_of(&reference.elem, at, modules),
        Type::Paren(inner) => struct_of(&inner.elem, at, modules),
        Type::Path(path) => {
            let last = path.path.segments.last()?;
            if TRANSPARENT.contains(&last.ident.to_string().as_str()) {
                let syn::PathArguments::AngleBracketed(arguments) = &last.arguments else {
                    return None;
                };
                return arguments.args.iter().find_map(|argument| match argument {
                    syn::GenericArgument::Type(ty) => struct_of(ty, at, modules),
                    _ => None,
                });
            }
            modules.find(at, &words(&path.path))
        }
        _ => None,
    }
}

struct Gather<'a> {
    modules: &'a Modules,
    at: Vec<String>,
    structs: Structs,
}

impl<'ast> Visit<'ast> for Gather<'_> {
    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let has_verb = item.items.iter().any(|item| match item {
            ImplItem::Fn(function) => function.sig.receiver().is_some_and(is_mutable),
            _ => false,
        });
        if item.trait_.is_none() && has_verb {
            self.structs.owners.extend(struct_of(&item.self_ty, &self.at, self.modules));
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        let Some(place) = self.modules.find(&self.at, &[item.ident.to_string()]) else { return };
        let fields = item.fields.iter().filter_map(|field| {
            let open = matches!(field.vis, Visibility::Restricted(_));
            let of = struct_of(&field.ty, &self.at, self.modules);
            Some((field.ident.as_ref()?.to_string(), Field { open, of }))
        });
        self.structs.structs.insert(place, fields.collect());
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.at.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.at.pop();
    }
}

/// Reads one file.
struct Reader<'a> {
    structs: &'a Structs,
    modules: &'a Modules,
    at: Vec<String>,
    file: usize,
    /// What `self` is.
    own: Option<Place>,
    /// What the arguments and variables of the function are.
    locals: BTreeMap<String, Place>,
    named: BTreeSet<String>,
}

impl Reader<'_> {
    fn struct_of(&self, expression: &Expr) -> Option<Place> {
        match expression {
            Expr::Path(path) => {
                let name = path.path.get_ident()?.to_string();
                if name == "self" { self.own.clone() } else { self.locals.get(&name).cloned() }
            }
            Expr::Field(field) => {
                let Member::Named(name) = &field.member else { return None };
                let fields = self.structs.structs.get(&self.struct_of(&field.base)?)?;
                fields.get(&name.to_string())?.of.clone()
            }
            Expr::Paren(inner) => self.struct_of(&inner.expr),
            Expr::Reference(inner) => self.struct_of(&inner.expr),
            Expr::Unary(inner) => self.struct_of(&inner.expr),
            _ => None,
        }
    }

    fn enter(&mut self, signature: &Signature) -> BTreeMap<String, Place> {
        let mut locals = BTreeMap::new();
        for argument in &signature.inputs {
            let FnArg::Typed(argument) = argument else { continue };
            let Pat::Ident(name) = &*argument.pat else { continue };
            let place = struct_of(&argument.ty, &self.at, self.modules);
            locals.extend(place.map(|place| (name.ident.to_string(), place)));
        }
        std::mem::replace(&mut self.locals, locals)
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_expr_field(&mut self, field: &'ast syn::ExprField) {
        visit::visit_expr_field(self, field);
        let (Expr::Field(owner), Member::Named(name)) = (&*field.base, &field.member) else {
            return;
        };
        let Some(place) = self.struct_of(&field.base) else { return };
        let is_anothers = place.file != self.file && self.structs.owners.contains(&place);
        if let (true, Member::Named(owner)) = (is_anothers, &owner.member) {
            self.named.insert(format!("{owner}.{name}"));
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        visit::visit_local(self, local);
        let (Pat::Ident(name), Some(value)) = (&local.pat, &local.init) else { return };
        match self.struct_of(&value.expr) {
            Some(place) => self.locals.insert(name.ident.to_string(), place),
            None => self.locals.remove(&name.ident.to_string()),
        };
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let before =
            std::mem::replace(&mut self.own, struct_of(&item.self_ty, &self.at, self.modules));
        visit::visit_item_impl(self, item);
        self.own = before;
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        let before = self.enter(&function.sig);
        visit::visit_impl_item_fn(self, function);
        self.locals = before;
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        let before = self.enter(&function.sig);
        visit::visit_item_fn(self, function);
        self.locals = before;
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.at.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.at.pop();
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        for expression in expressions(call).unwrap_or_default() {
            self.visit_expr(&expression);
        }
    }
}
