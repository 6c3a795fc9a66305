//! One transfer of a node: opens the file as its user, moves the bytes with the engine, and reports
//! the result. Files are begun and committed by the front end.

use std::cell::RefCell;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use ropewalk_engine::{Attendant as _, DataChannel, Progress, ReceiveJob, SendJob};
use ropewalk_nodes::{FileOrder, MoveFailure, MoveOrder, ReceiveOrder, SendOrder, Sum, Transferred};
use ropewalk_protocol::command::ChecksumAlgorithm;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Failure, RepresentationType};
use ropewalk_storage::checksum::Pieces;
use ropewalk_storage::{Error, Identity, Metadata, Store, WriteHandle, WriteOptions};

use super::Shared;
use super::line::{Line, Reporter, Source, Stored};
use crate::failure::{failure, transfer_failure};
use crate::host::stores::{Credential, StoreLogin};

/// How often the front end gets a report while the node brings data to the file server.
const PAUSE: Duration = Duration::from_millis(500);

/// Sends ranges of a file.
pub(super) fn send(
    shared: &Shared,
    channel: &mut DataChannel,
    order: &SendOrder,
    line: &RefCell<Line<'_>>,
) -> Result<Transferred, MoveFailure> {
    prepare(shared, channel, &order.moves);
    let (store, path) = place(shared, &order.file)?;
    let source = store.open_read(&path).map_err(store_failure)?;
    same_file(&order.file, source.metadata())?;
    let job = SendJob {
        source,
        ranges: ranges(&order.ranges),
        origin: order.origin,
        checksum: algorithm(order.checksum.as_deref())?,
        expected_size: None,
        resend: order.moves.resend,
        feed: None,
    };
    let (mut reporter, progress) = (reporter(line, None)?, Progress::new());
    let sent = channel.send(&job, &mut reporter, &progress);
    // A link that is broken shows at the end.
    let _ = reporter.report(&progress).map_err(store_failure)?;
    let sent = sent.map_err(|error| move_failure(transfer_failure(error)))?;
    let sums = sent.pieces.as_ref().map(sums).unwrap_or_default();
    Ok(Transferred { bytes: sent.bytes, streams: sent.streams, cached: channel.cached(), sums })
}

/// Sends bytes that the front end provides.
pub(super) fn send_bytes(
    shared: &Shared,
    channel: &mut DataChannel,
    moves: &MoveOrder,
    line: &RefCell<Line<'_>>,
) -> Result<Transferred, MoveFailure> {
    prepare(shared, channel, moves);
    let (mut reporter, progress) = (reporter(line, None)?, Progress::new());
    let sent = channel.send_reader(&mut Source::new(line), &mut reporter, &progress);
    let _ = reporter.report(&progress).map_err(store_failure)?;
    let sent = sent.map_err(|error| move_failure(transfer_failure(error)))?;
    Ok(Transferred { bytes: sent.bytes, streams: sent.streams, cached: channel.cached(), sums: Vec::new() })
}

/// Receives ranges of a file that the front end has prepared.
pub(super) fn receive(
    shared: &Shared,
    channel: &mut DataChannel,
    order: &ReceiveOrder,
    line: &RefCell<Line<'_>>,
) -> Result<Transferred, MoveFailure> {
    prepare(shared, channel, &order.moves);
    let (store, path) = place(shared, &order.file)?;
    let options = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };
    let sink = store.open_write(&path, options).map_err(store_failure)?;
    same_file(&order.file, sink.metadata())?;
    let stored = Stored::new(Arc::clone(&sink), order.sync_each);
    let job = ReceiveJob {
        sink: Arc::clone(&sink),
        origin: order.origin,
        accept: ranges(&order.accept),
        checksum: algorithm(order.checksum.as_deref())?,
        sparse: order.sparse,
        written: &|range, sum| {
            stored.add(Sum { start: range.start, end: range.end, sum });
            Ok(())
        },
    };
    let (mut reporter, progress) = (reporter(line, Some(&stored))?, Progress::new());
    let received = channel.receive(&job, &mut reporter, &progress);
    let confirmed = meanwhile(PAUSE, &|| confirm(&*sink, order.sync_end), &mut || {
        // A link that is broken shows at the end.
        let _ = reporter.tick(&progress);
    });
    confirmed.map_err(store_failure)?;
    // Ranges count for a restart even if the transfer has failed.
    let _ = reporter.report(&progress).map_err(store_failure)?;
    let received = received.map_err(|error| move_failure(transfer_failure(error)))?;
    let (bytes, streams) = (received.bytes, received.streams);
    Ok(Transferred { bytes, streams, cached: channel.cached(), sums: Vec::new() })
}

