//! The public interface in `interface.txt`, so that each change of it, auto traits included, is
//! seen in a review. The list is as Rust 1.95 prints it; `UPDATE_SNAPSHOTS=yes` writes it anew.

use std::process::Command;

/// What only the compiler knows, and changes from release to release.
const INTERNAL: [&str; 2] = ["core::marker::Freeze", "core::marker::UnsafeUnpin"];

#[test]
fn the_public_interface_is_the_printed_one() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../..");
    let status = Command::new(env!("CARGO"))
        .args(["rustdoc", "--lib", "--all-features", "--locked", "--target-dir=target/interface"])
        .args(["--", "-Zunstable-options", "--output-format=json"])
        // The format is not stable yet.
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(root)
        .status();
    assert!(status.unwrap().success());
    let json = format!("{root}/target/interface/doc/tickwheel.json");
    let interface = public_api::Builder::from_rustdoc_json(json).omit_blanket_impls(true).build();
    let items = interface.unwrap().into_items().map(|item| item.to_string());
    let items = items.filter(|item| !INTERNAL.iter().any(|internal| item.contains(internal)));
    let list: String = items.map(|item| item + "\n").collect();
    snapshot_testing::assert_eq_or_update(list, "interface.txt");
}
