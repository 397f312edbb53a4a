//! What a path in a module means, and what a crate exports.

use std::collections::BTreeMap;

use syn::{Item, UseTree, Visibility};

use super::source::{ModulePath, Sources, attributes_of, gates, is_hidden};

/// Re-exports of re-exports, at most.
const MAX_DEPTH: usize = 20;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Entity {
    Module(ModulePath),
    /// The number of an item in its module.
    Item(ModulePath, usize),
    /// An item of another crate, as it was named.
    Foreign(String),
}

/// Public paths and what they mean, with the cfgs of the declaration or the re-export. The cfgs of the parent module
/// also apply.
pub(crate) type Exports = BTreeMap<(String, Entity), Vec<String>>;

/// One name that a `use` brings in.
struct Import {
    name: String,
    path: Vec<String>,
}

impl Sources {
    pub(crate) fn item(&self, module: &ModulePath, number: usize) -> &Item {
        &self.modules[module].items[number]
    }

    /// Everything that the path means: a module and a function may share a name.
    pub(crate) fn resolve(&self, module: &ModulePath, path: &[String]) -> Vec<Entity> {
        self.resolve_within(module, path, MAX_DEPTH)
    }

    fn resolve_within(&self, module: &ModulePath, path: &[String], depth: usize) -> Vec<Entity> {
        let Some((first, rest)) = path.split_first().filter(|_| depth > 0) else { return vec![] };
        let start = match first.as_str() {
            "crate" => vec![Entity::Module(module[..1].to_vec())],
            "self" => vec![Entity::Module(module.clone())],
            "super" => vec![Entity::Module(module[..module.len() - 1].to_vec())],
            name => {
                let found = self.lookup(module, name, depth);
                let crate_root = vec![name.to_owned()];
                if found.is_empty() && self.modules.contains_key(&crate_root) {
                    vec![Entity::Module(crate_root)]
                } else {
                    found
                }
            }
        };
        rest.iter().fold(start, |found, name| {
            let modules = found.into_iter().filter_map(|entity| match entity {
                Entity::Module(module) => Some(module),
                _ => None,
            });
            modules
                .flat_map(|module| match name.as_str() {
                    "super" => vec![Entity::Module(module[..module.len() - 1].to_vec())],
                    name => self.lookup(&module, name, depth),
                })
                .collect()
        })
    }

    fn lookup(&self, module: &ModulePath, name: &str, depth: usize) -> Vec<Entity> {
        if depth == 0 {
            return vec![];
        }
        let items = &self.modules[module].items;
        let named = items
            .iter()
            .enumerate()
            .filter(|(_, item)| declared(item).is_some_and(|(own, _)| own == name));
        let mut found: Vec<Entity> =
            named.map(|(number, _)| Entity::Item(module.clone(), number)).collect();
        found.extend(self.child(module, name).map(Entity::Module));
        let imports = items.iter().filter_map(|item| match item {
            // `use ::redis` is another crate, even where a module has its name.
            Item::Use(item) if item.leading_colon.is_none() => Some(imports(&item.tree)),
            _ => None,
        });
        for import in imports.flatten() {
            if import.name == name && import.path != [name] {
                found.extend(self.resolve_within(module, &import.path, depth - 1));
            } else if import.name == "*" {
                for entity in self.resolve_within(module, &import.path, depth - 1) {
                    if let Entity::Module(all_of) = entity {
                        found.extend(self.lookup(&all_of, name, depth - 1));
                    }
                }
            }
        }
        found
    }

    /// The public paths of a crate.
    pub(crate) fn exports(&self, root: &str) -> Exports {
        let mut exports = BTreeMap::new();
        self.export_module(root, &vec![root.to_owned()], &mut exports);
        exports
    }

    fn export_module(&self, shown_as: &str, module: &ModulePath, exports: &mut Exports) {
        let mut export = |name: &str, entity: Entity, gates: Vec<String>| {
            let path = format!("{shown_as}::{name}");
            if let Entity::Module(module) = &entity {
                self.export_module(&path, module, exports);
            }
            exports.insert((path, entity), gates);
        };
        for (number, item) in self.modules[module].items.iter().enumerate() {
            if is_hidden(attributes_of(item)) {
                continue;
            }
            let gates = gates(attributes_of(item));
            if let Some((name, Visibility::Public(_))) = declared(item) {
                export(&name, Entity::Item(module.clone(), number), gates);
            } else if let Item::Use(item) = item
                && matches!(item.vis, Visibility::Public(_))
            {
                for Import { name, path } in imports(&item.tree) {
                    assert_ne!(name, "*", "{shown_as}: name what is re-exported");
                    let mut found = self.resolve(module, &path);
                    found.retain(|entity| self.is_public(entity));
                    if found.is_empty() {
                        found.push(Entity::Foreign(path[path.len() - 1].clone()));
                    }
                    for entity in found {
                        export(&name, entity, gates.clone());
                    }
                }
            }
        }
        for (path, child) in &self.modules {
            let name = path.split_last().filter(|(_, parent)| *parent == module.as_slice());
            if let (Some((name, _)), Visibility::Public(_), false) =
                (name, &child.visibility, child.hidden)
            {
                export(name, Entity::Module(path.clone()), child.gates.clone());
            }
        }
    }

    fn is_public(&self, entity: &Entity) -> bool {
        let visibility = match entity {
            Entity::Module(module) => Some(&self.modules[module].visibility),
            Entity::Item(module, number) => {
                declared(self.item(module, *number)).map(|(_, visibility)| visibility)
            }
            Entity::Foreign(_) => None,
        };
        matches!(visibility, Some(Visibility::Public(_)))
    }
}

/// The name that an item declares in its module, and its visibility.
fn declared(item: &Item) -> Option<(String, &Visibility)> {
    let (name, visibility) = match item {
        Item::Const(item) => (&item.ident, &item.vis),
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Fn(item) => (&item.sig.ident, &item.vis),
        Item::Static(item) => (&item.ident, &item.vis),
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        _ => return None,
    };
    Some((name.to_string(), visibility))
}

fn imports(tree: &UseTree) -> Vec<Import> {
    let import = |name: String, segment: String| vec![Import { name, path: vec![segment] }];
    match tree {
        UseTree::Name(name) => import(name.ident.to_string(), name.ident.to_string()),
        UseTree::Rename(name) => import(name.rename.to_string(), name.ident.to_string()),
        UseTree::Glob(_) => vec![Import { name: "*".to_owned(), path: vec![] }],
        UseTree::Group(group) => group.items.iter().flat_map(imports).collect(),
        UseTree::Path(path) => {
            let segment = path.ident.to_string();
            let mut below = imports(&path.tree);
            for import in &mut below {
                // `use once::{self, Once}` imports `once`.
                if import.path == ["self"] {
                    import.path.clear();
                    if import.name == "self" {
                        import.name.clone_from(&segment);
                    }
                }
                import.path.insert(0, segment.clone());
            }
            below
        }
    }
}
