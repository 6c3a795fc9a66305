//! The interface of a provider of paths: orders in, answers out.

use std::time::Duration;

use crate::{Binding, Id, Request};

/// A step that a provider is asked for. Each one may be repeated without harm, but [`Step::Hold`]
/// and [`Step::Extend`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Take the resources of a path for a short time. It is sent once for each reservation.
    Hold,
    /// Keep them for the reserved time.
    Commit,
    /// Drop what is held and not committed.
    Abort,
    /// Make the path usable.
    Activate,
    /// Report the state, of the path with the reference or, without one, with the ID.
    Query,
    /// Hold a later end of a path in use: that of the request. It is sent once for each extension,
    /// and followed by [`Step::Commit`] or [`Step::Abort`].
    Extend,
    /// Report the state of the extension to the end of the request: [`State::Checking`],
    /// [`State::Held`], [`State::Reserved`] (committed), [`State::Failed`], or [`State::Gone`] (the
    /// provider knows of none).
    QueryExtension,
    /// Make the path unusable again; it stays reserved.
    Release,
    /// Remove the path.
    Terminate,
}

impl Step {
    pub fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Commit => "commit",
            Self::Abort => "abort",
            Self::Activate => "activate",
            Self::Query => "query",
            Self::Extend => "extend",
            Self::QueryExtension => "query the extension",
            Self::Release => "release",
            Self::Terminate => "terminate",
        }
    }
}

/// A step, and what the provider needs to carry it out.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    pub id: Id,
    /// Counts the orders of a reservation. An answer names the order that it belongs to.
    pub number: u64,
    pub step: Step,
    pub reference: Option<String>,
    pub request: Request,
}

/// A message of a provider.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub id: Id,
    /// The number of the order; `None`: a notification. A notification is not believed: the
    /// provider is queried.
    pub number: Option<u64>,
    /// The provider's name of the path, once it is known.
    pub reference: Option<String>,
    pub outcome: Outcome,
}

/// The content of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The order has arrived; its result follows.
    Accepted,
    State(State),
    /// The provider did not get the order.
    NotSent(String),
    /// The provider got the order and does not carry it out.
    Refused(String),
    /// It is not known whether the provider got the order.
    Unclear(String),
}

impl Outcome {
    /// The answer of a provider that does not extend paths.
    pub fn not_extendable() -> Self {
        Self::Refused("the provider cannot extend paths".to_owned())
    }
}

/// The state of a path at its provider.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// The provider looks for resources.
    Checking,
    Held,
    /// Committed, and not activated.
    Reserved,
    /// Activated, and not usable yet.
    Activated,
    /// Usable.
    Up(Binding),
    /// The provider has dropped it, and says why.
    Failed(String),
    /// The provider has no such path (any more).
    Gone,
}

/// How long a step may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From a request to its result.
    pub answer: Duration,
    /// How long a provider keeps what is held and not committed.
    pub hold: Duration,
    /// From the activation to a usable path.
    pub up: Duration,
    /// How long a path that has to go is attended to before it is left to the journal.
    pub end: Duration,
    /// The pause between queries, and before an order is repeated.
    pub pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(60),
            hold: Duration::from_secs(120),
            up: Duration::from_secs(300),
            end: Duration::from_secs(30),
            pause: Duration::from_secs(5),
        }
    }
}

/// Carries orders out. A provider may answer at once, or later by [`Provider::receive`].
pub trait Provider: Send {
    fn limits(&self) -> Limits;

    /// Carries an order out, or passes it on. It blocks for a limited time.
    fn send(&mut self, order: &Order) -> Outcome;

    /// Waits at most this long for a message.
    fn receive(&mut self, limit: Duration) -> Option<Answer>;

    /// The provider's name of the path, if the last order has made one.
    fn reference(&self) -> Option<String>;
}
