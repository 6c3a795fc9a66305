//! The graph of imports between the modules of a crate.
//!
//! A node is a module with code of its own; the files beneath it (`put/begin.rs` of `put.rs`) are
//! parts of it. A file that only declares modules and re-exports their items is no node: its
//! modules are nodes themselves, and a path through a re-export leads to the module that defines
//! the item. The crate's root is no node either: it is where modules meet. Code under
//! `#[cfg(test)]` does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};
use syn::visit::Visit;
use syn::{Attribute, Item, UseTree};

type Module = Vec<String>;

/// Imports between modules, by their paths within the crate.
#[derive(Debug, Default)]
pub struct Imports {
    edges: BTreeMap<Module, BTreeSet<Module>>,
}

impl Imports {
    /// Reads the sources beneath `source`, the directory of a crate's `lib.rs` or `main.rs`.
    ///
    /// # Errors
    /// A file cannot be read, or is no Rust.
    pub fn of(source: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        read(source, &[], &mut files)?;
        let mut imports = Self::default();
        for (module, file) in files.iter().filter(|(module, file)| !module.is_empty() && !file.only_declares)
        {
            let from = node(module, &files);
            let to = imports.edges.entry(from.clone()).or_default();
            for path in &file.paths {
                let Some(path) = absolute(module, path, &files) else { continue };
                let target = node(&resolve(&path, &files, 0), &files);
                if !target.is_empty()
                    && target != from
                    && files.get(&target).is_some_and(|file| !file.only_declares)
                {
                    to.insert(target);
                }
            }
        }
        Ok(imports)
    }

    /// Groups of modules that import each other, directly or by way of others; the largest first.
    pub fn cycles(&self) -> Vec<BTreeSet<Module>> {
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.edges.keys().map(|module| (module, self.reached_from(module))).collect();
        let mut cycles: Vec<BTreeSet<Module>> = Vec::new();
        for (module, there) in &reached {
            let back = |other: &&&Module| reached.get(**other).is_some_and(|from| from.contains(*module));
            let mut cycle: BTreeSet<Module> = there.iter().filter(back).map(|m| (*m).clone()).collect();
            if cycle.insert((*module).clone()) && cycle.len() == 1 || cycles.contains(&cycle) {
                continue;
            }
            cycles.push(cycle);
        }
        cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
        cycles
    }

    /// Modules within `layer` that import a module outside of it.
    pub fn upward(&self, layer: &str) -> BTreeSet<(Module, Module)> {
        let within = |module: &Module| module.first().is_some_and(|first| first == layer);
        let of_layer = self.edges.iter().filter(|(from, _)| within(from));
        of_layer
            .flat_map(|(from, to)| to.iter().filter(|to| !within(to)).map(|to| (from.clone(), to.clone())))
            .collect()
    }

    fn reached_from(&self, module: &Module) -> BTreeSet<&Module> {
        let mut reached = BTreeSet::new();
        let mut todo: Vec<&Module> = self.edges.get(module).into_iter().flatten().collect();
        while let Some(next) = todo.pop() {
            if reached.insert(next) {
                todo.extend(self.edges.get(next).into_iter().flatten());
            }
        }
        reached
    }
}

/// The imports of one file.
#[derive(Default)]
struct File {
    /// Modules and re-exports, and nothing else.
    only_declares: bool,
    /// Paths that it names, as it names them.
    paths: BTreeSet<Vec<String>>,
    /// Names that it imports, with the paths that they stand for.
    names: BTreeMap<String, Vec<Vec<String>>>,
}

fn read(directory: &Path, module: &[String], files: &mut BTreeMap<Module, File>) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let mut inner = module.to_vec();
        if path.is_dir() {
            inner.push(name);
            read(&path, &inner, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests" {
            if !matches!(&*name, "lib" | "main" | "mod") {
                inner.push(name);
            }
            let text = std::fs::read_to_string(&path)?;
            let parsed = syn::parse_file(&text).with_context(|| path.display().to_string())?;
            files.insert(inner, File::of(&parsed));
        }
    }
    Ok(())
}

impl File {
    fn of(parsed: &syn::File) -> Self {
        let kept = || parsed.items.iter().filter(|item| !is_for_tests(item));
        let declares = |item: &Item| match item {
            Item::Mod(module) => module.content.is_none(),
            item => matches!(item, Item::Use(_)),
        };
        let mut file = Self { only_declares: kept().all(declares), ..Self::default() };
        kept().for_each(|item| file.visit_item(item));
        file
    }
}

impl<'ast> Visit<'ast> for File {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(item) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if words.len() > 1 && matches!(&*words[0], "crate" | "super" | "self") {
            self.paths.insert(words);
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {
        // `pub(super)` imports nothing.
    }
}

impl File {
    fn import(&mut self, tree: &UseTree, path: &mut Vec<String>) {
        match tree {
            UseTree::Path(inner) => {
                path.push(inner.ident.to_string());
                self.import(&inner.tree, path);
                path.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, path)),
            UseTree::Name(name) => self.add(path, &name.ident.to_string(), &name.ident.to_string()),
            UseTree::Rename(rename) => self.add(path, &rename.ident.to_string(), &rename.rename.to_string()),
            UseTree::Glob(_) => _ = self.paths.insert(path.clone()),
        }
    }

