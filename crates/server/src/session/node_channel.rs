//! The part of a data channel that is on one data node.
//!
//! The front end opens and commits files; the node opens the same file by its path in the shared
//! file system, moves the bytes, and reports what it has stored. The thread of the session owns the
//! link. A node that fails to answer is lost, and one that has drained says that it leaves; its
//! link is not used again.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use ropewalk_nodes::{
    ChannelOrder, ChannelPurse, Chosen, LinkError, MoveFailure, OpenAccount, Order, Report,
};
use ropewalk_protocol::server::Failure;

/// The answer to an order that makes no data connection.
const ANSWER: Duration = Duration::from_secs(10);
/// The longest text of a node that clients get, in characters.
const MOST_TEXT: usize = 1000;

pub(crate) struct NodeChannel {
    pub(super) chosen: Chosen,
    /// Pays for the bytes that the node moves.
    pub(super) account: OpenAccount,
    /// Connections that the node keeps for the next transfer.
    pub(super) cached: usize,
    /// The node has made a report that cannot be true, so what it has reported as stored may not be
    /// there.
    pub(super) is_doubtful: bool,
    /// The end of the last range of the file that the node has reported as stored.
    pub(super) stored_end: u64,
}

impl NodeChannel {
    /// Lets the node listen, and returns the address for the client.
    pub(crate) fn listen(
        chosen: Chosen,
        channel: ChannelOrder,
        purse: ChannelPurse,
    ) -> Result<(Self, SocketAddr), Failure> {
        let (mut made, channel) = Self::new(chosen, channel, purse);
        let address = made.chosen.address;
        match made.ask(&Order::Listen { address, channel })? {
            // No client can connect to the port 0.
            Report::Listening(bound) if bound.port() == 0 => {
                Err(made.contradicts("it reports that it listens at port 0"))
            }
            Report::Listening(bound) => Ok((made, SocketAddr::new(address, bound.port()))),
            other => Err(made.out_of_turn(&other)),
        }
    }

    /// Gives the node the addresses to connect to.
    pub(crate) fn connect(
        chosen: Chosen,
        addresses: Vec<SocketAddr>,
        channel: ChannelOrder,
        purse: ChannelPurse,
    ) -> Result<Self, Failure> {
        let (mut made, channel) = Self::new(chosen, channel, purse);
        match made.ask(&Order::Connect { addresses, channel })? {
            Report::Done => Ok(made),
            other => Err(made.out_of_turn(&other)),
        }
    }

    fn new(chosen: Chosen, channel: ChannelOrder, purse: ChannelPurse) -> (Self, Box<ChannelOrder>) {
        let account = chosen.open_account(purse);
        let channel = ChannelOrder { account: account.number(), ..channel };
        (Self { chosen, account, cached: 0, is_doubtful: false, stored_end: 0 }, Box::new(channel))
    }

    fn ask(&mut self, order: &Order) -> Result<Report, Failure> {
        self.send(order)?;
        let answer = self.chosen.link.expect(ANSWER).and_then(|frame| frame.message());
        match answer.map_err(|error| self.lost(&error))? {
            Report::Failed(failure) => Err(failure_of(failure)),
            Report::Left => Err(self.left()),
            report => Ok(report),
        }
    }

    /// Sends an order whose reports are followed elsewhere.
    pub(super) fn send(&mut self, order: &Order) -> Result<(), Failure> {
        if self.chosen.broken {
            return Err(self.gone());
        }
        let sent = self.chosen.link.send(order);
        sent.map_err(|error| if self.has_left() { self.left() } else { self.lost(&error) })
    }

    /// Whether the last message of the node is that it leaves.
    fn has_left(&mut self) -> bool {
        let last = self.chosen.link.ready();
        matches!(last, Ok(Some(frame)) if matches!(frame.message(), Ok(Report::Left)))
    }

    /// The node has drained, and does not carry out the last order.
    pub(super) fn left(&mut self) -> Failure {
        self.chosen.broken = true;
        self.cached = 0;
        tracing::info!(node = self.chosen.name, "a data node has left in order");
        self.gone()
    }

    fn gone(&self) -> Failure {
        let name = &self.chosen.name;
        Failure::DataConnection(format!("the data node {name} is gone: send PASV, EPSV or PORT again"))
    }

    /// Closes the connections that the node keeps.
    pub(super) fn discard(&mut self) {
        self.cached = 0;
        if !self.chosen.broken {
            // A node that is lost has no connections either.
            let _ = self.ask(&Order::Discard);
        }
    }

    pub(super) fn lost(&mut self, error: &LinkError) -> Failure {
        self.chosen.broken = true;
        self.cached = 0;
        if matches!(error, LinkError::Message(_) | LinkError::False(_)) {
            self.chosen.distrust();
            tracing::error!(
                node = self.chosen.name, %error,
                "a data node breaks the rules, and gets no new channels until it joins again"
            );
        }
        tracing::warn!(node = self.chosen.name, %error, "a data node is lost");
        Failure::DataBroken(format!("the data node {} is lost: {error}", self.chosen.name))
    }

    pub(super) fn out_of_turn(&mut self, report: &Report) -> Failure {
        self.lost(&LinkError::Message(format!("{} out of turn", report.kind())))
    }

    /// The node is lost because it has made a report that cannot be true; `text` says which.
    pub(super) fn contradicts(&mut self, text: &str) -> Failure {
        self.is_doubtful = true;
        self.lost(&LinkError::False(text.to_owned()))
    }

    /// The node is lost because it missed a time limit.
    pub(super) fn late(&mut self, text: String) -> Failure {
        self.lost(&io::Error::new(ErrorKind::TimedOut, text).into())
    }
}

pub(super) fn failure_of(failure: MoveFailure) -> Failure {
    match failure {
        MoveFailure::System { errno, action } => Failure::System { errno, action: short(action) },
        MoveFailure::Connection(text) => Failure::DataConnection(short(text)),
        MoveFailure::Broken(text) => Failure::DataBroken(short(text)),
        MoveFailure::Refused(text) => Failure::Refused { code: 553, text: short(text) },
        MoveFailure::Aborted => Failure::Aborted,
    }
}

/// A text of a node becomes part of a reply.
fn short(text: String) -> String {
    match text.char_indices().nth(MOST_TEXT) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}
