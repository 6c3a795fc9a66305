//! Running sessions: from input to replies, until they would have to wait.

use std::sync::Arc;
use std::time::Instant;

use ropewalk_protocol::command::Password;
use ropewalk_protocol::server::{Action, Failure, Operation, Outcome};

use crate::accounts;
use crate::connection::Connection;
use crate::control::{FEW, HIGH_WATER, Received};
use crate::host::{Host, Phase};
use crate::operations;
use crate::reactor::Why;

/// Operations that a session may carry out before others get their turn.
const TURN: u32 = 64;
/// Bytes that are read from a client at a time.
const INPUT: usize = 4096;

/// What becomes of a session that cannot go on at once.
enum Next {
    Park(Why),
    /// Others first.
    Again,
    /// Until fewer sessions do what takes its time.
    Turn,
    Login {
        user: Vec<u8>,
        password: Password,
    },
    Close,
}

/// Has the session go on, on a thread of the pool.
pub(crate) fn start(host: &Arc<Host>, connection: Box<Connection>) {
    let job = {
        let host = Arc::clone(host);
        move || run(&host, connection)
    };
    if let Err(error) = host.sessions.spawn(job) {
        tracing::error!(%error, "no thread for a session, which is lost");
    }
}

/// Sends the greeting of a new session, and waits for its client.
pub(crate) fn greet(host: &Arc<Host>, mut connection: Box<Connection>) {
    connection.control.push(&connection.session.banner());
    let next = wait(&mut connection);
    follow(host, connection, next);
}

fn run(host: &Arc<Host>, mut connection: Box<Connection>) {
    let next = advance(host, &mut connection);
    follow(host, connection, next);
}

fn follow(host: &Arc<Host>, connection: Box<Connection>, next: Next) {
    match next {
        Next::Park(why) => host.remote.park(host, connection, why),
        Next::Again => start(host, connection),
        Next::Turn => {
            if let Some(connection) = host.turns.wait(connection) {
                start(host, connection);
            }
        }
        Next::Close => connection.close(),
        Next::Login { user, password } => {
            let job = {
                let host = Arc::clone(host);
                move || log_in(&host, connection, &user, &password)
            };
            if let Err(error) = host.logins.spawn(job) {
                tracing::error!(%error, "no thread for a log-in; the session is lost");
            }
        }
    }
}

/// Runs the session until it has to wait.
fn advance(host: &Arc<Host>, connection: &mut Connection) -> Next {
    if let Some(answer) = connection.answer.take() {
        connection.session.completed(answer);
    }
    // Its turn has come.
    if let Some(operation) = connection.waiting.take() {
        perform_long(host, connection, operation);
    }
    let mut operations = 0;
    loop {
        if connection.control.pending() >= HIGH_WATER {
            match connection.control.flush() {
                Ok(true) => {}
                Ok(false) => return Next::Park(Why::Write),
                Err(_) => return Next::Close,
            }
        }
        if connection.control.closing() {
            return wait(connection);
        }
        match connection.session.poll() {
            Some(Action::Send(reply)) => {
                log_transfer(host, connection, reply.code());
                connection.control.push(&reply);
            }
            Some(Action::Close) => connection.control.close_after_output(),
            Some(Action::Protect) => connection.protect(),
            // Nothing is under way any more.
            Some(Action::Abort) => {}
            Some(Action::Streams(n)) => {
                if let Some(channel) = &mut connection.context.channel {
                    channel.set_streams(n);
                }
            }
            Some(Action::Perform(_)) if host.phase() != Phase::Running => return goodbye(connection),
            Some(Action::Perform(Operation::Login { user, password })) => {
                if connection.control.flush().is_err() {
                    return Next::Close;
                }
                return Next::Login { user: user.into(), password };
            }
            Some(Action::Perform(operation)) if takes_time(&operation) => {
                // The client may need what was said so far to do its part of what comes now. A transfer over the
                // connections of the last one says itself when it has to wait.
                let quiet = connection.control.pending() < FEW
                    && matches!(operation, Operation::Transfer(_))
                    && connection.context.channel.as_ref().is_some_and(|channel| channel.is_connected());
                if !quiet && connection.control.flush().is_err() {
                    return Next::Close;
                }
                if !host.turns.take() {
                    if connection.control.flush().is_err() {
                        return Next::Close;
                    }
                    connection.waiting = Some(operation);
                    return Next::Turn;
                }
                perform_long(host, connection, operation);
                operations += 1;
            }
            Some(Action::Perform(operation)) => {
                let answer = operations::perform(&mut connection.job(host), operation);
                connection.session.completed(answer);
                operations += 1;
            }
            None if host.phase() != Phase::Running => return goodbye(connection),
            None if operations >= TURN => {
                return if connection.control.flush().is_err() { Next::Close } else { Next::Again };
            }
            None => {
                let mut buffer = [0; INPUT];
                match connection.control.receive(&mut buffer) {
                    Ok(Received::Bytes(bytes)) => connection.session.input(&bytes),
                    Ok(Received::Nothing) => return wait(connection),
                    Ok(Received::End) | Err(_) => {
                        connection.control.close_after_output();
                    }
                }
            }
        }
    }
}

