//! Why transfers fail.

use serde::{Deserialize, Serialize};

/// Why a transfer failed, in a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    Authentication,
    ChecksumMismatch,
    /// A connection broke, or could not be made again, after data had moved.
    ConnectionLost,
    /// Somebody broke it off.
    Interrupted,
    /// The destination is full, or a quota is.
    NoSpace,
    NotFound,
    Permission,
    /// Data no longer moved, and somebody lost patience.
    Stalled,
    /// A server could not be reached, or went before anything had moved.
    Unreachable,
    /// Anything else, and what is known to newer programs only.
    #[default]
    #[serde(other)]
    Other,
}
