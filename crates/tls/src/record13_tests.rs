//! Tests of the record layer with a peer that can send any record.

#![allow(clippy::unwrap_used)]
use zeroize::Zeroizing;

use super::*;
use crate::traffic::Suite;

const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

fn keys(suite: Suite, secret: u8) -> Keys {
    let length = if suite == Suite::Aes256Gcm { 48 } else { 32 };
    Keys::new(suite, Zeroizing::new(vec![secret; length])).unwrap().unwrap()
}

/// A peer that can send any record, and the side under test.
struct Pair {
    peer: Keys,
    opener: Opener,
    sealer: Sealer,
    input: Queue,
    out: Queue,
}

impl Pair {
    fn new(from_server: bool) -> Self {
        let suite = Suite::Aes256Gcm;
        Self {
            peer: keys(suite, 1),
            opener: Opener::new(keys(suite, 1), from_server),
            sealer: Sealer::new(keys(suite, 2)),
            input: Queue::default(),
            out: Queue::default(),
        }
    }

    /// Sends a record of the peer.
    fn send(&mut self, content_type: u8, content: &[u8]) {
        let mut record = vec![0; HEADER + content.len() + 1 + TAG];
        self.peer.seal(content_type, |most| &content[content.len() - most..], &mut record).unwrap();
        self.input.put(&record);
    }

    fn open(&mut self) -> Result<(Opened, Vec<u8>), Violation> {
        let (mut buffer, mut rest) = (vec![0; RECORD], Vec::new());
        let Self { opener, sealer, input, out, .. } = self;
        let opened = opener.open(input, &mut buffer, &mut rest, sealer, out)?;
        assert!(rest.is_empty());
        buffer.truncate(if let Opened::Bytes(count) = opened { count } else { 0 });
        Ok((opened, buffer))
    }

    /// Checks that the input is refused for good and that the peer is sent this alert.
    fn refuses(mut self, alert: u8) -> Violation {
        let violation = self.open().unwrap_err();
        assert!(matches!(self.open(), Err(Violation::Broken)));
        assert_eq!(self.told(), [2, alert], "{violation}");
        assert!(matches!(self.sealer.seal(&[IoSlice::new(b"x")], 1, &mut self.out), Err(Violation::Closed)));
        violation
    }

    /// Decrypts the single record of this side's output.
    fn told(&mut self) -> Vec<u8> {
        let record = self.out.waiting().to_vec();
        let mut body = record[HEADER..].to_vec();
        let mut reader = keys(Suite::Aes256Gcm, 2);
        let text = reader.open(&record[..HEADER], &mut body).unwrap();
        text[..text.len() - 1].to_vec()
    }
}

#[test]
fn opener_reads_every_suite_and_fragmentation() {
    let data: Vec<u8> = (0..3 * RECORD as u32 + 100).map(|n| ((n * n) >> 7) as u8).collect();
    for suite in SUITES {
        let mut sealer = Sealer::new(keys(suite, 3));
        let mut wire = Queue::default();
        // Records are filled from several slices, some of them empty.
        let parts = [&data[..17], &[], &data[17..RECORD + 5], &data[RECORD + 5..]].map(IoSlice::new);
        let most = data.len() - 1;
        assert_eq!(sealer.seal(&parts, most, &mut wire).unwrap(), most);
        assert_eq!(wire.waiting().len(), most + 4 * (HEADER + 1 + TAG));
        sealer.close(&mut wire).unwrap();
        for (piece, room) in
            [(1, 4000), (4, 1), (5, RECORD), (RECORD, RECORD - 1), (RECORD + 22, RECORD), (1 << 20, 99)]
        {
            let mut opener = Opener::new(keys(suite, 3), true);
            let mut answers = Sealer::new(keys(suite, 4));
            let (mut input, mut out, mut got) = (Queue::default(), Queue::default(), Vec::new());
            let (mut buffer, mut rest, mut ended) = (vec![0; room], Vec::new(), false);
            for piece in wire.waiting().chunks(piece) {
                input.put(piece);
                loop {
                    rest.clear();
                    match opener.open(&mut input, &mut buffer, &mut rest, &mut answers, &mut out).unwrap() {
                        Opened::Bytes(count) => got.extend([&buffer[..count], &rest].concat()),
                        Opened::Nothing => break,
                        Opened::End => {
                            ended = true;
                            break;
                        }
                    }
                }
            }
            assert!(got == data[..most] && ended, "{suite:?} in pieces of {piece}, room for {room}");
            assert!(out.waiting().is_empty());
        }
    }
}

