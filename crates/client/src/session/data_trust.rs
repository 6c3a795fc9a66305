//! The authentication of data connections between two servers at which we are logged in as
//! different users. Without it each would refuse the other's data connections.

use std::sync::Arc;

use ropewalk_gsi::same;
use ropewalk_protocol::command::{Command, DataAuthentication, Password};

use crate::credential::{Own, OwnData};
use crate::session::Session;
use crate::{DataCredential, RemoteError};

/// The identities that a server checks and shows on data connections.
#[derive(Clone, Default)]
pub(crate) enum DataTrust {
    /// The identity of the log-in (DCAU A).
    #[default]
    Login,
    /// A credential that we gave to it (DCSC P).
    Own(Arc<OwnData>),
    /// It shows the identity of its log-in, and expects this one (DCAU S).
    Peer(String),
}

impl DataTrust {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Login, Self::Login) => true,
            (Self::Own(one), Self::Own(other)) => Arc::ptr_eq(one, other),
            (Self::Peer(one), Self::Peer(other)) => one == other,
            _ => false,
        }
    }
}

impl Session {
    /// Sets the identities of data connections from now on. Returns `false` if the server does not
    /// accept a credential after all.
    fn set_data_trust(&mut self, trust: DataTrust) -> Result<bool, RemoteError> {
        if !self.authenticates_data() || self.data_trust.is(&trust) {
            return Ok(true);
        }
        self.drop_channel();
        let mut mode = DataAuthentication::SelfAuthentication;
        match &trust {
            DataTrust::Own(own) => {
                let blob = Some(Password::new(own.blob.as_bytes()));
                // Some servers announce DCSC without supporting it.
                if !self.try_call(&Command::Dcsc { kind: b'P', blob })? {
                    self.can.data_credentials = false;
                    return Ok(false);
                }
            }
            _ if matches!(self.data_trust, DataTrust::Own(_)) => {
                self.call(&Command::Dcsc { kind: b'D', blob: None })?;
            }
            _ => {}
        }
        if let DataTrust::Peer(subject) = &trust {
            mode = DataAuthentication::Subject(subject.as_str().into());
        }
        self.call(&Command::Dcau(mode))?;
        self.data_trust = trust;
        Ok(true)
    }

    /// Sets the authentication for data connections between us and the server.
    pub(crate) fn trust_each_other(&mut self) -> Result<(), RemoteError> {
        // We also have every credential that we gave to the server.
        if matches!(self.data_trust, DataTrust::Peer(_)) {
            self.set_data_trust(DataTrust::Login)?;
        }
        Ok(())
    }

    /// Gives the server the requested credential for data connections.
    pub(crate) fn give_data_credential(&mut self) -> Result<(), RemoteError> {
        let options = &self.setup.options;
        let Some(own) = self.own().filter(|_| self.authenticates_data()) else { return Ok(()) };
        let given = match &options.data_security.credential {
            DataCredential::Usual => return Ok(()),
            DataCredential::Fresh => self.setup.ours.fresh(&own),
            DataCredential::File(path) => {
                self.setup.ours.get(options, Some(path)).and_then(|own| own.for_data())
            }
        };
        let given = DataTrust::Own(given.map_err(|reason| self.insecure(reason))?);
        if self.can.data_credentials && self.set_data_trust(given)? {
            return Ok(());
        }
        let what = "use a separate credential for data connections (DCSC)".to_owned();
        Err(RemoteError::Unsupported { peer: self.control.peer().to_owned(), what })
    }

    fn insecure(&self, reason: String) -> RemoteError {
        RemoteError::Security { peer: self.control.peer().to_owned(), reason }
    }
}

/// Makes two servers accept each other's data connections.
pub(crate) fn agree(source: &mut Session, destination: &mut Session) -> Result<(), RemoteError> {
    let (Some(one), Some(other)) = (source.own(), destination.own()) else { return Ok(()) };
    let both = source.authenticates_data() && destination.authenticates_data();
    // A requested credential was given to both at log-in.
    if !both || source.setup.options.data_security.credential != DataCredential::Usual {
        return Ok(());
    }
    let names = [&one, &other].map(|own| own.identity.credential().identity().to_owned());
    if same(&names[0], &names[1]) {
        source.set_data_trust(DataTrust::Login)?;
        return destination.set_data_trust(DataTrust::Login).map(drop);
    }
    loop {
        let [first, second] = parts(source, destination, &one, &other, &names)?;
        if source.set_data_trust(first)? && destination.set_data_trust(second)? {
            return Ok(());
        }
    }
}

/// The identities for each of the two servers. `names` are those of the log-ins at `one` (source)
/// and `other`.
fn parts(
    source: &Session,
    destination: &Session,
    one: &Own,
    other: &Own,
    names: &[String; 2],
) -> Result<[DataTrust; 2], RemoteError> {
    Ok(match (source.can.data_credentials, destination.can.data_credentials) {
        (true, true) => {
            let fresh = source.setup.ours.fresh(one).map_err(|reason| source.insecure(reason))?;
            [DataTrust::Own(fresh.clone()), DataTrust::Own(fresh)]
        }
        // The server that accepts a credential uses the other's identity.
        (true, false) => {
            let given = other.for_data().map_err(|reason| source.insecure(reason))?;
            [DataTrust::Own(given), DataTrust::Login]
        }
        (false, true) => {
            let given = one.for_data().map_err(|reason| source.insecure(reason))?;
            [DataTrust::Login, DataTrust::Own(given)]
        }
        (false, false) => {
            let [one, other] = names.clone();
            [DataTrust::Peer(other), DataTrust::Peer(one)]
        }
    })
}
