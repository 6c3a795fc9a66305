//! Data nodes that report what is not true: the client gets an error, and no file that looks whole.

use std::fs;
use std::io::{Read as _, Write as _};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

use crate::client::{Client, Reply, accept};
use crate::false_node::{self, FalseNode, Session, ended, front_end, moved};
use crate::fixture::Fixture;

const SIZE: u64 = 100_000;
/// A test fails instead of waiting forever.
const PATIENCE: Duration = Duration::from_secs(20);

fn data() -> Vec<u8> {
    (0..SIZE).map(|at| (at % 251) as u8).collect()
}

/// Uploads `f` over a node that receives the data and then makes these reports.
fn upload(
    fixture: &Fixture,
    client: &mut Client,
    reports: impl FnOnce(&mut Session, &Value) + Send + 'static,
) -> Reply {
    let (reply, serving) = send(fixture, client, "STOR f", reports);
    // The front end has closed the link if it has lost the node; if not, the channel ends now.
    client.command("QUIT", 221);
    serving.join().unwrap();
    reply
}

/// Sends the data with this command, as [`upload`] does. Returns the thread of the node, too.
fn send(
    fixture: &Fixture,
    client: &mut Client,
    command: &str,
    reports: impl FnOnce(&mut Session, &Value) + Send + 'static,
) -> (Reply, JoinHandle<()>) {
    let node = FalseNode::join(fixture, "a");
    let serving = node.serve(fixture, move |session| {
        let listener = session.listen();
        let order = session.order();
        let mut received = Vec::new();
        accept(&listener).read_to_end(&mut received).unwrap();
        assert_eq!(received, data());
        session.report(&json!({"Begun": {"reused": false}}));
        reports(session, &order);
    });
    let mut connection = client.data();
    client.send(command);
    connection.write_all(&data()).unwrap();
    drop(connection);
    (client.end(), serving)
}

/// Stores what was received.
fn store(session: &Session, order: &Value) {
    fs::write(session.file(order), data()).unwrap();
}

