//! Runs sessions, from input to replies, until they would have to wait.
//!
//! A session runs on a thread of the pool, or on one for log-ins. [`advance`] returns what the
//! session needs next, and [`follow`] hands it over: to the parking lot, to the queue for a permit,
//! to another thread. Failures of an operation go to the session, which makes the reply; a broken
//! control connection closes the session.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Instant;

use ropewalk_protocol::command::Password;
use ropewalk_protocol::server::{Action, Failure, Operation, Outcome};
use zeroize::{Zeroize as _, Zeroizing};

use crate::accounts::log_in;
use crate::accounts::target::{TargetLogin, without_secrets};
use crate::host::presence::Activity;
use crate::host::stores::Credential;
use crate::host::{Host, Phase};
use crate::operations::{self, Data, Entry, Permits};
use crate::scheduling::connection::{Connection, Wait};
use crate::scheduling::data_connections;
use crate::scheduling::permit::HeldPermit;
use crate::scheduling::scheduler::Scheduler;
use crate::scheduling::semaphore::{Granted, Holder};
use crate::security::client::SecurityContext;
use crate::security::gsi;
use crate::security::tokens;
use crate::session::control::{FEW, HIGH_WATER, Received};
use crate::session::dialogue::ENDED;
use crate::session::job::Job;
use crate::session::login_audit;

/// The number of operations that a session may carry out before other sessions run.
const BATCH: u32 = 64;
/// The most bytes that are read from a client at a time.
pub(super) const INPUT: usize = 4096;

/// The next step of a session that cannot continue at once.
pub(super) enum Next {
    Park(Wait),
    /// Let other sessions run first.
    Again,
    /// Wait for a permit.
    Permit,
    /// Wait for space on the disk.
    LowDisk,
    Login {
        user: Vec<u8>,
        password: Password,
    },
    /// Process a token of a handshake, which takes CPU time.
    GssToken(Operation),
    /// As `GssToken`, for the TLS handshake of the connection itself.
    TlsHandshake,
    Close,
}

/// Continues the session on a thread of the pool.
pub(crate) fn start(scheduler: &Arc<Scheduler>, connection: Box<Connection>) {
    let job = {
        let scheduler = Arc::clone(scheduler);
        move || run(&scheduler, connection)
    };
    if let Err(error) = scheduler.sessions.spawn(job) {
        tracing::error!(%error, "no thread for a session, which is lost");
    }
}

/// Continues a session that has waited, and holds a permit now.
pub(super) fn start_granted(scheduler: &Arc<Scheduler>, granted: Granted<Box<Connection>>) {
    let Granted { one: mut connection, holder } = granted;
    connection.holder = Some(holder);
    start(scheduler, connection);
}

/// Applies the reservations of permits whose windows have begun or ended.
pub(super) fn follow_reservations(scheduler: &Arc<Scheduler>) {
    let Some(reservations) = &scheduler.host.reservations else { return };
    let granted = scheduler.transfers.set_reserved(reservations.slots_in_force());
    granted.into_iter().for_each(|granted| start_granted(scheduler, granted));
}

/// Sends the greeting of a new session, and waits for its client. With implicit TLS the greeting
/// leaves when the handshake is complete.
pub(crate) fn greet(scheduler: &Arc<Scheduler>, mut connection: Box<Connection>) {
    connection.control.push(&connection.session.banner());
    let next = wait(&mut connection);
    follow(scheduler, connection, next);
}

fn run(scheduler: &Arc<Scheduler>, connection: Box<Connection>) {
    let Some(mut connection) = data_connections::take(scheduler, connection) else { return };
    let next = if connection.control.in_handshake() {
        Next::TlsHandshake
    } else {
        advance(scheduler, &mut connection)
    };
    follow(scheduler, connection, next);
}