#[test]
fn opener_removes_padding_and_skips_empty_records() {
    let mut pair = Pair::new(true);
    pair.send(APPLICATION_DATA, b"");
    pair.send(0, b"padded\x17\0\0\0");
    pair.send(0, &[&[APPLICATION_DATA][..], &[0; 100]].concat());
    pair.send(0, &[&[7; RECORD - 1][..], &[APPLICATION_DATA]].concat());
    pair.send(0, b"\x01\0\x15\0");
    assert_eq!(pair.open().unwrap().1, b"padded");
    assert_eq!(pair.open().unwrap().1, [7; RECORD - 1]);
    assert_eq!(pair.open().unwrap().0, Opened::End);
    // Everything after the end is ignored.
    pair.input.put(b"\x16nonsense");
    assert_eq!(pair.open().unwrap().0, Opened::End);
}

#[test]
fn opener_refuses_changed_records() {
    let mut record = Pair::new(true);
    record.send(APPLICATION_DATA, b"twelve bytes");
    let record = record.input.waiting().to_vec();
    for bit in 0..record.len() * 8 {
        let mut pair = Pair::new(true);
        let mut touched = record.clone();
        touched[bit / 8] ^= 1 << (bit % 8);
        pair.input.put(&touched);
        // If the changed length is too long, the reader waits for more bytes.
        pair.input.put(&[0; RECORD + 256]);
        assert!(pair.open().is_err(), "bit {bit}");
        assert!(matches!(pair.open(), Err(Violation::Broken)));
    }
    for end in 0..record.len() {
        let mut pair = Pair::new(true);
        pair.input.put(&record[..end]);
        assert_eq!(pair.open().unwrap().0, Opened::Nothing, "cut off at {end}");
    }
}

#[test]
fn opener_refuses_dropped_repeated_or_exchanged_records() {
    let mut pair = Pair::new(true);
    for n in 0..3 {
        pair.send(APPLICATION_DATA, &[n]);
    }
    let all = pair.input.waiting().to_vec();
    let record = |n: usize| &all[n * all.len() / 3..(n + 1) * all.len() / 3];
    for wrong in [[0, 0], [0, 2], [1, 0]] {
        let mut pair = Pair::new(true);
        pair.input.put(&wrong.map(record).concat());
        let results = [pair.open(), pair.open()];
        assert!(results.iter().any(|result| matches!(result, Err(Violation::Forged))), "{wrong:?}");
    }
}

#[test]
fn opener_refuses_unexpected_records_with_the_right_alert() {
    let raw = |bytes: &[u8], alert| {
        let mut pair = Pair::new(true);
        pair.input.put(bytes);
        pair.refuses(alert)
    };
    assert!(
        matches!(raw(&[21, 3, 3, 0, 2], 10), Violation::Bare(21)),
        "an alert that anybody could have put in"
    );
    assert!(matches!(raw(&[20, 3, 3, 0, 1], 10), Violation::Bare(20)));
    assert!(matches!(raw(&[23, 3, 1, 0, 40], 70), Violation::Version(0x0301)));
    assert!(matches!(raw(&[23, 3, 3, 0x40, 18], 22), Violation::TooLong(16402)));
    assert!(matches!(raw(&[23, 3, 3, 0, 16], 50), Violation::TooShort(16)));
    assert!(matches!(raw(&[&[23, 3, 3, 0, 17][..], &[0; 17]].concat(), 20), Violation::Forged));
    let sealed = |from_server, content_type, content: &[u8], alert| {
        let mut pair = Pair::new(from_server);
        pair.send(content_type, content);
        pair.refuses(alert)
    };
    assert!(matches!(sealed(true, 0, &[0; 100], 10), Violation::NoType));
    assert!(matches!(sealed(true, 20, &[1], 10), Violation::Type(20)));
    assert!(matches!(sealed(true, 99, b"", 10), Violation::Type(99)));
    assert!(matches!(sealed(true, ALERT, &[2], 50), Violation::AlertLength(1)));
    sealed(true, HANDSHAKE, b"", 10);
    sealed(true, HANDSHAKE, &[1, 0, 0, 10], 10);
    sealed(false, HANDSHAKE, &[4, 0, 0, 30], 10);
    // An incomplete message followed by another record.
    let mut pair = Pair::new(true);
    pair.send(HANDSHAKE, &[24, 0]);
    pair.send(APPLICATION_DATA, b"x");
    assert!(matches!(pair.refuses(10), Violation::Interrupted(23)));
    let mut pair = Pair::new(true);
    for _ in 0..=MAX_IDLE {
        pair.send(APPLICATION_DATA, b"");
    }
    assert!(matches!(pair.refuses(10), Violation::Idle));
}

