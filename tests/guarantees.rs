//! The page of guarantees is complete: each promise of the crate's front page has a row there, and
//! each test that a row names exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn read(file: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the functions of all tests, and of the models, which a macro makes tests of.
fn functions() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec!["tests".into(), "src".into(), "crates/durable".into()];
    while let Some(folder) = folders.pop() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join::<std::path::PathBuf>(folder);
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("a readable folder").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.extend(tests_in(&read(path)));
            }
        }
    }
    found
}

/// The names of the functions that follow upon `#[test]`, or an attribute of tokio's for tests.
fn tests_in(source: &str) -> impl Iterator<Item = String> {
    let attributes = ["#[test]", "#[tokio::test"];
    let tests = attributes.into_iter().flat_map(|attribute| source.split(attribute).skip(1));
    tests.filter_map(|rest| {
        let (_, name) = rest.split_once("fn ")?;
        Some(name.split_once('(')?.0.to_owned())
    })
}

/// Returns the cells of the rows of all tables whose header has this column: the first one, and
/// that one.
fn rows<'a>(page: &'a str, column: &'a str) -> impl Iterator<Item = Vec<&'a str>> {
    let mut place = None;
    page.lines().filter_map(move |line| {
        let line = line.strip_prefix('|').and_then(|line| line.strip_suffix('|'));
        let Some(line) = line else {
            place = None;
            return None;
        };
        let cells: Vec<_> = line.split(" | ").map(str::trim).collect();
        if let Some(found) = cells.iter().position(|cell| *cell == column) {
            place = Some(found);
            return None;
        }
        let place = place.filter(|_| !line.starts_with("---"))?;
        Some(vec![cells[0], cells[place]])
    })
}

/// Returns the spans of code in a cell that are tests' names.
fn names(cell: &str) -> impl Iterator<Item = &str> {
    let spans = cell.split('`').skip(1).step_by(2);
    spans.filter(|span| {
        span.contains('_')
            && span.chars().all(|c| c.is_lowercase() || c == '_' || c.is_ascii_digit())
    })
}

#[test]
fn each_row_names_tests_that_exist() {
    let (page, tests) = (read("docs/GUARANTEES.md"), functions());
    let mut checked = 0;
    for row in rows(&page, "tests") {
        let mut named = names(row[1]).peekable();
        assert!(named.peek().is_some() || row[1] == "the compiler", "no test for {}", row[0]);
        for name in named {
            assert!(tests.contains(name), "{}: there is no test {name}", row[0]);
            checked += 1;
        }
    }
    assert!(checked > 150, "only {checked} names were found");
}

#[test]
fn each_promise_of_the_front_page_has_a_row() {
    let (page, front) = (read("docs/GUARANTEES.md"), read("src/lib.rs"));
    let (_, promises) = front.split_once("//! # Guarantees").expect("a heading");
    let (promises, _) = promises.split_once("//! # ").expect("the next heading");
    let mut checked = 0;
    for promise in promises.lines().filter_map(|line| line.strip_prefix("//! - **")) {
        let (promise, _) = promise.split_once("**").expect("it ends on its line");
        let promise = promise.trim_end_matches('.');
        assert!(rows(&page, "tests").any(|row| row[0] == promise), "no row for: {promise}");
        checked += 1;
    }
    assert!(checked >= 12, "only {checked} promises were found");
}

#[test]
fn the_readers_see_what_is_there() {
    let page =
        "| a | tests |\n|---|---|\n| x | `one_test`, `Two`; `fn_3` |\n\n| y | `none_here` |\n";
    let seen: Vec<_> = rows(page, "tests").collect();
    assert_eq!(seen, [["x", "`one_test`, `Two`; `fn_3`"]]);
    assert_eq!(names(seen[0][1]).collect::<Vec<_>>(), ["one_test", "fn_3"]);
    let source = "#[test]\nfn a() {}\nfn b() {}\n#[test]\n#[ignore]\nfn c() {}";
    assert_eq!(tests_in(source).collect::<Vec<_>>(), ["a", "c"]);
}
