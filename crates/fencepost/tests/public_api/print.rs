//! Lines of `path: declaration`, sorted by path.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use syn::punctuated::Punctuated;
use syn::visit_mut::VisitMut as _;
use syn::{
    Attribute, Fields, Generics, ImplItem, Item, ItemImpl, ItemTrait, Token, TraitItem, Type,
    Visibility,
};

use super::resolve::{Entity, Exports};
use super::source::{ModulePath, Sources, attributes_of, is_built, is_hidden};
use super::text::{Normalised, segments, shown};

/// The public API of these crates.
pub(crate) fn lines(sources: &Sources, roots: &[&str]) -> Vec<String> {
    let crates: Vec<Exports> = roots.iter().map(|root| sources.exports(root)).collect();
    let public = crates.iter().flat_map(BTreeMap::keys).map(|(_, entity)| entity).collect();
    let impls = impls(sources, &public);
    crates.iter().flat_map(|exports| lines_of(sources, exports, &impls)).collect()
}

fn lines_of(
    sources: &Sources,
    exports: &Exports,
    impls: &BTreeMap<Entity, Vec<ItemImpl>>,
) -> Vec<String> {
    let mut shortest: BTreeMap<&Entity, &str> = BTreeMap::new();
    for (path, entity) in exports.keys() {
        let known = shortest.entry(entity).or_insert(path);
        if path.matches("::").count() < known.matches("::").count() {
            *known = path;
        }
    }

    let mut lines = vec![];
    for ((path, entity), gates) in exports {
        let mut members = vec![];
        let declaration = match entity {
            entity if shortest[entity] != path => format!("the same as {}", shortest[entity]),
            Entity::Module(_) => "pub mod".to_owned(),
            Entity::Foreign(name) => format!("pub use {name}"),
            Entity::Item(module, number) => {
                let mut item = sources.item(module, *number).clone();
                Normalised.visit_item_mut(&mut item);
                members.extend(own_members(&item));
                members.extend(impls.get(entity).into_iter().flatten().flat_map(impl_members));
                members.sort();
                declaration(&item, path.rsplit("::").next().unwrap())
            }
        };
        let gates = gates.iter().map(|gate| format!("#[{gate}]"));
        let head = format!("{path}: {declaration}");
        lines.push([head].into_iter().chain(gates).collect::<Vec<_>>().join(" "));
        lines.extend(members.into_iter().map(|member| format!("{path}{member}")));
    }
    lines
}

/// The impl blocks of exported items: of types, and of traits for foreign types.
fn impls(sources: &Sources, exported: &BTreeSet<&Entity>) -> BTreeMap<Entity, Vec<ItemImpl>> {
    let mut impls: BTreeMap<Entity, Vec<ItemImpl>> = BTreeMap::new();
    let all = sources.modules.iter();
    let all = all.flat_map(|(path, module)| module.items.iter().map(move |item| (path, item)));
    for (module, item) in all {
        let Item::Impl(block) = item else { continue };
        let of_type = type_path(&block.self_ty).and_then(|path| ours(sources, module, &path));
        let of_trait = block.trait_.as_ref().filter(|(_, path, _)| path.leading_colon.is_none());
        let of_trait = of_trait.and_then(|(_, path, _)| ours(sources, module, &segments(path)));
        if of_trait.as_ref().is_some_and(|entity| !exported.contains(entity)) {
            continue;
        }
        if let Some(entity) = of_type.or(of_trait) {
            let mut block = block.clone();
            Normalised.visit_item_impl_mut(&mut block);
            impls.entry(entity).or_default().push(block);
        }
    }
    impls
}

fn ours(sources: &Sources, module: &ModulePath, path: &[String]) -> Option<Entity> {
    sources.resolve(module, path).into_iter().find(|entity| match entity {
        Entity::Item(module, number) => {
            matches!(
                sources.item(module, *number),
                Item::Struct(_) | Item::Enum(_) | Item::Trait(_)
            )
        }
        _ => false,
    })
}

fn type_path(of: &Type) -> Option<Vec<String>> {
    match of {
        Type::Path(path) if path.qself.is_none() && path.path.leading_colon.is_none() => {
            Some(segments(&path.path))
        }
        Type::Reference(reference) => type_path(&reference.elem),
        _ => None,
    }
}

fn declaration(item: &Item, name: &str) -> String {
    let mut text = match item {
        Item::Const(item) => {
            format!("pub const {name}: {} = {}", shown(&item.ty), shown(&item.expr))
        }
        Item::Static(item) => format!("pub static {name}: {}", shown(&item.ty)),
        Item::Fn(item) => format!("pub {}", shown(&item.sig)),
        Item::Enum(item) => format!("pub enum {name}{}", generics(&item.generics)),
        Item::Struct(item) => format!("pub struct {name}{}", generics(&item.generics)),
        Item::Type(item) => {
            format!("pub type {name}{} = {}", generics(&item.generics), shown(&item.ty))
        }
        Item::Trait(item) if item.supertraits.is_empty() => {
            format!("pub trait {name}{}", generics(&item.generics))
        }
        Item::Trait(item) => {
            format!("pub trait {name}{}: {}", generics(&item.generics), shown(&item.supertraits))
        }
        _ => unreachable!("only what declares a name is exported"),
    };
    if let Item::Struct(item) = item
        && item.fields.iter().any(|field| !matches!(field.vis, Visibility::Public(_)))
    {
        text += " { .. }";
    }
    if attributes_of(item).iter().any(|attribute| attribute.path().is_ident("non_exhaustive")) {
        text += " #[non_exhaustive]";
    }
    text
}

