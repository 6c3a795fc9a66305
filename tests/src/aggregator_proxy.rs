//! The NSI Aggregator Proxy for tests, with faults.
//!
//! It has the states, the answers and the refusals of the real one
//! (<https://github.com/workfloworchestrator/nsi-aggregator-proxy>), and shares no code with the
//! requester under test.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::nsi_provider::{PROVIDER, REQUESTER, call_back, read_request};
use crate::trap::{Moment, Trap};

/// The misbehaviour of a proxy.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Kills the program at one of its requests.
    pub trap: Option<Arc<Trap>>,
    /// Does not call back: states have to be queried.
    pub loses_calls: bool,
    /// Accepts connections and answers nothing.
    pub is_silent: bool,
    /// Carries reservations out, and closes the connection without an answer.
    pub loses_answers: bool,
    /// Queries are answered with another reservation, which is up.
    pub confuses_reservations: bool,
    /// The list has other reservations as well, one of them with a name that is none.
    pub lists_others: bool,
    /// Refuses reservations with the status 422 and this text.
    pub refuses: Option<&'static str>,
    /// Reservations fail with this text.
    pub fails: Option<&'static str>,
    /// A provisioned path does not become active.
    pub never_up: bool,
    /// Answers all requests with this status and text.
    pub answer: Option<(u16, String)>,
}

/// A reservation at the proxy.
#[derive(Clone, Debug)]
pub struct Reservation {
    pub connection: String,
    /// The body of the request.
    pub request: Value,
    pub status: &'static str,
    /// The status that follows at the next query or call.
    next: Option<&'static str>,
}

#[derive(Debug, Default)]
struct State {
    requests: Vec<String>,
    reservations: Vec<Reservation>,
}

/// A running proxy.
pub struct AggregatorProxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    faults: Arc<Mutex<Faults>>,
}

impl AggregatorProxy {
    pub fn start(faults: Faults) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (state, faults) = (Arc::<Mutex<State>>::default(), Arc::new(Mutex::new(faults)));
        let shared = (Arc::clone(&state), Arc::clone(&faults));
        // It ends with the test.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, faults) = (Arc::clone(&shared.0), shared.1.lock().clone());
                thread::spawn(move || serve(stream, &state, &faults));
            }
        });
        Ok(Self { address, state, faults })
    }

    /// The file for `--path nsi-rest:`, with a callback at this port.
    pub fn file(&self, callback_port: u16) -> String {
        // `end` is longer than `hold`: the end of a path whose first request may be lost is
        // confirmed when its hold would be over.
        format!(
            "provider = \"http://{}/aggregator-proxy\"\nprovider-id = \"{PROVIDER}\"\n\
             requester-id = \"{REQUESTER}\"\ncallback = \"http://127.0.0.1:{callback_port}/callback\"\n\
             source = \"urn:ogf:network:alpha.test:2026:topology:dtn1?vlan=1784\"\n\
             destination = \"urn:ogf:network:alpha.test:2026:topology:dtn2?vlan=1784\"\n\
             capacity = \"200Mbit/s\"\n\
             [binding]\naddress = \"127.0.0.1\"\n\
             [times]\nrequest = \"2s\"\nanswer = \"3s\"\nhold = \"3s\"\nup = \"3s\"\nquery = \"100ms\"\nend = \"5s\"\n",
            self.address
        )
    }

    /// Changes the misbehaviour for later requests.
    pub fn set_faults(&self, faults: Faults) {
        *self.faults.lock() = faults;
    }

    /// The methods and paths of the requests so far that change something.
    pub fn changes(&self) -> Vec<String> {
        self.state.lock().requests.iter().filter(|request| !request.starts_with("GET")).cloned().collect()
    }

    pub fn reservations(&self) -> Vec<Reservation> {
        self.state.lock().reservations.clone()
    }

    /// Whether a path is there.
    pub fn has_path(&self) -> bool {
        self.state.lock().reservations.iter().any(|reservation| reservation.status != "TERMINATED")
    }

    /// Takes active paths down.
    pub fn take_down(&self) {
        for reservation in &mut self.state.lock().reservations {
            reservation.status = "FAILED";
        }
    }
}

/// The whole reservation, as the proxy shows it.
pub fn detail(connection: &str, global_id: &str, status: &str, error: Option<&str>) -> Value {
    json!({
        "globalReservationId": global_id,
        "connectionId": connection,
        "description": "a test",
        "criteria": {"version": 1, "serviceType": "EVTS.A-GOLE", "p2ps": {
            "capacity": 200,
            "sourceSTP": "urn:ogf:network:alpha.test:2026:topology:dtn1?vlan=1784",
            "destSTP": "urn:ogf:network:alpha.test:2026:topology:dtn2?vlan=1784",
        }},
        "status": status,
        "lastError": error,
        "segments": null,
    })
}

fn serve(mut stream: TcpStream, state: &Mutex<State>, faults: &Faults) -> Result<()> {
    let (head, body) = read_request(&mut stream)?;
    let mut words = head.split(' ');
    let (method, path) = (words.next().context("no method")?, words.next().context("no path")?);
    let path = path.strip_prefix("/aggregator-proxy").unwrap_or(path);
    state.lock().requests.push(format!("{method} {path}"));
    let trap = faults.trap.as_ref().and_then(|trap| Some((trap, trap.count()?)));
    if let Some((trap, Moment::Before)) = trap {
        trap.spring();
        return Ok(());
    }
    if faults.is_silent {
        thread::sleep(Duration::from_secs(60));
        return Ok(());
    }
    if let Some((status, text)) = &faults.answer {
        return reply(&mut stream, *status, text);
    }
    let (status, answer, called) = carry_out(method, path, &body, &mut state.lock(), faults);
    if let Some((trap, Moment::Unanswered)) = trap {
        trap.spring();
        return Ok(());
    }
    if faults.loses_answers && method == "POST" {
        return Ok(());
    }
    reply(&mut stream, status, &answer.to_string())?;
    if let Some((trap, Moment::Answered(_))) = trap {
        trap.spring();
    }
    if let (Some((url, connection)), false) = (called, faults.loses_calls) {
        let detail = {
            let mut state = state.lock();
            let found =
                state.reservations.iter_mut().find(|reservation| reservation.connection == connection);
            shown(found.context("no such reservation")?, faults)
        };
        call_back(&url, &detail.to_string())?;
    }
    Ok(())
}

