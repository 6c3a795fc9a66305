//! Log-in with a bearer token.

use ropewalk_protocol::command::{Command, Password};
use ropewalk_protocol::server::TOKEN_USER;
use ropewalk_protocol::url::Scheme;
use ropewalk_tokens::{Token, find};

use crate::session::Session;
use crate::{RemoteError, TokenSource};

impl TokenSource {
    pub(super) fn token(&self) -> Result<Option<Token>, String> {
        match self {
            Self::None => Ok(None),
            Self::Discover => match find::of_process() {
                Ok(Some(token)) => Ok(Some(token)),
                Ok(None) => Err(format!(
                    "there is no bearer token: neither BEARER_TOKEN nor BEARER_TOKEN_FILE is set, and there is no bt_u{} in \
                     $XDG_RUNTIME_DIR or /tmp; --token FILE names one",
                    rustix::process::geteuid().as_raw()
                )),
                Err(error) => Err(error.to_string()),
            },
            Self::File(path) => find::read(path).map(Some).map_err(|error| error.to_string()),
        }
    }
}

impl Session {
    /// Logs in with a token if one is requested and the URL names no user; otherwise returns
    /// `false` without sending anything. A token is never sent over an unprotected connection: its
    /// holder has all the rights that it grants.
    pub(crate) fn log_in_by_token(&mut self) -> Result<bool, RemoteError> {
        let (url, source) = (&self.endpoint.url, &self.setup.options.login.token);
        if *source == TokenSource::None || url.user.is_some() || url.scheme == Scheme::Sshftp {
            return Ok(false);
        }
        let peer = self.control.peer().to_owned();
        let failed = |reason: String| RemoteError::Security { peer: peer.clone(), reason };
        if !self.is_protected() {
            return Err(failed(
                "a bearer token is sent over a protected control connection only: use ftpes:// or ftps:// (TLS), or gsiftp://"
                    .into(),
            ));
        }
        let Some(token) = source.token().map_err(failed)? else { return Ok(false) };
        let mut reply = self.control.call(&Command::User(TOKEN_USER.into()))?;
        if reply.code() == 331 {
            reply = self.control.call(&Command::Pass(Password::new(token.expose())))?;
        }
        if !reply.is_success() {
            return Err(RemoteError::Login { peer, reply });
        }
        Ok(true)
    }
}
