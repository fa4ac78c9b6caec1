//! The broker in virtual time, and over real TCP; Kafka's own clients are in `e2e`.

mod fetches;
mod groups;
mod metadata;
mod produces;
mod server;
mod wire;
mod world;
