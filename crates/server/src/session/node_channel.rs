//! The part of a data channel that is on one data node.
//!
//! The front end opens and commits files; the node opens the same file by its path in the shared
//! file system, moves the bytes, and reports what it has stored. The thread of the session owns the
//! link. A node that fails to answer is lost: its link is not used again.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use ropewalk_nodes::{
    ChannelOrder, ChannelPurse, Chosen, LinkError, MoveFailure, OpenAccount, Order, Report,
};
use ropewalk_protocol::server::Failure;

/// The answer to an order that makes no data connection.
const ANSWER: Duration = Duration::from_secs(10);

pub(crate) struct NodeChannel {
    pub(super) chosen: Chosen,
    /// Pays for the bytes that the node moves.
    pub(super) account: OpenAccount,
    /// Connections that the node keeps for the next transfer.
    pub(super) cached: usize,
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
        (Self { chosen, account, cached: 0 }, Box::new(channel))
    }

    fn ask(&mut self, order: &Order) -> Result<Report, Failure> {
        let link = &mut self.chosen.link;
        let answer = link.send(order).and_then(|()| link.expect(ANSWER)?.message());
        match answer.map_err(|error| self.lost(&error))? {
            Report::Failed(failure) => Err(failure_of(failure)),
            report => Ok(report),
        }
    }

    /// Sends an order whose reports are followed elsewhere.
    pub(super) fn send(&mut self, order: &Order) -> Result<(), Failure> {
        self.chosen.link.send(order).map_err(|error| self.lost(&error))
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
        tracing::warn!(node = self.chosen.name, %error, "a data node is lost");
        Failure::DataBroken(format!("the data node {} is lost: {error}", self.chosen.name))
    }

    pub(super) fn out_of_turn(&mut self, report: &Report) -> Failure {
        self.lost(&LinkError::Message(format!("{report:?} out of turn")))
    }

    /// The node is lost because it missed a time limit.
    pub(super) fn late(&mut self, text: String) -> Failure {
        self.lost(&io::Error::new(ErrorKind::TimedOut, text).into())
    }
}

pub(super) fn failure_of(failure: MoveFailure) -> Failure {
    match failure {
        MoveFailure::System { errno, action } => Failure::System { errno, action },
        MoveFailure::Connection(text) => Failure::DataConnection(text),
        MoveFailure::Broken(text) => Failure::DataBroken(text),
        MoveFailure::Refused(text) => Failure::Refused { code: 553, text },
        MoveFailure::Aborted => Failure::Aborted,
    }
}
