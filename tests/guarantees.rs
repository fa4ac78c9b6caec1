//! The page of guarantees is complete: each promise of the crate's front page and of the page of
//! durable timers has a row there, and so has each known way to fail. Each test that a row names
//! exists and is run.

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

/// The names of the functions that are run as tests: those with an attribute for that and none to
/// ignore them, and those that such a test calls with the servers that they share.
fn tests_in(source: &str) -> Vec<String> {
    let (mut found, mut attributes) = (Vec::new(), Vec::new());
    for line in source.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
        assert!(!line.starts_with("/*"), "it may hide a test: {line}");
        if line.starts_with("#[") {
            attributes.push(line);
            continue;
        }
        let has = |start| attributes.iter().any(|attribute: &&str| attribute.starts_with(start));
        let is_test = (has("#[test]") || has("#[tokio::test")) && !has("#[ignore");
        let name = line.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
        let calls = |name| ["&server", "servers"].map(|it| format!("{name}({it}).await;"));
        let is_called =
            |name| calls(name).iter().any(|it| source.lines().any(|line| line.trim() == it));
        found.extend(name.filter(|it| is_test || is_called(it.0)).map(|it| it.0.to_owned()));
        attributes.clear();
    }
    found
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

/// Returns the part of a page from a heading to the next one of the same level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("{heading}\n")).expect("a heading");
    let level = heading.trim_end_matches(|c: char| c != '#');
    rest.split(&format!("\n{level} ")).next().unwrap_or(rest)
}

/// Returns the titles of the promises in a list, in bold type.
fn promises(list: &str) -> Vec<&str> {
    let titles = list.lines().filter_map(|line| line.strip_prefix("- **")?.split_once("**"));
    titles.map(|(title, _)| title.trim_end_matches('.')).collect()
}

fn assert_rows(page: &str, wanted: &[&str], at_least: usize) {
    for wanted in wanted {
        assert!(rows(page, "tests").any(|row| row[0] == *wanted), "no row for: {wanted}");
    }
    assert!(wanted.len() >= at_least, "only {} were found", wanted.len());
}

#[test]
fn each_row_names_tests_that_exist() {
    let (page, tests) = (read("docs/GUARANTEES.md"), functions());
    let mut checked = 0;
    for row in rows(&page, "tests") {
        let mut named = names(row[1]).peekable();
        let needs_none =
            ["the compiler", "`torture`", "none"].iter().any(|it| row[1].starts_with(it));
        assert!(named.peek().is_some() || needs_none, "no test for {}", row[0]);
        for name in named {
            assert!(tests.contains(name), "{}: there is no test {name}", row[0]);
            checked += 1;
        }
    }
    assert!(checked > 150, "only {checked} names were found");
}

#[test]
fn each_promise_of_the_front_page_has_a_row() {
    let (page, front) = (read("docs/GUARANTEES.md"), read("src/lib.rs").replace("//! ", ""));
    let promises = promises(section(&front, "# Guarantees"));
    assert_rows(section(&page, "## The timer"), &promises, 12);
}

#[test]
fn each_promise_about_durable_timers_has_a_row_and_each_of_their_failures() {
    let (page, durable) = (read("docs/GUARANTEES.md"), read("crates/durable/README.md"));
    let page = section(&page, "## Durable timers");
    assert_rows(page, &promises(section(&durable, "## Guarantees")), 6);
    let failures = rows(section(&durable, "## Failures"), "what happens").map(|row| row[0]);
    assert_rows(page, &failures.collect::<Vec<_>>(), 12);
}

/// None may be left out: each was a defect of some timer.
#[test]
fn each_known_way_to_fail_has_a_row() {
    let page = read("docs/GUARANTEES.md");
    let rows = rows(section(&page, "## Known ways to fail"), "tests");
    let numbers: Vec<u32> = rows.map(|row| row[0].parse().expect("a number")).collect();
    assert_eq!(numbers, (1..=58).collect::<Vec<_>>());
}

#[test]
fn the_readers_see_what_is_there() {
    let page =
        "| a | tests |\n|---|---|\n| x | `one_test`, `Two`; `fn_3` |\n\n| y | `none_here` |\n";
    let seen: Vec<_> = rows(page, "tests").collect();
    assert_eq!(seen, [["x", "`one_test`, `Two`; `fn_3`"]]);
    assert_eq!(names(seen[0][1]).collect::<Vec<_>>(), ["one_test", "fn_3"]);
    let source = "#[test]\nfn a() {}\nfn b() {}\n#[test]\n#[ignore]\nfn c() {}\n\
        // #[test]\n// fn d() {}\n#[tokio::test]\nasync fn e() {\n    f(&server).await;\n}\n\
        async fn f(server: &S) {}\n#[ignore]\n#[test]\nfn g() {}\n#[test]\n/// X.\nfn h() {}";
    assert_eq!(tests_in(source), ["a", "e", "f", "h"]);
    assert_eq!(section("# A\n## B\nb\n### C\nc\n## D\nd", "## B"), "b\n### C\nc");
    assert_eq!(promises("- **One.** 1\n  **x**\n- **Two**, 2"), ["One", "Two"]);
}