fn assert_nothing_is_left(fixture: &Fixture, case: &str) {
    let left: Vec<_> =
        fs::read_dir(fixture.root()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{case}: {left:?}");
}

#[test]
fn upload_over_node_that_tells_the_truth_is_complete() {
    let fixture = front_end();
    let reply = upload(&fixture, &mut fixture.login(), |session, order| {
        store(session, order);
        session.report(&moved(SIZE, &[(0, SIZE)]));
        session.report(&ended(SIZE));
    });
    assert_eq!(reply.code, 226, "{}", reply.text);
    assert_eq!(fixture.read("f"), data());
}

#[test]
fn upload_with_reports_that_cannot_be_true_fails_and_leaves_nothing() {
    let beyond = SIZE + 50;
    let longest = i64::MAX as u64;
    let cases: [(&str, Vec<Value>, bool); 10] = [
        ("it reports 100001 bytes in all", vec![moved(SIZE, &[(0, SIZE)]), ended(SIZE + 1)], true),
        ("it reports 99999 bytes in all", vec![moved(SIZE, &[(0, SIZE)]), ended(SIZE - 1)], true),
        (
            "up to 100050 as stored, and the file has 100000",
            vec![moved(SIZE, &[(0, beyond)]), ended(beyond)],
            true,
        ),
        // The node has stored the bytes elsewhere, or nowhere.
        ("up to 100000 as stored, and the file has 0", vec![moved(SIZE, &[(0, SIZE)]), ended(SIZE)], false),
        ("it reports the bytes 10-5 as stored", vec![moved(SIZE, &[(0, SIZE), (10, 5)])], true),
        ("it reports the bytes 7-7 as stored", vec![moved(SIZE, &[(7, 7)])], true),
        (
            "it reports the bytes 0-18446744073709551615 as stored",
            vec![
                json!({"Moved": {
                    "bytes": u64::MAX, "streams": u32::MAX, "waiting_ns": [u64::MAX, u64::MAX, 0, 0, 0],
                    "stored": [{"start": 0, "end": u64::MAX, "sum": u32::MAX}, {"start": 0, "end": u64::MAX, "sum": 1}],
                }}),
                json!({"Ended": {"Ok": {
                    "bytes": u64::MAX, "streams": u32::MAX, "cached": usize::MAX, "sums": [],
                }}}),
            ],
            true,
        ),
        // No file is longer, and the sum of these ranges is no number of 64 bits.
        (
            "up to 9223372036854775807 as stored, and the file has 100000",
            vec![moved(SIZE, &[(0, longest); 3]), ended(u64::MAX)],
            true,
        ),
        // The end of one transfer comes twice.
        ("was to send", vec![json!({"Ended": {"Err": {"Refused": "it was to send"}}}), ended(SIZE)], false),
        ("More out of turn", vec![json!("More")], false),
    ];
    for (text, reports, stores) in cases {
        let fixture = front_end();
        let reply = upload(&fixture, &mut fixture.login(), move |session, order| {
            if stores {
                store(session, order);
            }
            for report in reports {
                session.report(&report);
            }
        });
        assert!(matches!(reply.code, 426 | 553) && reply.text.contains(text), "{text}: {}", reply.text);
        assert_nothing_is_left(&fixture, text);
        // The next upload does not go to this node again.
        assert_eq!(fixture.login().put("STOR f", &data()).code, 226, "{text}");
        assert_eq!(fixture.read("f"), data(), "{text}");
    }
}

/// The ranges of an upload that sessions share are in its journal, and would be resumed.
#[test]
fn shared_upload_with_reports_that_cannot_be_true_starts_over() {
    let fixture = front_end();
    let mut client = fixture.login();
    let begin = format!("SITE UPLOAD BEGIN a size={SIZE};resume=1; f");
    client.command(&begin, 250);
    let (reply, serving) = send(&fixture, &mut client, "ESTO U 0 a", |session, _| {
        session.report(&moved(SIZE, &[(0, SIZE)]));
        session.report(&ended(SIZE));
    });
    assert!(reply.code == 426 && reply.text.contains("the file has 0"), "{}", reply.text);
    serving.join().unwrap();
    assert_nothing_is_left(&fixture, "shared");
    let ended = client.command("SITE UPLOAD COMMIT a", 503);
    assert!(ended.contains("SITE UPLOAD BEGIN resumes it"), "{ended}");
    assert_eq!(client.command(&begin, 250), "250 Upload a has 0 bytes.");
    assert_eq!(client.put("ESTO U 0 a", &data()).code, 226);
    client.command("SITE UPLOAD COMMIT a", 250);
    assert_eq!(fixture.read("f"), data());
}

#[test]
fn messages_that_are_none_end_the_transfer_and_not_the_server() {
    let cases: [(&str, Value); 7] = [
        ("does not understand", json!({"Nonsense": "x".repeat(1 << 20)})),
        ("does not understand", json!({"Moved": {"bytes": -1}})),
        ("does not understand", json!({"Moved": {"bytes": 1e300}})),
        ("does not understand", json!(null)),
        ("Listening out of turn", json!({"Listening": "127.0.0.1:1"})),
        ("Done out of turn", json!("Done")),
        ("Failed out of turn", json!({"Failed": "Aborted"})),
    ];
    for (text, report) in cases {
        let fixture = front_end();
        let reply = upload(&fixture, &mut fixture.login(), move |session, _| {
            session.report(&report);
        });
        assert!(reply.code == 426 && reply.text.contains(text), "{}", reply.text);
        assert!(reply.text.len() < 1000, "{}", reply.text.len());
        assert_nothing_is_left(&fixture, text);
    }
    // A frame of bytes, of which a node sends none.
    let fixture = front_end();
    let reply =
        upload(&fixture, &mut fixture.login(), |session, _| session.link.send_bytes(b"bytes").unwrap());
    assert!(reply.code == 426 && reply.text.contains("bytes out of turn"), "{}", reply.text);
}

#[test]
fn text_of_node_cannot_forge_a_reply() {
    let fixture = front_end();
    let mut client = fixture.login();
    let forged = "broken\r\n226 Transfer complete.\r\n".to_owned() + &"x".repeat(1 << 20);
    let node = FalseNode::join(&fixture, "a");
    let serving = node.serve(&fixture, move |session| {
        let _listener = session.listen();
        session.order();
        session.report(&json!({"Ended": {"Err": {"Broken": forged}}}));
    });
    let _connection = client.data();
    client.send("STOR f");
    let reply = client.end();
    assert!(reply.code == 426 && reply.text.len() < 2000, "{}", reply.text);
    client.command("NOOP", 200);
    client.command("QUIT", 221);
    serving.join().unwrap();
    assert_nothing_is_left(&fixture, "forged");
}

#[test]
fn upload_with_less_than_announced_or_another_checksum_fails() {
    // The node reports consistently that it got nothing.
    let fixture = front_end();
    let mut client = fixture.login();
    client.command(&format!("ALLO {SIZE}"), 200);
    let reply = upload(&fixture, &mut client, |session, _| {
        session.report(&ended(0));
    });
    assert!(reply.code == 426 && reply.text.contains("after 0 of the 100000 bytes"), "{}", reply.text);
    assert!(!fixture.exists("f"));
    // It stores the right bytes, and reports another checksum.
    let fixture = front_end();
    let mut client = fixture.login();
    let sum = ropewalk_storage::checksum::block_sum(ropewalk_storage::checksum::Algorithm::Adler32, &data());
    client.command(&format!("SCKS ADLER32 {sum:08x}"), 200);
    let reply = upload(&fixture, &mut client, |session, order| {
        assert_eq!(order["Receive"]["checksum"].as_str().unwrap().to_lowercase(), "adler32");
        store(session, order);
        let stored = json!([{"start": 0, "end": SIZE, "sum": 12345}]);
        session.report(&json!({"Moved": {
            "bytes": SIZE, "streams": 1, "waiting_ns": [0, 0, 0, 0, 0], "stored": stored,
        }}));
        session.report(&ended(SIZE));
    });
    assert!(reply.code >= 400 && reply.text.contains("Computed-Checksum: 00003039"), "{}", reply.text);
    assert_nothing_is_left(&fixture, "checksum");
}

/// Downloads over a node that sends these bytes and makes these reports. Returns the final reply.
fn download(command: &str, bytes: &'static [u8], reports: Vec<Value>) -> Reply {
    let fixture = front_end();
    fixture.write("f", data());
    let node = FalseNode::join(&fixture, "a");
    let serving = node.serve(&fixture, move |session| {
        let listener = session.listen();
        session.order();
        let mut connection = accept(&listener);
        session.report(&json!({"Begun": {"reused": false}}));
        connection.write_all(bytes).unwrap();
        drop(connection);
        for report in reports {
            session.report(&report);
        }
    });
    let mut client = fixture.login();
    let mut connection = client.data();
    client.send(command);
    let mut received = Vec::new();
    connection.read_to_end(&mut received).unwrap();
    assert_eq!(received, bytes);
    let reply = client.end();
    client.command("QUIT", 221);
    serving.join().unwrap();
    reply
}

#[test]
fn download_of_which_a_node_has_not_sent_all_fails() {
    let sums = json!([{"start": 0, "end": SIZE + 1, "sum": 1}]);
    let with_sums = json!({"Ended": {"Ok": {"bytes": SIZE, "streams": 1, "cached": 0, "sums": sums}}});
    let cases = [
        ("RETR f", vec![moved(4, &[]), ended(4)], "4 bytes as sent, and was to send 100000"),
        ("RETR f", vec![ended(SIZE + 1)], "100001 bytes as sent, and was to send 100000"),
        ("RETR f", vec![with_sums], "a checksum of the bytes 0-100001"),
        ("RETR f", vec![moved(SIZE, &[(0, 4)]), ended(SIZE)], "was to send, and reports the bytes 0-4"),
        // The node has not asked for the listing at all.
        ("NLST", vec![ended(0)], "was given 0, which were not all"),
        ("NLST", vec![ended(4)], "was given 0, which were not all"),
    ];
    for (command, reports, text) in cases {
        let reply = download(command, b"some", reports);
        assert!(reply.code == 426 && reply.text.contains(text), "{text}: {}", reply.text);
    }
}

#[test]
fn node_that_listens_nowhere_is_replaced() {
    let fixture = front_end();
    let node = FalseNode::join(&fixture, "a");
    let serving = node.serve(&fixture, |session| {
        session.order();
        session.report(&json!({"Listening": "127.0.0.1:0"}));
    });
    let mut client = fixture.login();
    client.send("PASV");
    let refused = client.reply();
    assert!(refused.code == 426 && refused.text.contains("listens at port 0"), "{}", refused.text);
    serving.join().unwrap();
    // The front end does without the node, also for other sessions.
    let unused = node.serve(&fixture, |session| assert!(session.link.expect(PATIENCE).is_err()));
    assert_eq!(client.put("STOR f", &data()).code, 226);
    assert_eq!(fixture.login().put("STOR g", &data()).code, 226);
    drop(node);
    unused.join().unwrap();
}

/// A node that drains between two transfers of a session.
#[test]
fn session_whose_node_has_left_goes_on_without_it() {
    let fixture = front_end();
    fixture.write("f", data());
    for leaves_early in [true, false] {
        let node = FalseNode::join(&fixture, "a");
        let (leaves, left) = mpsc::channel();
        let serving = node.serve(&fixture, move |session| {
            let _listener = session.listen();
            if !leaves_early {
                session.order();
            }
            session.report(&json!("Left"));
            leaves.send(()).unwrap();
        });
        let mut client = fixture.login();
        client.pasv();
        if leaves_early {
            left.recv().unwrap();
        }
        for _ in 0..2 {
            client.send("RETR f");
            let refused = client.end();
            assert_eq!(refused.code, 425, "{}", refused.text);
            assert!(
                refused.text.contains("node a is gone: send PASV, EPSV or PORT again"),
                "{}",
                refused.text
            );
        }
        drop(node);
        assert_eq!(client.get("RETR f"), data());
        client.command("QUIT", 221);
        serving.join().unwrap();
    }
}

/// A node that reports without end, and does not break off.
#[test]
fn node_that_does_not_stop_does_not_hold_the_session() {
    let fixture = front_end();
    let node = FalseNode::join(&fixture, "a");
    let serving = node.serve(&fixture, |session| {
        let listener = session.listen();
        session.order();
        let _connection = accept(&listener);
        session.report(&json!({"Begun": {"reused": false}}));
        // At first faster than they are taken.
        let mut count = 0;
        while session.report(&moved(0, &[])) {
            count += 1;
            if count > 2000 && session.link.receive(Duration::from_millis(5)).is_err() {
                return;
            }
        }
    });
    let mut client = fixture.login();
    let _connection = client.data();
    client.command("STOR f", 150);
    client.send("ABOR");
    assert_eq!(client.reply().code, 426);
    assert_eq!(client.reply().code, 226);
    client.command("QUIT", 221);
    serving.join().unwrap();
    assert_nothing_is_left(&fixture, "endless");
}

#[test]
fn node_with_absurd_announcement_or_name_in_use_is_refused() {
    let fixture = front_end();
    let announced = |change: Value| {
        let mut announcement = false_node::announcement(&fixture, "a");
        for (name, value) in change.as_object().unwrap() {
            announcement[name] = value.clone();
        }
        announcement
    };
    let cases = [
        (json!({"capacity": 0}), "Capacity"),
        (json!({"capacity": u64::MAX}), "Capacity"),
        (json!({"name": "x".repeat(1 << 20)}), "Name"),
        (json!({"version": "x".repeat(1 << 20)}), "Version"),
        (json!({"addresses": []}), "NoAddress"),
        (json!({"addresses": ["0.0.0.0"]}), "Address"),
        (json!({"addresses": vec!["127.0.0.1"; 1000]}), "Addresses"),
    ];
    for (change, reason) in cases {
        let refused = false_node::join(&fixture, &announced(change)).err().unwrap();
        assert!(refused == reason || refused.get(reason).is_some(), "{reason}: {refused}");
        assert!(refused.to_string().len() < 500);
    }
    // A message that is no announcement gets no answer.
    for wrong in
        [json!({"capacity": -1}), json!({"capacity": 1e300}), json!({"capacity": "NaN"}), json!({"name": 7})]
    {
        let mut link = false_node::connect(&fixture);
        link.send(&json!({"Join": announced(wrong)})).unwrap();
        assert!(link.expect(PATIENCE).is_err());
    }
    let first = FalseNode::join(&fixture, "a");
    let second = false_node::join(&fixture, &announced(json!({}))).err().unwrap();
    assert_eq!(second["NameTaken"]["name"], "a");
    drop(first);
}

#[test]
fn connection_in_the_name_of_another_node_is_closed() {
    let fixture = front_end();
    let (_first, number) = false_node::join(&fixture, &false_node::announcement(&fixture, "a")).unwrap();
    // Numbers cannot be guessed from the own one, or from those of an earlier front end.
    for other in [0, 1, 2, number.wrapping_add(1), number.wrapping_sub(1)] {
        let mut link = false_node::connect(&fixture);
        link.send(&json!({"Ready": other})).unwrap();
        assert!(link.expect(PATIENCE).is_err());
    }
}
