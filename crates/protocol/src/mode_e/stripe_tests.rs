//! Transfers with several senders or several receivers.
#![allow(clippy::unwrap_used)]

use super::tests::{everything, feed};
use super::*;
use crate::range::RangeSet;

#[test]
fn sender_ends_file_at_each_receiver_with_count_of_its_streams() {
    let mut sender = Sender::new(RangeSet::from_range(0..10), 0, 100).unwrap();
    let [a, b, c] = [0, 1, 1].map(|receiver| sender.add_stream_to(receiver).unwrap());
    assert!(matches!(sender.next(b), Some(Next::Block(_))));
    assert_eq!(sender.next(c), Some(Next::End(Header::end_of_data())));
    assert_eq!(sender.next(b), Some(Next::End(Header::end_of_file(2))));
    assert!(!sender.is_finished() && !sender.expect_stream(1));
    // A connection that is being made may have been accepted already.
    assert!(sender.expect_stream(0));
    assert_eq!((sender.next(a), sender.end_with_block(a)), (Some(Next::Wait), None));
    sender.end_expectation(0);
    let late = sender.add_stream_to(0).unwrap();
    assert_eq!(sender.next(a), Some(Next::End(Header::end_of_data())));
    assert_eq!(sender.next(late), Some(Next::End(Header::end_of_file(2))));
    assert!(sender.is_finished());
}

#[test]
fn receiver_of_several_senders_adds_up_their_ends() {
    let mut transfer = Receiver::new(everything(), 0, 3).with_senders(2);
    let mut streams = [(); 3].map(|()| transfer.add_stream().unwrap());
    let end = |count| Header::end_of_file(count).to_bytes();
    feed(&mut streams[0], &mut transfer, end(1)).unwrap();
    assert!(!transfer.is_complete() && transfer.announced().is_none());
    feed(&mut streams[1], &mut transfer, end(2)).unwrap();
    assert_eq!((transfer.announced(), transfer.is_complete()), (Some(3), false));
    feed(&mut streams[2], &mut transfer, Header::end_of_data().to_bytes()).unwrap();
    assert!(transfer.is_complete());
    let mut transfer = Receiver::new(everything(), 0, 3).with_senders(2);
    let mut streams = [(); 2].map(|()| transfer.add_stream().unwrap());
    feed(&mut streams[0], &mut transfer, end(2)).unwrap();
    let refused = feed(&mut streams[1], &mut transfer, end(u64::MAX));
    assert!(matches!(refused, Err(ReceiveError::TooManyAnnounced { .. })), "{refused:?}");
}
