//! The drivers of data channels and of files: which ones a client may choose, and the stack that a
//! channel gets.

use std::sync::Arc;

use ropewalk_layers::{KeyLayer, Policy, Refusal, SessionSecurity, Stack, StackBuilder};
use ropewalk_protocol::command::{DataAuthentication, Protection};
use ropewalk_protocol::server::{ChannelOptions, Failure, NetStack, Outcome, StackKind};
use ropewalk_protocol::stack::StackSpec;
use ropewalk_transport::Driver;

use super::Answer;
use crate::config::RequiredProtection;
use crate::security::client::SecurityContext;
use crate::session::job::Job;

/// The only driver of files.
pub(crate) const DISK_DRIVER: &str = "file";

/// SITE SETNETSTACK.
pub(super) fn set_net_stack(job: &Job<'_>, net: &NetStack) -> Answer {
    builder(job, &net.authentication, net.protection)
        .check(&net.stack)
        .map_err(|error| Failure::bad_stack(StackKind::DataChannel, error))?;
    Ok(Outcome::Done)
}

/// SITE SETDISKSTACK.
pub(super) fn set_disk_stack(job: &Job<'_>, stack: &StackSpec) -> Answer {
    let allowed = &job.context.settings.config.files.drivers;
    let refused = |reason: String| Failure::bad_stack(StackKind::FileSystem, reason);
    for (at, driver) in stack.drivers().iter().enumerate() {
        let name = driver.name();
        if name != DISK_DRIVER || !allowed.iter().any(|allowed| allowed == name) {
            return Err(refused(format!("{name} driver not whitelisted")));
        }
        if let Some(option) = driver.options().first() {
            return Err(refused(format!("{name} option {} is not supported", option.key())));
        }
        if at > 0 {
            return Err(refused(format!("{name} driver is there twice")));
        }
    }
    Ok(Outcome::Done)
}

/// The stack of a channel with these options, over `base` in place of the default driver.
///
/// # Errors
/// There is no such stack, or it does not protect the data as the settings require.
pub(super) fn build(
    job: &Job<'_>,
    options: &ChannelOptions,
    base: Option<Arc<dyn Driver>>,
) -> Result<Stack, Failure> {
    let context = &*job.context;
    let config = &context.settings.config;
    let key = options.key.as_ref().map(|key| KeyLayer::new(key.number(), key.secret())).transpose();
    let key = key.map_err(|e| Failure::DataConnection(format!("cannot use the data key: {e}")))?;
    let security = SessionSecurity {
        key: key.map(Arc::new),
        layer: context.client.layer(options)?,
        peer: Some(context.peer.ip()),
    };
    let all = config.required_protection() == RequiredProtection::Data;
    let policy = Policy {
        protected: all || context.login()?.protection == RequiredProtection::Data,
        bound: config.data.require_key && job.dialogue.session.is_private(),
    };
    let mut builder = builder(job, &options.authentication, options.protection);
    if let Some(base) = base {
        builder = builder.over(base);
    }
    builder.build(options.stack.as_ref(), security, policy).map_err(|refusal| match refusal {
        Refusal::Stack(error) => Failure::bad_stack(StackKind::DataChannel, error),
        // RFC 4217 section 9: the connection cannot be opened with the current protection.
        Refusal::NotProtected => Failure::Refused { code: 521, text: needs_protection(&context.client, all) },
        Refusal::NotBound => {
            tracing::warn!(session = context.id, peer = %context.peer, "data channel without a key refused");
            let text = "Data connections must be secured here: send PROT P, DCAU A or SITE DATAKEY.";
            Failure::Refused { code: 521, text: text.into() }
        }
    })
}

fn builder<'a>(
    job: &'a Job<'_>,
    authentication: &DataAuthentication,
    protection: Protection,
) -> StackBuilder<'a> {
    StackBuilder::new(&job.host.registry)
        .allowing(&job.context.settings.config.data.drivers)
        .with_gsi(authentication, protection)
}

/// `all`: the server requires protection of each account.
fn needs_protection(client: &SecurityContext, all: bool) -> String {
    let who = if all { "This server" } else { "This account" };
    match client {
        SecurityContext::Kerberos(_) => {
            format!("{who} needs private data connections: send PROT P, or SITE DATAKEY with PROT S, first.")
        }
        _ => format!("{who} needs protected data connections: send PBSZ 0 and PROT P first."),
    }
}
