//! One-time keys that bind data connections to their session (`SITE DATAKEY`, a Ropewalk
//! extension), for protected control connections whose data connections have no security of their
//! own.

use std::sync::Arc;

use ropewalk_layers::KeyLayer;
use ropewalk_protocol::command::Command;
use ropewalk_protocol::data_key::DataKey;
use ropewalk_protocol::site::SiteCommand;

use crate::session::Session;
use crate::{DataProtection, RemoteError};

/// The key of one data channel.
pub(crate) struct Binding {
    key: DataKey,
    layer: Arc<KeyLayer>,
}

impl Binding {
    fn new() -> std::io::Result<Self> {
        let key = DataKey::made_by(ropewalk_layers::fresh_key)?;
        let layer = Arc::new(KeyLayer::new(key.number(), key.secret())?);
        Ok(Self { key, layer })
    }

    /// The command that announces the key to a server, sent directly before the command that makes
    /// the channel.
    pub(crate) fn command(&self) -> Command {
        Command::Site(SiteCommand::DataKey(Some(self.key.clone())))
    }

    pub(crate) fn layer(&self) -> Arc<KeyLayer> {
        Arc::clone(&self.layer)
    }
}

impl Session {
    /// Whether data connections of this session are bound to it: the control connection hides the
    /// key, the server accepts one, and without it any host could connect.
    pub(crate) fn binds_data(&self) -> bool {
        let protected =
            self.security.is_some() || self.kerberos.is_some() || self.tls.is_some() || self.control.is_ssh();
        // The protection by Kerberos' context does not prove which host connects first.
        protected && self.can.data_keys && (!self.authenticates_data() || self.wraps_data())
    }

    /// Returns an error if a required authentication of data connections is missing. (Between two
    /// servers either both authenticate them or neither does, so a check of each is a check of the
    /// pair.)
    pub(crate) fn require_data_authentication(&self) -> Result<(), RemoteError> {
        let required = self.setup.options.data_security.require_authentication;
        // Data that Kerberos' context only signs is readable for the host that connects first.
        let readable =
            self.wraps_data() && self.setup.options.data_security.protection == DataProtection::Safe;
        if !required || self.authenticates_data() && !readable || self.binds_data() {
            return Ok(());
        }
        Err(self.data_is_not_bound())
    }

    /// The error if data connections are not bound to the session although that is required.
    pub(crate) fn data_is_not_bound(&self) -> RemoteError {
        RemoteError::Security {
            peer: self.control.peer().to_owned(),
            reason: "authenticated data connections are required (--require-data-authentication), \
                     and not available: they need a log-in with a certificate and DCAU, or a \
                     protected control connection to a server with data keys"
                .to_owned(),
        }
    }

    /// A key for the next data channel with this server, if [`Self::binds_data`].
    pub(crate) fn bind(&self) -> Result<Option<Binding>, RemoteError> {
        self.binds_data().then(|| self.new_binding()).transpose()
    }

    /// A key for the data channel between two servers, if both accept one.
    pub(crate) fn bind_with(&self, other: &Self) -> Result<Option<Binding>, RemoteError> {
        (self.binds_data() && other.binds_data()).then(|| self.new_binding()).transpose()
    }

    fn new_binding(&self) -> Result<Binding, RemoteError> {
        Binding::new().map_err(|error| RemoteError::Security {
            peer: self.control.peer().to_owned(),
            reason: format!("cannot make a key for data connections: {error}"),
        })
    }
}
