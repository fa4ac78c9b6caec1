//! The wire: frames, requests and responses, in the versions that this broker speaks.

mod apis;
mod bounds;
mod frame;
mod outbox;
mod pace;
mod request;

pub use apis::{Api, SUPPORTED};
pub use frame::{FrameError, Inbox};
pub use outbox::write;
pub use request::{Malformed, Request, encode_response, is_request, refuse_version};
