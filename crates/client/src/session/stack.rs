//! The stack of drivers and layers for the data connections of a session: the same at the server
//! and here, unless the data goes to another server.

use std::sync::Arc;

use ropewalk_layers::{Policy, Refusal, Registry, SessionSecurity, Stack, StackBuilder, StackError};
use ropewalk_protocol::command::{Command, DataAuthentication};
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::stack::StackSpec;
use ropewalk_transport::Driver;

use crate::model::error::text;
use crate::place::End;
use crate::session::{Binding, Session};
use crate::{RemoteError, StackReason, UsedStack};

impl Session {
    /// SITE SETNETSTACK, if the options name drivers. Call it after DCAU and PROT, because the
    /// server compares them with the stack.
    pub(super) fn choose_stack(&mut self) -> Result<(), RemoteError> {
        let Some(stack) = self.net_stack() else { return Ok(()) };
        let known = &self.can.drivers;
        let unknown = stack.drivers().iter().find(|driver| !known.iter().any(|name| name == driver.name()));
        if let Some(unknown) = unknown.filter(|_| !known.is_empty()) {
            return Err(RemoteError::Unsupported {
                peer: self.control.peer().to_owned(),
                what: format!("use the driver {}: its drivers are {}", unknown.name(), known.join(", ")),
            });
        }
        let chosen = self.call(&Command::Site(SiteCommand::SetNetStack(stack.to_bytes())));
        chosen.map(drop).map_err(|error| match error {
            // The answer to another try would be the same, although GCT's servers say 500.
            RemoteError::Refused { peer, reply, .. } if reply.code() >= 500 => {
                RemoteError::Unsupported { peer, what: format!("use the stack {stack}: {}", text(&reply)) }
            }
            error => error,
        })
    }

    /// Reports the stack of this session's data connections to the summary of the run.
    pub(super) fn report_stack(&self) {
        let options = &self.setup.options;
        let of_end = match self.endpoint.end {
            Some(End::Source) => options.login.source.stack.is_some(),
            Some(End::Destination) => options.login.destination.stack.is_some(),
            None => false,
        };
        let (stack, reason) = match self.net_stack() {
            Some(stack) if of_end => (stack.to_string(), StackReason::ChosenForEnd),
            Some(stack) => (stack.to_string(), StackReason::Chosen),
            None if self.has_gsi_data() => ("tcp,gsi".to_owned(), StackReason::Default),
            None => ("tcp".to_owned(), StackReason::Default),
        };
        let peer = self.endpoint.name.clone();
        let used = UsedStack { peer: peer.clone(), stack, reason, one_port: self.one_port_reason() };
        self.setup.stacks.lock().insert(peer, used);
    }

    /// Whether data connections are TCP connections at the bottom.
    pub(super) fn has_tcp_data(&self) -> bool {
        let default = self.setup.shared.registry.default_driver();
        let stack = self.net_stack();
        let mut others =
            stack.iter().flat_map(StackSpec::drivers).filter(|spec| spec.name() != default.name());
        !others.any(|spec| self.setup.shared.registry.has_driver(spec.name()))
    }

    /// Makes the stack for a data channel of this session, over `base` in place of TCP. `binding`
    /// is its key, if it has one.
    pub(crate) fn data_stack(
        &self,
        binding: Option<&Binding>,
        base: Option<Arc<dyn Driver>>,
    ) -> Result<Stack, RemoteError> {
        let security = SessionSecurity {
            key: binding.map(Binding::layer),
            layer: self.kerberos_layer().or_else(|| self.tls_layer()).or_else(|| self.gsi_layer()),
            peer: None,
        };
        let policy =
            Policy { protected: false, bound: self.setup.options.data_security.require_authentication };
        let authentication = match self.has_gsi_data() {
            true => DataAuthentication::SelfAuthentication,
            false => DataAuthentication::None,
        };
        let registry = &self.setup.shared.registry;
        let builder = StackBuilder::new(registry).with_gsi(&authentication, self.data_protection());
        let builder = match base {
            Some(base) => builder.over(base),
            None => builder,
        };
        builder.build(self.net_stack().as_ref(), security, policy).map_err(|refusal| match refusal {
            Refusal::Stack(error) => RemoteError::Usage(explain(&error, registry)),
            Refusal::NotProtected | Refusal::NotBound => self.data_is_not_bound(),
        })
    }

    /// The drivers that the options name. GCT's servers use `gsi` only if the stack has it.
    fn net_stack(&self) -> Option<StackSpec> {
        let mut stack = self.setup.options.end(self.endpoint.end).stack?;
        if self.has_gsi_data() && !stack.has("gsi") {
            stack.insert_above_first("gsi");
        }
        Some(stack)
    }
}

fn explain(error: &StackError, registry: &Registry) -> String {
    match error {
        StackError::NotAllowed(name) => {
            let known: Vec<_> = registry.names().collect();
            format!("this program has no driver {name} for data connections: it has {}", known.join(", "))
        }
        StackError::NoGsi => {
            "a stack can have gsi only if data connections are authenticated with certificates (gsiftp://)"
                .to_owned()
        }
        other => other.to_string(),
    }
}
