use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Log files. They are opened again at a reload, so that they can be rotated.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// One line for each transfer, in the format of GCT's `-log-transfer`. Default: none.
    pub transfer_log: Option<PathBuf>,
    /// One line with a JSON object for each transfer. Default: none.
    pub transfer_log_json: Option<PathBuf>,
    /// One JSON object for each decision about permissions: log-ins and their refusal, operations
    /// that rules forbid, identities taken on. The same lines are in the log under the target
    /// `audit`. Default: none.
    pub audit: Option<PathBuf>,
}
