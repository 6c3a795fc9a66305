//! The reasons why transfers fail.

use serde::{Deserialize, Serialize};

/// The reason why a transfer failed, in one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    Authentication,
    ChecksumMismatch,
    /// A connection broke, or could not be re-established, after data had moved.
    ConnectionLost,
    /// The user interrupted the transfer.
    Interrupted,
    /// The destination or a quota is full.
    NoSpace,
    NotFound,
    Permission,
    /// Data no longer moved, and a timeout of one side expired.
    Stalled,
    /// A server could not be reached, or disconnected before data moved.
    Unreachable,
    /// Any other reason, including those that only newer programs know.
    #[default]
    #[serde(other)]
    Other,
}
