use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The socket of `ropewalk admin` (docs/server.md).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Admin {
    /// Path of the Unix socket on which the server obeys `ropewalk admin`, if root or the server's
    /// own user runs it. Default: none.
    pub socket: Option<PathBuf>,
}