pub(super) fn follow(scheduler: &Arc<Scheduler>, mut connection: Box<Connection>, next: Next) {
    match next {
        Next::Park(why) => scheduler.parking.park(&scheduler.host, connection, why),
        Next::Again => start(scheduler, connection),
        Next::Permit | Next::LowDisk => {
            connection.presence.set(Activity::Waiting { position: None });
            match scheduler.queue_of(&connection).wait(&connection.claim(), connection) {
                Some(granted) => start_granted(scheduler, granted),
                // The reactor checks sessions that wait in a queue.
                None => scheduler.host.wake(),
            }
        }
        Next::Close => {
            log_unanswered(&scheduler.host, &mut connection);
            connection.close();
        }
        Next::GssToken(operation) => {
            run_login_step(scheduler, connection, move |scheduler, connection| {
                gss_token(scheduler, connection, operation);
            });
        }
        Next::TlsHandshake => run_login_step(scheduler, connection, tls_handshake),
        Next::Login { user, password } => {
            run_login_step(scheduler, connection, move |scheduler, connection| {
                authenticate(scheduler, connection, &user, &password);
            });
        }
    }
}

/// Runs a step of a log-in on a thread for log-ins, when it is the turn of the client's address.
fn run_login_step(
    scheduler: &Arc<Scheduler>,
    connection: Box<Connection>,
    step: impl FnOnce(&Arc<Scheduler>, Box<Connection>) + Send + 'static,
) {
    let address = connection.context.peer.ip();
    let job = {
        let scheduler = Arc::clone(scheduler);
        move || {
            if connection.deadline(Wait::Idle) > Instant::now() {
                return step(&scheduler, connection);
            }
            tracing::warn!(session = connection.id(), peer = %connection.context.peer, "a log-in waited for too long");
            connection.say_and_close(421, "Too many log-ins at a time. Please try again later.");
        }
    };
    if let Err(error) = scheduler.logins.spawn(address, job) {
        tracing::error!(%error, "no thread for a log-in; the session is lost");
    }
}

/// Runs the session until it has to wait.
fn advance(scheduler: &Arc<Scheduler>, connection: &mut Connection) -> Next {
    if let Some(answer) = connection.answer.take() {
        connection.session.completed(answer);
    }
    if let Some(entry) = connection.waiting.take() {
        if let Some(holder) = connection.holder.take() {
            connection.told_place = None;
            perform_long(scheduler, connection, entry, holder, true);
        } else if let Some(next) = begin_long(scheduler, connection, entry) {
            return next;
        }
    }
    if let Some(operation) = connection.again.take()
        && let Some(next) = perform_short(scheduler, connection, Entry::of(operation))
    {
        return next;
    }
    let mut operations = 0;
    loop {
        if connection.control.pending() >= HIGH_WATER {
            match connection.control.flush() {
                Ok(true) => {}
                Ok(false) => return Next::Park(Wait::Write),
                Err(_) => return Next::Close,
            }
        }
        if connection.control.closing() {
            log_unanswered(&scheduler.host, connection);
            return wait(connection);
        }
        let action = connection.session.poll();
        if matches!(action, Some(Action::Perform(_)) | None) {
            connection.tidy();
        }
        if action.is_some() {
            connection.acted = Instant::now();
        }
        match action {
            Some(Action::Send(reply)) => {
                log_transfer(&scheduler.host, connection, reply.code());
                if connection.session.declined_upload() {
                    connection.decline();
                }
                if let Some(refused) = connection.session.refused_login() {
                    login_audit::log_in_refused(&scheduler.host, &connection.context, &refused);
                }
                connection.control.push(&reply);
            }
            Some(Action::Close) => connection.control.close_after_output(),
            Some(Action::Protect) => connection.protect(),
            // No operation is running any more.
            Some(Action::Abort) => {}
            Some(Action::Streams(n)) => {
                if let Some(channel) = &mut connection.context.channel {
                    channel.set_streams(n);
                }
            }
            Some(Action::Perform(_)) if refusal(scheduler, connection).is_some() => {
                return goodbye(scheduler, connection);
            }
            Some(Action::Perform(_)) if connection.deserted => return Next::Close,
            Some(Action::Perform(_)) if connection.context.has_expired() => {
                login_audit::token_expired(&scheduler.host, &connection.context);
                connection.say(421, "The bearer token has expired: connect again with a new one.");
                return Next::Close;
            }
            Some(Action::Perform(Operation::Login { user, password })) => {
                if connection.control.flush().is_err() {
                    return Next::Close;
                }
                return Next::Login { user: user.into(), password };
            }
            Some(Action::Perform(operation @ Operation::SecurityToken(_))) => {
                if connection.control.flush().is_err() {
                    return Next::Close;
                }
                return Next::GssToken(operation);
            }
            Some(Action::Perform(operation)) => {
                let entry = Entry::of(operation);
                operations += 1;
                if entry.permit == Permits::None {
                    match perform_short(scheduler, connection, entry) {
                        Some(next) => return next,
                        None => continue,
                    }
                }
                // The client may need the replies until now to do its part of the operation. A
                // transfer over the connections of the last one sends them itself before it waits,
                // and so does an upload that begins or ends. One system call for each reply would
                // be much of the work for a small file.
                let quiet = connection.control.pending() < FEW
                    && (entry.keeps_replies
                        || matches!(entry.data, Data::Download | Data::Upload)
                            && connection.context.channel.as_ref().is_some_and(|c| c.is_connected()));
                if !quiet && connection.control.flush().is_err() {
                    return Next::Close;
                }
                if let Some(next) = begin_long(scheduler, connection, entry) {
                    return next;
                }
            }
            None if refusal(scheduler, connection).is_some() => return goodbye(scheduler, connection),
            None if operations >= BATCH => {
                return if connection.control.flush().is_err() { Next::Close } else { Next::Again };
            }
            None => {
                let mut buffer = Zeroizing::new([0; INPUT]);
                match connection.control.receive(&mut *buffer) {
                    Ok(Received::Bytes(bytes)) => input(connection, bytes),
                    Ok(Received::Nothing) => return wait(connection),
                    Ok(Received::End) | Err(_) => {
                        connection.control.close_after_output();
                    }
                }
            }
        }
    }
}

