#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::marker::PerfMarker;
use crate::range::RangeSet;

fn greeted() -> Session {
    let mut session = Session::new(Limits::default());
    session.input(b"220 ready\r\n").unwrap();
    assert!(matches!(session.poll_event(), Some(Event::Greeting(reply)) if reply.code() == 220));
    session
}

fn events(session: &mut Session) -> Vec<Event> {
    std::iter::from_fn(|| session.poll_event()).collect()
}

fn finished(ticket: Ticket, code: u16, text: &str) -> Event {
    Event::Finished { ticket, reply: Reply::new(code, text) }
}

fn stor() -> Command {
    Command::Stor("f".into())
}

#[test]
fn session_with_pipelined_commands_assigns_replies_in_order() {
    let mut session = greeted();
    let a = session.submit(&Command::Size("a b".into())).unwrap();
    let b = session.submit(&Command::Feat).unwrap();
    assert_eq!(session.poll_transmit().unwrap(), b"SIZE a b\r\nFEAT\r\n");
    assert_eq!((session.poll_transmit(), session.outstanding()), (None, 2));
    for byte in b"213 5\r\n211-x\r\n 226 y\r\n211 End.\r\n" {
        session.input(&[*byte]).unwrap();
    }
    let feat = Reply::indented(211, "x", ["226 y"], "End.");
    assert_eq!(events(&mut session), [finished(a, 213, "5"), Event::Finished { ticket: b, reply: feat }]);
    assert_eq!(session.outstanding(), 0);
    assert_eq!(session.disconnected(), Ok(()));
}

#[test]
fn session_during_transfer_reports_markers_and_preliminary_replies() {
    let mut session = greeted();
    let t = session.submit(&stor()).unwrap();
    session
        .input(
            b"150 Beginning transfer.\r\n112-Perf Marker\r\n Timestamp:  1.5\r\n Stripe Index: 0\r\n \
              Stripe Bytes Transferred: 3\r\n Total Stripe Count: 1\r\n112 End.\r\n111 Range Marker 0-3\r\n\
              111 Something\r\n226 Transfer Complete.\r\n",
        )
        .unwrap();
    let perf = PerfMarker { timestamp: 15, stripe: 0, bytes: 3, stripes: 1 };
    assert_eq!(
        events(&mut session),
        [
            Event::Preliminary { ticket: t, reply: Reply::new(150, "Beginning transfer.") },
            Event::Marker { ticket: t, marker: Marker::Perf(perf) },
            Event::Marker { ticket: t, marker: Marker::Range(RangeSet::from_range(0..3)) },
            Event::Preliminary { ticket: t, reply: Reply::new(111, "Something") },
            finished(t, 226, "Transfer Complete."),
        ]
    );
}

/// Each way in which servers were seen to answer ABOR.
#[test]
fn abort_with_any_server_answer_finishes_all_commands() {
    for (replies, transfer, abort) in [
        ("426 Aborted.|226 Abort successful|200 ok", Some(426), Some(226)),
        ("226 Transfer Complete.|226 Abort successful|200 ok", Some(226), Some(226)),
        ("226 Transfer Complete.|200 ok", Some(226), None),
        ("426 Aborted.|200 ok", Some(426), None),
        ("426 Aborted.|225 No transfer to ABOR.|200 ok", Some(426), Some(225)),
    ] {
        let mut session = greeted();
        let t = session.submit(&stor()).unwrap();
        session.input(b"150 go\r\n").unwrap();
        let a = session.abort().unwrap();
        assert!(session.poll_transmit().unwrap().ends_with(b"ABOR\r\nNOOP\r\n"));
        session.input(format!("{}\r\n", replies.replace('|', "\r\n")).as_bytes()).unwrap();
        let answer = |ticket| {
            move |event: &Event| match event {
                Event::Finished { ticket: t, reply } if *t == ticket => Some(Some(reply.code())),
                Event::Unanswered { ticket: t } if *t == ticket => Some(None),
                _ => None,
            }
        };
        let events = events(&mut session);
        assert_eq!(events.iter().filter_map(answer(t)).collect::<Vec<_>>(), [transfer], "{replies}");
        assert_eq!(events.iter().filter_map(answer(a)).collect::<Vec<_>>(), [abort], "{replies}");
        assert_eq!((events.len(), session.outstanding()), (3, 0), "{replies}");
    }
}

