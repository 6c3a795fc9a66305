//! The SciTags of a server, prepared from its settings: the tag of each transfer, and the reporter
//! of fireflies. Sessions share it with the settings with which they began.

use std::time::Duration;

use ropewalk_nodes::MarkOrder;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::scitag::SciTag;
use ropewalk_scitags::{Collector, FlowTransport, Registry, RegistryCopy, RegistryUrl, Reporter, marking};
use ropewalk_transport::FlowMarking;

use crate::config;

const FIREFLIES: &str = "scitags.fireflies";

pub(crate) struct SciTags {
    flow_label: bool,
    /// Destinations and interval of fireflies, for data nodes.
    fireflies: Vec<String>,
    interval: Duration,
    reporter: Option<Reporter>,
    experiments: Option<Vec<u16>>,
    default: Option<SciTag>,
    map: Vec<Mapping>,
}

struct Mapping {
    user: Option<String>,
    path: Option<VirtualPath>,
    tag: SciTag,
}

/// The marks of the connections of a transfer.
pub(crate) struct Marks {
    /// Those of this process.
    pub(crate) here: FlowMarking,
    /// Those of data nodes.
    pub(crate) on_node: Option<MarkOrder>,
}

impl SciTags {
    /// # Errors
    /// A tag or a destination is invalid, the registry cannot be read or does not have a name, or
    /// there is no thread for fireflies. The text names the setting.
    pub(crate) fn load(config: &config::SciTags) -> Result<Self, (&'static str, String)> {
        let (prepared, collectors) = Self::prepare(config)?;
        if collectors.is_empty() {
            return Ok(prepared);
        }
        let reporter = Reporter::start(collectors, config.interval);
        let reporter = reporter.map_err(|e| (FIREFLIES, format!("no thread: {e}")))?;
        Ok(Self { reporter: Some(reporter), ..prepared })
    }

    /// Finds what is wrong with the settings.
    ///
    /// # Errors
    /// As [`SciTags::load`].
    pub(crate) fn check(config: &config::SciTags) -> Result<(), (&'static str, String)> {
        Self::prepare(config).map(drop)
    }

    /// The tags without a reporter, and the destinations of fireflies.
    fn prepare(config: &config::SciTags) -> Result<(Self, Vec<Collector>), (&'static str, String)> {
        let mut collectors = Vec::new();
        for text in &config.fireflies {
            let collector = text.parse::<Collector>().map_err(|e| (FIREFLIES, e.to_string()))?;
            collectors.push(collector);
        }
        let registry = registry(config)?;
        let read = |setting, text: &str| -> Result<SciTag, (&'static str, String)> {
            match text.parse() {
                Ok(tag) => Ok(tag),
                Err(error) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                    Err((setting, format!("{text:?}: {error}")))
                }
                Err(_) => registry.find(text).map_err(|e| (setting, e.to_string())),
            }
        };
        let mut map = Vec::new();
        for mapping in &config.map {
            let path = mapping.path.as_ref().map(|path| VirtualPath::parse(path.as_bytes())).transpose();
            let path = path.map_err(|e| ("scitags.map", e.to_string()))?;
            let user = mapping.user.clone();
            map.push(Mapping { user, path, tag: read("scitags.map", &mapping.tag)? });
        }
        let default = config.default.as_deref().map(|text| read("scitags.default", text)).transpose()?;
        let experiments = config.experiments.clone();
        let prepared = Self {
            flow_label: config.flow_label,
            fireflies: config.fireflies.clone(),
            interval: config.interval,
            reporter: None,
            experiments,
            default,
            map,
        };
        Ok((prepared, collectors))
    }

    /// Whether clients may name this tag.
    pub(crate) fn permits(&self, tag: SciTag) -> bool {
        self.experiments.as_ref().is_none_or(|permitted| permitted.contains(&tag.experiment()))
    }

    /// The tag of a transfer for which the client has named none. A listing has no path.
    pub(crate) fn default_for(&self, user: &str, path: Option<&VirtualPath>) -> Option<SciTag> {
        let found = self.map.iter().find(|mapping| mapping.applies(user, path));
        found.map(|mapping| mapping.tag).or(self.default)
    }

    /// The marks of connections that get this tag.
    pub(crate) fn marks(&self, tag: Option<SciTag>, transport: FlowTransport) -> Marks {
        let on_node = tag.map(|tag| MarkOrder {
            tag: tag.number(),
            flow_label: self.flow_label,
            udp: transport == FlowTransport::Udp,
            fireflies: self.fireflies.clone(),
            interval_ms: u64::try_from(self.interval.as_millis()).unwrap_or(u64::MAX),
        });
        Marks { here: marking(tag, self.flow_label, transport, self.reporter.as_ref()), on_node }
    }
}

