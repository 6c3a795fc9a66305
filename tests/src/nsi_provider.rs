//! A provider of the NSI Connection Service 2.1 for tests, with faults.
//!
//! Its messages have the form that OpenNSA sends, and are valid by the schemas of OGF. It reads
//! requests by looking for elements in the text, so that it shares no code with the requester under
//! test.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use parking_lot::Mutex;

use crate::trap::{Moment, Trap};

pub const PROVIDER: &str = "urn:ogf:network:alpha.test:2026:nsa";
pub const REQUESTER: &str = "urn:ogf:network:mover.test:2026:nsa";
pub const CONNECTION: &str = "AL-559ed2489b";

/// The misbehaviour of a provider.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Kills the program at one of its requests.
    pub trap: Option<Arc<Trap>>,
    /// Sends no results: they have to be queried.
    pub loses_results: bool,
    /// Accepts connections and answers nothing.
    pub is_silent: bool,
    /// Answers `reserve` with a fault of this text.
    pub refuses: Option<&'static str>,
    /// Answers `reserve` with `reserveFailed` of this text.
    pub fails: Option<&'static str>,
    /// Answers an extension with `reserveFailed` of this text.
    pub refuses_extensions: Option<&'static str>,
    /// Versions of criteria begin with 0, whatever is requested, as with OpenNSA.
    pub counts_from_zero: bool,
    /// A provisioned path does not become active.
    pub never_up: bool,
    /// Confirms times that end before they begin.
    pub reverses_times: bool,
    /// Results have the correlation ID of another request.
    pub confuses_requests: bool,
    /// Queries are answered with another reservation as well, which is up.
    pub lists_others: bool,
    /// Answers everything with this text.
    pub answer: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    requests: Vec<String>,
    texts: Vec<String>,
    /// Answers and results that the provider has sent.
    sent: Vec<String>,
    /// The requester's answers to results.
    acknowledged: Vec<String>,
    reservation: &'static str,
    provisioned: bool,
    terminated: bool,
    /// The end and the version of an extension that is not committed.
    held: Option<(String, u32)>,
    version: u32,
    /// Elements of the reservation: the global ID, the description, the criteria.
    reserved: HashMap<&'static str, String>,
}

/// A running provider.
pub struct NsiProvider {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl NsiProvider {
    pub fn start(faults: Faults) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::<Mutex<State>>::default();
        let shared = Arc::clone(&state);
        // It ends with the test.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (state, faults) = (Arc::clone(&shared), faults.clone());
                thread::spawn(move || serve(stream, &state, &faults));
            }
        });
        Ok(Self { address, state })
    }

    /// The file for `--path nsi:`, with a callback at this port.
    pub fn file(&self, callback_port: u16) -> String {
        format!(
            "provider = \"http://{}/NSI/services/CS2\"\nprovider-id = \"{PROVIDER}\"\nrequester-id = \"{REQUESTER}\"\n\
             callback = \"http://127.0.0.1:{callback_port}/callback\"\n\
             source = \"urn:ogf:network:alpha.test:2026:topology:dtn1?vlan=1784\"\n\
             destination = \"urn:ogf:network:alpha.test:2026:topology:dtn2?vlan=1784\"\n\
             capacity = \"200Mbit/s\"\n\
             [binding]\naddress = \"127.0.0.1\"\n\
             [times]\nrequest = \"2s\"\nanswer = \"3s\"\nhold = \"3s\"\nup = \"3s\"\nquery = \"100ms\"\n",
            self.address
        )
    }

    /// The names of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.state.lock().requests.clone()
    }

    /// The whole requests so far.
    pub fn texts(&self) -> Vec<String> {
        self.state.lock().texts.clone()
    }

    /// The whole messages of the provider so far.
    pub fn sent(&self) -> Vec<String> {
        self.state.lock().sent.clone()
    }

    /// The requester's answers to results so far.
    pub fn acknowledged(&self) -> Vec<String> {
        self.state.lock().acknowledged.clone()
    }

    /// Whether a path is there.
    pub fn has_path(&self) -> bool {
        let state = self.state.lock();
        !state.reservation.is_empty() && !state.terminated
    }

    /// The end of the reserved time, as the provider knows it.
    pub fn end(&self) -> String {
        self.state.lock().reserved.get("endTime").cloned().unwrap_or_default()
    }

    /// Takes an active path down.
    pub fn take_down(&self) {
        self.state.lock().provisioned = false;
    }
}