/// Passes input to the session. Owned bytes may contain a password, which is not left in memory.
pub(super) fn input(connection: &mut Connection, mut bytes: Cow<'_, [u8]>) {
    connection.session.input(&bytes);
    if let Cow::Owned(bytes) = &mut bytes {
        bytes.as_mut_slice().zeroize();
    }
}

/// Carries out an operation that takes no time. Returns what the session waits for if the operation
/// has to be tried again after a pause.
fn perform_short(scheduler: &Arc<Scheduler>, connection: &mut Connection, mut entry: Entry) -> Option<Next> {
    let again = entry.again.take();
    let answer = entry.perform(&mut connection.job(&scheduler.host));
    if let Some(operation) = again
        && let Some(until) = connection.context.retry.next(Instant::now())
    {
        connection.again = Some(operation);
        let flushed = connection.control.flush().is_ok();
        return Some(if flushed { Next::Park(Wait::Pause { until }) } else { Next::Close });
    }
    connection.session.completed(answer);
    None
}

/// Acquires the permit of an operation that can take long, and carries the operation out. Returns
/// what the session waits for if that is not possible now.
fn begin_long(scheduler: &Arc<Scheduler>, connection: &mut Connection, entry: Entry) -> Option<Next> {
    let waited = connection.low_disk_since.is_some();
    let next = if operations::low_disk(&connection.job(&scheduler.host), &entry).is_some() {
        connection.low_disk_since.get_or_insert_with(Instant::now);
        Next::LowDisk
    } else {
        connection.low_disk_since = None;
        if entry.permit == Permits::Transfer {
            follow_reservations(scheduler);
            scheduler.look_at_load();
        }
        if let Some(holder) = scheduler.permits_for(entry.permit).try_acquire(&connection.claim()) {
            connection.told_place = None;
            perform_long(scheduler, connection, entry, holder, waited);
            return None;
        }
        Next::Permit
    };
    if connection.control.flush().is_err() {
        return Some(Next::Close);
    }
    connection.waiting = Some(entry);
    Some(next)
}

