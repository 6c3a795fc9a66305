//! Audit entries of log-ins.

use ropewalk_protocol::server::{Failure, RefusedLogin};

use crate::host::Host;
use crate::host::audit::Decision;
use crate::security::client::SecurityContext;
use crate::security::tokens;
use crate::session::context::Context;

/// A log-in that was accepted, or refused because of `failure`.
pub(crate) fn log_in(host: &Host, context: &Context, wanted: &[u8], failure: Option<&Failure>) {
    let mechanism = mechanism(host, context, wanted);
    let decision = if failure.is_some() { Decision::Refused } else { Decision::Accepted };
    let line = context.audit_line("log-in", decision).mechanism(mechanism).wanted(wanted);
    host.audit.write(&match failure {
        // The user that the session had before does not matter.
        Some(failure) => line.without_user().because(failure),
        None => line,
    });
}

/// A log-in that the session itself has refused, before it asked for a password or token.
pub(crate) fn log_in_refused(host: &Host, context: &Context, refused: &RefusedLogin) {
    let user: &[u8] = &refused.user;
    let line = context.audit_line("log-in", Decision::Refused).mechanism(mechanism(host, context, user));
    host.audit.write(&line.wanted(user).reason(&refused.reason));
}

/// A certificate that was presented for TLS and refused for this reason.
pub(crate) fn certificate_refused(host: &Host, context: &Context, reason: &str) {
    let line = context.audit_line("log-in", Decision::Refused).mechanism("certificate");
    host.audit.write(&line.reason(reason));
}

/// A certificate or ticket in a token of a handshake (ADAT) that was refused.
pub(crate) fn token_refused(host: &Host, context: &Context, failure: &Failure) {
    let mechanism = match &context.client {
        SecurityContext::Gsi(_) => "gsi",
        SecurityContext::Kerberos(_) => "kerberos",
        _ => "gssapi",
    };
    host.audit.write(&context.audit_line("log-in", Decision::Refused).mechanism(mechanism).because(failure));
}

/// A bearer token that expired during its session.
pub(crate) fn token_expired(host: &Host, context: &Context) {
    let line = context.audit_line("command", Decision::Refused).mechanism("token");
    host.audit.write(&line.reason("the bearer token has expired"));
}

/// The mechanism by which the client has proved its identity, or will have to.
fn mechanism(host: &Host, context: &Context, wanted: &[u8]) -> &'static str {
    let anonymous = context.settings.config.anonymous.as_ref();
    match (&context.client, context.login.as_deref()) {
        _ if host.ssh_user.get().is_some() => "ssh",
        _ if tokens::is_token(wanted) => "token",
        (SecurityContext::Gsi(_), _) if context.client.subject().is_some() => "gsi",
        (SecurityContext::Kerberos(_), _) if context.client.subject().is_some() => "kerberos",
        (SecurityContext::Tls(client), Some(login))
            if client.user().is_some_and(|user| user == login.account.name) =>
        {
            "certificate"
        }
        (_, Some(login)) if login.account.counted_as == "anonymous" => "anonymous",
        _ if anonymous.is_some_and(|access| access.names.iter().any(|name| name.as_bytes() == wanted)) => {
            "anonymous"
        }
        _ => "password",
    }
}
