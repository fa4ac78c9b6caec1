//! The programs find nothing wrong, briefly.

use std::process::Command;

fn check(program: &str) {
    let mut command = Command::new(program);
    let output = command.arg("--check").output().expect("a program that starts");
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

#[test]
fn retry() {
    check(env!("CARGO_BIN_EXE_retry"));
}

#[test]
fn lock_watchdog() {
    check(env!("CARGO_BIN_EXE_lock_watchdog"));
}
