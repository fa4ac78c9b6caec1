//! The programs find nothing wrong, briefly.

use std::process::Command;

fn check(program: &str, options: &[&str]) {
    let output = Command::new(program)
        .args(options)
        .output()
        .expect("a program that starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {options:?}: {errors}\n{text}"
    );
}

#[test]
fn storm() {
    check(env!("CARGO_BIN_EXE_storm"), &["--check"]);
}

#[test]
fn purgatory_load() {
    for how in ["--complete-by=trigger", "--complete-by=force", "--kafka"] {
        check(env!("CARGO_BIN_EXE_purgatory_load"), &["--check", how]);
    }
}

#[test]
fn overload() {
    check(
        env!("CARGO_BIN_EXE_overload"),
        &["--check", "--seconds", "1"],
    );
}

#[test]
fn migrate() {
    check(env!("CARGO_BIN_EXE_migrate"), &[]);
}
