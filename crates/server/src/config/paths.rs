use ropewalk_paths::{Policy, Target};
use serde::{Deserialize, Serialize};

/// A hook that sees each step of data connections (docs/paths.md).
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Paths {
    /// Program with arguments, or http:// or https:// URL, that gets an event before and after each
    /// step of a data connection: listen, accept, connect, close. It may change the addresses. It
    /// runs as the server's own user. Default: none.
    pub hook: Option<Target>,
    /// If the hook fails: `"abort"` refuses the data connection, `"continue"` goes on without it.
    /// Default `"abort"`.
    pub failing_hook: FailingHook,
}

/// The consequence of a failing hook.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FailingHook {
    #[default]
    Abort,
    Continue,
}

impl From<FailingHook> for Policy {
    fn from(failing: FailingHook) -> Self {
        match failing {
            FailingHook::Abort => Self::Require,
            FailingHook::Continue => Self::Prefer,
        }
    }
}
