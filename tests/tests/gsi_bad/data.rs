//! Unexpected peers at a data port.

use std::io::{Read, Write};
use std::net::TcpStream;

use ropewalk_gsi::testing::secure;
use ropewalk_gsi::{After, Credential, Expected, Initiator, InitiatorOptions};

use crate::fixture::Yard;

fn initiator(yard: &Yard, credential: &Credential, expected: Expected, after: After) -> Initiator {
    let options = InitiatorOptions { expected, delegate: None, after, server_name: None };
    Initiator::new(&yard.identity(credential), options).unwrap()
}

/// Returns whether the peer closed the connection without sending a byte.
fn hung_up(stream: &mut TcpStream) -> bool {
    !matches!(stream.read(&mut [0; 1]), Ok(1..))
}

#[test]
fn unexpected_peers_cannot_use_data_port() {
    let yard = Yard::new();
    let served = yard.serve();
    let (user, other) = (yard.site.user(), yard.site.ca.issue_user("Other", 10).unwrap());
    for (protection, after) in [("C", After::Flag), ("P", After::Nothing)] {
        let mut control = yard.logged_in(&served, &user);
        for command in ["TYPE I", "PBSZ 1048576", &format!("PROT {protection}")] {
            assert!(control.ask(command).starts_with("200"));
        }
        let address = control.passive();
        control.send("STOR /fed");
        // In clear, as another user, and with the host's certificate.
        let mut clear = TcpStream::connect(address).unwrap();
        clear.write_all(b"these are not the bytes").unwrap();
        for credential in [&other, yard.site.host()] {
            let mut stream = TcpStream::connect(address).unwrap();
            // With TLS 1.3 the server may report the rejection only after the client has sent data.
            let session = secure(&mut stream, initiator(&yard, credential, Expected::Anybody, after));
            let _ = stream.write_all(b"nor these");
            drop(session);
            assert!(hung_up(&mut stream), "PROT {protection}");
        }
        assert!(hung_up(&mut clear), "PROT {protection}");
        // The expected peer can still connect.
        let mut stream = TcpStream::connect(address).unwrap();
        let expected = Expected::Subject(user.identity().to_owned());
        let mut session = secure(&mut stream, initiator(&yard, &user, expected, after)).unwrap();
        let mut out = b"the bytes".to_vec();
        if after == After::Nothing {
            out.clear();
            session.seal(b"the bytes", &mut out).unwrap();
        }
        stream.write_all(&out).unwrap();
        drop(stream);
        let answers = [control.reply(), control.reply()];
        assert!(answers[0].starts_with("150") && answers[1].starts_with("226"), "{answers:?}");
        assert_eq!(std::fs::read(yard.path("root/fed")).unwrap(), b"the bytes");
        std::fs::remove_file(yard.path("root/fed")).unwrap();
    }
}

/// DCAU S: the server expects the named subject instead of the user who logged in.
#[test]
fn dcau_with_other_subject_is_refused() {
    let yard = Yard::new();
    let served = yard.serve();
    let user = yard.site.user();
    let mut control = yard.logged_in(&served, &user);
    assert!(control.ask("DCAU S /O=Grid/OU=test/CN=Somebody").starts_with("200"));
    let address = control.passive();
    control.send("RETR /file");
    let mut stream = TcpStream::connect(address).unwrap();
    let session = secure(&mut stream, initiator(&yard, &user, Expected::Anybody, After::Flag));
    drop(session);
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got);
    assert!(!got.windows(8).any(|window| window == b"precious"));
    // DCSC with an invalid credential.
    let mut control = yard.logged_in(&served, &user);
    for blob in ["", "====", "QUJD"] {
        let answer = control.ask(&format!("DCSC P {blob}"));
        assert!(answer.starts_with("501"), "{answer}");
    }
    assert!(control.ask("NOOP").starts_with("200"));
}
