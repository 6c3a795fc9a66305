//! Transfers with several receivers or several senders: the stripes of a file.

use std::sync::Arc;
use std::thread;

use crate::common::*;
use ropewalk_engine::{ChannelSettings, DataChannel, Nobody, Progress, SendJob};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::Mode;

over_every_driver! {
    every_stripe_gets_its_own_end,
    receiver_of_several_senders_waits_for_the_end_of_each,
    each_of_several_senders_may_have_as_many_streams_as_one,
}

fn every_stripe_gets_its_own_end(net: &Net) {
    let listeners: Vec<_> = (0..3).map(|_| listen(net)).collect();
    let addresses = listeners.iter().map(|(_, address)| *address).collect();
    let settings = settings(Mode::ExtendedBlock, 2);
    let (pool, budget) = (pool(), budget());
    let mut sender = DataChannel::active(
        Arc::clone(net),
        addresses,
        settings.clone(),
        Arc::clone(&pool),
        Arc::clone(&budget),
    );
    let mut receivers: Vec<DataChannel> = listeners
        .into_iter()
        .map(|(listener, _)| {
            DataChannel::passive(listener, settings.clone(), Arc::clone(&pool), Arc::clone(&budget))
        })
        .collect();
    for _ in 0..2 {
        let contents = data(2_000_000);
        let source = TestFile::new(&contents, true);
        let sinks: Vec<_> = (0..3).map(|_| TestFile::new(b"", true)).collect();
        thread::scope(|scope| {
            scope.spawn(|| sender.send(&send_job(&source), &mut Nobody, &Progress::new()).unwrap());
            for (receiver, sink) in receivers.iter_mut().zip(&sinks) {
                scope.spawn(|| receiver.receive(&receive_job(sink), &mut Nobody, &Progress::new()).unwrap());
            }
        });
        // Each byte is at one of them, and zeros are before it at the others.
        let mut all = vec![0; contents.len()];
        for sink in &sinks {
            for (byte, part) in all.iter_mut().zip(sink.contents()) {
                *byte |= part;
            }
        }
        assert!(all == contents);
    }
}

fn receiver_of_several_senders_waits_for_the_end_of_each(net: &Net) {
    receive_from_three(net, settings(Mode::ExtendedBlock, 2), [700_000, 700_000]);
}

/// All of them together have more than 128.
fn each_of_several_senders_may_have_as_many_streams_as_one(net: &Net) {
    let settings = settings(Mode::ExtendedBlock, 48);
    let settings = ChannelSettings { max_streams: 48, block_size: 8 << 10, ..settings };
    receive_from_three(net, settings, [700_000, 1_400_000]);
}

/// `shares` are the ends of those of the first two senders.
fn receive_from_three(net: &Net, settings: ChannelSettings, [first, second]: [u64; 2]) {
    let (listener, address) = listen(net);
    let (pool, budget) = (pool(), budget());
    let mut receiver =
        DataChannel::passive(listener, settings.clone(), Arc::clone(&pool), Arc::clone(&budget));
    receiver.set_senders(3);
    let mut senders: Vec<DataChannel> = (0..3)
        .map(|_| {
            let (pool, budget) = (Arc::clone(&pool), Arc::clone(&budget));
            DataChannel::active(Arc::clone(net), vec![address], settings.clone(), pool, budget)
        })
        .collect();
    for _ in 0..2 {
        let contents = data(2_000_000);
        let (source, sink) = (TestFile::new(&contents, true), TestFile::new(b"", true));
        thread::scope(|scope| {
            for (sender, share) in senders.iter_mut().zip([0..first, first..second, second..2_000_000]) {
                let ranges = RangeSet::from_range(share);
                let job = SendJob { ranges, ..send_job(&source) };
                scope.spawn(move || sender.send(&job, &mut Nobody, &Progress::new()).unwrap());
            }
            receiver.receive(&receive_job(&sink), &mut Nobody, &Progress::new()).unwrap();
        });
        assert!(sink.contents() == contents);
    }
}
