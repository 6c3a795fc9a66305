use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::units;

/// SciTags: data connections are marked with the experiment and activity that they serve
/// (docs/scitags.md). A tag is a number (64 * experiment + activity), or `experiment/activity` by
/// the names of the registry.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SciTags {
    /// Set the flow label of IPv6 data connections that the server makes. Default `true`.
    pub flow_label: bool,
    /// Destinations of fireflies: `peer`, `HOST` or `HOST:PORT` (default port 10514). Default:
    /// none.
    pub fireflies: Vec<String>,
    /// Seconds between fireflies about a connection that is open; 0 for none. Default 60.
    #[serde(with = "units::seconds")]
    pub interval: Duration,
    /// Copy of the registry <https://scitags.org/api.json>, for tags with names. Default: none.
    pub registry: Option<PathBuf>,
    /// The address from which `registry` is fetched when the server reads its settings and the copy
    /// is missing or older than a day. If that fails, the old copy is used. Default: none.
    pub registry_url: Option<String>,
    /// Experiments that clients may name with `SITE SCITAG`, by number. Default: all of them.
    pub experiments: Option<Vec<u16>>,
    /// `?scitag.flow=147` at the end of a path is the tag of this transfer, and not part of the
    /// name. For clients that pass on the URLs of their users. Default `false`.
    pub in_paths: bool,
    /// The tag of sessions that name none and have no entry in `map`. Default: none.
    pub default: Option<String>,
    /// Tags of sessions that name none, by user and path; the first entry that matches counts.
    pub map: Vec<SciTagMapping>,
}

impl Default for SciTags {
    fn default() -> Self {
        Self {
            flow_label: true,
            fireflies: Vec::new(),
            interval: Duration::from_secs(60),
            registry: None,
            registry_url: None,
            experiments: None,
            in_paths: false,
            default: None,
            map: Vec::new(),
        }
    }
}

/// The tag for some users and paths. All conditions have to match.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SciTagMapping {
    /// The name of the account; with `*` at the end, of all accounts that begin so, such as the
    /// pool accounts of a VO.
    #[serde(default)]
    pub user: Option<String>,
    /// A file or directory as the user sees it, with everything beneath it.
    #[serde(default)]
    pub path: Option<String>,
    /// The tag.
    pub tag: String,
}
