//! The rules of the house, read from the sources: who may use whom, and how long things may be.

mod readers;
#[path = "../common/sources.rs"]
mod sources;

use sources::{Tree, code, exports, functions, name, without_comment};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module imports only from floors below its own. A folder's floors lie together: so folders do
/// not import each other in circles either.
const FLOORS: [&[&str]; 50] = [
    &["work"],
    &["store::chunk", "store::key", "store::key_table"],
    &["store::directory"],
    &["store::slab", "store::key_index"],
    &["store::key_map"],
    &["store"],
    &["wheel::ticks", "wheel::counters", "wheel::bucket"],
    &["wheel::bucket_queue", "wheel::timing_wheel"],
    &["wheel::wheels"],
    &["wheel::sweep"],
    &["wheel::core"],
    &["wheel::flush", "wheel::snapshot"],
    &["wheel::local"],
    &["wheel"],
    &["sync::thread_number", "sync::locks", "sync::parking_locks"],
    &["sync::counting_locks"],
    &["sync"],
    &["timer::report", "timer::entry", "timer::clock", "timer::limit", "timer::stats"],
    &["timer::error", "timer::alarm", "timer::reaper", "timer::delay_queue"],
    &["timer::executor", "timer::context"],
    &["timer::shard", "timer::dispatcher", "timer::owner"],
    &["timer::pool", "timer::timeout", "timer::driver"],
    &["timer::shards"],
    &["timer::base"],
    &["timer"],
    &["timer::builder"],
    &["periodic::missed"],
    &["periodic"],
    &["keyed::shard"],
    &["keyed::shards"],
    &["keyed::entry"],
    &["keyed"],
    &["keyed::looks"],
    &["lease::terms", "lease::stats", "lease::plan"],
    &["lease::book"],
    &["lease::watchdog"],
    &["lease"],
    &["purgatory::state", "purgatory::operation", "purgatory::callbacks", "purgatory::place"],
    &["purgatory::wait_queue", "purgatory::error", "purgatory::stats"],
    &["purgatory::visit"],
    &["purgatory::watchers"],
    &["purgatory::shard"],
    &["purgatory::shards"],
    &["purgatory::operation_ref"],
    &["purgatory::adding", "purgatory::pending", "purgatory::registration"],
    &["purgatory"],
    &["purgatory::future", "purgatory::triggers"],
    &["future"],
    &["future::drive", "future::hyper", "future::stream"],
    &["unwind"],
];

const MAX_FILE: usize = 250;
const MAX_FUNCTION: usize = 70;
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
    let path = path.strip_prefix(root().join("src")).expect("a file of src").with_extension("");
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("::").trim_end_matches("::mod").to_owned()
}

/// Returns the crate as its sources describe it.
fn tree() -> Tree {
    Tree::new(files("src").iter().map(|path| module(path)))
}

#[test]
fn a_module_imports_only_from_floors_below_its_own() {
    let floors: BTreeMap<&str, usize> = FLOORS
        .iter()
        .enumerate()
        .flat_map(|(floor, modules)| modules.iter().map(move |module| (*module, floor)))
        .collect();
    let tree = tree();
    let mut wrong = Vec::new();
    let mut imports = 0;
    for path in files("src") {
        let name = module(&path);
        if name == "lib" {
            continue;
        }
        let Some(own) = floors.get(name.as_str()) else {
            wrong.push(format!("{name} is on no floor"));
            continue;
        };
        for (number, used) in tree.used_by(&name, &read(&path)) {
            imports += 1;
            match used.as_ref().map(|used| (used, floors.get(used.as_str()))) {
                Ok((_, Some(floor))) if floor < own => {}
                Ok((used, _)) if *used == name => {} // A macro names its own module.
                Ok((used, floor)) => {
                    wrong.push(format!("{name}:{number} ({own}) uses {used} ({floor:?})"));
                }
                Err(path) => wrong.push(format!("{name}:{number} uses {path}")),
            }
        }
    }
    for (module, floor) in floors {
        let path = root().join("src").join(module.replace("::", "/"));
        let exists = path.with_extension("rs").exists() || path.join("mod.rs").exists();
        assert!(exists, "{module} of floor {floor} does not exist");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(imports > 200, "only {imports} imports were found");
}

/// So a folder is above another one or below it as a whole: no wheel takes a lock or looks at a
/// clock, which are above it.
#[test]
fn the_floors_of_a_folder_lie_together() {
    let mut folders: Vec<&str> = Vec::new();
    for module in FLOORS.iter().copied().flatten() {
        let folder = module.split("::").next().unwrap_or(module);
        if folders.last() != Some(&folder) {
            assert!(!folders.contains(&folder), "{module} is apart from the rest of its folder");
            folders.push(folder);
        }
    }
    let at = |name| folders.iter().position(|folder| *folder == name);
    assert!(at("store") < at("wheel") && at("wheel") < at("sync") && at("sync") < at("timer"));
    assert!(folders.len() <= 12, "src has {} folders and files: {folders:?}", folders.len());
}

/// The table of floors in `docs/ARCHITECTURE.md` says the same.
#[test]
fn the_table_of_floors_is_the_documented_one() {
    let page = read(&root().join("docs/ARCHITECTURE.md"));
    let rows = page.lines().skip_while(|line| !line.starts_with("| floor | module |")).skip(2);
    let mut documented = BTreeMap::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let mut cells = row.split('|').skip(1);
        let floor: usize = cells.next().and_then(|cell| cell.trim().parse().ok()).expect(row);
        let modules = cells.next().expect(row).split('`').skip(1).step_by(2);
        documented.extend(modules.map(|module| (module.to_owned(), floor)));
    }
    let floors = FLOORS.iter().enumerate();
    let floors = floors.flat_map(|(floor, it)| it.iter().map(move |it| (it.to_string(), floor)));
    assert_eq!(documented, floors.collect());
}

