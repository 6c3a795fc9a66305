//! The reports of a node about a transfer, compared with its order.
//!
//! A node has the join token, and is trusted with the files. A report that cannot be true shows
//! that node and front end do not work on the same transfer: the node is lost, and nothing that it
//! has reported counts. A node that stores other bytes than it has received, and reports them as
//! right, can only be found with a checksum of the client.

use ropewalk_nodes::{Order, Sum, Transferred};
use ropewalk_protocol::range::RangeSet;

/// The most streams that are counted for a node. No channel has so many.
const MOST_STREAMS: u32 = 1 << 16;
/// The size of the largest possible file (`off_t`).
const LONGEST_FILE: u64 = i64::MAX as u64;

pub(super) struct Claims {
    task: Task,
    /// The ranges of the order, of which a receiver may report any part.
    ranges: RangeSet,
    /// The bytes of all ranges that the node has reported as stored.
    stored: u64,
    /// The bytes that the node has been given to send, and whether these were all.
    given: u64,
    is_complete: bool,
}

enum Task {
    Receive,
    Send {
        /// Blocks that are sent again count again.
        resends: bool,
    },
    SendBytes,
}

impl Claims {
    pub(super) fn new(order: &Order) -> Self {
        let set = |pairs: &[(u64, u64)]| pairs.iter().map(|(start, end)| *start..*end).collect();
        let (task, ranges) = match order {
            Order::Receive(order) => (Task::Receive, set(&order.accept)),
            Order::Send(order) => (Task::Send { resends: order.moves.resend }, set(&order.ranges)),
            _ => (Task::SendBytes, RangeSet::new()),
        };
        Self { task, ranges, stored: 0, given: 0, is_complete: false }
    }

    /// The node has been given this number of bytes to send; 0 if there are no more.
    pub(super) fn give(&mut self, bytes: usize) {
        self.given += bytes as u64;
        self.is_complete |= bytes == 0;
    }

    /// Takes a range that the node reports as stored.
    ///
    /// # Errors
    /// The text says what is wrong with the report.
    pub(super) fn stored(&mut self, sum: &Sum) -> Result<(), String> {
        let Sum { start, end, .. } = *sum;
        if !matches!(self.task, Task::Receive) {
            return Err(format!("it was to send, and reports the bytes {start}-{end} as stored"));
        }
        if start >= end || end > LONGEST_FILE || !self.ranges.contains(start..end) {
            return Err(format!(
                "it reports the bytes {start}-{end} as stored, which its order does not have"
            ));
        }
        // A sender may send a range several times, but not more than 2^64 bytes.
        self.stored = self.stored.saturating_add(end - start);
        Ok(())
    }

    /// Checks the report that the node has done its part.
    ///
    /// # Errors
    /// The text says what is wrong with the report.
    pub(super) fn ended(&self, result: &Transferred) -> Result<(), String> {
        let Transferred { bytes, .. } = *result;
        let wanted = self.ranges.len();
        match self.task {
            Task::Receive if bytes != self.stored => {
                Err(format!("it reports {bytes} bytes in all, and {} bytes in ranges", self.stored))
            }
            Task::Send { resends } if bytes < wanted || bytes > wanted && !resends => {
                Err(format!("it reports {bytes} bytes as sent, and was to send {wanted}"))
            }
            Task::SendBytes if bytes != self.given || !self.is_complete => {
                let all = if self.is_complete { "all" } else { "not all" };
                Err(format!(
                    "it reports {bytes} bytes as sent, and was given {}, which were {all}",
                    self.given
                ))
            }
            _ => self.sums(&result.sums),
        }
    }

    fn sums(&self, sums: &[Sum]) -> Result<(), String> {
        let outside =
            sums.iter().find(|sum| sum.start >= sum.end || !self.ranges.contains(sum.start..sum.end));
        match outside {
            Some(Sum { start, end, .. }) => Err(format!(
                "it reports a checksum of the bytes {start}-{end}, which its order does not have"
            )),
            None => Ok(()),
        }
    }

