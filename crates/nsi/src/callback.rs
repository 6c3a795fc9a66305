//! The rules for results and notifications of a provider that speaks SOAP.
//!
//! A message is passed on only if it is for this requester, from its provider, and belongs to a
//! request or a connection of this process; otherwise the sender gets a SOAP fault.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use parking_lot::Mutex;

use crate::http::Answer;
use crate::listener::Judge;
use crate::message::{self, Body, Message};

const XML: &str = "text/xml; charset=utf-8";

/// The messages that the process waits for.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// Those of requests.
    pub(crate) correlations: HashSet<String>,
    pub(crate) connection: Option<String>,
}

/// The rules for messages.
pub(crate) struct Rules {
    pub(crate) requester: String,
    pub(crate) provider: String,
    pub(crate) expected: Arc<Mutex<Expected>>,
    /// Takes the messages that are passed on.
    pub(crate) messages: Sender<Message>,
}

impl Judge for Rules {
    fn judge(&self, bytes: &[u8]) -> (Answer, Result<(), String>) {
        let judged = message::parse(bytes).map_err(|error| error.to_string());
        match judged.and_then(|message| self.check(&message).map(|()| message)) {
            Ok(message) => {
                let Message { correlation, requester, provider, .. } = &message;
                let text = message::acknowledgment(correlation, requester, provider);
                // The receiver is gone if the process ends.
                let _ = self.messages.send(message);
                (Answer { status: 200, reason: "OK", kind: XML, text }, Ok(()))
            }
            Err(why) => {
                let text = message::fault(&why);
                (Answer { status: 500, reason: "Internal Server Error", kind: XML, text }, Err(why))
            }
        }
    }
}

impl Rules {
    fn check(&self, message: &Message) -> Result<(), String> {
        if message.requester != self.requester {
            return Err(format!(
                "the message is for the requester {:?}, not {:?}",
                message.requester, self.requester
            ));
        }
        if message.provider != self.provider {
            return Err(format!(
                "the message is from the provider {:?}, not {:?}",
                message.provider, self.provider
            ));
        }
        let expected = self.expected.lock();
        let is_own = |connection: &str| expected.connection.as_deref() == Some(connection);
        match &message.body {
            Body::Notification { connection, .. } if is_own(connection) => return Ok(()),
            Body::Notification { connection, .. } => {
                return Err(format!("the connection {connection:?} is not one of this requester"));
            }
            Body::Held(_) | Body::Error(_) | Body::Failed { .. } => {}
            // The name is known before anything but the reservation can be confirmed.
            Body::Confirmed(_, connection) if is_own(connection) => {}
            Body::Confirmed(_, connection) => {
                return Err(format!("the connection {connection:?} is not one of this requester"));
            }
            other => return Err(format!("a requester does not expect this message: {other:?}")),
        }
        match expected.correlations.contains(&message.correlation) {
            true => Ok(()),
            false => Err(format!("the correlation ID {:?} belongs to no request", message.correlation)),
        }
    }
}
