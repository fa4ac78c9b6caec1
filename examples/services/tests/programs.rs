//! The programs play their scenarios, with processes that are really stopped and killed.

use std::process::Command;

fn check(program: &str) {
    let output = Command::new(program).arg("--check").output().expect("a program that starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program}: {errors}\n{text}");
}

#[test]
fn heartbeat() {
    check(env!("CARGO_BIN_EXE_heartbeat"));
}

#[test]
fn rpc_timeout() {
    check(env!("CARGO_BIN_EXE_rpc_timeout"));
}
