//! Sessions that wait in a queue, for a permit or for space on a disk: which of them begin, and
//! what their clients say meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ropewalk_protocol::queue::QueuePlace;
use ropewalk_protocol::server::Failure;
use zeroize::Zeroizing;

use crate::operations;
use crate::scheduling::connection::Connection;
use crate::scheduling::runner::{INPUT, Next, follow, follow_reservations, input, start, start_granted};
use crate::scheduling::scheduler::Scheduler;
use crate::scheduling::semaphore::FairSemaphore;
use crate::session::control::Received;
use crate::session::dialogue::ENDED;

/// Checks sessions that wait in a queue. Those whose clients are gone, or have aborted the
/// operation, stop waiting. Some begin if nothing is short any more. The others learn their place.
pub(crate) fn check_waiting(scheduler: &Arc<Scheduler>) {
    let waiting = scheduler.queues().map(|queue| {
        queue.remove_waiting(|connection| connection.presence.is_ended() || connection.control.has_news())
    });
    follow_reservations(scheduler);
    if !scheduler.look_at_load() {
        scheduler.transfers.admit().into_iter().for_each(|granted| start_granted(scheduler, granted));
    }
    look_at_disks(scheduler);
    [&scheduler.transfers, &scheduler.listings].into_iter().for_each(tell_places);
    for connection in waiting.into_iter().flatten() {
        let job = {
            let scheduler = Arc::clone(scheduler);
            move || read_waiting(&scheduler, connection)
        };
        if let Err(error) = scheduler.sessions.spawn(job) {
            tracing::error!(%error, "no thread for a session, which is lost");
        }
    }
}

fn tell_places(queue: &FairSemaphore<Box<Connection>>) {
    queue.tell_waiting(|connection, position, waiting| {
        connection.tell_place(QueuePlace { position, waiting });
    });
}

/// Looks, on a thread of the pool, whether the disks for which uploads wait have more free space.
fn look_at_disks(scheduler: &Arc<Scheduler>) {
    // A file system may not answer.
    if !scheduler.low_disk.has_waiting() || scheduler.looks_at_disks.swap(true, Ordering::AcqRel) {
        return;
    }
    let job = {
        let scheduler = Arc::clone(scheduler);
        move || {
            for connection in scheduler.low_disk.take_waiting() {
                look_at_disk(&scheduler, connection);
            }
            tell_places(&scheduler.low_disk);
            scheduler.looks_at_disks.store(false, Ordering::Release);
        }
    };
    if let Err(error) = scheduler.sessions.spawn(job) {
        tracing::error!(%error, "no thread to look at disks");
        scheduler.looks_at_disks.store(false, Ordering::Release);
    }
}

/// Begins an upload whose disk has enough free space now, or refuses it after its time. Otherwise
/// it waits again.
fn look_at_disk(scheduler: &Arc<Scheduler>, mut connection: Box<Connection>) {
    let entry = connection.waiting.take();
    let low = entry.as_ref().and_then(|entry| operations::low_disk(&connection.job(&scheduler.host), entry));
    connection.waiting = entry;
    if let Some(low) = low {
        let limit = connection.context.settings.config.limits.disk_wait;
        if connection.low_disk_since.is_some_and(|since| since.elapsed() < limit) {
            if let Some(granted) = scheduler.low_disk.wait(&connection.claim(), connection) {
                start_granted(scheduler, granted);
            }
            return;
        }
        connection.stop_waiting();
        connection.answer = Some(Err(low.refuse()));
    }
    start(scheduler, connection);
}

/// How often a waiting session is read from before others are checked.
const READS: usize = 64;

/// Reads from a client whose session waits for a permit, and decides whether it still wants the
/// operation.
fn read_waiting(scheduler: &Arc<Scheduler>, mut connection: Box<Connection>) {
    if connection.presence.is_ended() {
        return connection.say_and_close(421, ENDED);
    }
    let mut reads = 0;
    let next = loop {
        if reads == READS {
            break Next::Permit;
        }
        reads += 1;
        let mut buffer = Zeroizing::new([0; INPUT]);
        match connection.control.receive(&mut *buffer) {
            Ok(Received::Bytes(bytes)) => input(&mut connection, bytes),
            Ok(Received::Nothing) => break Next::Permit,
            Ok(Received::End) if connection.session.queued() > 0 => break Next::Permit,
            Ok(Received::End) | Err(_) => break Next::Close,
        }
        if connection.session.is_aborted() {
            connection.stop_waiting();
            connection.answer = Some(Err(Failure::Aborted));
            break Next::Again;
        }
        if connection.session.is_closed() {
            connection.stop_waiting();
            break Next::Again;
        }
    };
    match next {
        Next::Permit => {
            if let Some(granted) = scheduler.queue_of(&connection).wait_again(&connection.claim(), connection)
            {
                start_granted(scheduler, granted);
            }
        }
        next => follow(scheduler, connection, next),
    }
}
