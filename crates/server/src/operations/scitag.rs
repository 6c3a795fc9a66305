//! SITE SCITAG, and the marks of data connections.

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::scitag::{SciTag, SciTagCommand};
use ropewalk_protocol::server::{Failure, Outcome};
use ropewalk_scitags::FlowTransport;

use super::Answer;
use crate::session::context::Context;
use crate::session::job::Job;

/// Drivers whose packets are those of UDP.
const OVER_UDP: [&str; 2] = ["udt", "quic"];

pub(super) fn command(job: &mut Job<'_>, command: SciTagCommand) -> Answer {
    let context = &mut *job.context;
    match command {
        SciTagCommand::Ask => {}
        SciTagCommand::Remove => context.scitag = Some(None),
        SciTagCommand::Set(tag) if context.settings.scitags.permits(tag) => context.scitag = Some(Some(tag)),
        SciTagCommand::Set(tag) => {
            tracing::warn!(session = context.id, %tag, "SciTag refused: experiment is not permitted");
            let text = format!("SciTag {tag}: experiment {} is not permitted here.", tag.experiment());
            return Err(Failure::Refused { code: 550, text });
        }
    }
    Ok(Outcome::SciTag(effective(context, None)))
}

/// Marks the connections that the session's channel makes from now on. `path` is that of the file,
/// and `named` the tag that the client has named with it.
pub(super) fn mark(job: &mut Job<'_>, path: Option<&VirtualPath>, named: Option<SciTag>) {
    let context = &mut *job.context;
    let permitted = named.filter(|tag| context.settings.scitags.permits(*tag));
    if let (Some(tag), None) = (named, permitted) {
        tracing::warn!(session = context.id, %tag, "SciTag of a path ignored: experiment is not permitted");
    }
    let tag = permitted.or_else(|| effective(context, path));
    let Some(channel) = &mut context.channel else { return };
    let stack = channel.options.stack.as_ref();
    let udp = stack.is_some_and(|stack| OVER_UDP.iter().any(|name| stack.has(name)));
    let transport = if udp { FlowTransport::Udp } else { FlowTransport::Tcp };
    channel.data.set_marks(context.settings.scitags.marks(tag, transport));
}

/// The tag that the client has named, or that of the settings.
fn effective(context: &Context, path: Option<&VirtualPath>) -> Option<SciTag> {
    let user = context.login.as_ref().map_or("", |login| &login.account.name);
    context.scitag.unwrap_or_else(|| context.settings.scitags.default_for(user, path))
}
