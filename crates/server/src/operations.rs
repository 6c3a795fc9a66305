//! What sessions ask for, carried out with storage and engine.

mod attend;
mod baseline;
mod buffers;
mod channel;
mod checksum;
mod destination;
mod directory;
mod entries;
mod files;
mod here;
mod listing;
mod noted;
mod path_watch;
mod profile;
mod retrieve;
mod rows;
mod store;
mod transfer;
mod tree;

use attend::Attend;
use noted::Noted;
use ropewalk_protocol::server::{Failure, Operation, Outcome};

use crate::session::context::Context;
use crate::session::job::Job;
use crate::session::login_audit;

pub(crate) type Answer = Result<Outcome, Failure>;

/// Whether the client wants no more what it has waited for, or has gone: why that does not begin.
pub(crate) fn broken_off(job: &mut Job<'_>) -> Option<Failure> {
    let mut attend = Attend::of(job);
    // What it ends with is asked for next.
    let _ = attend.hear_out();
    attend.broken_off()
}

/// Carries out what does not need the session to be put aside (as log-in does).
pub(crate) fn perform(job: &mut Job<'_>, operation: Operation) -> Answer {
    let noted = Noted::of(&operation);
    let answer = carry_out(job, operation);
    noted.answered(job, answer.as_ref().err());
    answer
}

fn carry_out(job: &mut Job<'_>, operation: Operation) -> Answer {
    match operation {
        Operation::Listen(listen) => channel::listen(job, &listen).map(Outcome::Addresses),
        Operation::Connect(connect) => channel::connect(job, connect),
        Operation::AdviseBuffers { ceiling } => Ok(Outcome::Advice(buffers::report(job, ceiling))),
        Operation::CloseChannel => {
            job.context.channel = None;
            Ok(Outcome::Done)
        }
        Operation::Transfer(transfer) => transfer::transfer(job, &transfer),
        Operation::List(list) => {
            job.context.told.note_many();
            listing::list(job, &list)
        }
        Operation::ListHere { path } => {
            job.context.told.note_many();
            here::list_here(job, &path)
        }
        Operation::Profile(request) => profile::answer(job, request),
        Operation::FetchProfile(fetch) => profile::fetch(job, &fetch),
        Operation::Checksum { algorithm, offset, length, path, marker_interval } => {
            let wanted = checksum::Wanted { algorithm, offset, length, path, marker_interval };
            checksum::checksum(job, &wanted)
        }
        Operation::SecurityBegin(mechanism) => {
            let Context { client, settings, peer, .. } = job.context;
            client.begin(mechanism, settings, peer.ip())
        }
        Operation::SecurityToken(token) => {
            let Context { client, settings, id, peer, .. } = job.context;
            let answer = client.token(settings, &token);
            if let Err(failure) = &answer {
                tracing::warn!(session = *id, %peer, ?failure, "not authenticated");
                login_audit::token_refused(job.host, job.context, failure);
            }
            answer
        }
        Operation::DataCredential(blob) => {
            let Context { client, settings, channel, .. } = job.context;
            *channel = None;
            client.set_own(settings, blob.as_ref().map(ropewalk_protocol::command::Password::expose))
        }
        Operation::Login { .. } => Err(Failure::Refused { code: 503, text: "Login out of turn.".into() }),
        Operation::ClientInfo(info) => {
            tracing::info!(session = job.context.id, client = ?info, "client");
            Ok(Outcome::Done)
        }
        Operation::TaskId(task) => {
            job.context.task = Some(task);
            Ok(Outcome::Done)
        }
        other => files::perform(job, other),
    }
}
