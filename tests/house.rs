//! The rules of the house, read from the sources: who may use whom, and how long things may be.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A module imports only from floors below its own.
const FLOORS: [&[&str]; 21] = [
    &["sync", "report", "chunk", "key"],
    &["entry", "clock", "limit", "missed", "reaper", "slab", "stats"],
    &["alarm", "error", "bucket", "key_map"],
    &["executor", "delay_queue", "wheel"],
    &["wheels", "gate"],
    &["shard"],
    &["common", "local"],
    &["cell"],
    &["pool", "timeout"],
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
    &["hyper", "lease", "purgatory::watchers"],
    &["purgatory::shard"],
    &["purgatory::registry"],
    &["purgatory::hold"],
    &["purgatory::pending"],
    &["purgatory"],
    &["purgatory::future"],
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

/// The lines of code, numbered: no blank lines, no comments, nothing from the unit tests on.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let tests = |line: &str| line.trim_start().starts_with("#[cfg(test)]");
    let lines = text.lines().enumerate().map(|(number, line)| (number + 1, line));
    let lines = lines.take_while(move |(_, line)| !tests(line));
    lines.filter(|(_, line)| {
        let line = line.trim_start();
        !line.is_empty() && !line.starts_with("//")
    })
}

/// The module that a file of `src` is, as its users name it: `wheel`, `purgatory::state`.
fn module(path: &Path) -> String {
    let path = path.strip_prefix(root().join("src")).expect("a file of src").with_extension("");
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("::").trim_end_matches("::mod").to_owned()
}

/// The modules that a line of code names after `crate::`, in an import or inline.
fn used_by(line: &str) -> Vec<String> {
    let line = line.split("//").next().unwrap_or(line);
    let mut used = Vec::new();
    for rest in line.split("crate::").skip(1) {
        // `crate::{a, b::c}` names several.
        let group = rest.strip_prefix('{').map(|group| group.split('}').next().unwrap_or(group));
        for path in group.unwrap_or(rest).split(',').take(if group.is_some() { 99 } else { 1 }) {
            let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let name: String = path.trim().chars().take_while(|c| is_name(*c)).collect();
            // What begins with a capital letter is an item of the module.
            let is_module = |part: &&str| part.starts_with(|c: char| c.is_lowercase());
            let modules: Vec<&str> = name.split("::").take_while(is_module).take(2).collect();
            match modules[..] {
                [folder, part] if root().join("src").join(folder).is_dir() => {
                    used.push(format!("{folder}::{part}"));
                }
                [module, ..] => used.push(module.to_owned()),
                [] => used.push("timer".to_owned()), // An item of the crate's root.
            }
        }
    }
    used
}

#[test]
fn a_module_imports_only_from_floors_below_its_own() {
    let floors: BTreeMap<&str, usize> = FLOORS
        .iter()
        .enumerate()
        .flat_map(|(floor, modules)| modules.iter().map(move |module| (*module, floor)))
        .collect();
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
        for (number, line) in code(&read(&path)) {
            for used in used_by(line) {
                imports += 1;
                match floors.get(used.as_str()) {
                    Some(floor) if floor < own => {}
                    Some(floor) => {
                        wrong.push(format!("{name}:{number} ({own}) uses {used} ({floor})"));
                    }
                    None => wrong.push(format!("{name}:{number} uses {used}, on no floor")),
                }
            }
        }
    }
    for (module, floor) in floors {
        let path = root().join("src").join(module.replace("::", "/"));
        let exists = path.with_extension("rs").exists() || path.join("mod.rs").exists();
        assert!(exists, "{module} of floor {floor} does not exist");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(imports > 50, "only {imports} imports were found");
}

#[test]
fn the_reader_of_imports_sees_them_all() {
    assert_eq!(used_by("use crate::wheel::{MAX_SIZE, round_size};"), ["wheel"]);
    assert_eq!(
        used_by("    let x = crate::wheel::round_size(crate::clock::N);"),
        ["wheel", "clock"]
    );
    assert_eq!(used_by("use crate::{gate::Gate, slab};"), ["gate", "slab"]);
    assert!(used_by("code(); // crate::timer::Timer").is_empty());
    let text = "/// crate::a\n\ncode\n#[cfg(test)]\nmod tests {\n    use crate::b;\n}\n";
    assert_eq!(code(text).collect::<Vec<_>>(), [(3, "code")]);
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
        let text = read(&path);
        let mut open: Option<(usize, String)> = None;
        for (number, line) in text.lines().enumerate() {
            let indent = line.len() - line.trim_start().len();
            let closes = format!("{}}}", " ".repeat(indent));
            if let Some((start, closing)) = &open {
                if line.trim_end() == closing {
                    let lines = number + 1 - start;
                    assert!(lines < MAX_FUNCTION, "{}:{start}: {lines} lines", path.display());
                    open = None;
                    count += 1;
                }
            } else if line.contains("fn ") && line.trim_end().ends_with('{') {
                open = Some((number + 1, closes));
            }
        }
    }
    assert!(count > 250, "only {count} functions were found");
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
