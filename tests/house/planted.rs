//! The planted bugs: a change beside one of them must not keep it from being planted.

use crate::root;
use std::fs;
use std::process::Command;

#[test]
fn planted_bugs_find_their_place() {
    let mut patches = 0;
    for entry in fs::read_dir(root().join("tests/lab/planted")).expect("a folder") {
        let patch = entry.expect("a readable folder").path();
        // One at a time: two of them may change the same line.
        let mut git = Command::new("git");
        git.args(["apply", "--check"])
            .arg(&patch)
            .current_dir(root());
        let Ok(checked) = git.output() else {
            assert!(std::env::var_os("CI").is_none(), "git is not installed");
            return;
        };
        let errors = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success(), "{}: {errors}", patch.display());
        patches += 1;
    }
    assert!(patches > 30, "only {patches} patches were found");
}
