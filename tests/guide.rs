//! The tables of calls are true. The pages' code is compiled and run as doc tests.

use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
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