    fn add(&mut self, path: &[String], item: &str, name: &str) {
        let mut path = path.to_vec();
        let mut name = name.to_owned();
        if item == "self" {
            name = path.last().cloned().unwrap_or_default();
        } else {
            path.push(item.to_owned());
        }
        self.names.entry(name).or_default().push(path.clone());
        self.paths.insert(path);
    }
}

fn is_for_tests(item: &Item) -> bool {
    let attributes: &[Attribute] = match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    };
    attributes.iter().any(|attribute| {
        let list = attribute.meta.require_list();
        attribute.path().is_ident("cfg") && list.is_ok_and(|list| list.tokens.to_string() == "test")
    })
}

/// The module that counts for a file: the uppermost one with code of its own.
fn node(module: &[String], files: &BTreeMap<Module, File>) -> Module {
    (1..=module.len())
        .map(|length| module[..length].to_vec())
        .find(|module| files.get(module).is_some_and(|file| !file.only_declares))
        .unwrap_or_else(|| module.to_vec())
}

/// A path as seen from the crate's root; `None`: of another crate, or of an item in the same file.
fn absolute(module: &[String], path: &[String], files: &BTreeMap<Module, File>) -> Option<Vec<String>> {
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module, &path[1..]].concat()),
        "super" => {
            let up = path.iter().take_while(|word| *word == "super").count();
            Some([&module[..module.len().checked_sub(up)?], &path[up..]].concat())
        }
        first => {
            let child = [module, &[first.to_owned()]].concat();
            files.contains_key(&child).then(|| [module, path].concat())
        }
    }
}

/// The file that defines what a path names.
fn resolve(path: &[String], files: &BTreeMap<Module, File>, depth: u32) -> Module {
    /// Of re-exports of re-exports.
    const DEEPEST: u32 = 8;
    for length in (0..=path.len()).rev() {
        let Some(file) = files.get(&path[..length]) else { continue };
        let found = path.get(length).and_then(|name| file.names.get(name)).filter(|_| file.only_declares);
        let targets = found.into_iter().flatten().filter(|_| depth < DEEPEST);
        let target = targets.filter_map(|target| absolute(&path[..length], target, files)).next();
        return match target {
            Some(target) => resolve(&[&target, &path[length + 1..]].concat(), files, depth + 1),
            None => path[..length].to_vec(),
        };
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::scratch::Scratch;

    /// The cycles of a crate with these files.
    fn cycles(files: &[(&str, &str)]) -> Vec<String> {
        let scratch = Scratch::new().unwrap();
        for (name, text) in files {
            let path = scratch.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let cycles = Imports::of(scratch.path()).unwrap().cycles();
        let show = |module: &Module| module.join("::");
        cycles.iter().map(|cycle| cycle.iter().map(show).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn modules_that_import_each_other_are_a_cycle() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::B; pub struct A(B);"),
            ("b.rs", "pub struct B; fn f() { super::c::g() }"),
            ("c.rs", "use crate::{a::A, d}; pub fn g() {}"),
            ("d.rs", "pub fn h() {}"),
        ];
        assert_eq!(cycles(&files), ["a b c"]);
    }

    #[test]
    fn re_exports_lead_to_the_module_that_defines_the_item() {
        let files = [
            ("lib.rs", "mod a; mod b; mod net; pub use net::Session as Link;"),
            ("a.rs", "use crate::Link; struct A(Link);"),
            ("b.rs", "pub struct B;"),
            ("net/mod.rs", "mod session; pub use session::Session;"),
            ("net/session.rs", "use crate::a; pub struct Session;"),
        ];
        assert_eq!(cycles(&files), ["a net::session"]);
    }

    #[test]
    fn parts_of_a_module_are_one_node() {
        let files = [
            ("lib.rs", "mod put; mod queue;"),
            ("put.rs", "mod begin; pub struct Put;"),
            ("put/begin.rs", "use super::*; use crate::queue::Queue; fn f(q: Queue) {}"),
            ("queue.rs", "pub struct Queue(crate::put::Put);"),
        ];
        assert_eq!(cycles(&files), ["put queue"]);
    }

    #[test]
    fn tests_and_other_crates_do_not_count() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use std::io; pub struct A; #[cfg(test)] mod tests { use crate::b::B; }"),
            ("b.rs", "use crate::a::A; pub struct B(pub(super) A);"),
        ];
        assert!(cycles(&files).is_empty());
    }

    #[test]
    fn upward_when_a_layer_imports_a_module_outside_of_it_names_both() {
        let scratch = Scratch::new().unwrap();
        std::fs::create_dir(scratch.join("model")).unwrap();
        for (name, text) in [
            ("lib.rs", "mod model; mod session;"),
            ("model.rs", "pub mod a; pub mod b;"),
            ("model/a.rs", "use crate::model::b::B; pub struct A(B);"),
            ("model/b.rs", "use crate::session::Session; pub struct B(Session);"),
            ("session.rs", "use crate::model::a::A; pub struct Session;"),
        ] {
            std::fs::write(scratch.join(name), text).unwrap();
        }
        let path = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Module>();
        let upward = Imports::of(scratch.path()).unwrap().upward("model");
        assert_eq!(upward.into_iter().collect::<Vec<_>>(), [(path(&["model", "b"]), path(&["session"]))]);
    }
}
