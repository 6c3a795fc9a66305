use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Files that tell what was transferred. They are opened anew at a reload, so that they can be rotated.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// One line a transfer, in the format of GCT's `-log-transfer`. Default: none.
    pub transfer_log: Option<PathBuf>,
    /// One JSON object a transfer and line. Default: none.
    pub transfer_log_json: Option<PathBuf>,
    /// One JSON object for each decision about who may do what: log-ins and their refusal, what rules forbid, identities taken.
    /// The same lines are in the log under the target `audit`. Default: none.
    pub audit: Option<PathBuf>,
}
