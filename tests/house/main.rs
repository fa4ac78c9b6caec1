//! The rules of the house, read from the sources: who may use whom, how long things may be, and
//! that the planted bugs fit.

mod planted;
mod readers;
mod sources;

use sources::{Tree, code, without_comment};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder imports only from layers above it in this list; a file beside the folders is a layer of
/// its own. Those that stand together do not use each other.
const LAYERS: [&[&str]; 6] = [
    &["wheel", "table"],
    &["sync"],
    &["engine"],
    &["timer"],
    &["periodic", "keyed", "purgatory", "queue"],
    &["future"],
];

const MAX_FILE: usize = 530;
const MAX_LINE: usize = 100;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the Rust files below a folder.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.expect("a readable folder").path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the module of a file of `src`, as its users name it: `wheel`, `purgatory::state`.
fn module(path: &Path) -> String {
    let path = path
        .strip_prefix(root().join("src"))
        .expect("a file of src")
        .with_extension("");
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("::").trim_end_matches("::mod").to_owned()
}

/// Returns the crate as its sources describe it.
fn tree() -> Tree {
    Tree::new(files("src").iter().map(|path| module(path)))
}

/// Which modules of the crate each module imports from.
fn imports() -> BTreeMap<String, BTreeSet<String>> {
    let tree = tree();
    let mut imports = BTreeMap::new();
    for path in files("src") {
        let name = module(&path);
        let used = tree
            .used_by(&name, &read(&path))
            .into_iter()
            .map(|(number, used)| {
                used.unwrap_or_else(|path| panic!("{name}:{number} uses {path}"))
            });
        let others = used.filter(|used| *used != name).collect(); // A macro names its own module.
        imports.insert(name, others);
    }
    imports.remove("lib"); // It names all.
    assert!(
        imports.values().map(BTreeSet::len).sum::<usize>() > 200,
        "imports are found"
    );
    imports
}

fn folder(module: &str) -> &str {
    module.split("::").next().unwrap_or(module)
}

#[test]
fn a_folder_imports_only_from_layers_below_its_own() {
    let layer_of = |module: &str| {
        let layer = LAYERS
            .iter()
            .position(|layer| layer.contains(&folder(module)));
        layer.unwrap_or_else(|| panic!("{module} is in no layer"))
    };
    for (name, used) in imports() {
        for used in used.iter().filter(|used| folder(used) != folder(&name)) {
            assert!(layer_of(used) < layer_of(&name), "{name} uses {used}");
        }
    }
}

/// So each can be read after those that it uses.
#[test]
fn no_modules_import_each_other_in_a_circle() {
    let mut imports = imports();
    while !imports.is_empty() {
        let read: Vec<_> = imports.keys().cloned().collect();
        let (later, next): (Vec<_>, Vec<_>) = read
            .into_iter()
            .partition(|name| imports[name].iter().any(|used| imports.contains_key(used)));
        assert!(!next.is_empty(), "there is a circle among {later:?}");
        next.iter().for_each(|name| _ = imports.remove(name));
    }
}

#[test]
fn files_are_short() {
    let mut count = 0;
    for path in ["src", "tests", "crates"]
        .iter()
        .flat_map(|folder| files(folder))
    {
        let lines = code(&read(&path)).count();
        assert!(
            lines <= MAX_FILE,
            "{}: {lines} lines of code",
            path.display()
        );
        count += 1;
    }
    assert!(count > 25, "only {count} files were found");
}

#[test]
fn lines_are_short() {
    for path in ["src", "tests", "benches", "examples", "crates"]
        .iter()
        .flat_map(|folder| files(folder))
    {
        for (number, line) in read(&path).lines().enumerate() {
            let length = line.chars().count();
            assert!(
                length <= MAX_LINE,
                "{}:{}: {length}",
                path.display(),
                number + 1
            );
        }
    }
}

/// A lock that yields costs the thread that waits for it its slice (`src/sync.rs`). So each is here
/// with who takes it. A lock that the reaper takes, and that callers can take without a pause, has
/// no place in this list: it is a `HotMutex`.
#[test]
fn no_lock_yields_the_processor_but_where_it_is_known() {
    let known = [
        // The pool: who makes or drops a source.
        ("parking_lot::", "engine::pool sync"),
        ("yield_now", "sync"),
        ("spin_loop", "engine::shard"),
        // manual_clock: who moves it; no reaper. reaper: who joins it. shard: who flushes and finds
        // something due. queue, entry, error: nobody; it makes them `Sync`.
        (
            "Mutex<",
            "engine::manual_clock engine::pool engine::reaper engine::shard queue sync \
             timer::entry timer::error",
        ),
    ];
    for (word, modules) in known {
        let has_it = |path: &PathBuf| {
            code(&read(path)).any(|(_, line)| {
                let line = without_comment(line).replace("HotMutex", "");
                line.contains(word)
            })
        };
        let found: Vec<_> = files("src")
            .iter()
            .filter(|path| has_it(path))
            .map(|path| module(path))
            .collect();
        assert_eq!(found.join(" "), modules, "{word}");
    }
}
