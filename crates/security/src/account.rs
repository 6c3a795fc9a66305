use std::path::PathBuf;

use ropewalk_protocol::path::VirtualPath;

use crate::Rules;

/// What somebody who has logged in may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Name in replies and logs.
    pub name: String,
    /// Accounts with the same name here share their limits (all anonymous ones do).
    pub counted_as: String,
    /// Directory of the host that is `/` to this account.
    pub root: PathBuf,
    /// Where sessions begin, within the root.
    pub home: VirtualPath,
    /// All of these must permit a path, as seen from the root.
    pub rules: Vec<Rules>,
    pub read_only: bool,
    /// Data connections may go to, and come from, hosts other than the client's.
    pub third_party: bool,
    /// Most sessions at a time.
    pub sessions: Option<u32>,
}
