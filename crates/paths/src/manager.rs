//! The hook as a manager of data connections: the nine events of GCT's network manager.

use std::io;
use std::time::Duration;

use ropewalk_transport::{Endpoint, NetAttribute, NetChanges, NetEvent, NetManager};
use serde::{Deserialize, Serialize};

use crate::hook::{Target, contact};

/// The time limit of one event. The peer waits for the connection meanwhile.
const LIMIT: Duration = Duration::from_secs(30);

/// The effect of a failing hook on the transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The transfer continues without the hook's changes.
    #[default]
    Prefer,
    /// The transfer fails.
    Require,
}

/// Passes the events of data connections to a hook.
#[derive(Debug)]
pub struct HookManager {
    target: Target,
    policy: Policy,
    /// Takes the failures that have no effect on the transfer.
    report: fn(&str),
}

/// The same data as the functions of GCT's network managers get.
#[derive(Debug, Serialize)]
struct Content<'a> {
    event: &'static str,
    /// That of SITE TASKID; `unset` without it, as in GCT.
    task_id: &'a str,
    transport: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    local: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<String>,
    attributes: Vec<Attribute>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Attribute {
    scope: String,
    name: String,
    value: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reply {
    local: Option<String>,
    remote: Option<String>,
    attributes: Vec<Attribute>,
}

impl HookManager {
    /// `report` takes failures of the hook that the policy ignores.
    pub fn new(target: Target, policy: Policy, report: fn(&str)) -> Self {
        Self { target, policy, report }
    }

    fn call(&self, event: &NetEvent<'_>) -> Result<NetChanges, String> {
        let text = |endpoint: &Endpoint| endpoint.to_string();
        let content = Content {
            event: event.kind.name(),
            task_id: event.task.unwrap_or("unset"),
            transport: event.transport,
            local: event.local.map(text),
            remote: event.remote.map(text),
            attributes: event.attributes.iter().map(Attribute::from).collect(),
        };
        let reply = self.target.call::<Reply>(event.kind.name(), &content, LIMIT);
        let Reply { local, remote, attributes } =
            reply.map_err(|error| error.to_string())?.unwrap_or_default();
        let endpoint = |text: Option<String>| -> Result<Option<Endpoint>, String> {
            text.map(|text| contact(&text).map(Endpoint::from)).transpose()
        };
        let bad = |why| format!("the hook {} ({}): {why}", self.target, event.kind.name());
        Ok(NetChanges {
            local: endpoint(local).map_err(bad)?,
            remote: endpoint(remote).map_err(bad)?,
            attributes: attributes.into_iter().map(NetAttribute::from).collect(),
        })
    }
}

impl NetManager for HookManager {
    fn event(&self, event: &NetEvent<'_>) -> io::Result<NetChanges> {
        match (self.call(event), self.policy) {
            (Ok(changes), _) => Ok(changes),
            (Err(why), Policy::Prefer) => {
                (self.report)(&why);
                Ok(NetChanges::default())
            }
            (Err(why), Policy::Require) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
        }
    }
}

impl From<&NetAttribute> for Attribute {
    fn from(attribute: &NetAttribute) -> Self {
        let NetAttribute { scope, name, value } = attribute.clone();
        Self { scope, name, value }
    }
}

impl From<Attribute> for NetAttribute {
    fn from(Attribute { scope, name, value }: Attribute) -> Self {
        Self { scope, name, value }
    }
}
