//! The NSI Aggregator Proxy as a provider of paths: JSON over HTTP, with one state for each
//! reservation.
//!
//! The proxy commits by itself, so that a reservation goes from held to reserved without a request.
//! It has no schedule: paths begin at once, and stay until they are removed. It calls back without
//! proof of its identity, so a call only causes a query. Requests that the state of a reservation
//! does not permit are answered with 409; the state is then queried.

pub mod message;

use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_paths::{Answer, Binding, Id, Limits, Order, Outcome, Provider, State, Step, now};

use crate::http;
use crate::listener::{Judge, Listener};
use crate::message::vlan;
use crate::requester::{SetupError, agent, check_wanted, failure, global_id, listen};
use crate::settings::Settings;
use crate::topology;
use message::{Change, Detail, LONGEST, LONGEST_LIST, Reserve, Status, WantedCriteria, WantedPath};

/// A provider behind the NSI Aggregator Proxy, for one reservation.
pub struct NsiRest {
    settings: Settings,
    agent: ureq::Agent,
    /// `None`: the address could not be used. States are then only queried.
    _listener: Option<Listener>,
    calls: Receiver<()>,
    own: Arc<Mutex<Own>>,
    id: Option<Id>,
    /// The last order but queries.
    last: Option<Step>,
}

/// The names of the reservation.
#[derive(Debug, Default)]
struct Own {
    /// That of this program.
    global_id: String,
    /// That of the proxy, once it is known.
    connection: Option<String>,
}

/// The answer to a request.
struct Reply {
    status: u16,
    body: Vec<u8>,
}

