//! Channels whose other end is written by hand.

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ropewalk_engine::{ChannelSettings, DataChannel, Error, Nobody, Progress, ReceiveJob, Received};
use ropewalk_protocol::mode_e::{Descriptor, Header};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;
use ropewalk_transport::Tcp;

use crate::common::*;

pub(crate) const SHORT: Duration = Duration::from_millis(300);

/// A listening receiver, and where it listens.
pub(crate) fn receiver(mode: Mode) -> (DataChannel, SocketAddr) {
    // A missing connection is the cause that tests expect, so it is noticed before the stall.
    let stall_timeout = Some(2 * PATIENCE);
    receiver_with(ChannelSettings { stall_timeout, ..settings(mode, 1) })
}

pub(crate) fn receiver_with(settings: ChannelSettings) -> (DataChannel, SocketAddr) {
    let (listener, address) = listen(&tcp());
    (DataChannel::passive(listener, settings, pool(), budget()), address)
}

/// A connecting sender, and the listener that it will connect to.
pub(crate) fn sender(mode: Mode, streams: u32) -> (DataChannel, std::net::TcpListener) {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let settings = settings(mode, streams);
    (DataChannel::active(Arc::new(Tcp), vec![address], settings, pool(), budget()), listener)
}

/// Connections that send the given bytes and are then closed, or are left open.
pub(crate) fn play(address: SocketAddr, scripts: &[(Vec<u8>, bool)]) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for (bytes, close) in scripts {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        // The other side may have read enough and be gone.
        if *close && let Err(e) = stream.shutdown(Shutdown::Write) {
            assert_eq!(e.kind(), ErrorKind::NotConnected);
        }
        open.push(stream);
    }
    open
}

pub(crate) fn receive(channel: &mut DataChannel, accept: RangeSet) -> (Result<Received, Error>, Vec<u8>) {
    let sink = TestFile::new(b"", true);
    let job = ReceiveJob { accept, ..receive_job(&sink) };
    let result = channel.receive(&job, &mut Nobody, &Progress::new());
    (result, sink.contents())
}

/// Returns the result of receiving from peers that send these bytes.
pub(crate) fn received(scripts: &[(Vec<u8>, bool)]) -> (Result<Received, Error>, Vec<u8>) {
    let (mut channel, address) = receiver(Mode::ExtendedBlock);
    let _open = play(address, scripts);
    let result = receive(&mut channel, RangeSet::from_range(0..1_000_000));
    if result.0.is_err() {
        assert_eq!(channel.cached(), 0);
    }
    result
}

pub(crate) fn block(offset: u64, data: &[u8]) -> Vec<u8> {
    [&Header::data(offset, data.len() as u64).to_bytes()[..], data].concat()
}

pub(crate) fn eod() -> Vec<u8> {
    Header::end_of_data().to_bytes().to_vec()
}

pub(crate) fn eof(streams: u64) -> Vec<u8> {
    Header::end_of_file(streams).to_bytes().to_vec()
}

pub(crate) fn header(bits: u8, count: u64, offset: u64) -> Vec<u8> {
    Header { descriptor: Descriptor::from_bits(bits), count, offset }.to_bytes().to_vec()
}
