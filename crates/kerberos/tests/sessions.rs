//! Messages of an established session: their protection, and the detection of damage, replays and
//! wrong order.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Pair, established, in_realm};
use ropewalk_kerberos::{InitiatorOptions, Protection, Session, SessionError, Stream};
use ropewalk_tests::realm::Realm;

fn tickets(realm: &Realm) {
    realm.login("ada", "cache", &[]).unwrap();
}

fn pair() -> Pair {
    established(InitiatorOptions::new("localhost"))
}

fn sent(session: &mut Session, plain: &[u8]) -> Vec<u8> {
    let mut token = Vec::new();
    session.wrap(plain, Protection::Confidential, &mut token).unwrap();
    token
}

fn wrapped(stream: &mut Stream, plain: &[u8]) -> Vec<u8> {
    let mut token = Vec::new();
    stream.wrap(plain, &mut token).unwrap();
    token
}

fn opened(stream: &mut Stream, token: &[u8]) -> Result<Vec<u8>, SessionError> {
    let mut plain = Vec::new();
    stream.unwrap(&mut token.to_vec(), &mut plain).map(|()| plain)
}

#[test]
fn lines_of_the_control_connection() {
    in_realm("lines_of_the_control_connection", tickets, |_| {
        let Pair { mut client, mut server, .. } = pair();
        for (command, reply) in
            [("FEAT\r\n", "211-Features:\r\n MDTM\r\n211 End.\r\n"), ("NOOP\r\n", "200 OK.\r\n")]
        {
            let mut wire = Vec::new();
            client.seal_command(command.as_bytes(), &mut wire).unwrap();
            assert!(wire.starts_with(b"ENC ") && wire.ends_with(b"\r\n"));
            assert_eq!(server.open_command(&wire).unwrap(), command.as_bytes());
            // The same line arrives again.
            assert!(matches!(server.open_command(&wire), Err(SessionError::Replayed { .. })));
            let mut wire = Vec::new();
            server.seal_reply(reply.as_bytes(), &mut wire).unwrap();
            let lines: Vec<_> = wire.split_inclusive(|byte| *byte == b'\n').collect();
            let (last, before) = lines.split_last().unwrap();
            assert!(last.starts_with(b"632 ") && before.iter().all(|line| line.starts_with(b"632-")));
            let plain: Vec<u8> = lines.iter().flat_map(|line| client.open_reply(line).unwrap()).collect();
            assert_eq!(plain, reply.as_bytes());
        }
        for clear in ["USER ada\r\n", "NOOP\r\n", "ENC\r\n", "", "ENCODE x\r\n"] {
            assert!(matches!(server.open_command(clear.as_bytes()), Err(SessionError::Line(_))), "{clear}");
        }
        assert!(matches!(server.open_command(b"ENC !!!\r\n"), Err(SessionError::Line(_))));
        // An attacker in the middle could present parts of files as lines.
        for several in ["x\r\nDELE f\r\n", "x\r\nDELE f", "\0\0DELE f\r\n"] {
            let mut wire = Vec::new();
            client.seal_command(several.as_bytes(), &mut wire).unwrap();
            assert!(matches!(server.open_command(&wire), Err(SessionError::Line(_))), "{several:?}");
            let mut token = Vec::new();
            server.wrap(several.as_bytes(), Protection::Confidential, &mut token).unwrap();
            let reply = format!("632 {}\r\n", ropewalk_kerberos::encode_token(&token));
            assert!(matches!(client.open_reply(reply.as_bytes()), Err(SessionError::Line(_))), "{several:?}");
        }
        for several in ["a\n226 b\n", "226 a\n226 b\r\n", "a\r226 b"] {
            let mut token = Vec::new();
            server.wrap(several.as_bytes(), Protection::Confidential, &mut token).unwrap();
            let reply = format!("632 {}\r\n", ropewalk_kerberos::encode_token(&token));
            assert!(matches!(client.open_reply(reply.as_bytes()), Err(SessionError::Line(_))), "{several:?}");
        }
        assert!(matches!(server.open_command(b"ENC AAAA\r\n"), Err(SessionError::Truncated)));
        assert!(matches!(client.open_reply(b"230 Welcome.\r\n"), Err(SessionError::Line(_))));
        // The server's own reply is sent back to it.
        let mut own = Vec::new();
        server.seal_reply(b"200 OK.\r\n", &mut own).unwrap();
        let own = [b"ENC ", &own[4..]].concat();
        assert!(matches!(server.open_command(&own), Err(SessionError::Gss(_))));
    });
}

