//! A live view of the wheels of any service that uses tickwheel: what the program `tickwheel-top`
//! is made of. It is a library for its tests and for the figures of tickwheel's documentation.

#![forbid(unsafe_code)]

// In reading order: where figures come from, what is made of them, how they are shown.
pub mod source;
pub mod sample;
pub mod heat;
pub mod units;
pub mod app;
mod table;
pub mod view;
pub mod picture;
