//! NSI as a provider of paths: orders become requests, results and queries become states.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use parking_lot::Mutex;
use ropewalk_paths::{Answer, Binding, Id, Limits, Order, Outcome, Provider, State, Step, now};

use crate::callback::{Expected, Rules};
use crate::listener::Listener;
use crate::message::{
    self, Body, Confirmed, FIRST_VERSION, Header, LONGEST, Message, Reserve, ServiceError, Summary,
};
use crate::requester::{SetupError, agent, check_wanted, failure, global_id, listen};
use crate::settings::Settings;
use crate::topology;

/// A provider that speaks NSI CS 2.1, for one reservation.
pub struct Nsi {
    settings: Settings,
    agent: ureq::Agent,
    /// `None`: the address could not be used. Results are then queried.
    _listener: Option<Listener>,
    messages: Receiver<Message>,
    expected: Arc<Mutex<Expected>>,
    /// Requests by correlation ID.
    requests: HashMap<String, (Id, u64, Step)>,
    id: Option<Id>,
    reference: Option<String>,
    /// The highest version of the criteria so far, requested or confirmed.
    version: u32,
    /// The end that an extension asks for.
    wanted: Option<Duration>,
}

impl Nsi {
    /// Reads the file of a provider, and listens for its results.
    ///
    /// # Errors
    /// A file is wrong. A callback address that is in use is none: results are then queried.
    pub fn open(path: &Path) -> Result<Self, SetupError> {
        let settings = Settings::load(path)?;
        let agent = agent(&settings)?;
        let expected = Arc::<Mutex<Expected>>::default();
        let (sender, messages) = channel();
        let rules = Rules {
            requester: settings.requester_id.clone(),
            provider: settings.provider_id.clone(),
            expected: Arc::clone(&expected),
            messages: sender,
        };
        let listener = listen(&settings, rules)?;
        Ok(Self {
            settings,
            agent,
            _listener: listener,
            messages,
            expected,
            requests: HashMap::new(),
            id: None,
            reference: None,
            version: FIRST_VERSION,
            wanted: None,
        })
    }

    fn text(&self, order: &Order, correlation: &str, global_id: &str) -> Result<String, String> {
        let header = Header {
            correlation,
            requester: &self.settings.requester_id,
            provider: &self.settings.provider_id,
            reply_to: &self.settings.callback,
        };
        let named = |name| match &order.reference {
            Some(connection) => Ok(message::request(header, name, connection)),
            None => {
                Err(format!("the provider has not named the path, so that it cannot {}", order.step.name()))
            }
        };
        match order.step {
            Step::Hold => {
                let Settings { service_type, bidirectional, .. } = &self.settings;
                let capacity = match order.request.capacity {
                    Some(bits) => bits,
                    None => self.settings.capacity_in_bits()?,
                };
                let request = &order.request;
                check_wanted(request)?;
                let (source, destination) = &topology::ends(&self.settings, &self.agent)?;
                let reserve = Reserve {
                    global_id,
                    // Some providers do not keep the global ID.
                    description: &format!("{} ({global_id})", request.description),
                    from: request.from,
                    until: request.until,
                    service_type,
                    capacity,
                    bidirectional: bidirectional.unwrap_or(true),
                    source,
                    destination,
                };
                Ok(message::reserve(header, &reserve))
            }
            Step::Extend => match &order.reference {
                Some(connection) => {
                    Ok(message::extend(header, connection, self.version, order.request.until))
                }
                None => named("reserve"),
            },
            Step::Commit => named("reserveCommit"),
            Step::Abort => named("reserveAbort"),
            Step::Activate => named("provision"),
            Step::Release => named("release"),
            Step::Terminate => named("terminate"),
            Step::Query | Step::QueryExtension => {
                Ok(message::query(header, order.reference.as_deref(), global_id))
            }
        }
    }

    fn post(&self, step: Step, text: &str) -> Result<Message, Outcome> {
        let action = match step {
            Step::Hold | Step::Extend => "reserve",
            Step::Commit => "reserveCommit",
            Step::Abort => "reserveAbort",
            Step::Activate => "provision",
            Step::Release => "release",
            Step::Terminate => "terminate",
            Step::Query | Step::QueryExtension => "querySummarySync",
        };
        let url = &self.settings.provider;
        let request = self
            .agent
            .post(url)
            .header(
                "SOAPAction",
                format!("\"http://schemas.ogf.org/nsi/2013/12/connection/service/{action}\""),
            )
            .content_type("text/xml; charset=utf-8");
        let mut answer = request.send(text).map_err(|error| failure(url, &error))?;
        let status = answer.status();
        let mut body = Vec::new();
        let read = answer.body_mut().as_reader().take(LONGEST as u64 + 1).read_to_end(&mut body);
        read.map_err(|error| Outcome::Unclear(format!("{url}: {error}")))?;
        match message::parse(&body) {
            Ok(message) if status.is_success() || matches!(message.body, Body::Error(_)) => Ok(message),
            Ok(_) => Err(Outcome::Unclear(format!("{url}: HTTP status {status}"))),
            Err(error) if status.is_success() => Err(Outcome::Unclear(format!("{url}: {error}"))),
            // The text is mostly a page for people.
            Err(_) if status.is_client_error() => {
                Err(Outcome::Refused(format!("{url}: HTTP status {status}")))
            }
            Err(error) => Err(Outcome::Unclear(format!("{url}: HTTP status {status}: {error}"))),
        }
    }