/// Carries out an operation for which a permit was acquired, unless the client has aborted it while
/// it `waited`.
fn perform_long(
    scheduler: &Arc<Scheduler>,
    connection: &mut Connection,
    entry: Entry,
    holder: Holder,
    waited: bool,
) {
    let start = |next| start_granted(scheduler, next);
    let permits = scheduler.permits_for(entry.permit);
    let permit = HeldPermit::new(permits, connection.context.peer.ip(), holder, &start);
    let data = entry.data;
    let answer = if let Some(refusal) = refusal(scheduler, connection) {
        Err(Failure::Busy(refusal.into()))
    } else if waited && let Some(broken_off) = operations::broken_off(&mut connection.job(&scheduler.host)) {
        Err(broken_off)
    } else {
        connection.presence.set(Activity::Working);
        entry.perform(&mut Job { permit: Some(&permit), ..connection.job(&scheduler.host) })
    };
    connection.presence.set(Activity::Idle);
    let failed = answer.is_err();
    // Waiting uploads of the same client would get no data either, and would keep others from their
    // files while they wait for it.
    let broken =
        matches!(&answer, Err(Failure::Aborted | Failure::DataBroken(_) | Failure::DataConnection(_)));
    connection.deserted =
        data == Data::Upload && broken && connection.control.ended() && !connection.session.takes_leave();
    connection.session.completed(answer);
    if failed && data != Data::None {
        connection.leftovers.extend(connection.context.channel.as_mut().and_then(|channel| channel.tidy()));
    }
    // In MODE S the channel is used up: its port is free for others.
    if !connection.session.has_channel() {
        connection.context.channel = None;
    }
}

/// Writes the replies, and returns the next event for which the session waits.
fn wait(connection: &mut Connection) -> Next {
    match connection.control.flush() {
        Err(_) => Next::Close,
        Ok(false) => Next::Park(Wait::Write),
        Ok(true) if connection.control.closing() => Next::Close,
        Ok(true) => Next::Park(Wait::Idle),
    }
}

/// Why the session may carry out nothing more.
fn refusal(scheduler: &Scheduler, connection: &Connection) -> Option<&'static str> {
    if scheduler.host.phase() != Phase::Running {
        return Some("Service not available, closing control connection.");
    }
    connection.presence.is_ended().then_some(ENDED)
}

fn goodbye(scheduler: &Scheduler, connection: &mut Connection) -> Next {
    if let Some(refusal) = refusal(scheduler, connection) {
        connection.say(421, refusal);
    }
    Next::Close
}

/// Logs a transfer whose final reply is known now.
fn log_transfer(host: &Host, connection: &mut Connection, code: u16) {
    if code >= 200
        && let Some(mut record) = connection.record.take()
    {
        record.code = code;
        host.transfer_log.write(&connection.context.settings.hostname, &record);
    }
}

/// Logs a transfer whose result the client no longer receives.
fn log_unanswered(host: &Host, connection: &mut Connection) {
    log_transfer(host, connection, 426);
}

/// Reads bytes of a TLS handshake, on a thread for log-ins. Then the session continues.
fn tls_handshake(scheduler: &Arc<Scheduler>, mut connection: Box<Connection>) {
    let next = loop {
        if refusal(scheduler, &connection).is_some() {
            break goodbye(scheduler, &mut connection);
        }
        let mut buffer = Zeroizing::new([0; INPUT]);
        match connection.control.receive(&mut *buffer) {
            Ok(Received::Bytes(bytes)) => {
                let through = connection.secured();
                input(&mut connection, bytes);
                if through {
                    break Next::Again;
                }
            }
            Ok(Received::Nothing) => break wait(&mut connection),
            // An alert with the reason may be waiting for the client.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                login_audit::certificate_refused(&scheduler.host, &connection.context, &error.to_string());
                break Next::Close;
            }
            Ok(Received::End) | Err(_) => break Next::Close,
        }
    };
    follow(scheduler, connection, next);
}

/// Processes a token of the client, on a thread for log-ins: many at once leave CPU time to
/// transfers. Then the session continues.
fn gss_token(scheduler: &Arc<Scheduler>, mut connection: Box<Connection>, operation: Operation) {
    let answer = Entry::of(operation).perform(&mut connection.job(&scheduler.host));
    let refused = answer.is_err();
    connection.answer = Some(answer);
    if refused { penalize(scheduler, connection) } else { start(scheduler, connection) }
}

