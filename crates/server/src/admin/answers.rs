//! Carries out the requests of an administrator.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use ropewalk_limits::Booking;

use super::message::{
    Answer, LimitStatus, NodeStatus, Request, ReservationStatus, ResourceStatus, SessionStatus,
};
use crate::config::TransferDirection;
use crate::error::Result;
use crate::handle::ServerHandle;
use crate::host::bandwidth::{FlowOwner, LimitUse};
use crate::host::load::{Buffers, Shortage};
use crate::host::presence::{Activity, Presence, Snapshot};
use crate::host::reservations::Reservations;
use crate::scheduling::connection::Connection;
use crate::scheduling::scheduler::Scheduler;
use crate::scheduling::semaphore::FairSemaphore;

/// Rates are measured over this time.
const SPAN: Duration = Duration::from_millis(300);

/// Reads the configuration again.
pub(crate) type Reload = Box<dyn FnMut() -> Result<()> + Send>;

/// Carries out a request. The last answer ends the list.
pub(super) fn answers(scheduler: &Scheduler, reload: Option<&mut Reload>, request: Request) -> Vec<Answer> {
    let result = match request {
        Request::Sessions => Ok(sessions(scheduler)),
        Request::Nodes => nodes(scheduler),
        Request::Limits => Ok(limits(scheduler)),
        Request::Load => Ok(load(scheduler)),
        Request::Kick { id } => match scheduler.end_session(id) {
            true => Ok(Vec::new()),
            false => Err(format!("there is no session {id}")),
        },
        Request::Reload => match reload.map(|reload| reload()) {
            Some(Ok(())) => Ok(Vec::new()),
            Some(Err(error)) => Err(format!("{error}; the old settings stay")),
            None => Err("this server has no configuration to read again".into()),
        },
        Request::Drain { node: None } => {
            tracing::info!("the administrator ends the server: draining");
            ServerHandle(Arc::clone(&scheduler.host)).drain();
            Ok(Vec::new())
        }
        Request::Drain { node: Some(name) } => drain_node(scheduler, &name),
    };
    match result {
        Ok(mut answers) => {
            answers.push(Answer::Done);
            answers
        }
        Err(reason) => vec![Answer::Refused { reason }],
    }
}

/// All sessions with their rates in bytes per second.
fn measure(scheduler: &Scheduler) -> Vec<(Arc<Presence>, Snapshot, u64)> {
    let began = Instant::now();
    let before: HashMap<u64, u64> = scheduler
        .host
        .presences
        .all()
        .iter()
        .map(|presence| (presence.id, presence.snapshot()))
        .filter(|(_, seen)| seen.user.is_some())
        .map(|(id, seen)| (id, seen.total))
        .collect();
    if !before.is_empty() {
        thread::sleep(SPAN);
    }
    let seconds = began.elapsed().as_secs_f64();
    let measured = scheduler.host.presences.all().into_iter().map(|presence| {
        let seen = presence.snapshot();
        let moved = before.get(&presence.id).map_or(0, |before| seen.total.saturating_sub(*before));
        let rate = (moved as f64 / seconds) as u64;
        (presence, seen, rate)
    });
    measured.collect()
}

fn sessions(scheduler: &Scheduler) -> Vec<Answer> {
    let sessions = measure(scheduler).into_iter().map(|(presence, seen, rate)| {
        let (activity, path) = match &seen.activity {
            Activity::Idle => ("idle", None),
            Activity::Waiting { .. } => ("waiting", None),
            Activity::Working => ("working", None),
            Activity::Moving { command, path, .. } => {
                (*command, Some(String::from_utf8_lossy(path.as_bytes()).into_owned()))
            }
        };
        let position = match &seen.activity {
            Activity::Waiting { position } => *position,
            _ => None,
        };
        Answer::Session(SessionStatus {
            id: presence.id,
            user: seen.user.map(|user| user.name),
            peer: presence.peer.to_string(),
            since: presence.since.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            activity: activity.to_owned(),
            path,
            position,
            bytes: seen.bytes,
            total: seen.total,
            rate,
        })
    });
    sessions.collect()
}

fn limits(scheduler: &Scheduler) -> Vec<Answer> {
    let rates = measure(scheduler).into_iter().filter_map(|(presence, seen, rate)| {
        let direction = seen.activity.direction();
        let user = seen.user?.counted_as;
        let address = presence.peer.ip();
        Some((FlowOwner { user, address, direction, reservation: None }, rate))
    });
    let rates: Vec<_> = rates.collect();
    let mut reserved = scheduler.host.reservations.as_ref().map(Reservations::in_force).unwrap_or_default();
    reserved.retain(|booking| booking.rate > 0);
    let limits = scheduler.host.bandwidth.list(&rates, &reserved).into_iter().map(|one| {
        let LimitUse { limit, now, used, reserved } = one;
        let direction = limit.direction.map(|direction| match direction {
            TransferDirection::Download => "download".to_owned(),
            TransferDirection::Upload => "upload".to_owned(),
        });
        Answer::Limit(LimitStatus {
            rate: limit.rate.to_string(),
            now,
            used,
            reserved,
            user: limit.user,
            group: limit.group,
            site: limit.site.iter().map(ToString::to_string).collect(),
            direction,
            each_user: limit.each_user,
        })
    });
    limits.chain(reservations(scheduler, &reserved)).collect()
}

