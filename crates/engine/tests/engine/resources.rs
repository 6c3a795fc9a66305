//! The memory, the threads, the descriptors and the socket buffers that transfers use.

use std::io::{self, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use crate::common::{self, *};
use ropewalk_engine::{DataChannel, Nobody, Progress};
use ropewalk_protocol::server::Mode;
use ropewalk_transport::{Breaker, Connection, Driver as _, Endpoint, Listener, Readiness, Tcp};

over_every_driver! {
    memory_keeps_its_bound_with_two_hundred_streams,
    few_threads_are_enough,
}

fn memory_keeps_its_bound_with_two_hundred_streams(net: &Net) {
    let total = 4 << 20;
    let budget = ropewalk_engine::BufferBudget::new(total);
    let (listener, address) = listen(net);
    let mut settings = settings(Mode::ExtendedBlock, 200);
    settings.block_size = 1 << 20;
    let pool = pool();
    let mut sender = DataChannel::active(
        Arc::clone(net),
        vec![address],
        settings.clone(),
        Arc::clone(&pool),
        ropewalk_engine::BufferBudget::new(total),
    );
    let mut receiver = DataChannel::passive(listener, settings, pool, Arc::clone(&budget));
    // Without descriptors every stream needs buffers.
    let contents = data(220 << 20);
    let (sent, received) = roundtrip(&mut sender, &mut receiver, &contents, false);
    assert_eq!((sent.streams, received.streams), (200, 200));
    assert!(budget.peak() <= total + 2 * 200 * ropewalk_engine::MIN_BUFFER, "{}", budget.peak());
    assert_eq!(budget.used(), 0);
}

fn few_threads_are_enough(net: &Net) {
    let (listener, address) = listen(net);
    let settings = settings(Mode::ExtendedBlock, 6);
    let pool = Arc::new(ropewalk_engine::Pool::new("test", 1));
    let mut sender = DataChannel::active(
        Arc::clone(net),
        vec![address],
        settings.clone(),
        common::pool(),
        common::budget(),
    );
    let mut receiver = DataChannel::passive(listener, settings, pool, common::budget());
    for _ in 0..3 {
        roundtrip(&mut sender, &mut receiver, &data(30_000_000), true);
        roundtrip(&mut sender, &mut receiver, &data(30), true);
    }
    // And the other way round: there is no thread for further streams.
    let (listener, address) = listen(net);
    let settings = common::settings(Mode::ExtendedBlock, 6);
    let pool = Arc::new(ropewalk_engine::Pool::new("test", 1));
    let mut sender = DataChannel::passive(listener, settings.clone(), pool, common::budget());
    let mut receiver =
        DataChannel::active(Arc::clone(net), vec![address], settings, common::pool(), common::budget());
    for _ in 0..3 {
        roundtrip(&mut sender, &mut receiver, &data(30_000_000), true);
        roundtrip(&mut sender, &mut receiver, &data(30), true);
    }
}

#[test]
fn socket_buffers_that_are_asked_for_are_left_alone() {
    let mut asked = settings(Mode::ExtendedBlock, 2);
    asked.options.tuning.send_buffer = Some(32_768);
    asked.options.tuning.receive_buffer = Some(32_768);
    let listener = Tcp.listen(([127, 0, 0, 1], 0).into(), &asked.options).unwrap();
    let address = listener.local_addr().unwrap();
    let mut receiver = DataChannel::passive(listener, asked.clone(), pool(), budget());
    let mut sender = DataChannel::active(Arc::new(Tcp), vec![address], asked, pool(), budget());
    roundtrip(&mut sender, &mut receiver, &data(3_000_000), true);
}

/// A listener that reports when it is to close connections whose handshakes take too long.
struct Asked(Box<dyn Listener>, mpsc::Sender<()>);

impl Listener for Asked {
    fn local_addr(&self) -> io::Result<Endpoint> {
        self.0.local_addr()
    }
    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>> {
        self.0.accept(deadline)
    }
    fn close_late(&self) {
        // The test does not wait for it any more.
        let _ = self.1.send(());
    }
    fn readiness(&self) -> Readiness<'_> {
        self.0.readiness()
    }
    fn breaker(&self) -> io::Result<Breaker> {
        self.0.breaker()
    }
}

/// Strangers would otherwise keep their descriptors for as long as the transfer takes.
#[test]
fn late_handshakes_are_closed_while_a_transfer_accepts_no_connection() {
    for (mode, sends) in
        [Mode::Stream, Mode::ExtendedBlock].into_iter().flat_map(|mode| [(mode, true), (mode, false)])
    {
        let (listener, address) = listen(&tcp());
        let (ask, asked) = mpsc::channel();
        let settings = settings(mode, 1);
        let mut channel = DataChannel::passive(Box::new(Asked(listener, ask)), settings, pool(), budget());
        let mut peer = TcpStream::connect(address).unwrap();
        if !sends {
            // The head of a block of 100 bytes.
            peer.write_all(&[&[0][..], &100_u64.to_be_bytes(), &0_u64.to_be_bytes()].concat()).unwrap();
        }
        thread::scope(|scope| {
            let moving = scope.spawn(move || match sends {
                true => {
                    // More than the buffers of the sockets hold.
                    let source = TestFile::new(&vec![0; 64 << 20], true);
                    channel.send(&send_job(&source), &mut Nobody, &Progress::new()).map(drop)
                }
                false => channel.receive_writer(&mut Vec::new(), &mut Nobody, &Progress::new()).map(drop),
            });
            for _ in 0..3 {
                asked.recv_timeout(PATIENCE).unwrap();
            }
            drop(peer);
            let moved = moving.join().unwrap();
            assert_eq!(moved.is_ok(), mode == Mode::Stream && !sends, "{mode:?} {sends}");
        });
    }
}