/// Holds back the answer to a client that is not let in; the more failures its address has, the
/// longer.
fn penalize(scheduler: &Arc<Scheduler>, connection: Box<Connection>) {
    let (ip, base) =
        (connection.context.peer.ip(), connection.context.settings.config.timeouts.login_failure);
    let now = Instant::now();
    let until = now + scheduler.host.throttle.failed(ip, base, now);
    scheduler.parking.park(&scheduler.host, connection, Wait::Pause { until });
}

/// Authenticates the user, on a thread for log-ins. Then the session continues.
fn authenticate(
    scheduler: &Arc<Scheduler>,
    mut connection: Box<Connection>,
    user: &[u8],
    password: &Password,
) {
    let settings = Arc::clone(&connection.context.settings);
    let peer = connection.context.peer;
    // A connection through ssh is protected.
    let secured = connection.session.is_secured() || scheduler.host.ssh_user.get().is_some();
    let mut nobody = false;
    let named = match scheduler.host.stores.targets {
        true => TargetLogin::parse(user, password).map(Some),
        false => Ok(None),
    };
    let (name, target, password) = match &named {
        Ok(Some(named)) => (named.user.as_slice(), named.target.as_deref(), &named.password),
        _ => (user, None, password),
    };
    let login = match connection.context.client.subject() {
        _ if let Err(refused) = &named => Err(refused.clone()),
        _ if let Err(refused) = log_in::require_protected_for(&settings, name, secured) => Err(refused),
        _ if let Some(own) = scheduler.host.ssh_user.get() => {
            log_in::over_ssh(&scheduler.host, &settings, own)
        }
        _ if tokens::is_token(user) => {
            log_in::by_token(&scheduler.host, &settings, (connection.context.id, peer), secured, password)
        }
        Some(subject) if let SecurityContext::Gsi(client) = &connection.context.client => {
            let client = (subject, client.delegated(settings.gsi.as_ref()));
            log_in::by_certificate(&scheduler.host, &settings, client, user)
        }
        Some(principal) if matches!(connection.context.client, SecurityContext::Kerberos(_)) => {
            log_in::by_ticket(&scheduler.host, &settings, principal, user)
        }
        _ if let SecurityContext::Tls(client) = &connection.context.client
            && let Some(certified) = client.user()
            && (name == certified.as_bytes() || name == gsi::MAPPED) =>
        {
            log_in::as_user(
                &scheduler.host,
                &settings,
                certified,
                Credential::Certificate(client.subject().unwrap_or(certified)),
                target,
            )
        }
        _ => {
            nobody = log_in::is_anonymous(&settings, name);
            log_in::by_password(&scheduler.host, &settings, name, password, target)
        }
    };
    let shown = without_secrets(user);
    let login = login.and_then(|login| login.require_protected(secured).map(|()| login));
    match login {
        Ok(login) => {
            // An anonymous log-in does not forgive failed guesses of passwords.
            if !nobody {
                scheduler.host.throttle.succeeded(peer.ip());
            }
            connection.answer = Some(Ok(Outcome::LoggedIn {
                local_user: login.account.name.clone(),
                home: login.home(),
                message: settings.config.login_message.clone(),
            }));
            connection.logged_in(login);
            login_audit::log_in(&scheduler.host, &connection.context, &shown, None);
            start(scheduler, connection);
        }
        Err(failure) => {
            tracing::warn!(
                session = connection.context.id,
                %peer,
                user = ?String::from_utf8_lossy(&shown),
                subject = connection.context.client.subject(),
                ?failure,
                "log-in failed"
            );
            login_audit::log_in(&scheduler.host, &connection.context, &shown, Some(&failure));
            let denied = matches!(failure, Failure::LoginDenied(_));
            connection.answer = Some(Err(failure));
            if denied { penalize(scheduler, connection) } else { start(scheduler, connection) }
        }
    }
}