    /// The outcome of an order, or `None` if the message does not belong to it.
    fn outcome(&self, step: Step, body: Body, id: &Id) -> Option<Outcome> {
        let confirmed = |state| Some(Outcome::State(state));
        match (step, body) {
            (_, Body::Acknowledgment | Body::ReserveResponse(_)) => Some(Outcome::Accepted),
            (Step::Hold, Body::Held(summary)) => match check_times(&summary) {
                Ok(()) => confirmed(State::Held),
                Err(why) => Some(Outcome::Refused(why)),
            },
            (Step::Extend, Body::Held(summary)) => match self.confirms_wanted(&summary) {
                true => confirmed(State::Held),
                // The other end must not be committed.
                false => confirmed(State::Failed("the provider confirms another end".to_owned())),
            },
            (Step::Extend, Body::Failed { error, .. }) => confirmed(State::Failed(self.worded(&error))),
            (Step::QueryExtension, Body::Query(summaries)) => {
                let own =
                    summaries.iter().find(|summary| Some(&summary.connection) == self.reference.as_ref());
                confirmed(own.map_or(State::Gone, |summary| self.extension_of(summary)))
            }
            (Step::Commit, Body::Confirmed(Confirmed::Commit, _)) => confirmed(State::Reserved),
            // The life goes on to terminate it.
            (Step::Abort, Body::Confirmed(Confirmed::Abort, _)) => confirmed(State::Reserved),
            (Step::Activate, Body::Confirmed(Confirmed::Provision, _)) => confirmed(State::Activated),
            (Step::Release, Body::Confirmed(Confirmed::Release, _)) => confirmed(State::Reserved),
            (Step::Terminate, Body::Confirmed(Confirmed::Terminate, _)) => confirmed(State::Gone),
            (Step::Query | Step::Terminate, Body::Error(error)) if error.is_unknown_connection() => {
                confirmed(State::Gone)
            }
            (Step::Query, Body::Query(summaries)) => confirmed(self.state(&summaries, id)),
            (_, Body::Failed { error, .. } | Body::Error(error)) => {
                Some(Outcome::Refused(self.worded(&error)))
            }
            _ => None,
        }
    }

    fn worded(&self, error: &ServiceError) -> String {
        format!("the provider {} refuses: {error}", self.settings.provider_id)
    }

    /// The state of the own connection, in a list that may have others.
    fn state(&self, summaries: &[Summary], id: &Id) -> State {
        let global_id = global_id(id);
        let own = summaries.iter().find(|summary| match &self.reference {
            Some(reference) => summary.connection == *reference,
            None => summary.global_id == global_id || summary.description.contains(&global_id),
        });
        own.map_or(State::Gone, |summary| self.state_of(summary))
    }

    fn state_of(&self, summary: &Summary) -> State {
        let failed =
            |what: &str| State::Failed(format!("the provider reports {what} ({})", summary.connection));
        match &*summary.lifecycle {
            "Terminated" | "PassedEndTime" => return State::Gone,
            "Failed" => return failed("that the path has failed"),
            _ => {}
        }
        // An extension has states of the reservation beside a path in use, which stays usable.
        match &*summary.provision {
            "Provisioned" if summary.active && summary.has_criteria => {
                return State::Up(self.binding(summary));
            }
            "Provisioned" | "Provisioning" if summary.has_criteria => return State::Activated,
            _ => {}
        }
        match &*summary.reservation {
            "ReserveChecking" => State::Checking,
            "ReserveHeld" | "ReserveCommitting" => match check_times(summary) {
                Ok(()) => State::Held,
                Err(why) => State::Failed(why),
            },
            "ReserveFailed" => failed("that it has no such path"),
            "ReserveTimeout" => failed("that the path was not committed in time"),
            "ReserveAborting" => failed("that the reservation was aborted"),
            _ if !summary.has_criteria => failed("a reservation without criteria"),
            _ => State::Reserved,
        }
    }

