//! How the lines of the control connection look on the wire: clear, or protected (RFC 2228).

use std::borrow::Cow;
use std::io;

use ropewalk_protocol::reply::Reply;

/// Stands between a session and its control connection.
pub(crate) trait ControlCodec: Send {
    /// Appends what is sent for a reply.
    fn encode(&mut self, reply: &Reply, out: &mut Vec<u8>);
    /// The bytes of command lines in what was received. An error ends the connection.
    fn decode<'a>(&mut self, received: &'a [u8]) -> io::Result<Cow<'a, [u8]>>;
}

/// Everything as it is.
pub(crate) struct ClearText;

impl ControlCodec for ClearText {
    fn encode(&mut self, reply: &Reply, out: &mut Vec<u8>) {
        reply.encode(out);
    }

    fn decode<'a>(&mut self, received: &'a [u8]) -> io::Result<Cow<'a, [u8]>> {
        Ok(Cow::Borrowed(received))
    }
}