#[test]
fn files_are_short() {
    let mut count = 0;
    for path in ["src", "tests", "crates"].iter().flat_map(|folder| files(folder)) {
        let lines = code(&read(&path)).count();
        assert!(lines < MAX_FILE, "{}: {lines} lines of code", path.display());
        count += 1;
    }
    assert!(count > 25, "only {count} files were found");
}

#[test]
fn functions_are_short() {
    let mut count = 0;
    for path in
        ["src", "tests", "benches", "examples", "crates"].iter().flat_map(|folder| files(folder))
    {
        for (start, lines) in functions(&read(&path)) {
            assert!(lines < MAX_FUNCTION, "{}:{start}: {lines} lines", path.display());
            count += 1;
        }
    }
    assert!(count > 1000, "only {count} functions were found");
}

#[test]
fn lines_are_short() {
    for path in
        ["src", "tests", "benches", "examples", "crates"].iter().flat_map(|folder| files(folder))
    {
        for (number, line) in read(&path).lines().enumerate() {
            let length = line.chars().count();
            assert!(length <= MAX_LINE, "{}:{}: {length}", path.display(), number + 1);
        }
    }
}

/// A lock that yields costs the thread that waits for it its slice: `src/sync/mod.rs`. Those files
/// keep one that nobody contends for, or one for ThreadSanitizer; or wait in models, or once.
#[test]
fn no_lock_yields_the_processor_but_where_it_is_known() {
    let known = [
        ("parking_lot::", "sync::parking_locks sync::thread_number timer::pool"),
        ("yield_now", "sync"),
        ("spin_loop", "timer::owner"),
    ];
    for (word, modules) in known {
        let has_it = |path: &PathBuf| {
            code(&read(path)).any(|(_, line)| without_comment(line).contains(word))
        };
        let found: Vec<_> =
            files("src").iter().filter(|path| has_it(path)).map(|path| module(path)).collect();
        assert_eq!(found.join(" "), modules, "{word}");
    }
}

#[test]
fn the_changelog_tells_of_this_version() {
    let changelog = read(&root().join("CHANGELOG.md"));
    let version = env!("CARGO_PKG_VERSION");
    let heading = |line: &str| line.starts_with("## ") && line.contains(version);
    assert!(changelog.lines().any(heading), "no heading for {version}");
}

/// Returns the items that a text does not name outside of its imports.
fn unnamed<'a>(items: &'a [String], text: &str) -> Vec<&'a str> {
    let lines = code(text).map(|(_, line)| without_comment(line));
    let code: String = lines.flat_map(|line| [line, "\n"]).collect();
    let outside = code.split("\nuse ").map(|part| part.split_once(';').map_or(part, |it| it.1));
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let words: BTreeSet<&str> = outside.flat_map(|part| part.split(|c| !is_name(c))).collect();
    items.iter().map(|path| name(path)).filter(|name| !words.contains(name)).collect()
}

#[test]
fn the_test_of_auto_traits_names_every_public_item() {
    let lib = read(&root().join("src/lib.rs"));
    let modules = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let modules = modules.filter(|module| *module != "work").map(|it| format!("src/{it}/mod.rs"));
    let items: Vec<_> = modules.flat_map(|path| exports(&read(&root().join(path)))).collect();
    let items = [exports(&lib), items].concat();
    assert!(items.len() > 50, "only {} items were found", items.len());
    let missing = unnamed(&items, &read(&root().join("tests/auto_traits.rs")));
    assert!(missing.is_empty(), "{missing:?}");
    let items = ["a::A", "b::B", "C"].map(str::to_owned);
    let text =
        "//! C\nuse krate::{\n    A, B, C,\n};\nuse D;\nfn f() { is_send::<B<u8>>(); CA } // A";
    assert_eq!(unnamed(&items, text), ["A", "C"]);
}
