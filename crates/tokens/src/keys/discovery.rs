//! Keys that an issuer publishes: OpenID Connect Discovery 1.0 section 4, RFC 8414 section 3.
//!
//! One [`Discovery`] per issuer caches its keys. One thread at a time asks the issuer; the other
//! threads use older keys meanwhile, or wait if there are none. Failures are cached too, so that
//! the issuer is asked at most once per [`PAUSE`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::error::KeysError;
use crate::issuer::https_host;
use crate::json::Object;
use crate::jwk::KeySet;
use crate::shown::shown;

/// Keys older than this are fetched again.
const FRESH: Duration = Duration::from_secs(3600);
/// While the issuer does not answer, keys up to this age are used.
const STALE: Duration = Duration::from_secs(24 * 3600);
/// Minimum time between two requests, for any reason: tokens with unknown keys must not make the
/// server call the issuer each time.
const PAUSE: Duration = Duration::from_secs(60);
/// Maximum number of values in a discovery document.
const DOCUMENT_VALUES: usize = 2000;

/// Time limit from the first request for a document until the keys are there.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) trait Fetch: Send + Sync {
    /// Fetches a document; returns before `deadline`.
    fn get(&self, url: &str, deadline: Instant) -> Result<Vec<u8>, FetchError>;
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FetchError {
    /// The document does not exist.
    Missing,
    Failed(String),
}

pub(crate) struct Discovery {
    issuer: String,
    fetch: Box<dyn Fetch>,
    state: Mutex<State>,
    /// Held by the thread that asks the issuer.
    turn: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The keys, and the time at which they were fetched.
    keys: Option<(Arc<KeySet>, Instant)>,
    tried: Option<Instant>,
    failure: Option<KeysError>,
}

enum Look {
    Have(Arc<KeySet>),
    Unavailable(KeysError),
    /// The issuer has to be asked; these older keys may be used meanwhile.
    Ask(Option<Arc<KeySet>>),
}

impl Discovery {
    pub(crate) fn new(issuer: &str, fetch: Box<dyn Fetch>) -> Self {
        Self { issuer: issuer.to_owned(), fetch, state: Mutex::default(), turn: Mutex::default() }
    }