#[test]
fn integrity_without_secrecy() {
    in_realm("integrity_without_secrecy", tickets, |_| {
        let Pair { mut client, mut server, .. } = pair();
        let mut token = Vec::new();
        client.wrap(b"NOOP\r\n", Protection::Integrity, &mut token).unwrap();
        assert!(token.windows(4).any(|part| part == b"NOOP"));
        let text = ropewalk_kerberos::encode_token(&token);
        assert_eq!(server.open_command(format!("MIC {text}\r\n").as_bytes()).unwrap(), b"NOOP\r\n");
        // A message announced as encrypted must be encrypted.
        let mut token = Vec::new();
        client.wrap(b"NOOP\r\n", Protection::Integrity, &mut token).unwrap();
        let text = ropewalk_kerberos::encode_token(&token);
        let refused = server.open_command(format!("ENC {text}\r\n").as_bytes());
        assert_eq!(refused, Err(SessionError::NotEncrypted));
        let mut safe = client.stream(Protection::Integrity);
        assert_eq!(
            opened(&mut server.stream(Protection::Confidential), &wrapped(&mut safe, b"data")),
            Err(SessionError::NotEncrypted)
        );
        assert_eq!(
            opened(&mut server.stream(Protection::Integrity), &wrapped(&mut safe, b"data")).unwrap(),
            b"data"
        );
    });
}

#[test]
fn changed_and_cut_messages() {
    in_realm("changed_and_cut_messages", tickets, |_| {
        let Pair { mut client, mut server, .. } = pair();
        for protection in [Protection::Confidential, Protection::Integrity] {
            let mut token = Vec::new();
            client.wrap(b"some data that matters", protection, &mut token).unwrap();
            for at in 0..token.len() {
                let mut bad = token.clone();
                bad[at] ^= 1;
                let mut plain = Vec::new();
                assert!(server.unwrap(&mut bad.clone(), &mut plain).is_err(), "{protection:?} {at}");
                assert!(plain.is_empty());
                assert!(server.unwrap(&mut token.clone()[..at], &mut plain).is_err(), "{protection:?} {at}");
            }
            let mut longer = token.clone();
            longer.push(0);
            assert!(server.unwrap(&mut longer, &mut Vec::new()).is_err());
            // The refused messages did not use up the sequence number.
            let mut plain = Vec::new();
            assert_eq!(server.unwrap(&mut token.clone(), &mut plain).unwrap(), protection);
            assert_eq!(plain, b"some data that matters");
        }
        assert_eq!(server.unwrap(&mut [0x60; 100], &mut Vec::new()), Err(SessionError::Outdated));
        // The message is from another session between the same peers.
        let mut other = pair();
        assert!(matches!(
            server.unwrap(&mut sent(&mut other.client, b"x"), &mut Vec::new()),
            Err(SessionError::Gss(_))
        ));
    });
}

#[test]
fn missing_and_exchanged_commands() {
    in_realm("missing_and_exchanged_commands", tickets, |_| {
        let Pair { mut client, mut server, .. } = pair();
        let tokens: Vec<_> = (0..5).map(|n| sent(&mut client, &[n])).collect();
        let mut take = |at: usize| server.unwrap(&mut tokens[at].clone(), &mut Vec::new());
        take(0).unwrap();
        assert!(matches!(take(2), Err(SessionError::Missing { .. })));
        assert!(matches!(take(0), Err(SessionError::Replayed { .. })));
        take(1).unwrap();
        // It arrived too early and was refused; it is not accepted later, so the session cannot
        // continue.
        assert!(matches!(take(2), Err(SessionError::Replayed { .. })));
    });
}

