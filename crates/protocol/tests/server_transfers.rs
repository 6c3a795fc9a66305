//! Transfers and listings of a server session.

#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Host, ParsePath};
use ropewalk_protocol::command::ChecksumAlgorithm;
use ropewalk_protocol::marker::{LimitedBy, PathMarker};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::scitag::SciTag;
use ropewalk_protocol::server::{
    Direction, Event, Failure, List, ListForm, Mode, Operation, Outcome, RepresentationType, SessionConfig,
    Transfer, Window,
};

const PASSIVE: &str = "227 Entering Passive Mode (127,0,0,1,179,217)";
const NO_CHANNEL: &str = "500 Command failed. : No data channel: send PASV, EPSV or PORT first.";

fn transfer(host: &mut Host, line: &str) -> Transfer {
    match host.ask(line) {
        Operation::Transfer(transfer) => *transfer,
        other => panic!("{line}: {other:?}"),
    }
}

fn list(host: &mut Host, line: &str) -> List {
    match host.ask(line) {
        Operation::List(list) => *list,
        other => panic!("{line}: {other:?}"),
    }
}

fn end(host: &mut Host) -> String {
    host.session.completed(Ok(Outcome::Transferred { checksum: None }));
    host.poll()
}

/// Creates a channel and starts a transfer.
fn started(host: &mut Host, line: &str) -> Transfer {
    assert_eq!(host.run("PASV"), PASSIVE);
    transfer(host, line)
}

#[test]
fn tag_at_the_end_of_a_path_is_part_of_the_name_unless_settings_permit() {
    const NAMED: &str = "RETR /d/f?scitag.flow=147";
    let mut host = Host::logged_in();
    let plain = started(&mut host, NAMED);
    assert_eq!((plain.path, plain.scitag), ("/d/f?scitag.flow=147".parse_path(), None));
    let config = SessionConfig { flow_in_paths: true, ..SessionConfig::default() };
    let mut host = Host::logged_in_with(config);
    for (line, path, tag) in [
        (NAMED, "/d/f", Some(147)),
        ("STOR /f?scitag.flow=65", "/f", Some(65)),
        ("RETR /f?scitag.flow=x", "/f?scitag.flow=x", None),
        ("RETR /f", "/f", None),
    ] {
        let transfer = started(&mut host, line);
        assert_eq!((transfer.path, transfer.scitag.map(SciTag::number)), (path.parse_path(), tag), "{line}");
        end(&mut host);
    }
    match host.ask("SIZE /f?scitag.flow=147") {
        Operation::Size(path) => assert_eq!(path, "/f".parse_path()),
        other => panic!("{other:?}"),
    }
    host.session.completed(Ok(Outcome::Size(1)));
    host.poll();
    assert_eq!(host.run("SIZE /f?scitag.flow=64"), "501 Invalid command arguments.");
}

#[test]
fn replace_applies_only_to_plain_uploads() {
    let mut host = Host::logged_in();
    let mut replaces = |before: &[&str], line: &str| {
        for before in before {
            host.run(before);
        }
        let replaces = started(&mut host, line).replaces;
        end(&mut host);
        replaces
    };
    assert!(!replaces(&[], "STOR f"), "nobody has asked for it");
    assert!(replaces(&["OPTS STOR Replace=1;"], "STOR f"));
    assert!(replaces(&["SCKS CRC32C 0a1b2c3d"], "STOR f") && replaces(&["REST 0"], "STOR f"));
    for (before, line) in [(&["REST 5"][..], "STOR f"), (&[], "APPE f"), (&[], "ESTO A 0 f"), (&[], "RETR f")]
    {
        assert!(!replaces(before, line), "{before:?} {line}");
    }
    assert!(!replaces(&["MODE E", "REST 0-5"], "STOR f") && replaces(&[], "STOR f"));
    assert!(!replaces(&["OPTS STOR Replace=0;"], "STOR f"));

    let mut host = Host::logged_in_with(SessionConfig { replaces: false, ..SessionConfig::default() });
    assert!(!host.run("FEAT").contains("Replace"));
    assert_eq!(host.run("OPTS STOR Replace=1;"), "504 Uploads are written in place here.");
    assert!(!started(&mut host, "STOR f").replaces);
}

