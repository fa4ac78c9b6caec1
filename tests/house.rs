//! The rules of the house, read from the sources: who may use whom, and how long things may be.

#[path = "common/sources.rs"]
mod sources;

use sources::{Tree, code, exports, functions, name, without_comment};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module imports only from floors below its own.
const FLOORS: [&[&str]; 28] = [
    &["thread_number", "work"],
    &["locks", "parking_locks"],
    &["counting_locks"],
    &["sync", "report", "chunk", "key"],
    &["directory"],
    &["entry", "clock", "limit", "missed", "reaper", "slab", "stats"],
    &["alarm", "error", "bucket", "key_map"],
    &["executor", "delay_queue", "wheel"],
    &["wheels", "gate"],
    &["sweep"],
    &["shard"],
    &["common", "local"],
    &["cell"],
    &["pool", "timeout"],
    &["cells"],
    &["driver"],
    &["timer"],
    &["builder"],
    &[
        "keyed::shards",
        "lease::terms",
        "purgatory::state",
        "purgatory::operation",
        "purgatory::callbacks",
        "purgatory::place",
    ],
    &[
        "keyed",
        "future",
        "lease::book",
        "periodic",
        "purgatory::delayed",
        "purgatory::entries",
        "purgatory::error",
        "purgatory::stats",
    ],
    &["hyper", "lease::watchdog", "purgatory::watchers"],
    &["lease", "purgatory::shard"],
    &["purgatory::registry"],
    &["purgatory::hold"],
    &["purgatory::adding", "purgatory::pending"],
    &["purgatory"],
    &["purgatory::future"],
    &["unwind"],
];

const MAX_FILE: usize = 250;
const MAX_FUNCTION: usize = 70;
const MAX_LINE: usize = 100;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust files below a folder.
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

/// The module that a file of `src` is, as its users name it: `wheel`, `purgatory::state`.
fn module(path: &Path) -> String {
    let path = path.strip_prefix(root().join("src")).expect("a file of src").with_extension("");
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("::").trim_end_matches("::mod").to_owned()
}

/// The crate as its sources tell.
fn tree() -> Tree {
    let modules = files("src").iter().map(|path| module(path)).collect::<Vec<_>>();
    Tree::new(&read(&root().join("src/lib.rs")), modules)
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
    for path in ["src", "tests"].iter().flat_map(|folder| files(folder)) {
        let lines = code(&read(&path)).count();
        assert!(lines < MAX_FILE, "{}: {lines} lines of code", path.display());
        count += 1;
    }
    assert!(count > 25, "only {count} files were found");
}

#[test]
fn functions_are_short() {
    let mut count = 0;
    for path in ["src", "tests", "benches", "examples"].iter().flat_map(|folder| files(folder)) {
        for (start, lines) in functions(&read(&path)) {
            assert!(lines < MAX_FUNCTION, "{}:{start}: {lines} lines", path.display());
            count += 1;
        }
    }
    assert!(count > 1000, "only {count} functions were found");
}

#[test]
fn lines_are_short() {
    for path in ["src", "tests", "benches", "examples"].iter().flat_map(|folder| files(folder)) {
        for (number, line) in read(&path).lines().enumerate() {
            let length = line.chars().count();
            assert!(length <= MAX_LINE, "{}:{}: {length}", path.display(), number + 1);
        }
    }
}

#[test]
fn the_changelog_tells_of_this_version() {
    let changelog = read(&root().join("CHANGELOG.md"));
    let version = env!("CARGO_PKG_VERSION");
    let heading = |line: &str| line.starts_with("## ") && line.contains(version);
    assert!(changelog.lines().any(heading), "no heading for {version}");
}

/// The items that a text does not name outside of its imports.
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
    let items = exports(&read(&root().join("src/lib.rs")));
    assert!(items.len() > 50, "only {} items were found", items.len());
    let missing = unnamed(&items, &read(&root().join("tests/auto_traits.rs")));
    assert!(missing.is_empty(), "{missing:?}");
    let items = ["a::A", "b::B", "C"].map(str::to_owned);
    let text =
        "//! C\nuse krate::{\n    A, B, C,\n};\nuse D;\nfn f() { is_send::<B<u8>>(); CA } // A";
    assert_eq!(unnamed(&items, text), ["A", "C"]);
}