#[test]
fn a_command_that_overtakes_data() {
    in_realm("a_command_that_overtakes_data", tickets, |_| {
        let Pair { mut client, mut server, .. } = pair();
        server.unwrap(&mut sent(&mut client, b"first"), &mut Vec::new()).unwrap();
        server.handle().expect_streams();
        let data = wrapped(&mut client.stream(Protection::Confidential), b"data");
        server.unwrap(&mut sent(&mut client, b"second"), &mut Vec::new()).unwrap();
        assert_eq!(opened(&mut server.stream(Protection::Confidential), &data).unwrap(), b"data");
    });
}

#[test]
fn data_connections_share_the_context() {
    in_realm("data_connections_share_the_context", tickets, |_| {
        let Pair { mut client, mut server, .. } = pair();
        server.unwrap(&mut sent(&mut client, b"first"), &mut Vec::new()).unwrap();
        let handle = client.handle();
        let mut out: Vec<_> = (0..3).map(|_| handle.stream(Protection::Confidential)).collect();
        let mut into: Vec<_> = (0..3).map(|_| server.stream(Protection::Confidential)).collect();
        // Several streams run in parallel, one far behind the others, next to the control
        // connection.
        let late: Vec<_> = (0..100u8).map(|n| wrapped(&mut out[0], &[n])).collect();
        for n in 0..200u8 {
            for at in 1..3 {
                let token = wrapped(&mut out[at], &[n]);
                assert_eq!(opened(&mut into[at], &token).unwrap(), [n]);
                assert!(matches!(opened(&mut into[at], &token), Err(SessionError::Replayed { .. })));
                // The message is refused on other connections too.
                assert!(matches!(opened(&mut into[3 - at], &token), Err(SessionError::Replayed { .. })));
                assert!(matches!(
                    server.unwrap(&mut token.clone(), &mut Vec::new()),
                    Err(SessionError::Replayed { .. })
                ));
            }
            let command = sent(&mut client, b"NOOP\r\n");
            server.unwrap(&mut command.clone(), &mut Vec::new()).unwrap();
            assert!(matches!(opened(&mut into[0], &command), Err(SessionError::Replayed { .. })));
        }
        for (n, token) in late.iter().enumerate() {
            assert_eq!(opened(&mut into[0], token).unwrap(), [u8::try_from(n).unwrap()]);
        }
        // Two messages of one connection change places.
        let (one, two) = (wrapped(&mut out[1], b"1"), wrapped(&mut out[1], b"2"));
        assert_eq!(opened(&mut into[1], &two).unwrap(), b"2");
        assert!(matches!(opened(&mut into[1], &one), Err(SessionError::OutOfOrder { .. })));
        // The session may be dropped before its streams.
        drop((client, server));
        let token = wrapped(&mut out[2], b"late");
        assert_eq!(opened(&mut into[2], &token).unwrap(), b"late");
    });
}

#[test]
fn sizes() {
    in_realm("sizes", tickets, |_| {
        let Pair { client, server, .. } = pair();
        for protection in [Protection::Confidential, Protection::Integrity] {
            let (mut out, mut into) = (client.stream(protection), server.stream(protection));
            for size in [1 << 10, 1 << 16, 1 << 20] {
                let most = out.plain_limit(size).unwrap() as usize;
                assert!(most + 200 > size as usize);
                let plain: Vec<u8> = (0..most).map(|n| (n % 251) as u8).collect();
                let token = wrapped(&mut out, &plain);
                assert!(token.len() <= size as usize);
                assert!(opened(&mut into, &token).unwrap() == plain);
            }
            assert_eq!(opened(&mut into, &wrapped(&mut out, b"")).unwrap(), b"");
        }
    });
}

#[test]
fn threads() {
    in_realm("threads", tickets, |_| {
        let Pair { client, server, .. } = pair();
        std::thread::scope(|scope| {
            for n in 0..8u8 {
                let (mut out, mut into) =
                    (client.stream(Protection::Confidential), server.stream(Protection::Confidential));
                scope.spawn(move || {
                    for round in 0..200usize {
                        let plain = vec![n; round * 7];
                        assert!(opened(&mut into, &wrapped(&mut out, &plain)).unwrap() == plain);
                    }
                });
            }
        });
    });
}
