//! The links of pages and of the documentation lead to files and headings.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all files of the repository that end with `.` and `extension`, except build outputs.
fn all_files(extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("a readable folder").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && !name.starts_with("target") && name != ".git" {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == extension) {
                found.push(path);
            }
        }
    }
    found
}

/// Returns these files without what is in `tests`, such as the frames of pages.
fn files(extension: &str) -> Vec<PathBuf> {
    let mut found = all_files(extension);
    found.retain(|path| {
        let path = path.strip_prefix(root()).expect("a file of the repository");
        !path.components().any(|part| part.as_os_str() == "tests")
    });
    found
}

/// Returns the targets of a page's links: `[text](target)`, and `[label]: target` for all links of
/// that label. Blocks of code have none.
fn targets(text: &str) -> Vec<String> {
    let prose: String = text.split("```").step_by(2).collect();
    let inline = prose
        .split("](")
        .skip(1)
        .filter_map(|link| link.split_once(')'))
        .map(|it| it.0);
    let defined = prose
        .lines()
        .filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    let all = inline.chain(defined.map(|it| it.1));
    all.filter(|target| !target.starts_with("http"))
        .map(str::to_owned)
        .collect()
}

/// Returns the anchors of a page's headings, as links name them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|heading| {
            let text = heading.trim_start_matches('#').trim().to_lowercase();
            let kept = text
                .chars()
                .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
}

#[test]
fn links_lead_somewhere() {
    let mut checked = 0;
    for page in files("md") {
        for target in targets(&read(&page)) {
            let (file, heading) = target.split_once('#').unwrap_or((&target, ""));
            let folder = page.parent().expect("a page is in a folder");
            let file = if file.is_empty() {
                page.clone()
            } else {
                folder.join(file)
            };
            assert!(file.exists(), "{}: {target}", page.display());
            let leads = heading.is_empty() || anchors(&read(&file)).any(|it| it == heading);
            assert!(leads, "{}: {target}", page.display());
            checked += 1;
        }
    }
    assert!(checked > 50, "only {checked} links were found");
}

/// Returns the documentation in a file of source.
fn documentation(source: &str) -> String {
    let lines = source.lines().map(str::trim_start);
    let docs = lines.filter_map(|line| line.strip_prefix("//!").or(line.strip_prefix("///")));
    docs.map(|line| line.trim_start().to_owned() + "\n")
        .collect()
}

/// rustdoc looks for the items that links name, but not for the headings.
#[test]
fn links_in_the_source_lead_to_headings() {
    let mut checked = 0;
    for path in files("rs")
        .iter()
        .filter(|path| path.starts_with(root().join("src")))
    {
        let links = targets(&documentation(&read(path)));
        for (item, heading) in links.iter().filter_map(|link| link.split_once('#')) {
            let text = match item.trim_start_matches("crate::") {
                "crate" => documentation(&read(&root().join("src/lib.rs"))),
                "queue::KeyedQueue" => documentation(&read(&root().join("src/queue.rs"))),
                "Timer" => documentation(&read(&root().join("src/timer/mod.rs"))),
                guide => {
                    let page = guide.trim_start_matches("guide::").to_uppercase();
                    read(&root().join("docs").join(page).with_extension("md"))
                }
            };
            let leads = anchors(&text).any(|it| it == heading);
            assert!(leads, "{}: {item}#{heading}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 5, "only {checked} links were found");
}

#[test]
fn the_readme_leads_to_every_page() {
    let readme = root().join("README.md");
    let links: Vec<_> = targets(&read(&readme))
        .iter()
        .map(|link| root().join(link))
        .collect();
    for page in files("md")
        .iter()
        .filter(|page| page.starts_with(root().join("docs")))
    {
        assert!(links.contains(page), "{}", page.display());
    }
}

#[test]
fn the_readers_see_what_is_there() {
    assert_eq!(
        anchors("# A b\n## C: `d`!\ntext").collect::<Vec<_>>(),
        ["a-b", "c-d"]
    );
    assert_eq!(
        documentation("//! # a\nb\n  ///\n  /// c\n// d"),
        "# a\n\nc\n"
    );
    assert_eq!(
        targets("[a](b#c) ```[x](y)``` [e]\n[e]: f.md\n[g](https://h)"),
        ["b#c", "f.md"]
    );
}

#[test]
fn each_guarantee_names_tests_that_exist() {
    let sources: String = all_files("rs").iter().map(|path| read(path)).collect();
    let page = read(&root().join("docs/GUARANTEES.md"));
    // What stands between backticks; a test's name is a sentence, a method's is shorter.
    let quoted = page.split('`').skip(1).step_by(2);
    let is_sentence = |name: &&str| {
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_' || c.is_ascii_digit();
        name.matches('_').count() >= 3 && name.chars().all(is_name)
    };
    let mut checked = 0;
    for name in quoted.filter(is_sentence) {
        assert!(sources.contains(&format!("fn {name}(")), "no test `{name}`");
        checked += 1;
    }
    assert!(checked > 100, "{checked} names");
}