enum Method<'a> {
    Get,
    Post(&'a [u8]),
    Delete(&'a [u8]),
}

impl NsiRest {
    /// Reads the file of a provider, and listens for its calls. The file is that of NSI; its
    /// `provider` is the URL of the proxy, without `/reservations`.
    ///
    /// # Errors
    /// A file is wrong. A callback address that is in use is none: states are then queried.
    pub fn open(path: &Path) -> Result<Self, SetupError> {
        let settings = Settings::load_for_proxy(path)?;
        let agent = agent(&settings)?;
        let own = Arc::<Mutex<Own>>::default();
        let (sender, calls) = channel();
        let listener = listen(&settings, Calls { own: Arc::clone(&own), sender })?;
        Ok(Self { settings, agent, _listener: listener, calls, own, id: None, last: None })
    }

    fn hold(&self, order: &Order) -> Result<Outcome, Outcome> {
        let request = &order.request;
        if request.from.is_some_and(|from| from > now()) {
            return Err(Outcome::Refused(NO_SCHEDULE.to_owned()));
        }
        check_wanted(request).map_err(Outcome::Refused)?;
        let (source, destination) = &topology::ends(&self.settings, &self.agent).map_err(Outcome::Refused)?;
        let bits = request.capacity.map_or_else(|| self.settings.capacity_in_bits(), Ok);
        let global_id = global_id(&order.id);
        let body = Reserve {
            global_reservation_id: &global_id,
            description: &request.description,
            criteria: WantedCriteria {
                service_type: &self.settings.service_type,
                p2ps: WantedPath {
                    capacity: bits.map_err(Outcome::Refused)?.div_ceil(1_000_000),
                    source,
                    destination,
                },
            },
            requester: &self.settings.requester_id,
            provider: &self.settings.provider_id,
            callback: &self.settings.callback,
        };
        let body = serde_json::to_vec(&body).map_err(|error| Outcome::Refused(error.to_string()))?;
        let reply = self.call(&Method::Post(&body), "", LONGEST)?;
        if reply.status != 202 {
            return Err(self.failed(&reply));
        }
        let connection = message::accepted(&reply.body).map_err(Outcome::Unclear)?;
        self.own.lock().connection = Some(connection);
        Ok(Outcome::Accepted)
    }

    /// Requests a change of the reservation. `None`: its state does not permit the change.
    fn change(&self, connection: &str, name: &str) -> Result<Option<Outcome>, Outcome> {
        let body = Change { callback: &self.settings.callback };
        let body = serde_json::to_vec(&body).map_err(|error| Outcome::Refused(error.to_string()))?;
        let reply = match name {
            "" => self.call(&Method::Delete(&body), &format!("/{connection}"), LONGEST)?,
            name => self.call(&Method::Post(&body), &format!("/{connection}/{name}"), LONGEST)?,
        };
        match reply.status {
            202 => Ok(Some(Outcome::Accepted)),
            409 => Ok(None),
            404 if names_missing(&reply, connection) => Ok(Some(Outcome::State(State::Gone))),
            _ => Err(self.failed(&reply)),
        }
    }

    fn change_or_state(&self, connection: &str, name: &str) -> Result<Outcome, Outcome> {
        match self.change(connection, name)? {
            Some(outcome) => Ok(outcome),
            None => self.query(connection).map(|detail| Outcome::State(self.state_of(detail.as_ref()))),
        }
    }

    /// Brings the reservation one step closer to its end: the proxy terminates only what is not
    /// active. The order is repeated until the reservation is gone.
    fn terminate(&self, connection: &str) -> Result<Outcome, Outcome> {
        let Some(detail) = self.query(connection)? else { return Ok(Outcome::State(State::Gone)) };
        let name = match detail.status {
            Status::Terminated => return Ok(Outcome::State(State::Gone)),
            Status::Reserving | Status::Activating | Status::Deactivating => return Ok(Outcome::Accepted),
            Status::Activated => "release",
            Status::Reserved | Status::Failed => "",
        };
        Ok(self.change(connection, name)?.unwrap_or(Outcome::Accepted))
    }

    /// The reservation of this name; `None`: the proxy has none.
    fn query(&self, connection: &str) -> Result<Option<Detail>, Outcome> {
        let reply = self.call(&Method::Get, &format!("/{connection}"), LONGEST)?;
        match reply.status {
            200 => {}
            404 if names_missing(&reply, connection) => return Ok(None),
            _ => return Err(self.failed(&reply)),
        }
        let detail = Detail::parse(&reply.body).map_err(|why| self.unclear(&why))?;
        let other = |id: &String| *id != self.own.lock().global_id;
        if detail.connection_id != connection || detail.global_reservation_id.as_ref().is_some_and(other) {
            return Err(self.unclear("it answers for another reservation"));
        }
        Ok(Some(detail))
    }

    /// The reservation of this program, whose name at the proxy is not known.
    fn find(&self) -> Result<Option<Detail>, Outcome> {
        let reply = self.call(&Method::Get, "", LONGEST_LIST)?;
        if reply.status != 200 {
            return Err(self.failed(&reply));
        }
        let list = message::parse_list(&reply.body).map_err(|why| self.unclear(&why))?;
        let mut own = self.own.lock();
        let found = list.into_iter().find(|detail| {
            detail.global_reservation_id.as_deref() == Some(&own.global_id)
                && detail.status != Status::Terminated
                && message::is_name(&detail.connection_id)
        });
        if let Some(detail) = &found {
            own.connection = Some(detail.connection_id.clone());
        }
        Ok(found)
    }

    fn state_of(&self, detail: Option<&Detail>) -> State {
        let Some(detail) = detail else { return State::Gone };
        match detail.status {
            Status::Reserving => State::Checking,
            Status::Reserved => State::Reserved,
            Status::Activating => State::Activated,
            Status::Activated => State::Up(self.binding(detail)),
            // An activation has to be requested again once the earlier use has ended.
            Status::Deactivating if self.last == Some(Step::Activate) => State::Reserved,
            Status::Deactivating => State::Activated,
            Status::Failed => State::Failed(format!(
                "the provider reports a failure of the path ({}): {}",
                detail.connection_id,
                detail.failure()
            )),
            Status::Terminated => State::Gone,
        }
    }

    fn binding(&self, detail: &Detail) -> Binding {
        let path = detail.criteria.as_ref().map(|criteria| &criteria.p2ps);
        let vlan = path.and_then(|path| vlan(&path.source));
        self.settings.binding_with(path.map(|path| path.capacity), vlan.as_deref())
    }

    fn call(&self, method: &Method<'_>, path: &str, longest: usize) -> Result<Reply, Outcome> {
        const JSON: &str = "application/json";
        let url = format!("{}/reservations{path}", self.settings.provider.trim_end_matches('/'));
        let sent = match method {
            Method::Get => self.agent.get(&url).header("Accept", JSON).call(),
            Method::Post(body) => self.agent.post(&url).content_type(JSON).send(*body),
            Method::Delete(body) => self.agent.delete(&url).force_send_body().content_type(JSON).send(*body),
        };
        let mut answer = sent.map_err(|error| failure(&url, &error))?;
        let mut body = Vec::new();
        let read = answer.body_mut().as_reader().take(longest as u64 + 1).read_to_end(&mut body);
        read.map_err(|error| Outcome::Unclear(format!("{url}: {error}")))?;
        Ok(Reply { status: answer.status().as_u16(), body })
    }

    /// The outcome of an answer with an error status.
    fn failed(&self, reply: &Reply) -> Outcome {
        let status = reply.status;
        let text = match message::problem(&reply.body) {
            text if text.is_empty() => format!("HTTP status {status}"),
            text => format!("{text} (HTTP status {status})"),
        };
        match status {
            400..=499 => {
                Outcome::Refused(format!("the provider {} refuses: {text}", self.settings.provider_id))
            }
            _ => self.unclear(&text),
        }
    }

    fn unclear(&self, why: &str) -> Outcome {
        Outcome::Unclear(format!("{}: {why}", self.settings.provider))
    }

    fn carry_out(&self, order: &Order) -> Result<Outcome, Outcome> {
        if matches!(order.step, Step::Extend | Step::QueryExtension) {
            return Ok(Outcome::not_extendable());
        }
        let connection = self.own.lock().connection.clone();
        let connection = match (&connection, order.step) {
            (_, Step::Hold) => return self.hold(order),
            (None, Step::Query) => {
                let found = self.find()?;
                return Ok(Outcome::State(self.state_of(found.as_ref())));
            }
            (None, step) => {
                let why = format!("the provider has not named the path, so that it cannot {}", step.name());
                return Err(Outcome::Refused(why));
            }
            (Some(connection), _) if !message::is_name(connection) => {
                return Err(Outcome::Refused(format!("{connection:?} is not the name of a reservation")));
            }
            (Some(connection), _) => connection,
        };
        match order.step {
            Step::Activate => self.change_or_state(connection, "provision"),
            Step::Release => self.change_or_state(connection, "release"),
            Step::Terminate => self.terminate(connection),
            // There is nothing to abort. The life continues with the termination.
            Step::Abort => Ok(Outcome::State(State::Reserved)),
            // The proxy commits by itself.
            Step::Hold | Step::Commit | Step::Query | Step::Extend | Step::QueryExtension => {
                let detail = self.query(connection)?;
                Ok(Outcome::State(self.state_of(detail.as_ref())))
            }
        }
    }
}

/// The reason for which a path is not reserved in advance.
pub const NO_SCHEDULE: &str =
    "the NSI Aggregator Proxy has no schedule: its paths begin at once, and cannot be reserved in advance";

/// Whether an answer with the status 404 is about the reservation, and not about the URL of the
/// proxy: the entry of a path that is taken for gone is removed.
fn names_missing(reply: &Reply, connection: &str) -> bool {
    message::problem(&reply.body).contains(connection)
}

impl Provider for NsiRest {
    fn limits(&self) -> Limits {
        // An active path has to be down before it can be terminated.
        self.settings.times.limits(Duration::from_secs(60))
    }

    fn send(&mut self, order: &Order) -> Outcome {
        self.id = Some(order.id.clone());
        {
            let mut own = self.own.lock();
            own.global_id = global_id(&order.id);
            if order.reference.is_some() {
                own.connection.clone_from(&order.reference);
            }
        }
        if order.step != Step::Query {
            self.last = Some(order.step);
        }
        self.carry_out(order).unwrap_or_else(|failure| failure)
    }

    fn receive(&mut self, limit: Duration) -> Option<Answer> {
        match self.calls.recv_timeout(limit) {
            Ok(()) => {
                let (id, reference) = (self.id.clone()?, self.reference());
                Some(Answer { id, number: None, reference, outcome: Outcome::Accepted })
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                // There is no listener.
                std::thread::sleep(limit);
                None
            }
        }
    }

    fn reference(&self) -> Option<String> {
        self.own.lock().connection.clone()
    }
}

/// The rules for calls of the proxy. The sender is not known, so the content counts for nothing but
/// the names of the reservation.
struct Calls {
    own: Arc<Mutex<Own>>,
    sender: Sender<()>,
}

impl Judge for Calls {
    fn judge(&self, bytes: &[u8]) -> (http::Answer, Result<(), String>) {
        let is_own = |detail: &Detail| {
            let own = self.own.lock();
            own.connection.as_ref() == Some(&detail.connection_id)
                || detail.global_reservation_id.as_ref() == Some(&own.global_id)
        };
        let judged = match Detail::parse(bytes) {
            Ok(detail) if is_own(&detail) => Ok(()),
            Ok(detail) => {
                Err(format!("the reservation {:?} is not one of this requester", detail.connection_id))
            }
            Err(why) => Err(why),
        };
        let answer = match &judged {
            Ok(()) => {
                // The receiver is gone if the process ends.
                let _ = self.sender.send(());
                http::Answer::empty(200, "OK")
            }
            Err(_) => http::Answer::empty(400, "Bad Request"),
        };
        (answer, judged)
    }
}