/// The members in the declaration itself, as `::name: declaration`, and its derives.
fn own_members(item: &Item) -> Vec<String> {
    let mut members = derived(item);
    match item {
        Item::Enum(item) => members.extend(item.variants.iter().map(|variant| {
            let fields: Vec<_> =
                variant.fields.iter().map(|field| named(field.ident.as_ref(), &field.ty)).collect();
            let fields = fields.join(", ");
            match &variant.fields {
                Fields::Unit => format!("::{}: variant", variant.ident),
                Fields::Unnamed(_) => format!("::{}: variant ({fields})", variant.ident),
                Fields::Named(_) => format!("::{}: variant {{ {fields} }}", variant.ident),
            }
        })),
        Item::Struct(item) => {
            for (number, field) in item.fields.iter().enumerate() {
                if matches!(field.vis, Visibility::Public(_)) {
                    let name = field.ident.as_ref().map_or(number.to_string(), ToString::to_string);
                    members
                        .push(format!("::{name}: pub {}", named(field.ident.as_ref(), &field.ty)));
                }
            }
        }
        Item::Trait(item) => members.extend(trait_members(item)),
        _ => {}
    }
    members
}

fn named(name: Option<&syn::Ident>, of: &Type) -> String {
    name.map_or(String::new(), |name| format!("{name}: ")) + &shown(of)
}

fn derived(item: &Item) -> Vec<String> {
    let derives =
        attributes_of(item).iter().filter(|attribute| attribute.path().is_ident("derive"));
    let traits = derives.flat_map(|derive| {
        derive.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated).unwrap()
    });
    traits.map(|path| format!(": impl {}", path.segments.last().unwrap().ident)).collect()
}

fn trait_members(item: &ItemTrait) -> Vec<String> {
    let lines = item.items.iter().map(|member| match member {
        TraitItem::Fn(item) => {
            let provided = if item.default.is_some() { " { .. }" } else { "" };
            format!("::{}: {}{provided}", item.sig.ident, shown(&item.sig))
        }
        TraitItem::Type(item) => format!("::{}: {}", item.ident, shown(item)),
        TraitItem::Const(item) => format!("::{}: {}", item.ident, shown(item)),
        other => panic!("unknown item in trait {}: {}", item.ident, shown(other)),
    });
    lines.collect()
}

fn is_shown(attributes: &[Attribute], visibility: &Visibility) -> bool {
    is_built(attributes) && !is_hidden(attributes) && matches!(visibility, Visibility::Public(_))
}

fn impl_members(block: &ItemImpl) -> Vec<String> {
    let Some((_, path, _)) = &block.trait_ else {
        let of = if block.generics.params.is_empty() {
            String::new()
        } else {
            format!(" in {}", impl_head(block))
        };
        let lines = block.items.iter().filter_map(|member| match member {
            ImplItem::Fn(item) if is_shown(&item.attrs, &item.vis) => {
                Some(format!("::{}: pub {}{of}", item.sig.ident, shown(&item.sig)))
            }
            ImplItem::Const(item) if is_shown(&item.attrs, &item.vis) => Some(format!(
                "::{}: pub const {}: {} = {}{of}",
                item.ident,
                item.ident,
                shown(&item.ty),
                shown(&item.expr)
            )),
            _ => None,
        });
        return lines.collect();
    };
    let mut line =
        if block.generics.params.is_empty() && !matches!(*block.self_ty, Type::Reference(_)) {
            format!(": impl {}", shown(path.segments.last().unwrap()))
        } else {
            format!(": {}", impl_head(block))
        };
    for member in &block.items {
        if let ImplItem::Type(item) = member {
            write!(line, " {{ type {} = {} }}", item.ident, shown(&item.ty)).unwrap();
        }
    }
    vec![line]
}

fn impl_head(block: &ItemImpl) -> String {
    let of_trait = block
        .trait_
        .as_ref()
        .map(|(_, path, _)| format!("{} for ", shown(path.segments.last().unwrap())));
    let (parameters, conditions) =
        (shown(&block.generics.params), shown(&block.generics.where_clause));
    let of = of_trait.unwrap_or_default() + &shown(&block.self_ty);
    format!("impl<{parameters}> {of} {conditions}").trim_end().to_owned()
}

fn generics(generics: &Generics) -> String {
    format!("{} {}", shown(generics), shown(&generics.where_clause)).trim_end().to_owned()
}
