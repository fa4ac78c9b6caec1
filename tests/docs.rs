//! The links of the pages and of the documentation lead somewhere.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns all files and folders of the repository, from its root, except build outputs.
fn tree() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root().to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let entry = entry.expect("a readable folder");
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if path.is_dir() && !name.starts_with("target") && name != ".git" {
                folders.push(path.clone());
            }
            found.push(path.strip_prefix(root()).expect("it is below").to_owned());
        }
    }
    found
}

/// Returns all pages, except those that belong to a single example.
fn pages() -> Vec<PathBuf> {
    let docs = fs::read_dir(root().join("docs")).expect("a folder");
    let docs = docs.map(|entry| entry.expect("a readable folder").path());
    let mut pages: Vec<_> =
        docs.filter(|path| path.extension().is_some_and(|e| e == "md")).collect();
    pages.extend(["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root().join(name)));
    // Not in the package, whose links are looked at as well (.ci/package).
    pages.extend(Some(root().join("examples/services/README.md")).filter(|page| page.exists()));
    pages
}

/// Returns a page without its blocks of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// Returns the targets of a page's links: `[text](target)`, and `[label]: target` for all links of
/// that label.
fn targets(text: &str) -> Vec<String> {
    let prose = prose(text);
    let inline = prose.split("](").skip(1).filter_map(|link| link.split_once(')')).map(|it| it.0);
    let defined = prose.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    inline.chain(defined.map(|it| it.1)).map(str::to_owned).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut checked = 0;
    for page in pages() {
        for target in targets(&read(&page)).iter().filter(|target| !target.starts_with("http")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let folder = page.parent().expect("a page is in a folder");
            let file = if file.is_empty() { page.clone() } else { folder.join(file) };
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
    docs.map(|line| line.trim_start().to_owned() + "\n").collect()
}

/// rustdoc looks for the items that links name, but not for the headings.
#[test]
fn links_in_the_source_lead_to_headings() {
    let (tree, mut checked) = (tree(), 0);
    let is_source = |path: &&PathBuf| path.starts_with("src") && path.extension().is_some();
    for path in tree.iter().filter(is_source) {
        let links = targets(&documentation(&read(&root().join(path))));
        let links = links.iter().filter(|link| !link.starts_with("http"));
        for (item, heading) in links.filter_map(|link| link.split_once('#')) {
            let text = match item.trim_start_matches("crate::") {
                "crate" => documentation(&read(&root().join("src/lib.rs"))),
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
    let links = targets(&read(&root().join("README.md")));
    for page in tree().iter().filter(|path| path.starts_with("docs")) {
        let page = page.to_string_lossy();
        assert!(!page.ends_with(".md") || links.iter().any(|link| **link == *page), "{page}");
    }
}

/// Returns the anchors of a page's headings, as links name them.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|heading| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}