/// The readers are tried on what a reader of lines, or of capital letters, overlooks.
fn planted(own: &str, text: &str) -> Vec<String> {
    let lib = "mod timer;\npub use gate::{\n    Gate,\n    latch::Latch as Lock, // Both.\n};\n\
        pub use timer::Timer;\n";
    let modules = ["timer", "gate", "gate::latch", "keyed", "lib"].map(str::to_owned);
    let used = Tree::new(lib, modules).used_by(own, text);
    used.into_iter().map(|(line, used)| format!("{line} {}", used.unwrap_or_else(|e| e))).collect()
}

#[test]
fn the_reader_of_imports_sees_them_all() {
    let sees = |text: &str, expected: &[&str]| assert_eq!(planted("keyed", text), expected);
    sees("use crate::gate::{A, b, latch::C};", &["1 gate", "1 gate", "1 gate::latch"]);
    sees("let x = crate::gate::wait(crate::timer::N);", &["1 gate", "1 timer"]);
    sees(
        "use crate::{gate::{latch::Latch, Gate}, timer};",
        &["1 gate::latch", "1 gate", "1 timer"],
    );
    // The root's items belong to the modules that define them.
    sees("use crate::Timer;", &["1 timer"]);
    sees("use crate::{Gate, Latch};", &["1 gate", "1 gate::latch"]);
    // Over several lines; renamed; by a macro.
    sees("\nuse crate::{\n    Gate as G,\n    Timer, // Why.\n};\n", &["2 gate", "2 timer"]);
    sees("    $crate::timer::f()", &["1 timer"]);
    // What it cannot follow is no way round it.
    sees("use super::timer;", &["1 a path from super::"]);
    sees("fn f(x: super::Timer) {}", &["1 a path from super::"]);
    sees("use self::timer::Timer;", &["1 a path from self::"]);
    sees("use crate::*;", &["1 crate::*"]);
    sees("use crate::Unknown;", &["1 crate::Unknown"]);
    assert_eq!(planted("gate", "use latch::Latch;"), ["1 gate::latch"]);
    assert_eq!(planted("gate", "let x = latch::new();"), ["1 gate::latch"]);
    // Neither comments nor unit tests, nor what only looks like it.
    sees("code(); // crate::timer::Timer\n/// crate::gate\n", &[]);
    sees("use mycrate::timer; let notsuper::x = 1; std::gate::latch::f();", &[]);
    sees("#[cfg(test)]\nmod tests {\n    use super::*;\n}\n", &[]);
    sees("#[cfg(test)]\nfn helper() {}\nuse crate::Timer;\n", &["3 timer"]);
    let text = "/// crate::a\n\ncode\n#[cfg(all(test, x))]\nmod tests {\n    use crate::b;\n}\n";
    assert_eq!(code(text).collect::<Vec<_>>(), [(3, "code")]);
}

#[test]
fn the_reader_of_functions_sees_the_ends_of_them_all() {
    let body = "    code();\n".repeat(117);
    assert_eq!(functions(&format!("fn f() {{\n{body}}}\n")), [(1, 119)]);
    assert_eq!(functions(&format!("\nfn f(\n    a: u8,\n) {{\n{body}}}\n")), [(2, 121)]);
    let bounded = format!("pub(crate) async fn f<T>()\nwhere\n    T: A,\n{{\n{body}}}\n");
    assert_eq!(functions(&bounded), [(1, 122)]);
    let methods =
        "impl A {\n    fn a() {}\n\n    const fn b() {\n        c(|| {\n        });\n    }\n}\n";
    assert_eq!(functions(methods), [(2, 1), (4, 4)]);
    let without =
        "trait A {\n    fn a();\n    fn b(\n        x: u8,\n    ) -> u8;\n    fn c() {\n    }\n}\n";
    assert_eq!(functions(without), [(2, 1), (3, 3), (6, 2)]);
    let bounded = "    fn a<T>()\n    where\n        T: B;\n\n    fn c() {\n        d();\n    }\n";
    assert_eq!(functions(bounded), [(1, 3), (5, 3)]);
    assert_eq!(functions("/// A fn of it {\nlet fnord = 1;\n"), []);
    assert_eq!(functions("fn f() {\n"), [(1, usize::MAX)]);
}
