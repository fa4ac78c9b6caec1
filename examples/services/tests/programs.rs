//! The commands of the README, in their order.

use std::process::Command;

#[test]
fn the_commands_of_the_readme_succeed() {
    let readme = include_str!("../README.md").lines();
    let mut programs = 0;
    for command in readme.filter_map(|line| line.strip_prefix("cargo run -p tickwheel-services ")) {
        let (target, options) = command.split_once(" -- ").expect(command);
        // The features are those that `Cargo.toml` requires.
        let program = match target {
            "--bin heartbeat" => env!("CARGO_BIN_EXE_heartbeat"),
            "--bin rpc_timeout" => env!("CARGO_BIN_EXE_rpc_timeout"),
            "--features retry --bin retry" => env!("CARGO_BIN_EXE_retry"),
            "--features redis --bin lock_watchdog" => env!("CARGO_BIN_EXE_lock_watchdog"),
            other => panic!("{other}: there is no such program"),
        };
        let output = Command::new(program).args(options.split(' ')).output();
        let output = output.expect("a program that starts");
        let text = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {errors}\n{text}");
        programs += 1;
    }
    assert_eq!(programs, 4);
}