#[test]
fn opener_after_an_alert_fails_without_an_answer() {
    let mut pair = Pair::new(true);
    pair.send(ALERT, &[1, 90]);
    assert_eq!(pair.open().unwrap().0, Opened::Nothing);
    // The level of the alert has no meaning.
    pair.send(ALERT, &[1, 20]);
    let error = pair.open().unwrap_err();
    assert!(error.to_string().contains("bad_record_mac"), "{error}");
    assert!(pair.out.waiting().is_empty(), "an alert is not answered");
}

#[test]
fn keys_change_on_request_and_when_used_up() {
    let mut pair = Pair::new(true);
    pair.send(HANDSHAKE, &[24, 0]);
    pair.send(HANDSHAKE, &[0, 1, 1]);
    pair.peer.renew().unwrap();
    pair.send(APPLICATION_DATA, b"new");
    assert_eq!(pair.open().unwrap().1, b"new");
    pair.sealer.answer(&mut pair.out).unwrap();
    assert_eq!(pair.told(), [24, 0, 0, 1, 0]);
    pair.sealer.answer(&mut pair.out).unwrap();
    pair.told();

    let mut sealer = Sealer { key_life: 5, ..Sealer::new(keys(Suite::Aes128Gcm, 7)) };
    let data = vec![9; 20 * RECORD];
    let mut wire = Queue::default();
    sealer.seal(&[IoSlice::new(&data)], usize::MAX, &mut wire).unwrap();
    // Every sixth record is a key update.
    assert_eq!(wire.waiting().len(), data.len() + 20 * (HEADER + 1 + TAG) + 3 * (HEADER + 6 + TAG));
    let mut opener = Opener::new(keys(Suite::Aes128Gcm, 7), false);
    let mut answers = Sealer::new(keys(Suite::Aes128Gcm, 8));
    let (mut buffer, mut rest, mut out) = (vec![0; RECORD], Vec::new(), Queue::default());
    for _ in 0..20 {
        let opened = opener.open(&mut wire, &mut buffer, &mut rest, &mut answers, &mut out).unwrap();
        assert_eq!(opened, Opened::Bytes(RECORD));
    }
    assert!(!answers.update_due);
    assert!(wire.waiting().is_empty());
}

#[test]
fn close_sends_one_close_notify_and_nothing_after_it() {
    let mut pair = Pair::new(true);
    pair.sealer.close(&mut pair.out).unwrap();
    assert_eq!(pair.told(), [1, 0]);
    pair.sealer.close(&mut pair.out).unwrap();
    pair.told();
    assert!(matches!(pair.sealer.seal(&[IoSlice::new(b"x")], 9, &mut pair.out), Err(Violation::Closed)));
    // Requests of the peer are not answered any more either.
    pair.send(HANDSHAKE, &[24, 0, 0, 1, 1]);
    assert_eq!(pair.open().unwrap().0, Opened::Nothing);
    pair.sealer.answer(&mut pair.out).unwrap();
    pair.told();
}

#[test]
fn key_life_is_below_the_limit_of_the_cipher() {
    // RFC 8446 section 5.5 allows 2^24.5 records.
    assert!((KEY_LIFE as f64) < 2f64.powf(24.5));
}
