//! A reservation as the journal keeps it.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The name of a reservation, chosen by this program: a random UUID (RFC 9562, version 4).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id(String);

impl Id {
    /// # Panics
    /// The system has no random numbers.
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        if let Err(error) = getrandom::fill(&mut bytes) {
            panic!("the system has no random numbers: {error}");
        }
        Self::of_bytes(bytes)
    }

    fn of_bytes(mut bytes: [u8; 16]) -> Self {
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let mut text = String::with_capacity(36);
        for (at, byte) in bytes.into_iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            text += &format!("{byte:02x}");
        }
        Self(text)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let valid = text.len() == 36
            && text.bytes().enumerate().all(|(at, byte)| match at {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            });
        match valid {
            true => Ok(Self(text.to_owned())),
            false => Err(format!("{text:?} is not the ID of a reservation")),
        }
    }
}

impl TryFrom<String> for Id {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.0
    }
}

/// The wanted path. Times are since 1970-01-01T00:00:00Z.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Request {
    /// The begin of the reserved time; `None`: as soon as possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Duration>,
    /// The end of the reserved time: the provider then removes the path by itself.
    pub until: Duration,
    /// Bits per second; `None`: the provider's own value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// For people: the transfer that needs the path.
    #[serde(default)]
    pub description: String,
}

/// The local ends that a transfer has to use so that its data takes the path. `None` leaves a
/// choice to the system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The local address of data connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The local interface of data connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Bits per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    /// Bytes of a packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
}

/// The program that a reservation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// A transfer. Without the process, the path is terminated.
    Transfer,
    /// A person, who keeps it until it is cancelled or its time is over. A reservation of a person
    /// belongs to the process until all of it is there.
    Person,
}

/// The place of a reservation in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Nothing was requested.
    New,
    Holding,
    Committing,
    /// Committed, and not in use.
    Reserved,
    Activating,
    Up,
    Releasing,
    Aborting,
    /// The provider is asked for a path whose name is not known here.
    Finding,
    Terminating,
    Ended,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::New => "new",
            Self::Holding => "holding",
            Self::Committing => "committing",
            Self::Reserved => "reserved",
            Self::Activating => "activating",
            Self::Up => "up",
            Self::Releasing => "releasing",
            Self::Aborting => "aborting",
            Self::Finding => "finding",
            Self::Terminating => "terminating",
            Self::Ended => "ended",
        })
    }
}

/// A part of a server that is reserved together with the path.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Held {
    /// The server, or a directory there, without a password.
    pub url: String,
    /// The name of the reservation at the server.
    pub token: String,
    #[serde(flatten)]
    pub part: Part,
}

/// The amount of a [`Held`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Part {
    /// Space in the directory.
    Space { bytes: u64 },
    /// Transfers at a time, and bytes per second of all of them together.
    Slots { slots: u32, rate: u64 },
}

/// A reservation as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct Entry {
    pub id: Id,
    /// The provider as `--path` names it, with an absolute path.
    pub provider: String,
    pub owner: Owner,
    pub request: Request,
    pub phase: Phase,
    /// The provider's own name of the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// When the path was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested: Option<Duration>,
    /// Why the path cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// By how much the path is extended each time, while it is in use; `None`: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extend_by: Option<Duration>,
    /// The end of the reserved time that was requested, and is not confirmed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extending: Option<Duration>,
    /// They end by themselves with the time of the path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<Held>,
}

impl Entry {
    pub fn new(provider: String, owner: Owner, request: Request) -> Self {
        Self {
            id: Id::random(),
            provider,
            owner,
            request,
            phase: Phase::New,
            reference: None,
            requested: None,
            failure: None,
            extend_by: None,
            extending: None,
            held: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_a_uuid_and_other_text_is_refused() {
        let id = Id::random();
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        assert_ne!(id, Id::random());
        assert_eq!(Id::of_bytes([0xff; 16]).as_str(), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        for text in ["", "../../etc/passwd", "ffffffff-ffff-4fff-bfff-fffffffffff/"] {
            assert!(text.parse::<Id>().is_err(), "{text}");
        }
    }
}
