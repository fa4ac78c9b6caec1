//! The pages' tables and quotations are true. Their code is compiled and run as doc tests.

use std::fs;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the pieces of code in a line of text.
fn spans(text: &str) -> impl Iterator<Item = String> {
    text.split('`').skip(1).step_by(2).map(|span| span.replace("\\|", "|"))
}

#[test]
fn the_right_column_of_each_table_stands_in_the_program_below_it() {
    let page = read("docs/MIGRATING.md");
    let (mut programs, mut checked) = (0, 0);
    for section in page.split("\n## ").skip(1) {
        let (table, rest) = section.split_once("\n```rust\n").expect("a table and a program");
        let (program, _) = rest.split_once("\n```").expect("it ends");
        programs += 1;
        for row in table.lines().filter(|line| line.starts_with('|')).skip(2) {
            let row = row.trim_end_matches(" |").replace("\\|", "\u{0}");
            let (_, right) = row.rsplit_once('|').expect("two columns");
            for code in spans(&right.replace('\u{0}', "|")) {
                assert!(program.contains(&code), "{code}: not in the program below its table");
                checked += 1;
            }
        }
    }
    assert!(programs == 5 && checked > 60, "only {checked} in {programs} tables");
}

/// Code that is quoted from the services, and so not compiled here, must be in their sources.
#[test]
fn quotations_are_true() {
    let sources = sources(&root().join("examples/services/src"));
    let mut checked = 0;
    for block in read("examples/services/README.md").split("\n```rust,ignore\n").skip(1) {
        let (quoted, _) = block.split_once("\n```").expect("it ends");
        for line in quoted.lines().map(code).filter(|line| !line.is_empty()) {
            assert!(sources.lines().any(|source| code(source) == line), "{line}");
            checked += 1;
        }
    }
    assert!(checked > 40, "only {checked} lines were found");
}

/// Returns a line without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or(line).trim()
}

/// Returns the text of all files below a folder.
fn sources(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a readable folder").path();
        if path.is_dir() {
            text += &sources(&path);
        } else {
            text += &fs::read_to_string(path).expect("a readable file");
        }
    }
    text
}