    pub(crate) fn get(&self, name: Option<&str>, now: Instant) -> Result<Arc<KeySet>, KeysError> {
        let meanwhile = match self.look(name, now) {
            Look::Have(keys) => return Ok(keys),
            Look::Unavailable(error) => return Err(error),
            Look::Ask(meanwhile) => meanwhile,
        };
        let _turn = match (self.turn.try_lock(), meanwhile) {
            (Some(turn), _) => turn,
            (None, Some(keys)) => return Ok(keys),
            (None, None) => self.turn.lock(),
        };
        // Another thread may have asked while this one waited.
        match self.look(name, now) {
            Look::Have(keys) => return Ok(keys),
            Look::Unavailable(error) => return Err(error),
            Look::Ask(_) => {}
        }
        let fetched = self.fetch_keys();
        let mut state = self.state();
        state.tried = Some(now);
        match fetched {
            Ok(keys) => {
                state.failure = None;
                state.keys = Some((Arc::new(keys), now));
            }
            Err(error) => {
                tracing::warn!(issuer = self.issuer, %error, "keys of an issuer cannot be fetched");
                state.failure = Some(error);
            }
        }
        drop(state);
        match self.look(name, now) {
            Look::Have(keys) | Look::Ask(Some(keys)) => Ok(keys),
            Look::Unavailable(error) => Err(error),
            Look::Ask(None) => Err(self.document("there are no keys")),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn look(&self, name: Option<&str>, now: Instant) -> Look {
        let state = self.state();
        let just_tried = state.tried.is_some_and(|at| now.saturating_duration_since(at) < PAUSE);
        let age = |at: Instant| now.saturating_duration_since(at);
        match &state.keys {
            Some((keys, at)) if age(*at) < FRESH && keys.knows(name) => Look::Have(Arc::clone(keys)),
            // Either the issuer does not answer, or it has no such key; in that case verification
            // with these keys reports it.
            Some((keys, at)) if just_tried && age(*at) < STALE => Look::Have(Arc::clone(keys)),
            Some((keys, at)) if !just_tried && age(*at) < STALE && keys.knows(name) => {
                Look::Ask(Some(Arc::clone(keys)))
            }
            _ if !just_tried => Look::Ask(None),
            _ => {
                Look::Unavailable(state.failure.clone().unwrap_or_else(|| self.document("there are no keys")))
            }
        }
    }

    fn document(&self, reason: &str) -> KeysError {
        KeysError::Document { url: self.issuer.clone(), reason: reason.to_owned() }
    }

    fn fetch_keys(&self) -> Result<KeySet, KeysError> {
        let deadline = Instant::now() + PATIENCE;
        let place = self.key_place(deadline)?;
        let text = self.fetch.get(&place, deadline).map_err(|error| failed(&place, error))?;
        KeySet::parse(&text).map_err(|reason| KeysError::Document { url: place, reason })
    }

    /// The `jwks_uri` of the first document that exists.
    fn key_place(&self, deadline: Instant) -> Result<String, KeysError> {
        let mut last = FetchError::Missing;
        let places = places(&self.issuer);
        for url in &places {
            match self.fetch.get(url, deadline) {
                Ok(text) => return self.read(url, &text),
                Err(FetchError::Missing) => {}
                Err(error) => {
                    last = error;
                    break;
                }
            }
        }
        let url = places.into_iter().next().unwrap_or_default();
        Err(failed(&url, last))
    }

    fn read(&self, url: &str, text: &[u8]) -> Result<String, KeysError> {
        let wrong = |reason: String| KeysError::Document { url: url.to_owned(), reason };
        let document = Object::parse(text, DOCUMENT_VALUES).map_err(wrong)?;
        let issuer = document.string("issuer").ok_or_else(|| wrong("it names no issuer".into()))?;
        // RFC 8414 section 3.3: an issuer must not speak for another one.
        if issuer != self.issuer {
            return Err(KeysError::OtherIssuer { url: url.to_owned(), got: shown(issuer) });
        }
        let keys = document.string("jwks_uri").ok_or_else(|| wrong("it has no jwks_uri".into()))?;
        https_host(keys.split('?').next().unwrap_or_default())
            .map_err(|reason| wrong(format!("its jwks_uri {} cannot be used: {reason}", shown(keys))))?;
        Ok(keys.to_owned())
    }
}

/// URLs that may have the discovery document. SciTokens issuers use the second; RFC 8414 defines
/// the third.
fn places(issuer: &str) -> Vec<String> {
    let base = issuer.strip_suffix('/').unwrap_or(issuer);
    let mut places = vec![
        format!("{base}/.well-known/openid-configuration"),
        format!("{base}/.well-known/oauth-authorization-server"),
    ];
    if let Ok((host, path)) = https_host(base)
        && !path.is_empty()
    {
        places.push(format!("https://{host}/.well-known/oauth-authorization-server{path}"));
    }
    places
}

fn failed(url: &str, error: FetchError) -> KeysError {
    let reason = match error {
        FetchError::Missing => "there is no such document".to_owned(),
        FetchError::Failed(reason) => reason,
    };
    KeysError::Fetch { url: url.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use super::*;

    const ISSUER: &str = "https://issuer.example/vo";
    const DOCUMENT: &str = "https://issuer.example/vo/.well-known/openid-configuration";
    const KEYS: &str = "https://keys.example/jwks?vo=1";

    /// The existing documents, and the URLs that were requested.
    #[derive(Clone, Default)]
    struct Web(Arc<Mutex<(Documents, Vec<String>)>>);

    type Documents = BTreeMap<String, String>;

    impl Web {
        fn put(&self, url: &str, text: &str) {
            self.0.lock().0.insert(url.to_owned(), text.to_owned());
        }

        fn down(&self) {
            self.0.lock().0.clear();
        }

        fn asked(&self) -> usize {
            std::mem::take(&mut self.0.lock().1).len()
        }

        fn up(&self, key: &str) {
            self.put(DOCUMENT, &document(ISSUER, KEYS));
            self.put(KEYS, &keys(key));
        }

        fn discovery(&self) -> Discovery {
            Discovery::new(ISSUER, Box::new(self.clone()))
        }
    }

    impl Fetch for Web {
        fn get(&self, url: &str, _: Instant) -> Result<Vec<u8>, FetchError> {
            let mut web = self.0.lock();
            web.1.push(url.to_owned());
            if web.0.is_empty() {
                return Err(FetchError::Failed("no route to host".into()));
            }
            web.0.get(url).map(|text| text.clone().into_bytes()).ok_or(FetchError::Missing)
        }
    }

    fn document(issuer: &str, keys: &str) -> String {
        format!(r#"{{"issuer":"{issuer}","jwks_uri":"{keys}","scopes_supported":["openid"]}}"#)
    }

    fn keys(name: &str) -> String {
        // The key of RFC 8037 appendix A.2.
        let key = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
        format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"{name}","x":"{key}"}}]}}"#)
    }

    #[test]
    fn get_known_key_fetches_once() {
        let (web, start) = (Web::default(), Instant::now());
        web.up("a");
        let discovery = web.discovery();
        for seconds in [0, 1, 3599] {
            assert!(discovery.get(Some("a"), start + Duration::from_secs(seconds)).unwrap().knows(Some("a")));
        }
        assert_eq!(web.asked(), 2);
        assert!(discovery.get(Some("a"), start + FRESH).is_ok());
        assert_eq!(web.asked(), 2);
    }

    #[test]
    fn get_unknown_key_asks_once_a_minute() {
        let (web, start) = (Web::default(), Instant::now());
        web.up("a");
        let discovery = web.discovery();
        for _ in 0..100 {
            assert!(!discovery.get(Some("b"), start).unwrap().knows(Some("b")));
        }
        assert_eq!(web.asked(), 2);
        // The issuer gets a new key.
        web.up("b");
        assert!(!discovery.get(Some("b"), start + Duration::from_secs(59)).unwrap().knows(Some("b")));
        assert!(discovery.get(Some("b"), start + PAUSE).unwrap().knows(Some("b")));
        assert_eq!(web.asked(), 2);
    }

    #[test]
    fn get_when_issuer_is_down_uses_old_keys_for_a_day() {
        let (web, start) = (Web::default(), Instant::now());
        let discovery = web.discovery();
        for _ in 0..100 {
            let error = discovery.get(Some("a"), start).err().unwrap();
            assert!(error.to_string().contains("no route"), "{error}");
        }
        assert_eq!(web.asked(), 1);
        web.up("a");
        assert!(discovery.get(Some("a"), start + PAUSE).is_ok());
        web.down();
        web.asked();
        // Known keys are used for a day, and the issuer is asked once a minute.
        for seconds in [7200, 7210, 7259] {
            assert!(discovery.get(Some("a"), start + Duration::from_secs(seconds)).is_ok(), "{seconds}");
        }
        assert_eq!(web.asked(), 1);
        assert!(discovery.get(Some("a"), start + Duration::from_secs(7260)).is_ok());
        assert_eq!(web.asked(), 1);
        let too_old = start + PAUSE + STALE;
        assert!(discovery.get(Some("a"), too_old).is_err());
        assert!(discovery.get(Some("a"), too_old + Duration::from_secs(1)).is_err());
        assert_eq!(web.asked(), 1);
    }

    #[test]
    fn get_while_another_thread_asks_returns_old_keys() {
        let (web, start) = (Web::default(), Instant::now());
        web.up("a");
        let discovery = web.discovery();
        discovery.get(Some("a"), start).unwrap();
        // Another thread is asking the issuer.
        let _turn = discovery.turn.lock();
        assert!(discovery.get(Some("a"), start + FRESH).is_ok());
    }

    #[test]
    fn key_place_tries_all_places() {
        for (issuer, places) in [
            (
                ISSUER,
                vec![
                    "vo/.well-known/openid-configuration",
                    "vo/.well-known/oauth-authorization-server",
                    ".well-known/oauth-authorization-server/vo",
                ],
            ),
            (
                "https://issuer.example/",
                vec![".well-known/openid-configuration", ".well-known/oauth-authorization-server"],
            ),
        ] {
            let expected: Vec<String> =
                places.iter().map(|place| format!("https://issuer.example/{place}")).collect();
            assert_eq!(super::places(issuer), expected);
        }
        let web = Web::default();
        web.put("https://issuer.example/.well-known/oauth-authorization-server/vo", &document(ISSUER, KEYS));
        web.put(KEYS, &keys("a"));
        assert!(web.discovery().get(Some("a"), Instant::now()).is_ok());
        assert_eq!(web.asked(), 4);
    }

    #[test]
    fn get_invalid_document_fails() {
        let long = format!(r#"{{"issuer":"{ISSUER}","x":[{}0]}}"#, "0,".repeat(3000));
        for (text, reason) in [
            (document("https://other.example", KEYS), "about the issuer \"https://other.example\""),
            (document(&format!("{ISSUER}/"), KEYS), "about the issuer"),
            (document(ISSUER, "http://keys.example/jwks"), "does not begin with https://"),
            (document(ISSUER, "file:///etc/passwd"), "does not begin with https://"),
            (document(ISSUER, "https://"), "no plain host"),
            (format!(r#"{{"issuer":"{ISSUER}"}}"#), "no jwks_uri"),
            (r#"{"jwks_uri":"https://x/"}"#.into(), "no issuer"),
            (format!(r#"{{"issuer":"https://x","issuer":"{ISSUER}"}}"#), "twice"),
            ("<html>".into(), "expected value"),
            (long, "too many"),
        ] {
            let web = Web::default();
            web.put(DOCUMENT, &text);
            let error = web.discovery().get(None, Instant::now()).err().unwrap().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
        let web = Web::default();
        web.put(DOCUMENT, &document(ISSUER, KEYS));
        let error = web.discovery().get(None, Instant::now()).err().unwrap().to_string();
        assert!(error.contains("no such document") && error.contains(KEYS), "{error}");
    }
}