#[test]
fn abort_before_transfer_begins_is_assigned_226() {
    let mut session = greeted();
    let t = session.submit(&stor()).unwrap();
    let a = session.abort().unwrap();
    session.input(b"226 Abort successful\r\n200 ok\r\n").unwrap();
    assert_eq!(events(&mut session), [finished(a, 226, "Abort successful"), Event::Unanswered { ticket: t }]);

    let t = session.submit(&stor()).unwrap();
    let a = session.abort().unwrap();
    let next = session.submit(&Command::Pwd).unwrap();
    session.input(b"426 x\r\n226 y\r\n200 ok\r\n257 \"/\"\r\n").unwrap();
    assert_eq!(
        events(&mut session),
        [finished(t, 426, "x"), finished(a, 226, "y"), finished(next, 257, "\"/\"")]
    );
}

#[test]
fn streams_answer_in_pipeline_takes_no_reply_of_a_command() {
    let mut session = greeted();
    // No command is pending.
    session.set_streams(8).unwrap();
    assert_eq!(
        (session.poll_transmit().unwrap().as_slice(), session.outstanding()),
        (&b"SITE STREAMS 8\r\n"[..], 0)
    );
    session.input(b"114 Streams 8\r\n").unwrap();
    let set = |n| Event::Streams(StreamsAnswer::Set(n));
    assert_eq!(events(&mut session), [set(8)]);
    // The answers come between the replies to pipelined transfers, and before the first of them.
    let a = session.submit(&Command::Retr("a".into())).unwrap();
    session.set_streams(0).unwrap();
    session.set_streams(5000).unwrap();
    let b = session.submit(&Command::Retr("b".into())).unwrap();
    assert!(session.poll_transmit().unwrap().ends_with(b"SITE STREAMS 1\r\nSITE STREAMS 1024\r\nRETR b\r\n"));
    session
        .input(b"114 Streams 1\r\n150 x\r\n226 y\r\n114 Streams refused: no.\r\n125 x\r\n226 z\r\n")
        .unwrap();
    let preliminary = |ticket, code| Event::Preliminary { ticket, reply: Reply::new(code, "x") };
    assert_eq!(
        events(&mut session),
        [
            set(1),
            preliminary(a, 150),
            finished(a, 226, "y"),
            Event::Streams(StreamsAnswer::Refused("no.".into())),
            preliminary(b, 125),
            finished(b, 226, "z"),
        ]
    );
    // An answer without a request is like any other preliminary reply.
    session.input(b"114 Streams 8\r\n").unwrap();
    assert_eq!(events(&mut session), [Event::Unsolicited(Reply::new(114, "Streams 8"))]);
    assert_eq!(session.submit(&Command::Site(SiteCommand::Streams(2))), Err(SubmitError::OutOfBand));
    assert_eq!((session.poll_transmit(), session.outstanding()), (None, 0));
}

#[test]
fn streams_answer_before_abort_does_not_begin_transfer() {
    let mut session = greeted();
    let t = session.submit(&stor()).unwrap();
    session.set_streams(2).unwrap();
    let a = session.abort().unwrap();
    // The 114 does not mean that the transfer has begun.
    session.input(b"114 Streams 2\r\n226 Abort successful\r\n200 ok\r\n").unwrap();
    assert_eq!(
        events(&mut session),
        [
            Event::Streams(StreamsAnswer::Set(2)),
            finished(a, 226, "Abort successful"),
            Event::Unanswered { ticket: t }
        ]
    );
}

#[test]
fn session_on_421_finishes_all_commands() {
    let mut session = greeted();
    let a = session.submit(&stor()).unwrap();
    let b = session.submit(&Command::Quit).unwrap();
    session.input(b"421 Idle Timeout: closing control connection.\r\n").unwrap();
    let text = "Idle Timeout: closing control connection.";
    let reply = Reply::new(421, text);
    assert_eq!(
        events(&mut session),
        [finished(a, 421, text), finished(b, 421, text), Event::Closing(reply.clone())]
    );
    assert_eq!(session.closing(), Some(&reply));
    assert_eq!(session.submit(&Command::Noop), Err(SubmitError::Closing(reply)));
    assert_eq!(session.disconnected(), Ok(()));
}

