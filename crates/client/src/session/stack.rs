//! The stack of drivers and layers for the data connections of a session: the same at the server
//! and here, unless the data goes to another server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ropewalk_layers::{Policy, Refusal, Registry, SessionSecurity, Stack, StackBuilder, StackError};
use ropewalk_protocol::command::{Command, DataAuthentication};
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::stack::StackSpec;
use ropewalk_transport::Driver;

use crate::model::error::text;
use crate::place::End;
use crate::session::{Binding, Session};
use crate::{RemoteError, StackReason, UsedStack};

/// The driver that a path starts with.
const TCP: &str = "tcp";
/// Drivers that the tuner may try, the preferred one first.
const OTHER_DRIVERS: [&str; 2] = ["udt", QUIC];
const QUIC: &str = "quic";
/// Time for a data connection of a driver that the tuner tries: UDP may be blocked.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// A transfer that takes no longer than this, in seconds, is not broken off for another driver.
const SOON: f64 = 3.0;

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
        self.choose(SiteCommand::SetNetStack(stack.to_bytes()), &stack)
    }

    /// SITE SETDISKSTACK, if the options name drivers of files.
    pub(super) fn choose_disk_stack(&mut self) -> Result<(), RemoteError> {
        let Some(stack) = self.setup.options.end(self.endpoint.end).disk_stack else { return Ok(()) };
        self.choose(SiteCommand::SetDiskStack(stack.to_bytes()), &stack)
    }

    fn choose(&mut self, command: SiteCommand, stack: &StackSpec) -> Result<(), RemoteError> {
        let chosen = self.call(&Command::Site(command));
        chosen.map(drop).map_err(|error| match error {
            // The answer to another try would be the same, although GCT's servers say 500.
            RemoteError::Refused { peer, reply, .. } if reply.code() >= 500 => {
                RemoteError::Unsupported { peer, what: format!("use the stack {stack}: {}", text(&reply)) }
            }
            error => error,
        })
    }

    /// Tells the tuner of the path which driver besides TCP both ends have. `bbr`: see
    /// [`PathTuner::offers_driver`](crate::tune::PathTuner::offers_driver).
    pub(crate) fn offer_driver(&self, bbr: bool) {
        let Some(path_tuner) = self.path_tuner.as_ref().filter(|path_tuner| path_tuner.chooses_stack())
        else {
            return;
        };
        if self.setup.options.end(self.endpoint.end).stack.is_none()
            && let Some(other) = OTHER_DRIVERS.iter().find(|name| self.can_use(name))
        {
            path_tuner.offers_driver(other, bbr);
        }
    }

    /// Whether data connections of this driver, and of TCP again, are possible.
    fn can_use(&self, driver: &str) -> bool {
        let told = |name: &str| self.can.drivers.iter().any(|known| known == name);
        // If only the control port can be reached over TCP, perhaps so can the port of QUIC.
        let one_port = self.setup.options.data.one_port || self.endpoint.one_port.load(Ordering::Relaxed);
        let passes = !one_port || driver == QUIC && self.can.quic_port;
        passes && told(driver) && told(TCP) && self.setup.shared.registry.has(driver)
    }

    /// The driver that the path's tuner wants; `None`: TCP.
    fn wanted_driver(&self) -> Option<&'static str> {
        let path_tuner = self.path_tuner.as_ref().filter(|path_tuner| path_tuner.chooses_stack())?;
        path_tuner.driver().filter(|driver| self.can_use(driver))
    }

    /// The driver that the tuner has chosen for this session's data connections, if it is not TCP.
    pub(crate) fn other_driver(&self) -> Option<&'static str> {
        self.driver.filter(|driver| *driver != TCP)
    }

    /// The path's tuner wants data connections of another driver than this session has.
    pub(crate) fn must_change_driver(&self) -> bool {
        self.wanted_driver() != self.other_driver()
    }

    /// Changes to the driver that the path's tuner wants, before a data channel is made.
    pub(super) fn change_driver(&mut self) -> Result<(), RemoteError> {
        let wanted = self.wanted_driver();
        if wanted == self.other_driver() {
            // Another session may have had another driver.
            self.report_stack();
            return Ok(());
        }
        self.channel = None;
        let before = self.driver.replace(wanted.unwrap_or(TCP));
        match self.choose_stack() {
            Err(RemoteError::Unsupported { what, .. }) if wanted.is_some() => {
                self.driver = before;
                self.driver_failed(&format!("the server does not {what}"));
                Ok(())
            }
            changed => {
                self.report_stack();
                changed
            }
        }
    }

    /// Goes back to TCP for data that takes another path, whose tuner chooses no driver.
    pub(crate) fn restore_driver(&mut self) -> Result<(), RemoteError> {
        self.path_tuner = None;
        self.change_driver()
    }

    /// Reports to the path's tuner that data connections of its driver fail.
    pub(crate) fn driver_failed(&self, why: &str) {
        if let Some(path_tuner) = &self.path_tuner {
            path_tuner.driver_failed(why);
        }
    }

    /// The condition to break off a transfer of `left` bytes, given the bytes that have arrived:
    /// the path's tuner wants another driver, and what is missing takes a while.
    pub(crate) fn changes_driver(&self, left: u64) -> impl Fn(u64) -> bool + use<> {
        let path_tuner = self.path_tuner.clone().filter(|path_tuner| path_tuner.chooses_stack());
        let own = self.other_driver();
        let usable: Vec<_> = OTHER_DRIVERS.into_iter().filter(|name| self.can_use(name)).collect();
        move |arrived| {
            let Some(path_tuner) = &path_tuner else { return false };
            let wanted = path_tuner.driver().filter(|name| usable.contains(name));
            let soon = path_tuner.last_rate().unwrap_or_default() * SOON;
            wanted != own && (own.is_some() || left.saturating_sub(arrived) as f64 > soon)
        }
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
            Some(stack) if self.driver.is_some() => (stack.to_string(), StackReason::Tuned),
            Some(stack) if of_end => (stack.to_string(), StackReason::ChosenForEnd),
            Some(stack) => (stack.to_string(), StackReason::Chosen),
            None if self.has_gsi_data() => ("tcp,gsi".to_owned(), StackReason::Default),
            None => ("tcp".to_owned(), StackReason::Default),
        };
        let peer = self.endpoint.name.clone();
        let used = UsedStack { peer: peer.clone(), stack, reason, one_port: self.one_port_reason() };
        let mut stacks = self.setup.stacks.lock();
        let tuned = stacks.get(&peer).is_some_and(|known| known.reason == StackReason::Tuned);
        let used = match used.reason {
            // Every session starts with the default, before its path is known.
            StackReason::Default if tuned && self.path_tuner.is_none() => return,
            StackReason::Default if tuned => UsedStack { reason: StackReason::Tuned, ..used },
            _ => used,
        };
        stacks.insert(peer, used);
    }

    /// The driver of this session's data connections.
    pub(super) fn data_driver(&self) -> Arc<dyn Driver> {
        self.setup.shared.registry.driver_of(self.net_stack().as_ref())
    }

    /// Whether data connections are TCP connections at the bottom.
    pub(super) fn has_tcp_data(&self) -> bool {
        self.data_driver().name() == self.setup.shared.registry.default_driver().name()
    }

    /// Makes the stack for a data channel of this session, over `base` in place of the driver of
    /// its name. `binding` is its key, if it has one.
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
            Refusal::NotProtected | Refusal::NoKey(_) | Refusal::NotBound => self.data_is_not_bound(),
        })
    }

    /// The drivers that the options name. GCT's servers use `gsi` only if the stack has it.
    pub(super) fn net_stack(&self) -> Option<StackSpec> {
        let mut stack = match self.driver {
            Some(driver) => driver.parse().ok()?,
            None => self.setup.options.end(self.endpoint.end).stack?,
        };
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
