use std::path::PathBuf;

use ropewalk_protocol::path::VirtualPath;

use crate::Rules;

/// The identity of a logged-in user and what this user may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Name in replies and logs.
    pub name: String,
    /// Accounts with the same value share their limits (all anonymous accounts do).
    pub counted_as: String,
    /// Directory of the host that the account sees as `/`.
    pub root: PathBuf,
    /// Directory in which sessions start, relative to the root.
    pub home: VirtualPath,
    /// All of these rules must permit a path, as seen from the root.
    pub rules: Vec<Rules>,
    pub read_only: bool,
    /// Whether data connections may use hosts other than the client's.
    pub third_party: bool,
    /// Maximum number of concurrent sessions.
    pub sessions: Option<u32>,
}