/// A port of this host that was free a moment ago.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Sends a message to a listener. Returns the status and the answer.
pub fn post(address: &str, path: &str, text: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let length = text.len();
    write!(stream, "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: {length}\r\n\r\n{text}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).context("no status")?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body).to_owned();
    Ok((status, body))
}

/// The whole message, as OpenNSA sends it to a requester. Faults have no header, and no
/// correlation ID.
pub fn message(correlation: &str, body: &str) -> String {
    let header = match correlation {
        "" => String::new(),
        correlation => format!(
            "<header:nsiHeader><protocolVersion>application/vnd.ogf.nsi.cs.v2.requester+soap</protocolVersion>\
             <correlationId>{correlation}</correlationId><requesterNSA>{REQUESTER}</requesterNSA>\
             <providerNSA>{PROVIDER}</providerNSA></header:nsiHeader>"
        ),
    };
    format!(
        "<soap:Envelope xmlns:ctypes=\"http://schemas.ogf.org/nsi/2013/12/connection/types\" \
         xmlns:ftypes=\"http://schemas.ogf.org/nsi/2013/12/framework/types\" \
         xmlns:header=\"http://schemas.ogf.org/nsi/2013/12/framework/headers\" \
         xmlns:p2psrv=\"http://schemas.ogf.org/nsi/2013/12/services/point2point\" \
         xmlns:soap=\"http://schemas.xmlsoap.org/soap/envelope/\">\n<soap:Header>{header}</soap:Header>\n\
         <soap:Body>{body}</soap:Body>\n</soap:Envelope>\n"
    )
}

/// A notification that the data plane of the connection is up.
pub fn data_plane_up(connection: &str) -> String {
    format!(
        "<ctypes:dataPlaneStateChange><connectionId>{connection}</connectionId>\
         <notificationId>1</notificationId><timeStamp>2026-11-21T19:31:18Z</timeStamp><dataPlaneStatus>\
         <active>true</active><version>0</version><versionConsistent>true</versionConsistent></dataPlaneStatus>\
         </ctypes:dataPlaneStateChange>"
    )
}

fn serve(mut stream: TcpStream, state: &Mutex<State>, faults: &Faults) -> Result<()> {
    let request = read(&mut stream)?;
    let name = name(&request).context("no request")?;
    let correlation = element(&request, "correlationId").context("no correlation ID")?.to_owned();
    let reply_to = element(&request, "replyTo").context("no address for replies")?.to_owned();
    {
        let mut state = state.lock();
        state.requests.push(name.clone());
        state.texts.push(request.clone());
    }
    let trap = faults.trap.as_ref().and_then(|trap| Some((trap, trap.count()?)));
    if let Some((trap, Moment::Before)) = trap {
        trap.spring();
        return Ok(());
    }
    if faults.is_silent {
        thread::sleep(Duration::from_secs(60));
        return Ok(());
    }
    if let Some(text) = &faults.answer {
        return reply(&mut stream, 200, text);
    }
    let refusal = match (name.as_str(), faults.refuses) {
        ("reserve", Some(text)) => Some(text),
        ("reserve", None) => (version(&request) == Some(0)).then_some("version 0 cannot be requested"),
        _ => None,
    };
    if let Some(text) = refusal {
        let fault = format!(
            "<soap:Fault><faultcode>soap:Server</faultcode><faultstring>{text}</faultstring><detail>\
             <ftypes:serviceException><nsaId>{PROVIDER}</nsaId><errorId>00400</errorId><text>{text}</text>\
             </ftypes:serviceException></detail></soap:Fault>"
        );
        return answer_with(&mut stream, state, 500, message("", &fault));
    }
    let (answer, result) = carry_out(&request, &name, &mut state.lock(), faults);
    if let Some((trap, Moment::Unanswered)) = trap {
        trap.spring();
        return Ok(());
    }
    answer_with(&mut stream, state, 200, message(&correlation, &answer))?;
    if let Some((trap, Moment::Answered(_))) = trap {
        trap.spring();
    }
    if !result.is_empty() && !faults.loses_results {
        let of = if faults.confuses_requests {
            "urn:uuid:00000000-0000-4000-8000-000000000000"
        } else {
            &correlation
        };
        report(state, &reply_to, message(of, &result))?;
    }
    if name == "provision" && !faults.never_up && !faults.loses_results {
        let of_none = "urn:uuid:11111111-0000-4000-8000-000000000000";
        report(state, &reply_to, message(of_none, &data_plane_up(CONNECTION)))?;
    }
    Ok(())
}

/// The answer to a request, and its result.
fn carry_out(request: &str, name: &str, state: &mut State, faults: &Faults) -> (String, String) {
    let plain =
        |name: &str| format!("<ctypes:{name}><connectionId>{CONNECTION}</connectionId></ctypes:{name}>");
    let acknowledged = |result: String| ("<ctypes:acknowledgment />".to_owned(), result);
    match name {
        "reserve" if request.contains(&format!("<connectionId>{CONNECTION}</connectionId>")) => {
            (acknowledged(String::new()).0, extend(request, state, faults))
        }
        "reserve" => {
            for key in ["globalReservationId", "description", "startTime", "endTime", "capacity"] {
                state.reserved.insert(key, element(request, key).unwrap_or_default().to_owned());
            }
            state.version = if faults.counts_from_zero { 0 } else { version(request).unwrap_or(1) };
            state.reservation = if faults.fails.is_some() { "ReserveFailed" } else { "ReserveHeld" };
            let result = match faults.fails {
                Some(text) => format!(
                    "<ctypes:reserveFailed><connectionId>{CONNECTION}</connectionId>{}<serviceException>\
                     <nsaId>{PROVIDER}</nsaId><errorId>00600</errorId><text>{text}</text></serviceException>\
                     </ctypes:reserveFailed>",
                    states(state, faults)
                ),
                None => format!(
                    "<ctypes:reserveConfirmed><connectionId>{CONNECTION}</connectionId>{}</ctypes:reserveConfirmed>",
                    criteria(state, faults)
                ),
            };
            (plain("reserveResponse"), result)
        }
        "reserveCommit" => {
            state.reservation = "ReserveStart";
            if let Some((end, version)) = state.held.take() {
                state.reserved.insert("endTime", end);
                state.version = version;
            }
            acknowledged(plain("reserveCommitConfirmed"))
        }
        "reserveAbort" => {
            (state.reservation, state.held) = ("ReserveStart", None);
            acknowledged(plain("reserveAbortConfirmed"))
        }
        "provision" => {
            state.provisioned = true;
            acknowledged(plain("provisionConfirmed"))
        }
        "release" => {
            state.provisioned = false;
            acknowledged(plain("releaseConfirmed"))
        }
        "terminate" => {
            state.terminated = true;
            acknowledged(plain("terminateConfirmed"))
        }
        "querySummarySync" => {
            let mut list = String::new();
            if faults.lists_others {
                list += "<reservation><connectionId>OTHER</connectionId><criteria version=\"0\"><schedule/>\
                         <serviceType>http://services.ogf.org/nsi/2013/07/descriptions/EVTS.A-GOLE</serviceType>\
                         </criteria><requesterNSA>urn:ogf:network:other</requesterNSA><connectionStates>\
                         <reservationState>ReserveStart</reservationState><provisionState>Provisioned</provisionState>\
                         <lifecycleState>Created</lifecycleState><dataPlaneStatus><active>true</active>\
                         <version>0</version><versionConsistent>true</versionConsistent></dataPlaneStatus>\
                         </connectionStates></reservation>";
            }
            if !state.reservation.is_empty() {
                list += &format!(
                    "<reservation><connectionId>{CONNECTION}</connectionId>{}<requesterNSA>{REQUESTER}</requesterNSA>{}\
                     </reservation>",
                    criteria(state, faults),
                    states(state, faults)
                );
            }
            (
                format!("<ctypes:querySummarySyncConfirmed>{list}</ctypes:querySummarySyncConfirmed>"),
                String::new(),
            )
        }
        _ => acknowledged(String::new()),
    }
}

/// The result of a `reserve` for the connection that is there.
fn extend(request: &str, state: &mut State, faults: &Faults) -> String {
    // Without one, the provider assigns the next.
    let version = version(request).unwrap_or(state.version + 1);
    let end = element(request, "endTime").unwrap_or_default().to_owned();
    let refused = match (faults.refuses_extensions, state.reservation) {
        (Some(text), _) => Some(text),
        (None, "ReserveStart") if version > state.version && !end.is_empty() => None,
        (None, "ReserveStart") => Some("the version is not above the present one, or there is no end"),
        (None, _) => Some("the connection is being changed"),
    };
    if let Some(text) = refused {
        state.reservation = "ReserveFailed";
        return format!(
            "<ctypes:reserveFailed><connectionId>{CONNECTION}</connectionId>{}<serviceException>\
             <nsaId>{PROVIDER}</nsaId><errorId>00600</errorId><text>{text}</text></serviceException>\
             </ctypes:reserveFailed>",
            states(state, faults)
        );
    }
    state.reservation = "ReserveHeld";
    state.held = Some((end.clone(), version));
    let of_now = (state.reserved.insert("endTime", end), std::mem::replace(&mut state.version, version));
    let held = criteria(state, faults);
    state.reserved.insert("endTime", of_now.0.unwrap_or_default());
    state.version = of_now.1;
    format!(
        "<ctypes:reserveConfirmed><connectionId>{CONNECTION}</connectionId>{held}</ctypes:reserveConfirmed>"
    )
}

/// The version of the criteria in a request.
fn version(request: &str) -> Option<u32> {
    let (_, rest) = request.split_once("<criteria version=\"")?;
    rest.split('"').next()?.parse().ok()
}

fn criteria(state: &State, faults: &Faults) -> String {
    let of = |key| state.reserved.get(key).cloned().unwrap_or_default();
    let (mut start, mut end) = (of("startTime"), of("endTime"));
    if faults.reverses_times {
        (start, end) = (end, "2026-11-21T19:31:18Z".to_owned());
    }
    if !start.is_empty() {
        start = format!("<startTime>{start}</startTime>");
    }
    format!(
        "<globalReservationId>{}</globalReservationId><description>{}</description><criteria version=\"{}\"><schedule>\
         {start}<endTime>{end}</endTime></schedule>\
         <serviceType>http://services.ogf.org/nsi/2013/07/descriptions/EVTS.A-GOLE</serviceType><p2psrv:p2ps>\
         <capacity>{}</capacity><directionality>Bidirectional</directionality><symmetricPath>false</symmetricPath>\
         <sourceSTP>urn:ogf:network:alpha.test:2026:topology:dtn1?vlan=1784</sourceSTP>\
         <destSTP>urn:ogf:network:alpha.test:2026:topology:dtn2?vlan=1784</destSTP></p2psrv:p2ps></criteria>",
        of("globalReservationId"),
        of("description"),
        state.version,
        of("capacity")
    )
}

fn states(state: &State, faults: &Faults) -> String {
    let active = state.provisioned && !faults.never_up;
    let provision = if state.provisioned { "Provisioned" } else { "Released" };
    let lifecycle = if state.terminated { "Terminated" } else { "Created" };
    format!(
        "<connectionStates><reservationState>{}</reservationState><provisionState>{provision}</provisionState>\
         <lifecycleState>{lifecycle}</lifecycleState><dataPlaneStatus><active>{active}</active><version>0</version>\
         <versionConsistent>true</versionConsistent></dataPlaneStatus></connectionStates>",
        state.reservation
    )
}

/// Sends a result or a notification, and keeps it and the answer.
fn report(state: &Mutex<State>, url: &str, text: String) -> Result<()> {
    state.lock().sent.push(text.clone());
    let answer = call_back(url, &text)?;
    state.lock().acknowledged.push(answer);
    Ok(())
}

/// Answers a request, and keeps the answer.
fn answer_with(stream: &mut TcpStream, state: &Mutex<State>, status: u16, text: String) -> Result<()> {
    state.lock().sent.push(text.clone());
    reply(stream, status, &text)
}

/// Returns the answer.
pub(crate) fn call_back(url: &str, text: &str) -> Result<String> {
    let rest = url.strip_prefix("http://").ok_or_else(|| anyhow!("{url}"))?;
    let (address, path) = rest.split_once('/').context("no path")?;
    post(address, &format!("/{path}"), text).map(|(_, answer)| answer)
}

fn read(stream: &mut TcpStream) -> Result<String> {
    read_request(stream).map(|(_, body)| body)
}

/// Reads an HTTP request. Returns its head and its body.
pub(crate) fn read_request(stream: &mut TcpStream) -> Result<(String, String)> {
    let mut bytes = Vec::new();
    let mut some = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
            });
            if body.len() >= length.unwrap_or(0) {
                return Ok((head.to_owned(), body.to_owned()));
            }
        }
        let read = stream.read(&mut some)?;
        if read == 0 {
            return Err(anyhow!("the request is not complete: {text}"));
        }
        bytes.extend_from_slice(&some[..read]);
    }
}

fn reply(stream: &mut TcpStream, status: u16, text: &str) -> Result<()> {
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 {status} X\r\nContent-Type: text/xml\r\nContent-Length: {length}\r\n\r\n{text}"
    )?;
    Ok(())
}

/// The name of the first element of the body, without its prefix.
fn name(request: &str) -> Option<String> {
    let (_, body) = request.split_once(":Body>")?;
    let tag = body.trim_start().strip_prefix('<')?;
    let tag = &tag[..tag.find(['>', ' ', '/'])?];
    Some(tag.rsplit(':').next().unwrap_or(tag).to_owned())
}

/// The text of the first element of this name.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(text, _)| text)
}
