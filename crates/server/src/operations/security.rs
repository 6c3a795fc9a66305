//! The security mechanism of the control connection: AUTH, ADAT, DCSC.

use ropewalk_protocol::server::Mechanism;

use super::Answer;
use crate::session::context::Context;
use crate::session::job::Job;
use crate::session::login_audit;

pub(super) fn begin(job: &mut Job<'_>, mechanism: Mechanism) -> Answer {
    let Context { client, settings, peer, .. } = &mut *job.context;
    client.begin(mechanism, settings, peer.ip())
}

pub(super) fn token(job: &mut Job<'_>, token: &[u8]) -> Answer {
    let Context { client, settings, id, peer, .. } = &mut *job.context;
    let answer = client.token(settings, token);
    if let Err(failure) = &answer {
        tracing::warn!(session = *id, %peer, ?failure, "not authenticated");
        login_audit::token_refused(job.host, job.context, failure);
    }
    answer
}

/// Uses another credential for data connections from now on; `None` is the usual one.
pub(super) fn data_credential(job: &mut Job<'_>, blob: Option<&[u8]>) -> Answer {
    let Context { client, settings, channel, .. } = &mut *job.context;
    *channel = None;
    client.set_own(settings, blob)
}
