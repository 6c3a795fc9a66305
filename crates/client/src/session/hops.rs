//! Log-ins at servers behind a relay (SITE HOPLOGIN).

use ropewalk_protocol::command::{Command, Password};
use ropewalk_protocol::hop_login::{HopLogin, ServerAddress};
use ropewalk_protocol::server::TOKEN_USER;
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::url::Scheme;

use crate::session::Session;
use crate::{RelayedLogin, RemoteError, TokenSource};

impl Session {
    /// Gives a relay the log-ins for servers behind it. They are sent over a protected control
    /// connection only.
    ///
    /// # Errors
    /// The connection is not protected, the relay takes no log-ins, or a secret is not known.
    pub(crate) fn give_hop_logins(&mut self) -> Result<(), RemoteError> {
        let relay = ServerAddress::of(&self.endpoint.url);
        let setup = self.setup.clone();
        let mut commands = Vec::new();
        for hop in setup.options.login.hops.iter().filter(|hop| hop.relay == relay) {
            let Some(login) = self.hop_login(hop)? else { continue };
            if !self.is_protected() {
                let peer = self.control.peer().to_owned();
                let reason = format!(
                    "the log-in of {} at {} would reach this relay in clear: name the relay with ftpes://, ftps:// \
                     or gsiftp://",
                    login.user, login.server
                );
                return Err(RemoteError::Security { peer, reason });
            }
            if !self.can.hop_login {
                let (peer, server) = (self.control.peer().to_owned(), login.server);
                let what = format!("log in at {server} for its clients (SITE HOPLOGIN), as --via asks it to");
                return Err(RemoteError::Unsupported { peer, what });
            }
            commands.push(Command::Site(SiteCommand::HopLogin(login)));
        }
        self.calls(&commands)?.into_iter().try_for_each(|reply| reply.map(drop))
    }

    /// `None`: the server has no secret log-in.
    fn hop_login(&self, hop: &RelayedLogin) -> Result<Option<HopLogin>, RemoteError> {
        let server = ServerAddress::of(&hop.server);
        let failed = |reason: String| RemoteError::Security { peer: server.to_string(), reason };
        let login = &self.setup.options.login;
        let (user, secret) = match (&hop.server.user, &hop.server.password) {
            (Some(user), Some(secret)) => (user.clone(), secret.clone()),
            (Some(user), None) if user == "anonymous" || user == "ftp" => return Ok(None),
            (Some(user), None) => {
                let Some(prompt) = &self.setup.options.prompts.password else {
                    return Err(failed(format!(
                        "no password of {user} was given (use --source-password-file or --destination-password-file)"
                    )));
                };
                let asked = prompt.ask(&hop.server, user.as_ref());
                let cannot = |error| failed(format!("the password of {user} cannot be read: {error}"));
                (user.clone(), asked.map_err(cannot)?)
            }
            (None, _) if login.token == TokenSource::None || hop.server.scheme == Scheme::Ftp => {
                return Ok(None);
            }
            (None, _) => match login.token.token().map_err(failed)? {
                Some(token) => (TOKEN_USER.into(), Password::new(token.expose())),
                None => return Ok(None),
            },
        };
        Ok(Some(HopLogin { server, user, secret }))
    }
}
