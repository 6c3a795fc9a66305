//! The file that names a provider and the ends of a path (docs/paths.md).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ropewalk_paths::{Binding, Limits};
use serde::Deserialize;

/// No file is as long.
const LONGEST: u64 = 64 << 10;

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub struct SettingsError {
    path: PathBuf,
    reason: String,
}

/// The settings of a requester.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Settings {
    /// The URL of the provider's Connection Service.
    pub provider: String,
    /// The identifier of the provider's NSA.
    pub provider_id: String,
    /// The identifier of this program's NSA.
    pub requester_id: String,
    /// The URL at which the provider reaches this program.
    pub callback: String,
    /// The address and port at which this program listens for the provider; without it, those of
    /// the callback URL.
    pub callback_listen: Option<SocketAddr>,
    /// The service termination point at the source's side, with its label (`?vlan=1784`), or the
    /// name of a port or a host that stands for one.
    pub source: String,
    /// The same at the destination's side.
    pub destination: String,
    /// NML topologies, which explain names of ports: files, and http:// or https:// URLs.
    #[serde(default, deserialize_with = "one_or_more")]
    pub topology: Vec<String>,
    /// The ports of hosts.
    #[serde(default)]
    pub hosts: BTreeMap<String, String>,
    /// A rate such as `5Gbit/s`, if the command names none.
    pub capacity: String,
    #[serde(default = "service_type")]
    pub service_type: String,
    /// `None`: both directions have the capacity.
    pub bidirectional: Option<bool>,
    pub tls: Option<TlsFiles>,
    #[serde(default)]
    pub binding: BindingSettings,
    #[serde(default)]
    pub times: Times,
}

/// Files in PEM for mutual TLS.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TlsFiles {
    /// This program's certificate, with its chain.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The authorities of the provider's certificate.
    pub authorities: PathBuf,
    /// The host name in the certificate with which the provider calls back; without it, the host of
    /// the provider's URL.
    pub provider_name: Option<String>,
}

/// The local ends of data connections. `{vlan}` in the interface stands for the VLAN at the source.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BindingSettings {
    pub address: Option<IpAddr>,
    pub interface: Option<String>,
    pub mtu: Option<u32>,
}

/// Time limits, such as `60s`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Times {
    /// One HTTP request.
    #[serde(deserialize_with = "duration")]
    pub request: Duration,
    /// From a request to its result.
    #[serde(deserialize_with = "duration")]
    pub answer: Duration,
    /// How long the provider keeps what is held and not committed.
    #[serde(deserialize_with = "duration")]
    pub hold: Duration,
    /// From the provision to a usable path.
    #[serde(deserialize_with = "duration")]
    pub up: Duration,
    /// The pause between queries.
    #[serde(deserialize_with = "duration")]
    pub query: Duration,
    /// How long a path that has to go is attended to before it is left to the journal; `None`: the
    /// provider's own default.
    #[serde(deserialize_with = "some_duration")]
    pub end: Option<Duration>,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            request: Duration::from_secs(10),
            answer: Duration::from_secs(60),
            hold: Duration::from_secs(120),
            up: Duration::from_secs(300),
            query: Duration::from_secs(5),
            end: None,
        }
    }
}

impl Times {
    /// The limits of a provider, with its default for `end`.
    pub(crate) fn limits(&self, end: Duration) -> Limits {
        Limits {
            answer: self.answer,
            hold: self.hold,
            up: self.up,
            end: self.end.unwrap_or_else(|| end.max(self.request * 3)),
            pause: self.query,
        }
    }
}

impl Settings {
    /// Reads a file. Relative paths in it count from its directory.
    ///
    /// # Errors
    /// The file cannot be read, or a setting is missing, unknown or wrong.
    pub fn load(path: &Path) -> Result<Self, SettingsError> {
        let failed = |reason: String| SettingsError { path: path.to_owned(), reason };
        let text = ropewalk_files::read_text(path, LONGEST).map_err(|error| failed(error.to_string()))?;
        let mut settings: Self = toml::from_str(&text).map_err(|error| failed(error.to_string()))?;
        let directory = path.parent().unwrap_or(Path::new("."));
        if let Some(tls) = &mut settings.tls {
            for file in [&mut tls.certificate, &mut tls.key, &mut tls.authorities] {
                *file = directory.join(&*file);
            }
        }
        for place in settings.topology.iter_mut().filter(|place| !is_url(place)) {
            *place = directory.join(&*place).to_string_lossy().into_owned();
        }
        settings.check().map_err(failed)?;
        Ok(settings)
    }

