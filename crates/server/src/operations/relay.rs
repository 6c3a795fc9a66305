//! SITE HOPLOGIN and SITE TASKID: log-ins at servers behind this one, and the name of the task.

use bstr::BString;
use ropewalk_protocol::hop_login::HopLogin;
use ropewalk_protocol::server::{Failure, Outcome};

use super::Answer;
use crate::session::job::Job;

/// Keeps the log-in for this session.
pub(super) fn keep_log_in(job: &mut Job<'_>, login: HopLogin) -> Answer {
    let refused = |text: String| Failure::Refused { code: 550, text };
    let Some(hops) = &job.context.login()?.hops else {
        return Err(refused("This account may not use other servers.".to_owned()));
    };
    let (server, user) = (login.server.clone(), login.user.clone());
    hops.add(login).map_err(refused)?;
    tracing::debug!(session = job.context.id, %server, %user, "log-in for another server");
    Ok(Outcome::Done)
}

/// Names the task of this session, here and at the servers behind this one.
pub(super) fn name_task(job: &mut Job<'_>, task: BString) -> Answer {
    if let Some(hops) = job.context.login.as_ref().and_then(|login| login.hops.as_ref()) {
        hops.name_task(&task);
    }
    job.context.task = Some(task);
    Ok(Outcome::Done)
}
