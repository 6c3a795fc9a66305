use serde::{Deserialize, Serialize};

/// Aids for testing clients. Not for production servers.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Testing {
    /// `SITE FAULT COMMAND` makes that command fail for the rest of the session, as in GCT. Default
    /// `false`: the server does not know the command.
    pub faults: bool,
}
