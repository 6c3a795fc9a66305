//! The drivers of data channels and of files: which ones a client may choose, and the stack that a
//! channel gets.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use ropewalk_layers::{KeyLayer, Policy, Refusal, SessionSecurity, Stack, StackBuilder};
use ropewalk_protocol::command::{DataAuthentication, Protection};
use ropewalk_protocol::server::{ChannelOptions, Failure, NetStack, Outcome, StackKind};
use ropewalk_protocol::stack::{DriverOption, StackSpec};
use ropewalk_storage::Program;
use ropewalk_transport::Driver;

use super::Answer;
use crate::config::RequiredProtection;
use crate::security::client::SecurityContext;
use crate::session::job::Job;

/// The driver of plain files.
const FILE: &str = "file";
/// A program in place of the file.
const POPEN: &str = "popen";
/// Puts blocks in order for a driver without positions. The engine does that in any case.
const ORDERING: &str = "ordering";

/// The drivers of files.
pub(crate) const DISK_DRIVERS: [&str; 3] = [FILE, POPEN, ORDERING];

/// SITE SETNETSTACK.
pub(super) fn set_net_stack(job: &Job<'_>, net: &NetStack) -> Answer {
    builder(job, &net.authentication, net.protection)
        .check(&net.stack)
        .map_err(|error| Failure::bad_stack(StackKind::DataChannel, error))?;
    tracing::info!(session = job.context.id, stack = %net.stack, "the client has chosen a stack");
    Ok(Outcome::Done)
}

/// SITE SETDISKSTACK. The stack holds for the transfers of this log-in.
pub(super) fn set_disk_stack(job: &mut Job<'_>, stack: Option<&StackSpec>) -> Answer {
    let program = stack.map_or(Ok(None), |stack| disk_program(job, stack))?;
    let refused = || Failure::Refused { code: 530, text: "Please login with USER and PASS.".into() };
    job.context.login.as_mut().ok_or_else(refused)?.program = program;
    Ok(Outcome::Done)
}

/// The program of a stack; `None` if the stack has plain files.
fn disk_program(job: &Job<'_>, stack: &StackSpec) -> Result<Option<Program>, Failure> {
    let allowed = &job.context.settings.config.files.drivers;
    let refused = |reason: String| Failure::bad_stack(StackKind::FileSystem, reason);
    let mut names: Vec<&str> = Vec::new();
    for driver in stack.drivers() {
        let name = driver.name();
        if !DISK_DRIVERS.contains(&name) || !allowed.iter().any(|allowed| allowed == name) {
            return Err(refused(format!("{name} driver not whitelisted")));
        }
        if name != POPEN
            && let Some(option) = driver.options().first()
        {
            return Err(refused(format!("{name} option {} is not supported", option.key())));
        }
        if names.contains(&name) {
            return Err(refused(format!("{name} driver is there twice")));
        }
        if names.is_empty() == (name == ORDERING) {
            return Err(refused(format!("{name} driver is not at its place")));
        }
        names.push(name);
    }
    match stack.drivers() {
        [first, ..] if first.name() == POPEN => program(job, first.options()).map(Some),
        _ => Ok(None),
    }
}

/// The program of the driver `popen` with these options.
fn program(job: &Job<'_>, options: &[DriverOption]) -> Result<Program, Failure> {
    let bad = |reason: String| Failure::bad_stack(StackKind::FileSystem, reason);
    let mut argv = Vec::new();
    for option in options {
        match option.key().as_str() {
            "argv" => argv = list(option.value()),
            // The pipes of a program never block here.
            "blocking" => {}
            key => return Err(bad(format!("{POPEN} option {key} is not supported"))),
        }
    }
    let Some(first) = argv.first().filter(|first| !first.is_empty()).cloned() else {
        return Err(bad(format!("{POPEN} needs a program: argv=#NAME#ARGUMENT")));
    };
    let unapproved = |reason: String| {
        let text =
            format!("Setting filesystem driver stack failed.\nApproving popen arguments failed.\n{reason}");
        Failure::Refused { code: 500, text }
    };
    let programs = &job.context.settings.config.files.programs;
    let known = |(name, path): &(&String, &PathBuf)| first == name.as_str() || first == path.as_os_str();
    let Some((_, path)) = programs.iter().find(known) else {
        return Err(unapproved(format!("program '{}' not whitelisted.", first.display())));
    };
    let login = job.context.login()?;
    if let Some(reason) = login.refuses_programs(job.context.settings.config.permits_root()) {
        return Err(unapproved(format!("{reason}.")));
    }
    if job.host.space.is_some() {
        return Err(unapproved("the quotas of this server do not count the files of programs.".to_owned()));
    }
    if !job.host.stores.have_identities() {
        return Err(unapproved("the files of this server are not on this host.".to_owned()));
    }
    Ok(Program {
        path: path.clone(),
        argv,
        directory: login.account.root.clone(),
        identity: login.identity.clone(),
    })
}

/// The values of a list, whose first character separates them.
fn list(value: &[u8]) -> Vec<OsString> {
    let Some((delimiter, rest)) = value.split_first() else { return Vec::new() };
    rest.split(|byte| byte == delimiter).map(|value| OsStr::from_bytes(value).to_owned()).collect()
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
        Refusal::NotProtected => Failure::Refused { code: 521, text: needs_protection(job, all) },
        Refusal::NoKey(driver) => {
            let text = format!(
                "The driver {driver} encrypts, but does not know its peer: send SITE DATAKEY with DCAU N, or \
                 PBSZ 0 and PROT P, first."
            );
            Failure::Refused { code: 521, text }
        }
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
fn needs_protection(job: &Job<'_>, all: bool) -> String {
    let who = if all { "This server" } else { "This account" };
    let mut text = match &job.context.client {
        SecurityContext::Kerberos(_) => {
            format!("{who} needs private data connections: send PROT P, or SITE DATAKEY with PROT S, first.")
        }
        _ => format!("{who} needs protected data connections: send PBSZ 0 and PROT P first."),
    };
    let allowed = &job.context.settings.config.data.drivers;
    for driver in job.host.registry.encrypting().filter(|name| allowed.iter().any(|one| one == name)) {
        text += &format!(" SITE SETNETSTACK {driver} with SITE DATAKEY protects them too.");
    }
    text
}