#[test]
fn path_markers_are_sent_when_requested() {
    let marker = PathMarker {
        rtt: Duration::from_millis(40),
        min_rtt: Duration::from_millis(39),
        retransmitted: 1448,
        sent: 100,
        congestion_window: 2896,
        streams: 2,
        limited: LimitedBy::SendBuffer,
    };
    let mut host = Host::logged_in();
    let mut path = |lines: &[&str]| {
        for line in lines {
            host.run(line);
        }
        host.run("PASV");
        let wanted = started(&mut host, if lines.contains(&"STOR") { "STOR f" } else { "RETR f" }).path_info;
        host.session.event(Event::Path(marker));
        let told = host.poll();
        end(&mut host);
        assert_eq!(wanted, !told.is_empty());
        told
    };
    assert_eq!(path(&["MODE E", "OPTS RETR markers=5;"]), "");
    assert_eq!(
        path(&["OPTS RETR PathInfo=1;"]),
        "115 Path rtt=40000 minrtt=39000 retrans=1448 sent=100 cwnd=2896 streams=2 limited=sndbuf"
    );
    assert_eq!(path(&["STOR"]), "", "a receiver");
    assert_eq!(path(&["MODE S"]), "");
    assert_eq!(path(&["MODE E", "OPTS RETR markers=0;"]), "");
    assert_eq!(path(&["OPTS RETR markers=1;PathInfo=0;"]), "");
}

#[test]
fn storage_markers_are_sent_in_both_directions_when_requested() {
    let mut host = Host::logged_in();
    let mut wait = |lines: &[&str], transfer: &str| {
        for line in lines {
            host.run(line);
        }
        host.run("PASV");
        let wanted = started(&mut host, transfer).storage_info;
        host.session.event(Event::Storage(Duration::from_millis(1500)));
        let sent = host.poll();
        end(&mut host);
        assert_eq!(wanted, !sent.is_empty());
        sent
    };
    assert_eq!(wait(&["MODE E", "OPTS RETR markers=5;"], "RETR f"), "");
    assert_eq!(wait(&["OPTS RETR PathInfo=1;"], "RETR f"), "115 Storage wait=1500000");
    assert_eq!(wait(&[], "STOR f"), "115 Storage wait=1500000");
    assert_eq!(wait(&["MODE S"], "STOR f"), "");
    assert_eq!(wait(&["MODE E", "OPTS RETR PathInfo=0;"], "STOR f"), "");
}

#[test]
fn nodes_that_join_are_reported_in_extended_mode_after_the_preliminary_reply() {
    let mut host = Host::logged_in();
    let mut told = |lines: &[&str], transfer: &str| {
        for line in lines {
            host.run(line);
        }
        host.run("PASV");
        let most = started(&mut host, transfer).nodes;
        host.session.event(Event::Nodes(2));
        assert_eq!(host.poll(), "");
        host.session.event(Event::Begun { reused: false });
        host.poll();
        host.session.event(Event::Nodes(2));
        let told = host.poll();
        end(&mut host);
        (most, told)
    };
    let marker = || "115 Nodes count=2".to_owned();
    assert_eq!(told(&["MODE E"], "RETR f"), (0, String::new()));
    assert_eq!(told(&["OPTS RETR Nodes=8;"], "RETR f"), (8, marker()));
    assert_eq!(told(&[], "STOR f"), (8, marker()));
    assert_eq!(told(&["MODE S"], "STOR f"), (0, String::new()));
    assert_eq!(told(&["MODE E", "OPTS RETR Nodes=0;"], "STOR f"), (0, String::new()));
}

