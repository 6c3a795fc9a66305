//! Data connections to one port: the first line, the reply to SITE ONEPORT, and the answer.

#![allow(clippy::unwrap_used)]

use ropewalk_fuzz::{Decisions, ITERATIONS, soup};
use ropewalk_protocol::one_port::{Answer, FirstLine, OnePort};
use ropewalk_protocol::reply::Reply;

const TOKEN: &[u8] = b"000102030405060708090a0b0c0d0eff";
const LINE_WORDS: &[&[u8]] =
    &[b"ONEPORT ", b"oneport ", b"ONE", b"PORT", TOKEN, b"\r\n", b"\n", b" ", b"\xff"];

/// The kind of a connection is clear from some byte on, and later bytes do not change it. A token
/// is taken only from a line that the token itself would print.
#[test]
fn first_line() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let text = soup(input, LINE_WORDS);
        let whole = FirstLine::of(&text);
        let mut decided = false;
        for end in 1..=text.len() {
            let kind = FirstLine::of(&text[..end]);
            decided |= kind != FirstLine::Incomplete;
            assert_eq!(kind == whole, decided || whole == FirstLine::Incomplete, "{end} of {text:?}");
        }
        match whole {
            FirstLine::Data { token, length } => {
                assert!(text[..length].eq_ignore_ascii_case(token.line().as_bytes()));
            }
            FirstLine::Malformed { length } => assert!(length <= text.len().min(FirstLine::LONGEST)),
            FirstLine::Incomplete => assert!(text.len() < FirstLine::LONGEST && !text.contains(&b'\n')),
            FirstLine::Control => {}
        }
    });
}

/// A reply that is read prints to one that is read to the same.
#[test]
fn one_port_reply() {
    const WORDS: &[&[u8]] =
        &[b"One port, ", b"UDP port ", b"2811", b", ", b"token ", TOKEN, b"65535", b"0", b"99999", b"\r\n"];
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        if let Some(read) = OnePort::of_reply(&Reply::new(250, soup(input, WORDS))) {
            assert!(read.udp_port != Some(0));
            assert_eq!(OnePort::of_reply(&Reply::new(250, read.to_string())), Some(read));
        }
    });
}

/// The parts in which the greeting and the answer arrive make no difference, and bytes behind the
/// answer are left to the data.
#[test]
fn one_port_answer() {
    const WORDS: &[&[u8]] = &[
        b"220 ready\r\n",
        b"220-ready\r\n",
        b"225 Data connection open.\r\n",
        b"225-x\r\n",
        b"425 No such data channel.\r\n",
        b"\r\n",
        b"\n",
        b"225 ",
        b"\xff",
    ];
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let sizes = choose.bytes(8);
        let text = soup(choose.0, WORDS);
        let whole = Answer::default().advance(&text);
        if let Ok((consumed, complete)) = whole {
            assert!(consumed <= text.len() && (complete || consumed == text.len()));
        }
        let (mut answer, mut at, mut complete) = (Answer::default(), 0, false);
        let mut sizes = sizes.iter().map(|size| usize::from(*size) + 1).chain(std::iter::repeat(7));
        while at < text.len() && !complete {
            let part = &text[at..text.len().min(at + sizes.next().unwrap())];
            match answer.advance(part) {
                Ok((consumed, done)) => {
                    assert!(done || consumed == part.len());
                    (at, complete) = (at + consumed, done);
                }
                Err(error) => {
                    assert_eq!(whole, Err(error));
                    return;
                }
            }
        }
        assert_eq!(whole, Ok((at, complete)));
    });
}