#[test]
fn session_on_421_as_greeting_reports_both() {
    let mut session = Session::new(Limits::default());
    assert_eq!(session.disconnected(), Err(SessionError::Disconnected { outstanding: 0 }));
    session.input(b"421 Service busy\r\n").unwrap();
    let reply = Reply::new(421, "Service busy");
    assert_eq!(events(&mut session), [Event::Greeting(reply.clone()), Event::Closing(reply)]);
}

#[test]
fn disconnected_while_command_pending_fails() {
    let mut session = greeted();
    session.submit(&stor()).unwrap();
    assert_eq!(session.disconnected(), Err(SessionError::Disconnected { outstanding: 1 }));
}

#[test]
fn session_when_limits_are_exceeded_fails() {
    let limits = Limits { line: 20, unsolicited: 3, ..Limits::default() };
    let mut session = Session::new(limits);
    session.input(b"220 x\r\n").unwrap();
    assert_eq!(session.input(&[b'a'; 30]), Err(SessionError::Line(LineTooLong { limit: 20 })));

    let mut session = Session::new(limits);
    session.input(b"120 soon\r\n220 x\r\n250 a\r\n250 b\r\n").unwrap();
    let last = Reply::new(250, "c");
    assert_eq!(session.input(b"250 c\r\n"), Err(SessionError::Unsolicited { limit: 3, last }));
}

#[test]
fn submit_with_line_end_in_path_is_refused() {
    let mut session = greeted();
    assert!(matches!(session.submit(&Command::Dele("a\nDELE b".into())), Err(SubmitError::Unprintable(_))));
    assert_eq!((session.poll_transmit(), session.outstanding()), (None, 0));
}

proptest! {
    /// Replies are assigned to their commands however the bytes are cut, and however commands and
    /// replies interleave.
    #[test]
    fn session_with_any_fragmentation_assigns_replies(codes in prop::collection::vec((200u16..600, 0u8..3), 1..20), cut in 1usize..12, ahead in 1usize..5) {
        let mut session = greeted();
        let (mut tickets, mut expected, mut got) = (Vec::new(), Vec::new(), Vec::new());
        let mut asked = 0;
        for (i, (code, preliminaries)) in codes.iter().enumerate() {
            prop_assume!(*code != 421);
            while tickets.len() < codes.len() && tickets.len() < i + ahead {
                tickets.push(session.submit(&stor()).unwrap());
            }
            let mut wire = "150 x\r\n".repeat((*preliminaries).into());
            // Answers to SITE STREAMS may come anywhere.
            if i % 3 == 0 {
                session.set_streams(4).unwrap();
                session.set_streams(5).unwrap();
                asked += 2;
                wire.insert_str(0, "114 Streams 4\r\n");
                wire.push_str("114 Streams 5\r\n");
            }
            wire.push_str(&format!("{code}-a\r\n b\r\n{code} {i}\r\n"));
            for chunk in wire.as_bytes().chunks(cut) {
                session.input(chunk).unwrap();
            }
            expected.push((tickets[i], *code, *preliminaries));
            let mut count = 0;
            for event in events(&mut session) {
                match event {
                    Event::Preliminary { ticket, .. } => {
                        prop_assert_eq!(ticket, tickets[i]);
                        count += 1;
                    }
                    Event::Finished { ticket, reply } => got.push((ticket, reply.code(), count)),
                    Event::Streams(StreamsAnswer::Set(4 | 5)) => asked -= 1,
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
        prop_assert_eq!((got, asked), (expected, 0));
    }

    #[test]
    fn session_on_any_input_does_not_panic(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20)) {
        let mut session = Session::new(Limits::default());
        for chunk in chunks {
            let _ = session.submit(&stor());
            let _ = session.abort();
            let _ = session.input(&chunk);
            events(&mut session);
        }
    }
}
