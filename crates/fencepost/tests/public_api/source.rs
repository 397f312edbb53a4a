//! The modules of this workspace, parsed: every item with its module, under the cfgs of a full build.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item, Meta, Token, Visibility};

/// `["fencepost", "backends", "redis"]`
pub(crate) type ModulePath = Vec<String>;

pub(crate) struct Module {
    pub(crate) visibility: Visibility,
    pub(crate) hidden: bool,
    /// The cfgs of its declaration, as written.
    pub(crate) gates: Vec<String>,
    /// Its items without modules, which have their own entries.
    pub(crate) items: Vec<Item>,
}

pub(crate) struct Sources {
    pub(crate) modules: BTreeMap<ModulePath, Module>,
}

impl Sources {
    /// Reads all libraries below this directory.
    pub(crate) fn of_workspace(crates: &Path) -> Self {
        let mut sources = Self { modules: BTreeMap::new() };
        for directory in std::fs::read_dir(crates).unwrap() {
            let directory = directory.unwrap().path();
            let root = directory.join("src/lib.rs");
            if root.exists() {
                let public = Visibility::Public(<Token![pub]>::default());
                let items = parsed(&root);
                sources.add(vec![name_of(&directory)], public, &[], items, &directory.join("src"));
            }
        }
        sources
    }

    pub(crate) fn child(&self, module: &ModulePath, name: &str) -> Option<ModulePath> {
        let child = [module.as_slice(), &[name.to_owned()]].concat();
        self.modules.contains_key(&child).then_some(child)
    }

    /// Adds a module and those below it; `directory` is where their files are.
    fn add(
        &mut self,
        path: ModulePath,
        visibility: Visibility,
        attributes: &[Attribute],
        items: Vec<Item>,
        directory: &Path,
    ) {
        let mut own = Vec::new();
        for item in items.into_iter().filter(|item| is_built(attributes_of(item))) {
            let Item::Mod(module) = item else {
                own.push(item);
                continue;
            };
            let name = module.ident.to_string();
            let below = directory.join(&name);
            let items = match module.content {
                Some((_, items)) => items,
                None => parsed(&file_of(&module.attrs, directory, &name)),
            };
            let child = [path.as_slice(), &[name]].concat();
            self.add(child, module.vis, &module.attrs, items, &below);
        }
        let (hidden, gates) = (is_hidden(attributes), gates(attributes));
        self.modules.insert(path, Module { visibility, hidden, gates, items: own });
    }
}

fn name_of(directory: &Path) -> String {
    let manifest = std::fs::read_to_string(directory.join("Cargo.toml")).unwrap();
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    name.unwrap().replace('-', "_")
}

fn file_of(attributes: &[Attribute], directory: &Path, name: &str) -> PathBuf {
    assert!(
        !attributes.iter().any(|attribute| attribute.path().is_ident("path")),
        "module {name} in {}: a #[path] attribute cannot be followed",
        directory.display()
    );
    let file = directory.join(format!("{name}.rs"));
    if file.exists() { file } else { directory.join(name).join("mod.rs") }
}

fn parsed(file: &Path) -> Vec<Item> {
    let text = std::fs::read_to_string(file)
        .unwrap_or_else(|error| panic!("{} cannot be read: {error}", file.display()));
    let parsed = syn::parse_file(&text);
    parsed.unwrap_or_else(|error| panic!("{} cannot be parsed: {error}", file.display())).items
}

pub(crate) fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Its cfgs, as written.
pub(crate) fn gates(attributes: &[Attribute]) -> Vec<String> {
    let cfgs = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    cfgs.map(|cfg| super::text::shown(&cfg.meta)).collect()
}

/// Whether it is `#[doc(hidden)]`.
pub(crate) fn is_hidden(attributes: &[Attribute]) -> bool {
    let docs = attributes.iter().filter(|attribute| attribute.path().is_ident("doc"));
    docs.into_iter().any(|doc| doc.parse_args::<syn::Ident>().is_ok_and(|word| word == "hidden"))
}

/// Whether it exists with all features, on Linux, outside of tests.
pub(crate) fn is_built(attributes: &[Attribute]) -> bool {
    let cfgs = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    cfgs.into_iter().all(|cfg| holds(&cfg.parse_args().unwrap()))
}

fn holds(cfg: &Meta) -> bool {
    let is = |name| cfg.path().is_ident(name);
    match cfg {
        Meta::Path(_) => is("unix"),
        Meta::NameValue(setting) => {
            is("feature") || super::text::shown(&setting.value) == "\"linux\""
        }
        Meta::List(list) => {
            let parser = syn::punctuated::Punctuated::<Meta, Token![,]>::parse_terminated;
            let mut inner =
                list.parse_args_with(parser).unwrap().into_iter().map(|cfg| holds(&cfg));
            if is("any") { inner.any(|it| it) } else { inner.all(|it| it) != is("not") }
        }
    }
}