#[test]
fn retrieve_in_stream_mode_uses_channel_up() {
    let mut host = Host::logged_in();
    host.run("TYPE I");
    let get = started(&mut host, "RETR /data/f10m");
    assert_eq!(
        get,
        Transfer {
            direction: Direction::Retrieve,
            path: "/data/f10m".parse_path(),
            scitag: None,
            window: None,
            adjust: None,
            append: false,
            restarted: false,
            present: RangeSet::new(),
            upload: None,
            allocated: None,
            expected: None,
            modified: None,
            mode: Mode::Stream,
            representation: RepresentationType::Image,
            inline_checksum: None,
            perf_interval: 0,
            restart_interval: 0,
            path_info: false,
            resend: false,
            storage_info: false,
            nodes: 0,
            replaces: false,
            congestion: None,
            delayed: None,
        }
    );
    host.session.event(Event::Begun { reused: false });
    assert_eq!(host.poll(), "150 Beginning transfer.");
    // The client did not request markers.
    host.session.event(Event::Perf { timestamp: 1, stripe: 0, stripes: 1, bytes: 5 });
    host.session.event(Event::Received(RangeSet::from_range(0..5)));
    assert_eq!(host.poll(), "");
    assert_eq!(end(&mut host), "226 Transfer Complete.");
    // In stream mode the transfer used the connection up.
    assert_eq!(host.run("RETR f"), NO_CHANNEL);
}

#[test]
fn store_in_mode_e_sends_markers_and_keeps_channel() {
    let mut host = Host::logged_in();
    host.run("MODE E");
    host.run("ALLO 10000000");
    let put = started(&mut host, "STOR /out/p2");
    assert_eq!(
        (put.direction, put.mode, put.allocated),
        (Direction::Store, Mode::ExtendedBlock, Some(10_000_000))
    );
    assert_eq!((put.perf_interval, put.restart_interval), (5, 5));
    host.session.event(Event::Begun { reused: false });
    host.session.event(Event::Perf { timestamp: 17_952_891_215, stripe: 0, stripes: 1, bytes: 0 });
    host.session.event(Event::Perf { timestamp: 17_952_891_215, stripe: 0, stripes: 1, bytes: 10_000_000 });
    host.session.event(Event::Received(RangeSet::new()));
    host.session.event(Event::Received(RangeSet::from_range(0..10_000_000)));
    assert_eq!(
        host.poll(),
        "150 Beginning transfer.\n\
         112-Perf Marker| Timestamp:  1795289121.5| Stripe Index: 0| Stripe Bytes Transferred: 0| Total Stripe Count: 1|112 End.\n\
         112-Perf Marker| Timestamp:  1795289121.5| Stripe Index: 0| Stripe Bytes Transferred: 10000000| Total Stripe Count: 1|112 End.\n\
         111 Range Marker 0-10000000"
    );
    assert_eq!(end(&mut host), "226 Transfer Complete.");
    // The next transfer uses the same connections; ALLO applied to the first one only.
    let again = transfer(&mut host, "STOR f2");
    assert_eq!(again.allocated, None);
    host.session.event(Event::Begun { reused: true });
    assert_eq!(host.poll(), "125 Beginning transfer; reusing existing data connection.");
    end(&mut host);

    host.run("TREV PERF 0");
    host.run("TREV RESTART 60");
    let quiet = transfer(&mut host, "APPE f2");
    assert!(quiet.append);
    assert_eq!((quiet.perf_interval, quiet.restart_interval), (0, 60));
    host.session.event(Event::Begun { reused: true });
    host.poll();
    host.session.event(Event::Perf { timestamp: 1, stripe: 0, stripes: 1, bytes: 0 });
    host.session.event(Event::Received(RangeSet::from_range(3..5)));
    assert_eq!(host.poll(), "111 Range Marker 3-5");
}

#[test]
fn retrieve_sends_requested_markers() {
    let mut host = Host::logged_in();
    host.run("OPTS RETR markers=7;");
    let get = started(&mut host, "RETR f");
    assert_eq!((get.perf_interval, get.restart_interval), (7, 0));
    host.session.event(Event::Perf { timestamp: 10, stripe: 1, stripes: 2, bytes: 5 });
    assert!(host.poll().starts_with("112-Perf Marker| Timestamp:  1.0| Stripe Index: 1| "));
    // Uploads in stream mode have no markers.
    let mut host = Host::logged_in();
    let put = started(&mut host, "STOR f");
    assert_eq!((put.perf_interval, put.restart_interval), (0, 0));
}

