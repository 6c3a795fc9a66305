//! The parts that both providers of this crate share: the HTTP client, the listener, and the words
//! for failures.

use std::io;

use ropewalk_paths::{Id, Outcome, Request, now};

use crate::listener::{Door, Judge, Listener};
use crate::settings::{Settings, SettingsError};
use crate::tls;

/// The requester cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("TLS files of the NSI requester: {0}")]
    Tls(String),
    #[error("the callback address of the NSI requester: {0}")]
    Callback(String),
}

/// An HTTP client for requests to the provider: without redirects, proxies and kept connections.
///
/// # Errors
/// A file for TLS cannot be used.
pub(crate) fn agent(settings: &Settings) -> Result<ureq::Agent, SetupError> {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(settings.times.request))
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .max_idle_connections(0)
        .proxy(None)
        .user_agent(concat!("ropewalk/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls::client(settings.tls.as_ref()).map_err(SetupError::Tls)?)
        .build();
    Ok(ureq::Agent::new_with_config(config))
}

/// Listens for the provider. `None`: the address cannot be used, for example because another
/// program has it. Results are then queried.
///
/// # Errors
/// The address or a file for TLS is wrong.
pub(crate) fn listen(settings: &Settings, judge: impl Judge) -> Result<Option<Listener>, SetupError> {
    let files = settings.tls.as_ref().filter(|_| settings.callback.starts_with("https://"));
    let acceptor = files.map(tls::acceptor).transpose().map_err(SetupError::Tls)?;
    let door = Door {
        path: settings.callback_path().to_owned(),
        tls: acceptor.map(|acceptor| (acceptor, settings.provider_host())),
    };
    let address = settings.listen_address().map_err(SetupError::Callback)?;
    match Listener::start(address, door, judge) {
        Ok(listener) => Ok(Some(listener)),
        Err(error) => {
            tracing::warn!(%address, %error, "cannot listen for the NSI provider: results are queried");
            Ok(None)
        }
    }
}

/// The name of a reservation at its provider, as this program chooses it.
pub(crate) fn global_id(id: &Id) -> String {
    format!("urn:uuid:{id}")
}

/// Checks the times of a wanted path.
///
/// # Errors
/// The wanted time is over, or ends before it begins.
pub(crate) fn check_wanted(request: &Request) -> Result<(), String> {
    match request.from.is_some_and(|from| from >= request.until) || request.until <= now() {
        true => Err("the wanted time is over, or ends before it begins".to_owned()),
        false => Ok(()),
    }
}

/// The outcome of a request that the HTTP client could not send, or whose answer was lost.
pub(crate) fn failure(url: &str, error: &ureq::Error) -> Outcome {
    let unreachable = || Outcome::NotSent(format!("the NSI provider {url} cannot be reached: {error}"));
    match error {
        ureq::Error::HostNotFound | ureq::Error::ConnectionFailed | ureq::Error::BadUri(_) => unreachable(),
        ureq::Error::NativeTls(_) | ureq::Error::Tls(_) => unreachable(),
        ureq::Error::Io(io) if io.kind() == io::ErrorKind::ConnectionRefused => unreachable(),
        ureq::Error::Timeout(_) => Outcome::Unclear(format!("the NSI provider {url} does not answer")),
        _ => Outcome::Unclear(format!("the NSI provider {url}: {error}")),
    }
}
