//! The copy of the registry on disk, which is fetched again when it is old.
//!
//! A copy that cannot be fetched, or is no registry, never replaces an older one. Without a network
//! the old copy is used, however old it is.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use ropewalk_files::{OnDisk, replace};
use ureq::tls::{RootCerts, TlsConfig, TlsProvider};

use crate::registry::LONGEST;
use crate::{Registry, RegistryError};

/// A younger copy is not fetched again.
const FRESH: Duration = Duration::from_secs(24 * 3600);
/// The time limit of all that is done to fetch a copy.
const PATIENCE: Duration = Duration::from_secs(5);
const MOST_REDIRECTS: u32 = 3;

/// The address of a registry: `https://scitags.org/api.json` or a mirror of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryUrl(String);

/// The text is no address of a registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address of a registry: expected https://... or http://...")]
pub struct InvalidRegistryUrl(String);

impl FromStr for RegistryUrl {
    type Err = InvalidRegistryUrl;

    fn from_str(text: &str) -> Result<Self, InvalidRegistryUrl> {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let valid = rest.is_some_and(|rest| {
            !rest.is_empty() && !rest.starts_with('/') && rest.chars().all(|c| c.is_ascii_graphic())
        });
        if valid { Ok(Self(text.to_owned())) } else { Err(InvalidRegistryUrl(text.to_owned())) }
    }
}

impl fmt::Display for RegistryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The place of a copy, and the address from which it may be fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryCopy {
    pub file: PathBuf,
    /// `None`: the file is only read.
    pub url: Option<RegistryUrl>,
}

impl RegistryCopy {
    /// Reads the copy. If it is missing, older than a day or broken, it is fetched first, for which
    /// this waits at most 5 seconds.
    ///
    /// # Errors
    /// There is no copy that can be used: why it cannot be fetched, or read.
    pub fn load(&self) -> Result<Registry, RegistryError> {
        let Some(url) = &self.url else { return Registry::load(&self.file) };
        if is_fresh(&self.file, SystemTime::now())
            && let Ok(registry) = Registry::load(&self.file)
        {
            return Ok(registry);
        }
        match self.fetch(url) {
            Ok(registry) => Ok(registry),
            Err(error) if self.file.exists() => {
                tracing::warn!(%error, file = %self.file.display(), "the old copy of the registry is used");
                Registry::load(&self.file)
            }
            Err(error) => Err(error),
        }
    }

    /// Replaces the copy, if what the address has is a registry.
    fn fetch(&self, url: &RegistryUrl) -> Result<Registry, RegistryError> {
        let text = get(url)?;
        let wrong = |reason: String| RegistryError::Fetched { url: url.to_string(), reason };
        let registry = Registry::parse(&text).map_err(|error| wrong(error.to_string()))?;
        if registry.is_empty() {
            return Err(wrong("it has no experiment".to_owned()));
        }
        if let Err(error) = keep(&self.file, &text) {
            tracing::warn!(%error, file = %self.file.display(), "the registry of SciTags cannot be kept");
        }
        Ok(registry)
    }
}

fn is_fresh(file: &Path, now: SystemTime) -> bool {
    let written = std::fs::metadata(file).and_then(|found| found.modified());
    // A copy of the future is as good as one of today.
    written.is_ok_and(|written| now.duration_since(written).unwrap_or_default() < FRESH)
}

fn keep(file: &Path, text: &[u8]) -> std::io::Result<()> {
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory)?;
    }
    replace(file, text, 0o644, OnDisk::Later)
}

