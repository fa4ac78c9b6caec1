//! Reports: `tracing` events on cold paths, or nothing without the `tracing` feature.
//!
//! Never used under a lock: a subscriber is the user's code.

#[cfg(feature = "tracing")]
pub(crate) use tracing::{debug, error, warn};

#[cfg(not(feature = "tracing"))]
macro_rules! nothing {
    ($($field:ident = $value:expr,)* $text:literal) => {{
        $(let _ = &$value;)*
        let _ = $text;
    }};
}
#[cfg(not(feature = "tracing"))]
pub(crate) use {nothing as debug, nothing as error, nothing as warn};
