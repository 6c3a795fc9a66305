//! Opens sessions, or takes those that the plan no longer needs.
//!
//! The functions run on the thread of the plan or of a worker, and block it. A failed attempt is
//! repeated after a pause, which cancellation ends. After the last failure the server counts as
//! lost for the whole run, unless other sessions with it move data.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_transport::timespec;
use rustix::event::{PollFd, PollFlags, poll};

use crate::context::Context;
use crate::lent::Wanted;
use crate::place::Endpoint;
use crate::session::Session;
use crate::{Event, RemoteError};

/// How often a worker that waits for the plan's session checks for it.
const LOOK: Duration = Duration::from_millis(50);
/// How often it asks the server again.
const AGAIN: Duration = Duration::from_secs(5);

/// Marks a session as moving data from now on.
pub(crate) fn at_work(mut session: Session) -> Session {
    session.serving.get_or_insert_with(|| session.endpoint.serve());
    session
}

/// Like [`open`], for a session that moves data. If the server accepts no more sessions beside
/// those that already move data, the result is [`RemoteError::Crowded`], and their workers do the
/// work. If there are none, the worker waits for the plan's session, which is free when the plan
/// has ended.
pub(crate) fn open_another(ctx: &Context, wanted: Wanted<'_>) -> Result<Session, RemoteError> {
    let Wanted { endpoint, own, .. } = wanted;
    endpoint.opening(|others| {
        let crowded = |error: &RemoteError, last: bool| {
            let others_do = endpoint.serves_besides(own) || !ctx.lent.is_over() || ctx.lent.has(endpoint);
            others_do && (last || error.is_refused_log_in()) || last && others()
        };
        loop {
            if let Some(session) = ctx.lent.take(wanted) {
                return Ok(at_work(session));
            }
            let planning = !ctx.lent.is_over();
            match open_unless(ctx, endpoint, &crowded) {
                Err(RemoteError::Crowded { .. }) if planning && !endpoint.serves_besides(own) => {
                    wait_for_plan(ctx)?;
                }
                opened => return opened.map(at_work),
            }
        }
    })
}

/// Waits until the plan has ended, or until it is time to ask the server again. The queue's limit
/// is lifted, so that the plan need not wait for room.
fn wait_for_plan(ctx: &Context) -> Result<(), RemoteError> {
    ctx.lent.want();
    ctx.queue.lift_limit();
    let until = Instant::now() + AGAIN;
    while !ctx.lent.is_over() && Instant::now() < until {
        if ctx.queue.is_stopped() {
            return Err(RemoteError::Cancelled);
        }
        sleep(ctx, LOOK)?;
    }
    Ok(())
}

/// A new session with a server. Connecting is retried as often as a file would be.
pub(crate) fn open(ctx: &Context, endpoint: &Arc<Endpoint>) -> Result<Session, RemoteError> {
    open_unless(ctx, endpoint, &|_, _| false)
}

/// `crowded` decides whether no further session is needed after this error; its second argument is
/// `true` if this was the last try.
fn open_unless(
    ctx: &Context,
    endpoint: &Arc<Endpoint>,
    crowded: &dyn Fn(&RemoteError, bool) -> bool,
) -> Result<Session, RemoteError> {
    let mut tries = 0;
    let mut first = None;
    loop {
        if let Some(reason) = endpoint.lost() {
            return Err(reason);
        }
        let error = match ctx.client.sessions.open(endpoint, &ctx.setup) {
            Ok(session) => return Ok(session),
            Err(e) => e,
        };
        tries += 1;
        // If no connection to the server has succeeded in this run, the address is wrong; a server
        // that was reached before is restarting.
        let hopeless = error.is_refused_connection() && !endpoint.is_known();
        let pause = ctx.retry(&error, tries, *first.get_or_insert_with(Instant::now));
        let pause = pause.filter(|_| !hopeless);
        if !matches!(error, RemoteError::Cancelled) && crowded(&error, pause.is_none()) {
            return Err(RemoteError::Crowded { peer: endpoint.name.clone(), source: Box::new(error) });
        }
        let Some(pause) = pause else {
            // Workers that have sessions continue, and may succeed.
            if !endpoint.serves_besides(0) {
                endpoint.lose(&error);
            }
            return Err(error);
        };
        ctx.report.event(Event::ConnectFailed {
            peer: endpoint.name.clone(),
            error: error.to_string(),
            retry_in: pause.as_secs_f64(),
        });
        // Other sessions with the server fail in the same way, so the warning is given once for
        // them.
        let key = format!("{error} {tries}");
        let next = tries + 1;
        let all = ctx.options().recovery.retries.checked_add(1).map(|all| format!(" of {}", all.max(next)));
        let all = all.unwrap_or_default();
        let message = format!("{error}; try {next}{all} in {:.1} s", pause.as_secs_f64());
        ctx.report.warn_once_of(key, message);
        sleep(ctx, pause)?;
    }
}

/// Waits for this time, or until the run is cancelled.
pub(crate) fn sleep(ctx: &Context, time: Duration) -> Result<(), RemoteError> {
    let deadline = Instant::now() + time;
    loop {
        let rest = deadline.saturating_duration_since(Instant::now());
        if ctx.cancel.is_cancelled() {
            return Err(RemoteError::Cancelled);
        }
        if rest.is_zero() {
            return Ok(());
        }
        let mut fds: Vec<PollFd<'_>> = ctx
            .cancel
            .descriptor()
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .into_iter()
            .collect();
        // An interrupted wait is repeated.
        let _ = poll(&mut fds, Some(&timespec(rest)));
    }
}