    /// The number of streams that is shown for a node that reports this one.
    pub(super) fn streams(reported: u32) -> u32 {
        reported.min(MOST_STREAMS)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_limits::Grant;
    use ropewalk_nodes::{FileOrder, MoveOrder, ReceiveOrder, SendOrder};

    use super::*;

    fn moves(resend: bool) -> MoveOrder {
        let grant = Grant { epoch: 0, total: None, window: 0 };
        MoveOrder { parallelism: 1, ascii: false, congestion: None, resend, grant, marks: None }
    }

    fn file() -> FileOrder {
        FileOrder { path: b"/f".to_vec(), inode: 1, owner: None }
    }

    fn receive(accept: Vec<(u64, u64)>) -> Claims {
        Claims::new(&Order::Receive(ReceiveOrder {
            file: file(),
            moves: moves(false),
            accept,
            origin: 0,
            checksum: None,
            sparse: false,
            sync_each: false,
            sync_end: false,
        }))
    }

    fn send(resend: bool) -> Claims {
        let ranges = vec![(10, 20), (30, 40)];
        Claims::new(&Order::Send(SendOrder {
            file: file(),
            moves: moves(resend),
            ranges,
            origin: 0,
            checksum: None,
        }))
    }

    fn sum(start: u64, end: u64) -> Sum {
        Sum { start, end, sum: None }
    }

    fn done(bytes: u64, sums: Vec<Sum>) -> Transferred {
        Transferred { bytes, streams: 1, cached: 0, sums }
    }

    #[test]
    fn receiver_may_report_only_bytes_of_its_order() {
        let mut claims = receive(vec![(10, 20), (30, u64::MAX)]);
        for (start, end) in [(10, 20), (12, 13), (1 << 60, i64::MAX as u64)] {
            claims.stored(&sum(start, end)).unwrap();
        }
        for (start, end) in [(9, 12), (15, 31), (20, 30), (12, 12), (18, 12), (0, u64::MAX), (40, 1 << 63)] {
            let wrong = claims.stored(&sum(start, end)).unwrap_err();
            assert!(wrong.contains(&format!("the bytes {start}-{end}")), "{wrong}");
        }
        let wrong = send(false).stored(&sum(10, 20)).unwrap_err();
        assert!(wrong.starts_with("it was to send"), "{wrong}");
    }

    #[test]
    fn receiver_has_to_report_each_byte_that_it_counts() {
        let mut claims = receive(vec![(0, u64::MAX)]);
        claims.stored(&sum(0, 10)).unwrap();
        claims.ended(&done(10, Vec::new())).unwrap();
        for bytes in [0, 9, 11, u64::MAX] {
            let wrong = claims.ended(&done(bytes, Vec::new())).unwrap_err();
            assert_eq!(wrong, format!("it reports {bytes} bytes in all, and 10 bytes in ranges"));
        }
        // More bytes than a number of 64 bits counts.
        for _ in 0..3 {
            claims.stored(&sum(0, i64::MAX as u64)).unwrap();
        }
        claims.ended(&done(u64::MAX, Vec::new())).unwrap();
    }

    #[test]
    fn sender_has_to_send_its_share() {
        send(false).ended(&done(20, vec![sum(10, 20), sum(30, 35)])).unwrap();
        send(true).ended(&done(25, Vec::new())).unwrap();
        for (resend, bytes) in [(false, 19), (false, 21), (true, 19)] {
            let wrong = send(resend).ended(&done(bytes, Vec::new())).unwrap_err();
            assert!(wrong.ends_with("was to send 20"), "{wrong}");
        }
        let wrong = send(false).ended(&done(20, vec![sum(10, 31)])).unwrap_err();
        assert!(wrong.contains("checksum of the bytes 10-31"), "{wrong}");
    }

    #[test]
    fn sender_of_given_bytes_has_to_send_all_of_them() {
        let mut claims = Claims::new(&Order::SendBytes(moves(false)));
        claims.give(7);
        assert!(claims.ended(&done(7, Vec::new())).unwrap_err().ends_with("which were not all"));
        claims.give(0);
        claims.ended(&done(7, Vec::new())).unwrap();
        assert!(claims.ended(&done(6, Vec::new())).is_err());
    }
}