/// The status and the body of an answer; the URL to call, and about which reservation.
type Done = (u16, Value, Option<(String, String)>);

fn carry_out(method: &str, path: &str, body: &str, state: &mut State, faults: &Faults) -> Done {
    let problem = |status: u16, text: &str| (status, json!({"status": status, "detail": text}), None);
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    let Some(rest) = path.strip_prefix("/reservations") else { return problem(404, "Not Found") };
    let words: Vec<&str> = rest.split('/').skip(1).collect();
    let callback = body["callbackURL"].as_str().map(str::to_owned);
    match (method, &*words) {
        ("POST", []) => match fault_in(&body, faults) {
            Some(text) => problem(422, &text),
            None => {
                let connection = format!("9adfed42-{}", state.reservations.len());
                let next = if faults.fails.is_some() { "FAILED" } else { "RESERVED" };
                let request = body.clone();
                let status = "RESERVING";
                state.reservations.push(Reservation {
                    connection: connection.clone(),
                    request,
                    status,
                    next: Some(next),
                });
                accepted(&connection, callback)
            }
        },
        ("GET", []) => {
            let mut list: Vec<Value> =
                state.reservations.iter_mut().map(|reservation| shown(reservation, faults)).collect();
            if faults.lists_others {
                list.insert(0, detail("OTHER", "urn:uuid:0", "ACTIVATED", None));
                list.insert(0, detail("../../x", "urn:uuid:1", "ACTIVATED", None));
            }
            (200, json!({ "reservations": list }), None)
        }
        (_, [connection, action @ ..]) => {
            let found = state.reservations.iter_mut().find(|found| found.connection == *connection);
            let Some(found) = found else {
                return problem(404, &format!("Reservation '{connection}' not found"));
            };
            let (from, during, after): (&[&str], _, _) = match (method, action) {
                ("GET", []) if faults.confuses_reservations => {
                    return (200, detail("OTHER", "urn:uuid:0", "ACTIVATED", None), None);
                }
                ("GET", []) => return (200, shown(found, faults), None),
                ("POST", ["provision"]) if faults.never_up => (&["RESERVED"], "ACTIVATING", None),
                ("POST", ["provision"]) => (&["RESERVED"], "ACTIVATING", Some("ACTIVATED")),
                ("POST", ["release"]) => (&["ACTIVATED"], "DEACTIVATING", Some("RESERVED")),
                // There is no state for a termination under way.
                ("DELETE", []) => (&["RESERVED", "FAILED"], found.status, Some("TERMINATED")),
                _ => return problem(405, "Method Not Allowed"),
            };
            if callback.is_none() {
                return problem(422, "callbackURL is missing");
            }
            if !from.contains(&found.status) {
                return problem(409, &format!("Reservation is in {} state", found.status));
            }
            (found.status, found.next) = (during, after);
            accepted(connection, callback)
        }
        _ => problem(405, "Method Not Allowed"),
    }
}

fn accepted(connection: &str, callback: Option<String>) -> Done {
    let answer =
        json!({"title": "Accepted", "status": 202, "instance": format!("/reservations/{connection}")});
    (202, answer, callback.map(|url| (url, connection.to_owned())))
}

/// The reason for which the real proxy refuses a reservation.
fn fault_in(body: &Value, faults: &Faults) -> Option<String> {
    let path = &body["criteria"]["p2ps"];
    let is_stp = |value: &Value| value.as_str().is_some_and(|stp| stp.starts_with("urn:ogf:network:"));
    let id = body["globalReservationId"].as_str().unwrap_or_default();
    match () {
        () if faults.refuses.is_some() => faults.refuses.map(str::to_owned),
        () if path["capacity"].as_u64().is_none_or(|mbit| mbit == 0) => Some("capacity".to_owned()),
        () if !is_stp(&path["sourceSTP"]) || !is_stp(&path["destSTP"]) => Some("STP".to_owned()),
        () if id.len() != 45 || !id.starts_with("urn:uuid:") => Some("globalReservationId".to_owned()),
        () if body["providerNSA"] != PROVIDER || body["requesterNSA"] != REQUESTER => Some("NSA".to_owned()),
        () if !body["description"].is_string() || !body["callbackURL"].is_string() => {
            Some("description or callbackURL".to_owned())
        }
        () => None,
    }
}

/// The reservation with its present status. The next one shows from then on.
fn shown(reservation: &mut Reservation, faults: &Faults) -> Value {
    if let Some(next) = reservation.next.take() {
        reservation.status = next;
    }
    let error = faults.fails.filter(|_| reservation.status == "FAILED");
    let id = reservation.request["globalReservationId"].as_str().unwrap_or_default();
    detail(&reservation.connection, id, reservation.status, error)
}

fn reply(stream: &mut TcpStream, status: u16, text: &str) -> Result<()> {
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{text}"
    )?;
    Ok(())
}