/// Runs `work`, which may take long, on another thread, and `tick` after each `pause` until it is
/// done: the front end takes a node that reports nothing for lost.
fn meanwhile<T: Send>(pause: Duration, work: &(dyn Fn() -> T + Sync), tick: &mut dyn FnMut()) -> T {
    thread::scope(|scope| {
        let (sender, result) = mpsc::channel();
        let spawned = thread::Builder::new().name("confirm".into()).spawn_scoped(scope, move || {
            // It is received, unless the other thread has panicked.
            let _ = sender.send(work());
        });
        if spawned.is_err() {
            return work();
        }
        loop {
            match result.recv_timeout(pause) {
                Ok(value) => return value,
                Err(mpsc::RecvTimeoutError::Timeout) => tick(),
                // It has panicked, and so does the scope.
                Err(mpsc::RecvTimeoutError::Disconnected) => return work(),
            }
        }
    })
}

/// Hands everything over to the file server, so that the front end finds it.
fn confirm(sink: &dyn WriteHandle, sync: bool) -> ropewalk_storage::Result<()> {
    if sync { sink.sync() } else { sink.confirm(&sink.metadata()?) }
}

fn prepare(shared: &Shared, channel: &mut DataChannel, moves: &MoveOrder) {
    channel.set_marking(shared.marks.of(moves.marks.as_ref()));
    let type_of = if moves.ascii { RepresentationType::Ascii } else { RepresentationType::Image };
    channel.set_representation(type_of);
    channel.set_congestion(moves.congestion.clone());
    channel.set_resend(moves.resend);
    if channel.parallelism().get() != moves.parallelism {
        channel.set_parallelism(moves.parallelism);
    }
}

fn reporter<'r, 'l>(
    line: &'r RefCell<Line<'l>>,
    stored: Option<&'r Stored>,
) -> Result<Reporter<'r, 'l>, MoveFailure> {
    Reporter::new(line, stored).map_err(|error| MoveFailure::Broken(error.to_string()))
}

/// The store in which the file is opened as its user, and the path.
fn place(shared: &Shared, file: &FileOrder) -> Result<(Arc<dyn Store>, VirtualPath), MoveFailure> {
    let path = VirtualPath::parse(&file.path).map_err(|error| MoveFailure::Refused(error.to_string()))?;
    let own = rustix::process::geteuid().as_raw();
    let identity = match &file.owner {
        Some(owner) if Identity::can_act() => {
            Some(Identity { uid: owner.uid, gid: owner.gid, groups: owner.groups.clone() })
        }
        Some(owner) if owner.uid != own => {
            return Err(MoveFailure::Refused(format!(
                "The data node runs as the user {own} and cannot work as {}: run it as root, like the front end.",
                owner.uid
            )));
        }
        _ => None,
    };
    let login = StoreLogin { user: "", root: &shared.root, target: None, credential: Credential::Anonymous };
    let store = shared.stores.open(&login, identity.as_ref()).map_err(store_failure)?;
    Ok((store, path))
}

/// Fails if the path leads to another file than at the front end.
fn same_file(wanted: &FileOrder, found: ropewalk_storage::Result<Metadata>) -> Result<(), MoveFailure> {
    let found = found.map_err(store_failure)?;
    if found.inode == wanted.inode {
        return Ok(());
    }
    let path = String::from_utf8_lossy(&wanted.path);
    Err(MoveFailure::Refused(format!(
        "The data node finds another file at {path} than the front end: its --root is not the directory that the front end \
         shares."
    )))
}

fn algorithm(name: Option<&str>) -> Result<Option<ChecksumAlgorithm>, MoveFailure> {
    name.map(str::parse).transpose().map_err(|_| MoveFailure::Refused("An unknown checksum.".into()))
}

fn ranges(pairs: &[(u64, u64)]) -> RangeSet {
    pairs.iter().map(|(start, end)| *start..*end).collect()
}

fn sums(pieces: &Pieces) -> Vec<Sum> {
    pieces.iter().map(|(range, sum)| Sum { start: range.start, end: range.end, sum: Some(sum) }).collect()
}

fn store_failure(error: Error) -> MoveFailure {
    move_failure(failure(error))
}

fn move_failure(failure: Failure) -> MoveFailure {
    match failure {
        Failure::System { errno, action } => MoveFailure::System { errno, action },
        Failure::DataConnection(text) => MoveFailure::Connection(text),
        Failure::DataBroken(text) => MoveFailure::Broken(text),
        Failure::Aborted => MoveFailure::Aborted,
        other => MoveFailure::Refused(format!("The data node cannot move this file: {other:?}.")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn front_end_gets_reports_while_a_node_syncs() {
        let (sender, receiver) = mpsc::channel();
        let receiver = Mutex::new(receiver);
        // The work takes until three reports were made.
        let work = || (0..3).map(|_| receiver.lock().unwrap().recv().unwrap()).sum::<u32>();
        let sum = meanwhile(Duration::from_millis(1), &work, &mut || sender.send(7).unwrap());
        assert_eq!(sum, 21);
        assert_eq!(meanwhile(Duration::from_secs(60), &|| 5, &mut || unreachable!()), 5);
    }
}
