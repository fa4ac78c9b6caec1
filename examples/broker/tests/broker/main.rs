//! The broker in virtual time, and over real TCP; Kafka's own clients are in `e2e`.

mod fetches;
mod groups;
mod metadata;
mod produces;
mod server;
mod wire;
mod world;

#[test]
fn the_code_in_the_readme_is_the_brokers() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let sources = [
        include_str!("../../src/broker.rs"),
        include_str!("../../src/fetch.rs"),
        include_str!("../../src/group/join.rs"),
    ];
    let source = words(&sources.concat());
    let blocks = include_str!("../../README.md").split("```rust\n").skip(1);
    let blocks: Vec<String> =
        blocks.filter_map(|rest| rest.split("```").next()).map(words).collect();
    assert_eq!(blocks.len(), 3);
    blocks.iter().for_each(|block| assert!(source.contains(block), "{block}"));
}
