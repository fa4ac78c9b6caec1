//! Tells the program which compiler has built it: its counts hold for that one only.

use std::env;
use std::process::Command;

fn main() {
    let rustc = env::var_os("RUSTC").expect("cargo sets it");
    let version = Command::new(rustc)
        .arg("--version")
        .output()
        .expect("it runs")
        .stdout;
    let version = String::from_utf8(version).expect("it is text");
    let target = env::var("TARGET").expect("cargo sets it");
    println!("cargo::rustc-env=BUILT_BY={}, {target}", version.trim());
}