/// Carries out what a turn was taken for.
fn perform_long(host: &Arc<Host>, connection: &mut Connection, operation: Operation) {
    let _turn = Turn(host);
    let answer = if host.phase() == Phase::Running {
        operations::perform(&mut connection.job(host), operation)
    } else {
        Err(Failure::Busy("Service not available, closing control connection.".into()))
    };
    connection.session.completed(answer);
}

/// Goes on to the next session, whatever happens.
struct Turn<'a>(&'a Arc<Host>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(next) = self.0.turns.give_back() {
            start(self.0, next);
        }
    }
}

/// Writes what there is; what the session has to wait for then.
fn wait(connection: &mut Connection) -> Next {
    match connection.control.flush() {
        Err(_) => Next::Close,
        Ok(false) => Next::Park(Why::Write),
        Ok(true) if connection.control.closing() => Next::Close,
        Ok(true) => Next::Park(Why::Idle),
    }
}

fn goodbye(connection: &mut Connection) -> Next {
    connection.say(421, "Service not available, closing control connection.");
    Next::Close
}

fn takes_time(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Transfer(_)
            | Operation::List(_)
            | Operation::ListHere { .. }
            | Operation::Checksum { .. }
            | Operation::DeleteTree(_)
            | Operation::Ranges(_)
    )
}

/// The final reply to a transfer is known now.
fn log_transfer(host: &Host, connection: &mut Connection, code: u16) {
    if code >= 200
        && let Some(mut record) = connection.record.take()
    {
        record.code = code;
        host.transfer_log.write(&connection.context.settings.hostname, &record);
    }
}

/// Checks the password, on a thread for that; then the session goes on.
fn log_in(host: &Arc<Host>, mut connection: Box<Connection>, user: &[u8], password: &Password) {
    let settings = Arc::clone(&connection.context.settings);
    let peer = connection.context.peer;
    let login = match connection.context.client.subject() {
        Some(subject) => accounts::log_in_mapped(host, &settings, subject, user),
        None => accounts::log_in(host, &settings, user, password),
    };
    match login {
        Ok(login) => {
            host.throttle.succeeded(peer.ip());
            connection.answer = Some(Ok(Outcome::LoggedIn {
                local_user: login.account.name.clone(),
                home: login.account.home.clone(),
                message: settings.config.login_message.clone(),
            }));
            connection.logged_in(login);
            start(host, connection);
        }
        Err(failure) => {
            tracing::warn!(
                session = connection.context.id,
                %peer,
                user = ?String::from_utf8_lossy(user),
                subject = connection.context.client.subject(),
                ?failure,
                "log-in failed"
            );
            let denied = matches!(failure, Failure::LoginDenied(_));
            connection.answer = Some(Err(failure));
            if denied {
                let now = Instant::now();
                let pause = host.throttle.failed(peer.ip(), settings.config.timeouts.login_failure, now);
                host.remote.park(host, connection, Why::Penalty { until: now + pause });
            } else {
                start(host, connection);
            }
        }
    }
}
