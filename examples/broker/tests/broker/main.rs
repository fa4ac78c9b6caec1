//! The broker over real TCP, in virtual time, with a client of our own: what its parts promise,
//! and what becomes of those who send nonsense. Kafka's own clients are in `e2e`.

mod admin;
mod attacks;
mod captured;
mod client;
mod delays;
mod fixture;
mod fuzz;
mod groups;
mod limits;
mod long_poll;
mod memory;
mod metrics;
mod newcomers;
mod noise;
mod nonsense;
mod process;
mod producers;
mod records;
mod replicas;
mod slow;
mod versions;