    /// Reads a file whose provider is the NSI Aggregator Proxy.
    ///
    /// # Errors
    /// Those of [`Settings::load`], or it has a setting that the proxy has not.
    pub fn load_for_proxy(path: &Path) -> Result<Self, SettingsError> {
        let settings = Self::load(path)?;
        let reason = match &settings {
            Self { bidirectional: Some(_), .. } => {
                "bidirectional: the NSI Aggregator Proxy has no such setting"
            }
            Self { provider, .. } if provider.trim_end_matches('/').ends_with("/reservations") => {
                "provider: expected the URL of the proxy without /reservations"
            }
            Self { provider, .. } if provider.contains(['?', '#']) => {
                "provider: expected a URL without a query and a fragment"
            }
            _ => return Ok(settings),
        };
        Err(SettingsError { path: path.to_owned(), reason: reason.to_owned() })
    }

    fn check(&self) -> Result<(), String> {
        for (name, url) in [("provider", &self.provider), ("callback", &self.callback)] {
            let secure = url.starts_with("https://");
            if !is_url(url) {
                return Err(format!("{name}: expected an http:// or https:// URL"));
            }
            if secure && self.tls.is_none() {
                return Err(format!(
                    "{name} is an https:// URL: [tls] has to name certificate, key and authorities"
                ));
            }
        }
        for (name, text) in [("source", &self.source), ("destination", &self.destination)] {
            if self.topology.is_empty() && !self.port_of(text).starts_with("urn:") {
                return Err(format!(
                    "{name}: expected a URN such as urn:ogf:network:...?vlan=1784; the name of a port needs a \
                     topology"
                ));
            }
        }
        self.capacity_in_bits()?;
        host_and_port(&self.callback).map_err(|error| format!("callback: {error}"))?;
        if self.times.query.is_zero() || self.times.request.is_zero() {
            return Err("times: expected times above 0".to_owned());
        }
        Ok(())
    }

    /// The port of a host; other names are those of ports. The label of `text` comes before that
    /// of the host.
    pub(crate) fn port_of(&self, text: &str) -> String {
        let (name, label) = match text.split_once('?') {
            Some((name, label)) => (name, Some(label)),
            None => (text, None),
        };
        match (self.hosts.get(name), label) {
            (None, _) => text.to_owned(),
            (Some(port), None) => port.clone(),
            (Some(port), Some(label)) => format!("{}?{label}", port.split('?').next().unwrap_or_default()),
        }
    }

    /// Bits per second.
    pub(crate) fn capacity_in_bits(&self) -> Result<u64, String> {
        let rate = ropewalk_units::read::rate(&self.capacity).map(|bytes| (bytes * 8.0) as u64);
        rate.filter(|bits| *bits > 0)
            .ok_or_else(|| format!("capacity: {:?} is not a rate such as 5Gbit/s", self.capacity))
    }

    /// The local ends of data connections over a path with this capacity in Mbit/s and this VLAN.
    pub(crate) fn binding_with(&self, capacity: Option<u64>, vlan: Option<&str>) -> Binding {
        let BindingSettings { address, interface, mtu } = &self.binding;
        Binding {
            address: *address,
            interface: interface.as_ref().map(|name| name.replace("{vlan}", vlan.unwrap_or_default())),
            capacity: capacity.map(|mbit| mbit.saturating_mul(1_000_000)).filter(|bits| *bits > 0),
            mtu: *mtu,
        }
    }