fn get(url: &RegistryUrl) -> Result<Vec<u8>, RegistryError> {
    let failed = |reason: String| RegistryError::Fetch { url: url.to_string(), reason };
    let tls =
        TlsConfig::builder().provider(TlsProvider::NativeTls).root_certs(RootCerts::PlatformVerifier).build();
    let config = ureq::Agent::config_builder()
        // A redirection does not lead away from TLS.
        .https_only(url.0.starts_with("https://"))
        .max_redirects(MOST_REDIRECTS)
        .http_status_as_error(false)
        .timeout_global(Some(PATIENCE))
        .user_agent(concat!("ropewalk/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls)
        .build();
    let request = ureq::Agent::new_with_config(config).get(&url.0).header("Accept", "application/json");
    let mut response = request.call().map_err(|error| failed(error.to_string()))?;
    match response.status().as_u16() {
        200 => {
            let body = response.body_mut().with_config().limit(LONGEST).read_to_vec();
            body.map_err(|error| failed(error.to_string()))
        }
        status => Err(failed(format!("the answer is HTTP status {status}"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::{self, File};
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use tempfile::TempDir;

    use super::*;

    const ATLAS: &str = r#"{"version":1,"experiments":[{"expName":"atlas","expId":2}]}"#;
    const CMS: &str = r#"{"version":1,"experiments":[{"expName":"cms","expId":3}]}"#;

    /// A web server with one answer.
    struct Web {
        url: RegistryUrl,
        requests: Arc<AtomicUsize>,
    }

    impl Web {
        fn new(status: &'static str, body: &'static str) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}/api.json", listener.local_addr().unwrap()).parse().unwrap();
            let requests = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&requests);
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let Ok(mut stream) = stream else { break };
                    counted.fetch_add(1, Ordering::SeqCst);
                    let head = BufReader::new(stream.try_clone().unwrap()).lines();
                    let _ = head.map_while(Result::ok).take_while(|line| !line.is_empty()).count();
                    let length = body.len();
                    let _ = write!(
                        stream,
                        "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
                    );
                }
            });
            Self { url, requests }
        }
    }

    /// An address at which no server listens.
    fn nowhere() -> RegistryUrl {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/api.json", listener.local_addr().unwrap()).parse().unwrap()
    }

    fn copy(directory: &TempDir, url: RegistryUrl) -> RegistryCopy {
        RegistryCopy { file: directory.path().join("cache/scitags.json"), url: Some(url) }
    }

    fn write(copy: &RegistryCopy, text: &str, age: Duration) {
        fs::create_dir_all(copy.file.parent().unwrap()).unwrap();
        fs::write(&copy.file, text).unwrap();
        let file = File::options().write(true).open(&copy.file).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }

    fn has(registry: &Registry, name: &str) -> bool {
        registry.find(name).is_ok()
    }

    #[test]
    fn copy_is_fetched_once_a_day() {
        let directory = tempfile::tempdir().unwrap();
        let web = Web::new("200 OK", ATLAS);
        let copy = copy(&directory, web.url.clone());
        for _ in 0..3 {
            assert!(has(&copy.load().unwrap(), "atlas"));
        }
        assert_eq!(web.requests.load(Ordering::SeqCst), 1);
        assert_eq!(fs::read_to_string(&copy.file).unwrap(), ATLAS);
        write(&copy, CMS, FRESH - Duration::from_secs(60));
        assert!(has(&copy.load().unwrap(), "cms"));
        write(&copy, CMS, FRESH);
        assert!(has(&copy.load().unwrap(), "atlas"));
        assert_eq!(web.requests.load(Ordering::SeqCst), 2);
        // A broken copy is replaced, however young it is.
        write(&copy, "{", Duration::ZERO);
        assert!(has(&copy.load().unwrap(), "atlas"));
    }

    #[test]
    fn answer_that_is_no_registry_leaves_the_old_copy() {
        for (status, body, reason) in [
            ("200 OK", r#"{"experiments":[{"expName":"x","#, "line 1 column 31"),
            ("200 OK", r#"{"experiments":[{"expName":"x"}]}"#, "expId"),
            ("200 OK", "<html></html>", "line 1 column 1"),
            ("200 OK", r#"{"experiments":[]}"#, "no experiment"),
            ("500 Internal Server Error", ATLAS, "HTTP status 500"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let copy = copy(&directory, Web::new(status, body).url);
            let text = copy.load().unwrap_err().to_string();
            assert!(text.contains(reason) && text.contains("http://127.0.0.1:"), "{text}");
            assert!(!copy.file.exists());
            write(&copy, CMS, 2 * FRESH);
            assert!(has(&copy.load().unwrap(), "cms"));
            assert_eq!(fs::read_to_string(&copy.file).unwrap(), CMS);
        }
    }

    #[test]
    fn copy_is_used_without_a_network_and_without_a_url() {
        let directory = tempfile::tempdir().unwrap();
        let mut copy = copy(&directory, nowhere());
        let text = copy.load().unwrap_err().to_string();
        assert!(text.contains("cannot fetch"), "{text}");
        write(&copy, ATLAS, 100 * FRESH);
        assert!(has(&copy.load().unwrap(), "atlas"));
        copy.url = None;
        assert!(has(&copy.load().unwrap(), "atlas"));
    }

    #[test]
    fn answer_that_never_ends_is_too_long() {
        let directory = tempfile::tempdir().unwrap();
        let long: &'static str = Box::leak(" ".repeat(LONGEST as usize + 1).into_boxed_str());
        let copy = copy(&directory, Web::new("200 OK", long).url);
        assert!(matches!(copy.load(), Err(RegistryError::Fetch { .. })));
    }

    #[test]
    fn address_is_one_of_the_web() {
        for good in ["https://scitags.org/api.json", "http://127.0.0.1:8000/a"] {
            assert_eq!(good.parse::<RegistryUrl>().unwrap().to_string(), good);
        }
        for wrong in ["", "https://", "https:///x", "file:///etc/passwd", "scitags.org", "http://a b"] {
            assert!(wrong.parse::<RegistryUrl>().is_err(), "{wrong:?}");
        }
    }
}