    /// The state of an extension, in the answer to a query.
    fn extension_of(&self, summary: &Summary) -> State {
        match &*summary.reservation {
            "ReserveChecking" => State::Checking,
            "ReserveHeld" | "ReserveCommitting" => State::Held,
            "ReserveFailed" => State::Failed("the provider does not extend the path".to_owned()),
            "ReserveTimeout" | "ReserveAborting" => {
                State::Failed("the provider has dropped the extension".to_owned())
            }
            _ if self.confirms_wanted(summary) => State::Reserved,
            _ => State::Gone,
        }
    }

    /// Whether criteria have the end that an extension asks for. Messages have whole seconds.
    fn confirms_wanted(&self, summary: &Summary) -> bool {
        let (Some(until), Some(wanted)) = (summary.until, self.wanted) else { return false };
        until.as_secs() >= wanted.as_secs()
    }

    fn binding(&self, summary: &Summary) -> Binding {
        self.settings.binding_with(summary.capacity, summary.vlan.as_deref())
    }

    /// Notes the version of the criteria, which an extension has to exceed.
    fn see_version(&mut self, body: &Body) {
        let summaries = match body {
            Body::Held(summary) => std::slice::from_ref(summary),
            Body::Query(summaries) => summaries,
            _ => return,
        };
        let own = summaries.iter().filter(|summary| Some(&summary.connection) == self.reference.as_ref());
        self.version = own.map(|summary| summary.version).fold(self.version, u32::max);
    }

    fn know(&mut self, connection: &str) {
        if self.reference.is_none() && !connection.is_empty() {
            self.reference = Some(connection.to_owned());
        }
        self.expected.lock().connection.clone_from(&self.reference);
    }
}

impl Provider for Nsi {
    fn limits(&self) -> Limits {
        self.settings.times.limits(Duration::from_secs(30))
    }

    fn send(&mut self, order: &Order) -> Outcome {
        self.id = Some(order.id.clone());
        if let Some(reference) = &order.reference {
            self.know(&reference.clone());
        }
        if order.step == Step::Extend {
            (self.wanted, self.version) = (Some(order.request.until), self.version.saturating_add(1));
        }
        let correlation = format!("urn:uuid:{}", Id::random());
        let text = match self.text(order, &correlation, &global_id(&order.id)) {
            Ok(text) => text,
            Err(why) => return Outcome::Refused(why),
        };
        self.requests.insert(correlation.clone(), (order.id.clone(), order.number, order.step));
        self.expected.lock().correlations.insert(correlation.clone());
        let message = match self.post(order.step, &text) {
            Ok(message) => message,
            Err(outcome) => return outcome,
        };
        if !message.correlation.is_empty() && message.correlation != correlation {
            return Outcome::Unclear("the provider answers another request".to_owned());
        }
        match &message.body {
            Body::ReserveResponse(connection) => self.know(&connection.clone()),
            Body::Query(summaries) if self.reference.is_none() => {
                let global_id = global_id(&order.id);
                let own = |summary: &&Summary| {
                    summary.global_id == global_id || summary.description.contains(&global_id)
                };
                let found = summaries.iter().find(own).map(|summary| summary.connection.clone());
                self.know(&found.unwrap_or_default());
            }
            _ => {}
        }
        self.see_version(&message.body);
        let unexpected = || Outcome::Unclear("the provider answers with an unexpected message".to_owned());
        self.outcome(order.step, message.body, &order.id).unwrap_or_else(unexpected)
    }

    fn receive(&mut self, limit: Duration) -> Option<Answer> {
        let message = match self.messages.recv_timeout(limit) {
            Ok(message) => message,
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => {
                // There is no listener.
                std::thread::sleep(limit);
                return None;
            }
        };
        if let Body::Notification { name, .. } = &message.body {
            tracing::debug!(name, "notification of the NSI provider");
            let (id, reference) = (self.id.clone()?, self.reference.clone());
            return Some(Answer { id, number: None, reference, outcome: Outcome::Accepted });
        }
        let (id, number, step) = self.requests.get(&message.correlation)?.clone();
        self.see_version(&message.body);
        if let Body::Held(summary) = &message.body {
            self.know(&summary.connection.clone());
        }
        let outcome = self.outcome(step, message.body, &id)?;
        Some(Answer { id, number: Some(number), reference: self.reference.clone(), outcome })
    }

    fn reference(&self) -> Option<String> {
        self.reference.clone()
    }
}

/// The provider has to confirm a time that can be used.
fn check_times(summary: &Summary) -> Result<(), String> {
    let Some(until) = summary.until else { return Ok(()) };
    if summary.from.is_some_and(|from| from >= until) {
        return Err("the provider confirms a time that ends before it begins".to_owned());
    }
    if until <= now() {
        return Err("the provider confirms a time that is over: do the clocks differ?".to_owned());
    }
    Ok(())
}
