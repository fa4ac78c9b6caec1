//! Readers of Rust sources: the code of a file, its imports.
//!
//! They know no more of the language than what rustfmt leaves to know.

use std::collections::BTreeSet;

/// Returns the lines of code, numbered: no blank lines, no comments, nothing from the unit tests
/// on.
pub(crate) fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_test = |line: &str| line.starts_with("#[cfg(") && line.contains("test");
    let lines: Vec<&str> = text.lines().collect();
    let starts_tests = |pair: &[&str]| is_test(pair[0]) && pair[1].starts_with("mod tests");
    let end = lines
        .windows(2)
        .position(starts_tests)
        .unwrap_or(lines.len());
    lines
        .into_iter()
        .take(end)
        .enumerate()
        .map(|(number, line)| (number + 1, line))
        .filter(|(_, line)| {
            let line = line.trim_start();
            !line.is_empty() && !line.starts_with("//")
        })
}

/// The modules of a crate.
pub(crate) struct Tree(BTreeSet<String>);

impl Tree {
    /// Creates the tree of these modules, which are named as `wheel`, `purgatory::state`.
    pub(crate) fn new(modules: impl IntoIterator<Item = String>) -> Self {
        Tree(modules.into_iter().collect())
    }

    /// Returns the module that a path from the root leads into.
    fn module_of(&self, path: &str) -> Option<String> {
        let parts: Vec<&str> = path.split("::").collect();
        let longest = (1..=parts.len())
            .rev()
            .map(|length| parts[..length].join("::"));
        longest.into_iter().find(|module| self.0.contains(module))
    }

    /// Returns the modules that a file uses in its imports or inline, each with a line number. A
    /// path that cannot be resolved is an error: one that leads nowhere, one to an item of the
    /// root, or one that begins at `super` or `self`, which this does not follow.
    pub(crate) fn used_by(&self, own: &str, text: &str) -> Vec<(usize, Result<String, String>)> {
        let mut used = Vec::new();
        let lines: Vec<(usize, &str)> = code(text).collect();
        for (at, &(number, line)) in lines.iter().enumerate() {
            let line = without_comment(line);
            for start in ["super::", "self::"] {
                if words(line, start).next().is_some() {
                    used.push((number, Err(format!("a path from {start}"))));
                }
            }
            // What a folder's module exports is its face, and no import.
            let is_export = line.starts_with("pub use ");
            for rest in words(line, "crate::").filter(|_| !is_export) {
                // An import may go on over many lines.
                let more = lines[at + 1..]
                    .iter()
                    .map(|(_, line)| without_comment(line).trim());
                let text = std::iter::once(rest)
                    .chain(more)
                    .take(60)
                    .collect::<String>();
                let mut paths = Vec::new();
                read_paths(&mut text.as_str(), "", &mut paths);
                for path in paths {
                    let module = self.module_of(&path);
                    used.push((number, module.ok_or_else(|| format!("crate::{path}"))));
                }
            }
            // A folder's module can name what is in the folder without a prefix.
            let children = self.0.iter().filter_map(|module| {
                module
                    .strip_prefix(own)?
                    .strip_prefix("::")
                    .map(|child| (child, module))
            });
            for (child, module) in children {
                if words(line, &format!("{child}::")).next().is_some() {
                    used.push((number, Ok(module.clone())));
                }
            }
        }
        used
    }
}

pub(crate) fn without_comment(line: &str) -> &str {
    line.split("//").next().unwrap_or(line)
}

/// Returns the text after each place in a line where a path begins with `start`.
fn words<'a>(line: &'a str, start: &str) -> impl Iterator<Item = &'a str> {
    line.match_indices(start).filter_map(|(at, _)| {
        let goes_before = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        (!line[..at].ends_with(goes_before)).then(|| &line[at + start.len()..])
    })
}

/// Reads what follows `prefix` in an import, `a::{b, c::D}`, or a path; appends each whole path.
fn read_paths(text: &mut &str, prefix: &str, out: &mut Vec<String>) {
    *text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        *text = group.trim_start();
        while !text.is_empty() && !text.starts_with('}') {
            read_paths(text, prefix, out);
            // To the next one: over a comma, or `as` and a name.
            *text = text.trim_start_matches(|c| c != ',' && c != '}');
            *text = text.strip_prefix(',').unwrap_or(text).trim_start();
        }
        *text = text.strip_prefix('}').unwrap_or(text);
        return;
    }
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    let (name, rest) = text.split_at(if text.starts_with('*') { 1 } else { end });
    let path = if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}::{name}")
    };
    *text = rest;
    match rest.strip_prefix("::") {
        Some(more) => {
            *text = more;
            read_paths(text, &path, out);
        }
        None => out.push(path),
    }
}