/// Answers that name the users of reservations and the ends of their windows.
fn reservations<'a>(
    scheduler: &'a Scheduler,
    bookings: &'a [Booking],
) -> impl Iterator<Item = Answer> + use<'a> {
    bookings.iter().map(|booking| {
        Answer::Reservation(ReservationStatus {
            user: booking.user.clone(),
            slots: booking.slots,
            used: scheduler.transfers.held_by(&booking.token) as u64,
            rate: booking.rate,
            from: booking.from,
            until: booking.until.min(booking.lease),
        })
    })
}

/// The resources for which new transfers wait, and the reservations that keep permits.
fn load(scheduler: &Scheduler) -> Vec<Answer> {
    let host = &scheduler.host;
    let settings = host.settings();
    let limits = &settings.config.limits;
    let resource = |name: &str, unit: &str, now: Option<f64>, limit: Option<f64>| ResourceStatus {
        name: name.to_owned(),
        unit: unit.to_owned(),
        now,
        limit,
        reserved: None,
        short: false,
        waiting: None,
    };
    let permits = |name, queue: &FairSemaphore<Box<Connection>>| {
        let ((held, waiting), most) = (queue.counts(), queue.most());
        let status = resource(name, "permits", Some(held as f64), Some(most as f64));
        ResourceStatus { short: held >= most, waiting: Some(waiting as u64), ..status }
    };
    let (reading, Buffers { used, total }) = (host.load.reading(), host.buffers());
    let (shortage, (_, waiting)) = (host.shortage(), scheduler.low_disk.counts());
    let set = |limit: f64| (limit > 0.0).then_some(limit);
    let memory =
        resource("memory", "bytes", reading.memory.map(|bytes| bytes as f64), set(limits.free_memory as f64));
    let buffers =
        resource("buffers", "bytes", Some(used as f64), limits.wait_for_buffers.then_some(total as f64));
    let processors = resource("processors", "percent", reading.pressure, set(limits.cpu_pressure));
    let disk = resource("disk", "bytes", None, set(limits.free_disk as f64));
    let (mut reserved, mut slots) = (Vec::new(), None);
    if let Some(reservations) = &host.reservations {
        reserved = reservations.in_force();
        reserved.retain(|booking| booking.slots > 0);
        slots = Some(reservations.slots_in_force().values().sum::<usize>() as u64);
    }
    let all = [
        ResourceStatus { reserved: slots, ..permits("transfers", &scheduler.transfers) },
        permits("listings", &scheduler.listings),
        ResourceStatus { short: shortage == Some(Shortage::Memory), ..memory },
        ResourceStatus { short: shortage == Some(Shortage::Buffers), ..buffers },
        ResourceStatus { short: shortage == Some(Shortage::Processors), ..processors },
        ResourceStatus { short: waiting > 0, waiting: Some(waiting as u64), ..disk },
    ];
    all.into_iter().map(Answer::Resource).chain(reservations(scheduler, &reserved)).collect()
}

/// The refusal of a server that is no front end.
fn no_nodes() -> String {
    "this server is no front end of data nodes (serve --nodes-listen)".into()
}

fn nodes(scheduler: &Scheduler) -> std::result::Result<Vec<Answer>, String> {
    let nodes = scheduler.host.nodes.as_ref().ok_or_else(no_nodes)?;
    let members = nodes.front_end.list().into_iter().map(|member| {
        Answer::Node(NodeStatus {
            name: member.announcement.name,
            addresses: member.announcement.addresses.iter().map(ToString::to_string).collect(),
            capacity: member.announcement.capacity,
            channels: member.channels,
            elsewhere: member.elsewhere,
            draining: member.draining,
        })
    });
    Ok(members.collect())
}

fn drain_node(scheduler: &Scheduler, name: &str) -> std::result::Result<Vec<Answer>, String> {
    let nodes = scheduler.host.nodes.as_ref().ok_or_else(no_nodes)?;
    if !nodes.front_end.drain(name) {
        return Err(format!("there is no node {name:?}"));
    }
    tracing::info!(node = name, "the administrator drains the node");
    Ok(Vec::new())
}