fn registry(config: &config::SciTags) -> Result<Registry, (&'static str, String)> {
    const URL: &str = "scitags.registry_url";
    let url = config.registry_url.as_deref().map(str::parse::<RegistryUrl>).transpose();
    let url = url.map_err(|e| (URL, e.to_string()))?;
    match &config.registry {
        None if url.is_some() => Err((URL, "the copy needs a place: name a file (scitags.registry)".into())),
        None => Ok(Registry::default()),
        Some(file) => {
            let copy = RegistryCopy { file: file.clone(), url };
            copy.load().map_err(|e| ("scitags.registry", e.to_string()))
        }
    }
}

impl Mapping {
    fn applies(&self, user: &str, path: Option<&VirtualPath>) -> bool {
        let of_user = self.user.as_deref().is_none_or(|name| match name.strip_suffix('*') {
            Some(beginning) => user.starts_with(beginning),
            None => user == name,
        });
        let of_path =
            self.path.as_ref().is_none_or(|directory| path.is_some_and(|path| path.starts_with(directory)));
        of_user && of_path
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Config;

    fn load(text: &str) -> Result<SciTags, (&'static str, String)> {
        SciTags::load(&Config::parse(&format!("[scitags]\n{text}")).unwrap().scitags)
    }

    #[test]
    fn default_tag_is_that_of_the_first_entry_that_matches() {
        let tags = load(
            "default = '65'\nmap = [{ user = 'atlas*', path = '/in', tag = '143' }, \
             { path = '/in', tag = '129' }, { user = 'ada', tag = '200' }]",
        )
        .unwrap();
        let of = |user: &str, path: Option<&str>| {
            let path = path.map(|path| VirtualPath::parse(path.as_bytes()).unwrap());
            tags.default_for(user, path.as_ref()).unwrap().number()
        };
        assert_eq!(of("atlas07", Some("/in/f")), 143);
        assert_eq!(of("ada", Some("/in/f")), 129);
        assert_eq!(of("ada", Some("/inner")), 200);
        assert_eq!(of("ada", None), 200);
        assert_eq!(of("bob", Some("/f")), 65);
    }

    #[test]
    fn experiment_that_is_not_listed_is_not_permitted() {
        let tags = load("experiments = [2]").unwrap();
        assert!(tags.permits(SciTag::of(2, 15).unwrap()) && !tags.permits(SciTag::of(3, 15).unwrap()));
        assert!(load("").unwrap().permits(SciTag::of(3, 15).unwrap()));
    }

    #[test]
    fn invalid_setting_is_named() {
        for (text, setting) in [
            ("default = '64'", "scitags.default"),
            ("default = 'atlas'", "scitags.default"),
            ("map = [{ tag = '70000' }]", "scitags.map"),
            ("fireflies = ['a b']", "scitags.fireflies"),
            ("registry = '/nonexistent'", "scitags.registry"),
            ("registry_url = 'https://h/'", "scitags.registry_url"),
            ("registry = '/r'\nregistry_url = 'h'", "scitags.registry_url"),
        ] {
            assert_eq!(load(text).err().unwrap().0, setting, "{text}");
        }
    }
}
