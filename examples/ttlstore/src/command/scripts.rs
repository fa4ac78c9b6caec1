//! Scripts, of which there are none.

use super::Call;
use super::failure::{Failure, Outcome};

/// Clients that have heard this send the script itself, and hear that there are none.
pub(super) fn evalsha(_: &mut Call<'_>) -> Outcome {
    Err(Failure::new("NOSCRIPT No matching script. Please use EVAL."))
}

pub(super) fn refusal() -> Failure {
    Failure::new("ERR this server runs no scripts")
}

pub(super) fn refused(_: &mut Call<'_>) -> Outcome {
    Err(refusal())
}
