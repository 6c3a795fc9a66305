//! SITE UPLOAD and ESTO U in a server session.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Host, ParsePath as _};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Failure, Operation, Outcome, SessionConfig};
use ropewalk_protocol::upload::UploadStep;

const UNKNOWN: &str = "503 This session has no upload of that ID: SITE UPLOAD BEGIN has to come first.";

fn good(operation: &Operation) -> Result<Outcome, Failure> {
    match operation {
        Operation::Upload(request) => Ok(match request.step {
            UploadStep::Begin(_) => Outcome::UploadBegun { bytes: 5, started_over: None },
            UploadStep::Ranges => Outcome::Ranges(RangeSet::from_range(0..5)),
            UploadStep::Commit(_) => Outcome::Size(7),
            UploadStep::Suspend | UploadStep::Discard => Outcome::Done,
        }),
        other => common::good(other),
    }
}

fn host() -> Host {
    let mut host = Host::logged_in();
    host.answer = good;
    host
}

#[test]
fn upload_is_known_by_its_id_until_it_ends() {
    let mut host = host();
    for end in ["COMMIT", "SUSPEND", "DISCARD"] {
        let done = if end == "COMMIT" { "250 Upload a is complete, 7 bytes." } else { "250 OK." };
        host.check(&[
            ("SITE UPLOAD RANGES a", UNKNOWN),
            ("SITE UPLOAD BEGIN a size=7; f", "250 Upload a has 5 bytes."),
            ("SITE UPLOAD BEGIN a size=7; ./f", "250 Upload a has 5 bytes."),
            ("SITE UPLOAD BEGIN a size=7; g", "503 This session has an upload of that ID to another file."),
            ("SITE UPLOAD RANGES a", "250-Ranges of a| 0-5|250 End."),
            ("SITE UPLOAD RANGES b", UNKNOWN),
            (&format!("SITE UPLOAD {end} a"), done),
            (&format!("SITE UPLOAD {end} a"), UNKNOWN),
        ]);
    }
    host.check(&[("SITE UPLOAD BEGIN a/b ; f", "501 Invalid command arguments.")]);
}

#[test]
fn transfer_into_upload_has_its_path_and_its_attributes_alone() {
    let mut host = host();
    host.run("SITE UPLOAD BEGIN a ; d/f");
    host.run("CWD /other");
    for line in ["PASV", "ALLO 5", "SCKS MD5 00", "SITE STORATTR modify=20010203040506;"] {
        host.run(line);
    }
    let Operation::Transfer(transfer) = host.ask_and_do("ESTO U 3 a") else { panic!("no transfer") };
    assert_eq!(transfer.path, "/home/alice/d/f".parse_path());
    assert_eq!((transfer.upload.unwrap().as_str(), transfer.adjust), ("a", Some(3)));
    assert_eq!((transfer.allocated, transfer.expected, transfer.modified), (None, None, None));
    host.check(&[("ESTO U 0 b", UNKNOWN), ("ESTO U 0 a/b", "501 Invalid command arguments.")]);
}

#[test]
fn upload_whose_begin_fails_takes_no_data() {
    let mut host = host();
    host.answer = common::missing;
    assert!(host.run("SITE UPLOAD BEGIN a ; f").starts_with("550"));
    host.answer = good;
    host.check(&[("ESTO U 0 a", UNKNOWN), ("SITE UPLOAD COMMIT a", UNKNOWN)]);
    // A commit that fails leaves the upload.
    host.run("SITE UPLOAD BEGIN a ; f");
    host.answer = common::missing;
    assert!(host.run("SITE UPLOAD COMMIT a").starts_with("550"));
    host.answer = good;
    host.check(&[("SITE UPLOAD COMMIT a size=7;", "250 Upload a is complete, 7 bytes.")]);
}

#[test]
fn uploads_end_when_their_paths_change_their_meaning() {
    for line in ["SITE CHROOT /d", "SITE RESTRICT /d"] {
        let mut host = host();
        host.run("SITE UPLOAD BEGIN a ; f");
        assert_eq!(host.run(line), "250 OK.", "{line}");
        host.check(&[("SITE UPLOAD COMMIT a", UNKNOWN)]);
    }
}

#[test]
fn uploads_of_a_session_are_limited() {
    let mut host = host();
    for number in 0..256 {
        assert!(host.run(&format!("SITE UPLOAD BEGIN {number} ; f{number}")).starts_with("250 "));
    }
    host.check(&[
        ("SITE UPLOAD BEGIN x ; x", "451 This session has too many uploads: end one of them first."),
        ("SITE UPLOAD SUSPEND 7", "250 OK."),
        ("SITE UPLOAD BEGIN x ; x", "250 Upload x has 5 bytes."),
    ]);
}

#[test]
fn server_that_writes_in_place_has_no_uploads() {
    let mut host = Host::logged_in_with(SessionConfig { replaces: false, ..SessionConfig::default() });
    assert!(!host.run("FEAT").contains("Upload;"));
    host.check(&[("SITE UPLOAD BEGIN a ; f", "504 Uploads are written in place here.")]);
}