    /// The address at which to listen for the provider.
    pub(crate) fn listen_address(&self) -> Result<SocketAddr, String> {
        if let Some(address) = self.callback_listen {
            return Ok(address);
        }
        let (host, port) = host_and_port(&self.callback)?;
        let found = (host.as_str(), port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
        found.into_iter().next().ok_or_else(|| format!("{host} has no address"))
    }

    /// The path of the callback URL.
    pub(crate) fn callback_path(&self) -> &str {
        let rest = self.callback.split_once("://").map_or("", |(_, rest)| rest);
        rest.find('/').map_or("/", |at| &rest[at..])
    }

    /// The host name that the provider has to prove when it calls back.
    pub(crate) fn provider_host(&self) -> String {
        let named = self.tls.as_ref().and_then(|tls| tls.provider_name.clone());
        named.or_else(|| host_and_port(&self.provider).ok().map(|(host, _)| host)).unwrap_or_default()
    }
}

pub(crate) fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

fn host_and_port(url: &str) -> Result<(String, u16), String> {
    let uri: ureq::http::Uri = url.parse().map_err(|error| format!("{url:?}: {error}"))?;
    let host = uri.host().ok_or_else(|| format!("{url:?} has no host"))?;
    let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    Ok((host.trim_matches(['[', ']']).to_owned(), uri.port_u16().unwrap_or(usual)))
}

fn service_type() -> String {
    "http://services.ogf.org/nsi/2013/12/descriptions/EVTS.A-GOLE".to_owned()
}

/// A text or a list of texts.
fn one_or_more<'de, D: serde::Deserializer<'de>>(source: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a text or a list of texts")]
    enum Texts {
        One(String),
        More(Vec<String>),
    }
    Ok(match Texts::deserialize(source)? {
        Texts::One(text) => vec![text],
        Texts::More(texts) => texts,
    })
}

fn duration<'de, D: serde::Deserializer<'de>>(source: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(source)?;
    ropewalk_units::read::duration(&text)
        .ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a time such as 60s")))
}

fn some_duration<'de, D: serde::Deserializer<'de>>(source: D) -> Result<Option<Duration>, D::Error> {
    duration(source).map(Some)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FILE: &str = r#"
        provider = "http://nsi.example:9080/NSI/services/CS2"
        provider-id = "urn:ogf:network:example:2026:nsa"
        requester-id = "urn:ogf:network:mover.example:2026:nsa"
        callback = "http://127.0.0.1:9443/callback"
        source = "urn:ogf:network:example:2026:topology:a?vlan=1784"
        destination = "urn:ogf:network:example:2026:topology:b?vlan=1784"
        capacity = "5Gbit/s"
    "#;

    fn load(text: &str) -> Result<Settings, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nsi.toml");
        std::fs::write(&path, text).unwrap();
        Settings::load(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn file_with_the_required_settings_is_read() {
        let settings = load(FILE).unwrap();
        assert_eq!(settings.capacity_in_bits(), Ok(5_000_000_000));
        assert_eq!(settings.listen_address(), Ok("127.0.0.1:9443".parse().unwrap()));
        assert_eq!((settings.callback_path(), &*settings.provider_host()), ("/callback", "nsi.example"));
        assert_eq!(settings.times.hold, Duration::from_secs(120));
        let more = format!("{FILE}\ncallback-listen = \"0.0.0.0:1\"\n[times]\nup = \"10m\"\n");
        assert_eq!(load(&more).unwrap().times.up, Duration::from_secs(600));
    }

    #[test]
    fn host_stands_for_its_port_and_topologies_count_from_the_file() {
        let text = FILE.replace("urn:ogf:network:example:2026:topology:a?vlan=1784", "dtn.example");
        let text = format!(
            "topology = [\"t.xml\", \"https://x/t\"]\n{text}\n[hosts]\n\"dtn.example\" = \"port 1?vlan=7\"\n"
        );
        let settings = load(&text).unwrap();
        assert_eq!(settings.port_of(&settings.source), "port 1?vlan=7");
        assert_eq!(settings.port_of("dtn.example?vlan=8"), "port 1?vlan=8");
        assert_eq!(settings.port_of("other?vlan=8"), "other?vlan=8");
        assert!(settings.topology[0].starts_with('/') && settings.topology[0].ends_with("/t.xml"));
        assert_eq!(settings.topology[1], "https://x/t");
    }

    #[test]
    fn wrong_file_is_refused_with_the_setting() {
        for (from, to, text) in [
            ("5Gbit/s", "fast", "capacity"),
            ("http://nsi", "ftp://nsi", "provider: expected an http"),
            ("http://nsi", "https://nsi", "[tls] has to name"),
            ("requester-id", "requester", "requester"),
            ("http://127.0.0.1:9443/callback", "http:///callback", "callback"),
            ("urn:ogf:network:example:2026:topology:b?vlan=1784", "b", "destination: expected a URN"),
        ] {
            let error = load(&FILE.replace(from, to)).unwrap_err();
            assert!(error.contains(text), "{error}");
        }
        let error = load(&format!("{FILE}\ntopology = 7\n")).unwrap_err();
        assert!(error.contains("expected a text or a list of texts"), "{error}");
        assert!(load(&format!("{FILE}\n[times]\nup = \"soon\"\n")).unwrap_err().contains("such as 60s"));
    }
}
