//! The memory, the threads and the socket buffers that transfers use.

use std::sync::Arc;

use crate::common::{self, *};
use ropewalk_engine::DataChannel;
use ropewalk_protocol::server::Mode;
use ropewalk_transport::{Driver as _, Tcp};

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