#[test]
fn eret_and_esto_set_window_and_offset() {
    let mut host = Host::logged_in();
    host.run("MODE E");
    host.run("PASV");
    let get = transfer(&mut host, "ERET P 1000 500 /f10m");
    assert_eq!(
        (get.direction, get.window),
        (Direction::Retrieve, Some(Window { offset: 1000, length: 500 }))
    );
    assert_eq!(get.path.as_bytes(), b"/f10m");
    end(&mut host);
    let put = transfer(&mut host, "ESTO A 1000 /p b");
    assert_eq!(
        (put.direction, put.adjust, put.path.as_bytes()),
        (Direction::Store, Some(1000), &b"/p b"[..])
    );
    end(&mut host);
    host.check(&[
        ("ERET P 0 -1 f", "500 command failed."),
        ("ERET mod=\"x\" f", "500 command failed."),
        ("ESTO mod=\"x\" f", "500 command failed."),
        ("ESTO A 5", "501 bad parameter."),
    ]);
}

#[test]
fn rest_applies_to_next_transfer_only() {
    let mut host = Host::logged_in();
    let marker = "350 Restart Marker OK. Send STORE or RETR to initiate transfer.";
    host.check(&[("REST 3", marker), ("RETR f", NO_CHANNEL), ("REST a", "501 bad parameter.")]);
    // Neither a transfer that failed before nor a listing uses the restart marker up.
    host.run("PASV");
    list(&mut host, "NLST");
    end(&mut host);
    let get = started(&mut host, "RETR nope");
    assert_eq!((get.restarted, get.present), (true, RangeSet::from_range(0..3)));
    host.session.completed(Err(Failure::System { errno: 2, action: "open".to_owned() }));
    assert_eq!(
        host.poll(),
        "500-Command failed. : globus_l_gfs_file_open failed.|500-globus_xio: Unable to open file /home/alice/nope|\
         500-globus_xio: System error in open: No such file or directory|\
         500-globus_xio: A system call failed: No such file or directory|500 End."
    );
    // A transfer uses it up, regardless of its result. The channel still exists.
    assert!(!transfer(&mut host, "RETR f").restarted);
    end(&mut host);
    host.check(&[("REST 0-5,8-10", marker)]);
    let put = transfer(&mut host, "STOR f");
    assert_eq!((put.restarted, put.present), (true, [0..5, 8..10].into_iter().collect()));
    end(&mut host);
    host.check(&[("REST 0", marker)]);
    let put = transfer(&mut host, "STOR f");
    // A restart from the beginning is no restart: GCT's server also replaces the file.
    assert_eq!((put.restarted, put.present), (false, RangeSet::new()));
}

#[test]
fn upload_attributes_apply_to_next_upload_only() {
    let mut host = Host::logged_in();
    host.run("MODE E");
    host.run("PASV");
    host.check(&[
        ("SCKS MD5 ABCDEF", "200 OK."),
        ("SITE STORATTR modify=20200101000000;", "250 OK."),
        ("ALLO 7", "200 ALLO command successful."),
    ]);
    let get = transfer(&mut host, "RETR f");
    assert_eq!((get.expected, get.modified, get.allocated), (None, None, None));
    end(&mut host);
    let put = transfer(&mut host, "ESTO A 0 f");
    let expected = put.expected.unwrap();
    assert_eq!((expected.algorithm, expected.value.as_str()), (ChecksumAlgorithm::Md5, "abcdef"));
    assert_eq!((put.modified, put.allocated), (Some(1_577_836_800), Some(7)));
    host.session.completed(Err(Failure::ChecksumMismatch {
        computed: "12".to_owned(),
        expected: "abcdef".to_owned(),
    }));
    assert_eq!(
        host.poll(),
        "550-GlobusError: v=1 c=INCORRECT_CHECKSUM|550-GridFTP-Computed-Checksum: 12|\
         550-GridFTP-Expected-Checksum: abcdef|550 End."
    );
    let put = transfer(&mut host, "STOR f");
    assert_eq!((put.expected, put.modified, put.allocated), (None, None, None));
    end(&mut host);
    host.check(&[("SITE STORATTR checksum.sha256=aa;", "250 OK.")]);
    assert_eq!(transfer(&mut host, "STOR f").expected.unwrap().algorithm, ChecksumAlgorithm::Sha256);
}

