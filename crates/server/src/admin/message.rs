//! The messages of the admin socket. The answers are also the lines of `ropewalk admin --json`.

use serde::{Deserialize, Serialize};

/// The version of the format. A field that is added does not change it.
pub const SCHEMA: u32 = 1;

/// A request of an administrator.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    Sessions,
    Nodes,
    Limits,
    /// The resources for which new transfers wait.
    Load,
    /// End a session.
    Kick {
        id: u64,
    },
    Reload,
    /// End the server when its transfers are over; or give a data node no new channels.
    Drain {
        node: Option<String>,
    },
}

/// A line of the answer.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Line {
    pub schema: u32,
    #[serde(flatten)]
    pub answer: Answer,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Answer {
    Session(SessionStatus),
    Node(NodeStatus),
    Limit(LimitStatus),
    Resource(ResourceStatus),
    Reservation(ReservationStatus),
    /// The request was carried out, and nothing follows.
    Done,
    /// Nothing follows.
    Refused {
        reason: String,
    },
}

/// A session. Rates are in bytes per second.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct SessionStatus {
    pub id: u64,
    /// `None` before the log-in.
    pub user: Option<String>,
    /// Address and port of the client.
    pub peer: String,
    /// Seconds since 1970.
    pub since: u64,
    /// `idle`, `waiting` (for its turn), `working`, or the command that moves data: `RETR`, `STOR`,
    /// `MLSD`...
    pub activity: String,
    /// The path of that command.
    pub path: Option<String>,
    /// While it waits: its position in the queue, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// The bytes that this command has moved.
    pub bytes: u64,
    /// The bytes that all commands of the session have moved.
    pub total: u64,
    pub rate: u64,
}

/// A data node.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct NodeStatus {
    pub name: String,
    /// The addresses of its data connections.
    pub addresses: Vec<String>,
    /// Bytes per second.
    pub capacity: u64,
    pub channels: u32,
    /// The channels that it has for other front ends.
    #[serde(default)]
    pub elsewhere: u32,
    /// It gets no new channels.
    pub draining: bool,
}

/// A limit of the settings, in their order.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct LimitStatus {
    /// As in the settings: a rate or a timetable.
    pub rate: String,
    /// The rate at present in bytes per second; `None`: no limit.
    pub now: Option<u64>,
    /// The rate of all transfers that fit the limit, in bytes per second.
    pub used: u64,
    /// The sum of the rates that are reserved now for users whom the limit fits, in bytes per
    /// second.
    #[serde(default)]
    pub reserved: u64,
    pub user: Option<String>,
    pub group: Option<String>,
    /// Empty: all addresses.
    pub site: Vec<String>,
    /// `download` or `upload`; `None`: both.
    pub direction: Option<String>,
    pub each_user: bool,
}

/// A resource for which new transfers wait while it is short.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ResourceStatus {
    /// `transfers`, `listings`, `memory`, `buffers`, `processors` or `disk`.
    pub name: String,
    /// `permits`, `bytes` or `percent`.
    pub unit: String,
    /// Permits and buffers in use, memory that programs can get, time for which threads waited for
    /// processors. `None`: it is not known, or differs by file system.
    pub now: Option<f64>,
    /// The most, or the least for memory and the disk. `None`: transfers do not wait for it.
    pub limit: Option<f64>,
    /// Permits that are kept for reservations now, whether they are in use or not. `None`: nothing
    /// of this resource can be reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserved: Option<u64>,
    /// New transfers wait for it.
    pub short: bool,
    /// The sessions in its queue. Those that wait for memory, buffers and processors are in the
    /// queue of `transfers`.
    pub waiting: Option<u64>,
}

/// A reservation of slots or of a rate whose window has begun. Times are in seconds since 1970.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ReservationStatus {
    pub user: String,
    /// Transfers at a time.
    pub slots: u32,
    /// The slots that transfers use now.
    pub used: u64,
    /// Bytes per second.
    pub rate: u64,
    /// The begin of the window.
    pub from: u64,
    /// The end of the window, or of the lease if that is before.
    pub until: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn requests_and_answers_have_their_documented_form() {
        let request = |text| serde_json::from_str::<Request>(text).ok();
        assert_eq!(request(r#"{"command":"kick","id":7}"#), Some(Request::Kick { id: 7 }));
        assert_eq!(request(r#"{"command":"drain"}"#), Some(Request::Drain { node: None }));
        for wrong in
            ["", "{}", r#"{"command":"shout"}"#, r#"{"command":"kick"}"#, r#"{"command":"kick","id":-1}"#]
        {
            assert_eq!(request(wrong), None, "{wrong}");
        }
        let line = Line { schema: SCHEMA, answer: Answer::Refused { reason: "no".into() } };
        assert_eq!(serde_json::to_string(&line).unwrap(), r#"{"schema":1,"kind":"refused","reason":"no"}"#);
    }
}
