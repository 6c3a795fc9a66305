//! Data connections that go to the control port (SITE ONEPORT).
//!
//! [`take`] looks at the first bytes of each connection before its session reads them, on a thread
//! of the runner. A data connection leaves the session that was made for it, and belongs to the
//! data channel of another session from then on. Until then it has the limits and the time of a
//! control connection before the log-in. A line with no valid token ends the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_layers::NotRouted;
use ropewalk_protocol::one_port::FirstLine;

use crate::scheduling::connection::{Connection, Wait};
use crate::scheduling::scheduler::Scheduler;
use crate::security::codec::ClearText;

/// The line is one segment, so the rest of it comes at once unless a segment was lost.
const REST_OF_LINE: Duration = Duration::from_secs(3);
/// The pause before an incomplete line is looked at again: the poller would report it all the time.
const PAUSE: Duration = Duration::from_millis(50);

/// Hands the connection to its data channel if it is a data connection. Returns it if it is a
/// control connection.
pub(crate) fn take(scheduler: &Arc<Scheduler>, connection: Box<Connection>) -> Option<Box<Connection>> {
    let mut bytes = [0; FirstLine::LONGEST];
    let Some(n) = connection.control.peek(&mut bytes) else { return Some(connection) };
    match FirstLine::of(&bytes[..n]) {
        FirstLine::Control => return Some(connection),
        FirstLine::Incomplete => {
            let now = Instant::now();
            if now < connection.since() + REST_OF_LINE {
                let until = now + PAUSE;
                scheduler.parking.park(&scheduler.host, connection, Wait::Pause { until });
            } else {
                refuse(connection, n, "The line of a data connection took too long.");
            }
        }
        FirstLine::Malformed { length } => refuse(connection, length, "Not the line of a data connection."),
        FirstLine::Data { token, length } => {
            let mut waiting = Some(connection);
            let begin = || {
                let connection = waiting.take()?;
                let (session, peer) = (connection.id(), connection.context.peer);
                match connection.into_data(scheduler.parking.registry(), length) {
                    Ok(socket) => Some(socket),
                    Err(error) => {
                        tracing::debug!(session, %peer, %error, "a data connection at the control port is lost");
                        None
                    }
                }
            };
            let handed_over = scheduler.host.router.hand_over(&token, begin);
            if let (Err(error), Some(connection)) = (handed_over, waiting) {
                let text = match error {
                    NotRouted::Unknown => "No data channel has this token.",
                    NotRouted::Crowded => "Too many data connections wait for this channel.",
                };
                refuse(connection, length, text);
            }
        }
    }
    None
}

fn refuse(mut connection: Box<Connection>, length: usize, text: &str) {
    ropewalk_transport::refused(connection.context.peer, text);
    connection.control.set_codec(Box::new(ClearText));
    connection.control.skip(length);
    connection.say_and_close(425, text);
}