#[test]
fn inline_checksum_is_sent_when_requested() {
    let mut host = Host::logged_in();
    host.run("OPTS RETR Checksum=CRC32C;");
    let sum = |algorithm| Ok(Outcome::Transferred { checksum: Some((algorithm, "e3069283".to_owned())) });
    assert_eq!(started(&mut host, "RETR f").inline_checksum, Some(ChecksumAlgorithm::Crc32c));
    host.session.completed(sum(ChecksumAlgorithm::Crc32c));
    assert_eq!(host.poll(), "226-Checksum: CRC32C e3069283|226 Transfer Complete.");
    // The checksum is of another algorithm, or there is none.
    started(&mut host, "RETR f");
    host.session.completed(sum(ChecksumAlgorithm::Adler32));
    assert_eq!(host.poll(), "226 Transfer Complete.");
    started(&mut host, "RETR f");
    assert_eq!(end(&mut host), "226 Transfer Complete.");
    host.run("OPTS RETR Checksum=;");
    assert_eq!(started(&mut host, "RETR f").inline_checksum, None);
    host.session.completed(sum(ChecksumAlgorithm::Crc32c));
    assert_eq!(host.poll(), "226 Transfer Complete.");
}

#[test]
fn transfer_without_channel_is_refused() {
    let mut host = Host::logged_in();
    for line in ["RETR f", "STOR f", "APPE f", "LIST", "NLST", "MLSD", "MLSR", "ERET P 0 1 f", "ESTO A 0 f"] {
        assert_eq!(host.run(line), NO_CHANNEL, "{line}");
    }
    host.run("PASV");
    transfer(&mut host, "RETR f");
    host.session.completed(Err(Failure::NoDataChannel("Call local_port first.".to_owned())));
    assert_eq!(host.poll(), "500 Command failed. : Call local_port first.");
}

#[test]
fn listing_commands_set_form_and_path() {
    let mut host = Host::logged_in();
    host.run("MODE E");
    host.run("PASV");
    let plain = list(&mut host, "LIST");
    assert_eq!((plain.form, plain.path.as_bytes()), (ListForm::Long, &b"/home/alice"[..]));
    end(&mut host);
    for (line, form, path) in [
        ("LIST -la", ListForm::Long, "/home/alice"),
        ("LIST -l -a x y", ListForm::Long, "/home/alice/x y"),
        ("LIST -la  dir", ListForm::Long, "/home/alice/dir"),
        ("LIST -l  -a   x  y", ListForm::Long, "/home/alice/x  y"),
        ("LIST -la  ", ListForm::Long, "/home/alice"),
        ("LIST  x", ListForm::Long, "/home/alice/ x"),
        ("NLST -a", ListForm::Names, "/home/alice"),
        ("NLST *.txt", ListForm::Names, "/home/alice/*.txt"),
        ("MLSD -x", ListForm::Facts, "/home/alice/-x"),
        ("MLSR sub/", ListForm::Recursive, "/home/alice/sub"),
    ] {
        let list = list(&mut host, line);
        assert_eq!((list.form, list.path.as_bytes()), (form, path.as_bytes()), "{line}");
        host.session.event(Event::Begun { reused: true });
        assert_eq!(host.poll(), "125 Beginning transfer; reusing existing data connection.");
        assert_eq!(end(&mut host), "226 Transfer Complete.");
    }
    host.run("OPTS MLSR onerror=continue;traversesymboliclinks=true;");
    let tree = list(&mut host, "MLSR");
    assert!(tree.continue_on_error && tree.traverse_links);
    host.session.completed(Err(Failure::System { errno: 13, action: "opendir".to_owned() }));
    assert!(host.poll().starts_with("550-GlobusError: v=1 c=PERMISSION_DENIED|"));
}

#[test]
fn transfer_with_broken_data_connection_fails() {
    let mut host = Host::logged_in();
    started(&mut host, "RETR f");
    host.session.event(Event::Begun { reused: false });
    host.session.completed(Err(Failure::DataBroken("Connection reset by peer".to_owned())));
    assert_eq!(
        host.poll(),
        "150 Beginning transfer.\n426-GlobusError: v=1 c=DATA_CHANNEL_COMMUNICATION_FAILURE|\
         426-GridFTP-Reason: Connection reset by peer|426 End."
    );
    started(&mut host, "STOR f");
    host.session.completed(Err(Failure::Busy("Too many transfers.".to_owned())));
    assert_eq!(host.poll(), "451 Too many transfers.");
}
