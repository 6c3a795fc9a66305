//! The stack of drivers and layers for the data connections of a session.

use ropewalk_layers::{Policy, Refusal, SessionSecurity, Stack, StackBuilder};
use ropewalk_protocol::command::DataAuthentication;

use crate::RemoteError;
use crate::session::{Binding, Session};

impl Session {
    /// Makes the stack for a data channel of this session. `binding` is its key, if it has one.
    pub(crate) fn data_stack(&self, binding: Option<&Binding>) -> Result<Stack, RemoteError> {
        let security = SessionSecurity {
            key: binding.map(Binding::layer),
            layer: self.kerberos_layer().or_else(|| self.tls_layer()).or_else(|| self.gsi_layer()),
            peer: None,
        };
        let policy = Policy { protected: false, bound: self.setup.options.data_security.require_authentication };
        let authentication = match self.has_gsi_data() {
            true => DataAuthentication::SelfAuthentication,
            false => DataAuthentication::None,
        };
        StackBuilder::new(&self.setup.shared.registry)
            .with_gsi(&authentication, self.data_protection())
            .build(None, security, policy)
            .map_err(|refusal| match refusal {
                Refusal::Stack(error) => RemoteError::Usage(error.to_string()),
                Refusal::NotProtected | Refusal::NotBound => self.data_is_not_bound(),
            })
    }
}
