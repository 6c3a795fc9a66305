//! All commands of a server session and their replies.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;

use common::{Host, ParsePath, entry, good, missing};
use ropewalk_protocol::command::{DataAuthentication, Protection};
use ropewalk_protocol::facts::{Entry, EntryKind};
use ropewalk_protocol::server::{
    Banner, Event, Failure, Operation, Outcome, Phase, SessionConfig, StackKind,
};

const LOGIN_FIRST: &str = "530 Please login with USER and PASS.";
const UNSUPPORTED: &str = "500 Command not supported.";
const SLOTS: &str =
    "250 SLOTS cd34 COUNT 2 RATE 9 FROM 19700101000000 UNTIL 19700102000000 LEASE 19700101000200";
const ARGUMENTS: &str = "501 Invalid command arguments.";
const SYNTAX: &str = "501 Syntax error in parameters or arguments.";
const OK: &str = "250 OK.";

#[test]
fn banner_of_each_kind_is_sent() {
    let banner = |banner| {
        let config = SessionConfig {
            hostname: "vm".to_owned(),
            version: "1.2.3".to_owned(),
            banner,
            ..SessionConfig::default()
        };
        Host::new(config).session.banner().to_string()
    };
    assert_eq!(banner(Banner::Standard), "220 vm GridFTP Server 1.2.3 [Ropewalk] ready.");
    assert_eq!(banner(Banner::Terse), "220 ");
    assert_eq!(banner(Banner::Text("hello there".to_owned())), "220 hello there");
    assert_eq!(banner(Banner::Text("a\nb".to_owned())), "220-a|220 b");
    assert_eq!(
        banner(Banner::Appended("be kind".to_owned())),
        "220-vm GridFTP Server 1.2.3 [Ropewalk] ready.|220 be kind"
    );
}

#[test]
fn commands_before_login_are_refused() {
    let mut host = Host::new(SessionConfig::default());
    assert_eq!(host.session.phase(), Phase::PreLogin);
    for line in [
        "TYPE I",
        "TYPE",
        "CWD",
        "CWD /",
        "OPTS",
        "SYST",
        "LANG",
        "PWD",
        "DCAU N",
        "PBSZ 1",
        "SITE VERSION",
        "SITE CLIENTINFO x",
        "SITE WHOAMI",
        "PASV",
        "STAT",
        "ALLO 1",
        "MLST",
    ] {
        assert_eq!(host.run(line), LOGIN_FIRST, "{line}");
    }
    host.check(&[
        ("NOOP", "200 NOOP command successful."),
        ("NOOP x", "200 NOOP command successful."),
        ("AUTH GSSAPI", "504 Unknown authentication type."),
        ("AUTH TLS", "504 Unknown authentication type."),
        ("AUTH", "504 Unknown authentication type."),
        ("ADAT x", UNSUPPORTED),
        ("ENC x", UNSUPPORTED),
        ("MIC x", UNSUPPORTED),
        ("XYZ", UNSUPPORTED),
        ("DCSC D", UNSUPPORTED),
        ("FOOBAR", SYNTAX),
        ("N1", SYNTAX),
        ("SITE", SYNTAX),
        ("SITE FOO", "500 Invalid command."),
        ("SITE FAULT PWD", "500 Invalid command."),
        ("HELP NOOP", "214-Help for NOOP:| NOOP (no operation)|214 End."),
        ("HELP XX", "502 Unknown command 'XX'."),
        ("ABOR", "226 Abort successful"),
        ("PASS", "503 Login with USER first."),
        ("USER", SYNTAX),
        ("USER :globus-mapping:", "331 Password required for :globus-mapping:."),
        ("QUIT", "221 Goodbye.\nCLOSE"),
        ("NOOP", ""),
    ]);
    assert_eq!(host.session.phase(), Phase::Closed);
}

#[test]
fn login_sets_user_and_directory() {
    let mut host = Host::new(SessionConfig::default());
    assert!(host.run("SITE HELP").starts_with("214-The following commands are recognized:|    ALLO "));
    assert!(!host.run("FEAT").contains("CKSM"));

    host.run("USER bob");
    let Operation::Login { user, password } = host.ask("PASS ") else { panic!() };
    assert_eq!((user.as_slice(), password.expose()), (&b"bob"[..], &b""[..]));
    assert_eq!(host.session.phase(), Phase::Busy);
    host.session.completed(Err(Failure::LoginDenied("Invalid user.".to_owned())));
    assert_eq!(host.poll(), "530 Login incorrect. : Invalid user.");
    assert_eq!(host.session.phase(), Phase::PreLogin);

    // The user name is kept after a failed log-in.
    let Operation::Login { user, password } = host.ask("PASS  two words ") else { panic!() };
    assert_eq!((user.as_slice(), password.expose()), (&b"bob"[..], &b" two words "[..]));
    assert!(!format!("{:?}", Operation::Login { user, password }).contains("two"));
    host.session.completed(Ok(Outcome::LoggedIn {
        local_user: "rob".to_owned(),
        home: "/home/rob".parse_path(),
        message: Some("be kind\nto disks".to_owned()),
    }));
    assert_eq!(host.poll(), "230-User rob logged in.|230-be kind|230-to disks|230 End.");
    assert_eq!((host.session.phase(), host.session.user()), (Phase::Idle, Some("rob")));

    host.check(&[
        ("PWD", "257 \"/home/rob\" is current directory."),
        ("SITE WHOAMI", "200 rob"),
        ("USER x", "503 You are already logged in."),
        ("USER", "503 You are already logged in."),
        ("PASS x", "503 You are already logged in."),
        ("AUTH GSSAPI", UNSUPPORTED),
    ]);
    assert!(host.run("FEAT").starts_with("211-Extensions supported| CKSM MD5:10;ADLER32:10;"));
}

#[test]
fn login_on_busy_server_ends_session() {
    let mut host = Host::new(SessionConfig::default());
    host.run("USER bob");
    host.ask("PASS x");
    host.session.completed(Err(Failure::Busy("Too many sessions.".to_owned())));
    assert_eq!(host.poll(), "421 Too many sessions.\nCLOSE");
}

#[test]
fn settings_commands_are_answered() {
    Host::logged_in().check(&[
        ("SYST", "215 UNIX Type: L8"),
        ("TYPE I", "200 Type set to I."),
        ("TYPE A N", "200 Type set to A."),
        ("TYPE L 8", "501 'TYPE L 8' unrecognized type."),
        ("MODE E", "200 Mode set to E."),
        ("MODE E", "200 Mode set to E."),
        ("MODE S", "200 Mode set to S."),
        ("MODE B", "501 'MODE B' unrecognized transfer mode."),
        ("STRU F", "200 STRU F ok."),
        ("STRU R", "501 Syntax error in parameter."),
        ("ALLO 5", "200 ALLO command successful."),
        ("REST 5", "350 Restart Marker OK. Send STORE or RETR to initiate transfer."),
        ("REST x", "501 bad parameter."),
        ("SBUF 5", "200 SBUF Command Successful."),
        ("SBUF x", "502 Invalid Parameter."),
        ("ABUF 5", "200 ABUF: left to the system."),
        ("TREV PERF 5", "200 Command Successful."),
        ("TREV FOO 5", "502 Unsupported event."),
        ("PBSZ 1048576", "200 PBSZ=1048576"),
        ("PBSZ 99999999999", "501 Bad value for PBSZ: 99999999999"),
        ("PROT C", "200 Protection level set to C."),
        ("PROT P", "536 P protection level not supported."),
        ("PROT S", "536 S protection level not supported."),
        ("PROT X", "536 X protection level not supported."),
        ("DCAU N", "200 DCAU N."),
        ("DCAU A", "504 Bad DCAU mode."),
        ("DCAU S x", "504 Bad DCAU mode."),
        ("DCAU X", "501 Bad DCAU mode."),
        ("DCSC D", UNSUPPORTED),
        ("LANG EN", "200 lang set to EN."),
        ("LANG", "200 lang set to EN."),
        ("LANG FR", "501 'LANG FR' unrecognized language."),
        ("OPTS RETR Parallelism=4,4,4;", "200 OPTS Command Successful."),
        ("OPTS RETR Parallelism=4,4,4", "500 OPTS failed."),
        ("OPTS UTF8 ON", "200 OPTS Command Successful."),
        ("OPTS UTF8 OFF", "500 OPTS failed."),
        ("SCKS MD5 00", "200 OK."),
        ("SCKS FOO 00", "500 Unknown checksum algorithm requested."),
        ("EPSV ALL", "229 EPSV ALL Successful."),
        ("STAT", "212 GridFTP server status."),
        ("REIN", UNSUPPORTED),
        ("GET path=/x;pasv;", UNSUPPORTED),
    ]);
}

#[test]
fn directory_commands_are_answered() {
    let mut host = Host::logged_in();
    host.check(&[
        ("CWD data", "250 CWD command successful."),
        ("PWD", "257 \"/home/alice/data\" is current directory."),
        ("CDUP", "250 CWD command successful."),
        ("CDUP", "250 CWD command successful."),
        ("CDUP", "250 CWD command successful."),
        ("CDUP", "250 CWD command successful."),
        ("PWD", "257 \"/\" is current directory."),
        ("CWD /a//b/./../c \"", "250 CWD command successful."),
        // Quotation marks in the path are not doubled.
        ("PWD", "257 \"/a/c \"\" is current directory."),
        ("MKD x/", "257 Directory \"/a/c \"/x\" created successfully."),
        ("RMD x", OK),
        ("CWD", SYNTAX),
    ]);
    host.answer = missing;
    host.check(&[
        (
            "CWD /nope",
            "550-/nope: Could not change directory. : GlobusError: v=1 c=PATH_NOT_FOUND|550-GridFTP-Errno: 2|\
             550-GridFTP-Reason: System error in stat|550-GridFTP-Error-String: No such file or directory|550 End.",
        ),
        ("PWD", "257 \"/a/c \"\" is current directory."),
    ]);
    host.answer = |_| Err(Failure::System { errno: 20, action: "stat".to_owned() });
    host.check(&[("CWD /f", "550 /f: Not a directory.")]);
    host.answer = |_| Err(Failure::NotAllowed);
    host.check(&[
        ("CWD /etc", "550 /etc: Could not change directory. : Path not allowed."),
        ("MKD /etc/x", "500 Path not allowed."),
    ]);
    host.answer = |_| Err(Failure::System { errno: 17, action: "mkdir".to_owned() });
    host.check(&[(
        "MKD x",
        "553-GlobusError: v=1 c=PATH_EXISTS|553-GridFTP-Errno: 17|553-GridFTP-Reason: System error in mkdir|\
         553-GridFTP-Error-String: File exists|553 End.",
    )]);
}

const NOT_FOUND: &str = "550-GlobusError: v=1 c=PATH_NOT_FOUND|550-GridFTP-Errno: 2|550-GridFTP-Reason: System error in stat|\
                         550-GridFTP-Error-String: No such file or directory|550 End.";

#[test]
fn attribute_commands_are_answered() {
    let mut host = Host::logged_in();
    const FACTS: &str = "Type=file;Modify=20261121215703;Size=12;Perm=awr;UNIX.mode=0666;UNIX.owner=root;UNIX.uid=0;\
                         UNIX.group=root;UNIX.gid=0;Unique=fe00-98414f;";
    host.check(&[
        ("MLST sub/../f", &format!("250-status of sub/../f| {FACTS} sub/../f|250 End.")),
        ("MLST", &format!("250-status of /home/alice| {FACTS} /home/alice|250 End.")),
        ("STAT f", "213-status of f| -rw-rw-rw-   1     root     root           12 Nov 21 21:57 f|213 End."),
        (
            "STAT sub/",
            "213-status of sub/| -rw-rw-rw-   1     root     root           12 Nov 21 21:57 sub|213 End.",
        ),
        ("SIZE sub", "213 4096"),
        ("MDTM f", "213 20261121215703"),
        ("OPTS MLST Type;size;", "200 OPTS Command Successful."),
        ("MLST f", "250-status of f| Type=file;Size=12; f|250 End."),
        ("OPTS MLST foo;", "200 OPTS Command Successful."),
        ("MLST f", "250-status of f|  f|250 End."),
    ]);
    assert!(matches!(host.ask_and_do("STAT l"), Operation::Stat { follow: true, .. }));
    host.answer = missing;
    host.check(&[
        ("MLST nope", NOT_FOUND),
        ("STAT nope", NOT_FOUND),
        ("SIZE nope", NOT_FOUND),
        ("MDTM nope", NOT_FOUND),
    ]);
}

#[test]
fn change_commands_are_answered() {
    let mut host = Host::logged_in();
    host.check(&[
        ("DELE f", OK),
        ("MFMT 20200101000000 f", "213 Modify=20200101000000; f"),
        ("MFMT 2020 f", ARGUMENTS),
        ("SITE UTIME 20200101000000 f", OK),
        ("SITE CHMOD 0644 f", OK),
        ("SITE CHGRP users f", OK),
        ("SITE RDEL d", OK),
        ("SITE TRNC 5 f", OK),
        ("SITE TRNC x f", "500 Invalid length."),
        ("SITE SYMLINK a b", OK),
        ("SITE CLIENTINFO scheme=gsiftp;", OK),
        ("SITE TASKID 17", OK),
    ]);
    let modified = Operation::SetModified { path: "/home/alice/f".parse_path(), modified: 1_577_836_800 };
    assert_eq!(format!("{:?}", host.ask_and_do("MFMT 20200101000000 f")), format!("{modified:?}"));
    let Operation::ChangeMode { mode, .. } = host.ask_and_do("SITE CHMOD 2755 f") else { panic!() };
    assert_eq!(mode, 0o2755);

    host.answer = missing;
    host.check(&[
        ("SITE RDEL nope", &format!("500-recursion failed.|{}", NOT_FOUND.replace("550", "500"))),
        ("DELE nope", NOT_FOUND),
    ]);
    host.answer = |_| Err(Failure::System { errno: 2, action: "open".to_owned() });
    host.check(&[(
        "SITE TRNC 5 nope",
        "500-globus_xio: System error in open: No such file or directory|\
         500-globus_xio: A system call failed: No such file or directory|500 End.",
    )]);
}

#[test]
fn rename_takes_source_of_last_rnfr() {
    let mut host = Host::logged_in();
    host.check(&[
        ("RNTO x", ARGUMENTS),
        ("RNFR f", "350 OK. Send RNTO with destination name."),
        ("NOOP", "200 NOOP command successful."),
    ]);
    let Operation::Rename { from, to } = host.ask_and_do("RNTO /g") else { panic!() };
    assert_eq!((from.as_bytes(), to.as_bytes()), (&b"/home/alice/f"[..], &b"/g"[..]));
    host.check(&[("RNTO x", ARGUMENTS), ("RNFR f", "350 OK. Send RNTO with destination name.")]);
    host.answer = missing;
    host.check(&[("RNFR nope", &NOT_FOUND.replace("550", "500")), ("RNTO x", ARGUMENTS)]);
}

#[test]
fn symlink_commands_are_answered() {
    let mut host = Host::logged_in();
    host.check(&[
        ("SITE SYMLINKTO l", ARGUMENTS),
        ("SITE SYMLINKFROM d/f", "350 OK. Send SITE SYMLINKTO with symlink name."),
    ]);
    let Operation::Symlink { target, link } = host.ask_and_do("SITE SYMLINKTO l") else { panic!() };
    assert_eq!((target.as_slice(), link.as_bytes()), (&b"/home/alice/d/f"[..], &b"/home/alice/l"[..]));
    let Operation::Symlink { target, link } = host.ask_and_do("SITE SYMLINK ../f a link") else { panic!() };
    assert_eq!((target.as_slice(), link.as_bytes()), (&b"../f"[..], &b"/home/alice/a link"[..]));
    host.answer = missing;
    host.check(&[
        ("SITE SYMLINKFROM nope", &NOT_FOUND.replace("550", "500")),
        ("SITE SYMLINKTO l", ARGUMENTS),
    ]);
}

/// The drivers of the next channel.
fn stack_of_channel(host: &mut Host) -> Option<String> {
    let Operation::Listen(listen) = host.ask_and_do("PASV") else { panic!() };
    listen.channel.stack.map(|stack| stack.to_string())
}

#[test]
fn net_stack_that_the_host_accepts_holds_for_later_channels() {
    let mut host = Host::logged_in();
    assert_eq!(stack_of_channel(&mut host), None);
    let Operation::SetNetStack(net) = host.ask_and_do("SITE SETNETSTACK TCP:sndbuf=65536,rate") else {
        panic!()
    };
    assert_eq!(net.stack.to_string(), "tcp:sndbuf=65536,rate");
    assert_eq!((net.authentication, net.protection), (DataAuthentication::None, Protection::Clear));
    assert_eq!(stack_of_channel(&mut host).as_deref(), Some("tcp:sndbuf=65536,rate"));
    let Operation::Connect(connect) = host.ask_and_do("PORT 127,0,0,1,200,1") else { panic!() };
    assert_eq!(
        connect.channel.stack.map(|stack| stack.to_string()).as_deref(),
        Some("tcp:sndbuf=65536,rate")
    );
    host.check(&[("SITE SETNETSTACK Default", OK)]);
    assert_eq!(stack_of_channel(&mut host), None);
}

#[test]
fn net_stack_that_the_host_refuses_leaves_the_old_one() {
    let mut host = Host::logged_in();
    host.check(&[("SITE SETNETSTACK tcp:nodelay=1", OK)]);
    host.answer = |operation| match operation {
        Operation::SetNetStack(_) => Err(Failure::bad_stack(StackKind::DataChannel, "no such thing")),
        other => good(other),
    };
    host.check(&[(
        "SITE SETNETSTACK udt,gsi",
        "500-Setting data channel driver stack failed.|500-globus_xio: Bad parameter, no such thing|500 End.",
    )]);
    assert_eq!(stack_of_channel(&mut host).as_deref(), Some("tcp:nodelay=1"));
}

#[test]
fn text_that_is_no_stack_is_refused() {
    let mut host = Host::logged_in();
    host.check(&[
        (
            "SITE SETNETSTACK tcp,",
            "500-Setting data channel driver stack failed.|\
             500-globus_xio: Bad parameter, a driver of the stack has no name|500 End.",
        ),
        (
            "SITE SETDISKSTACK :mode=600",
            "500-Setting filesystem driver stack failed.|\
             500-globus_xio: Bad parameter, a driver of the stack has no name|500 End.",
        ),
    ]);
}

#[test]
fn disk_stack_is_passed_to_the_host() {
    let mut host = Host::logged_in();
    let Operation::SetDiskStack(Some(stack)) = host.ask_and_do("SITE SETDISKSTACK popen:argv=#cat#/x") else {
        panic!()
    };
    assert_eq!(stack.to_string(), "popen:argv=#cat#/x");
    let default = host.ask_and_do("SITE SETDISKSTACK default");
    assert!(matches!(default, Operation::SetDiskStack(None)));
    host.check(&[("SITE SETDISKSTACK default", OK), ("SITE SETDISKSTACK file", OK)]);
}

#[test]
fn site_settings_commands_are_answered() {
    let mut host =
        Host::logged_in_with(SessionConfig { version: "1.2.3".to_owned(), ..SessionConfig::default() });
    for verb in ["SBUF", "BUFSIZE", "RETRBUFSIZE", "RBUFSZ", "RBUFSIZ", "STORBUFSIZE", "SBUFSZ", "SBUFSIZ"] {
        assert_eq!(host.run(&format!("SITE {verb} 65536")), "200 Site Command Successful.");
        assert_eq!(host.run(&format!("SITE {verb} x")), SYNTAX);
    }
    host.check(&[
        ("SITE VERSION", "200 1.2.3 [Ropewalk]"),
        ("SITE whoami", "200 alice"),
        ("SITE STORATTR modify=20200101000000;", OK),
        ("SITE STORATTR modify=2020;", ARGUMENTS),
        ("SITE DSI x", "500 no such DSI"),
        ("SITE SHARING TESTPATH x", "500 Sharing not enabled."),
        ("SITE UPAS 0", "500 Invalid command."),
        ("SITE AUTHZ_ASSERT x", "500 Invalid command."),
        ("SITE HTTP CONFIG x", "500 Invalid command."),
        ("SITE FAULT PWD", "500 Invalid command."),
        ("SITE HELP NOOP", "214-Help for NOOP:| NOOP (no operation)|214 End."),
        ("SITE RANGES x", "250-Ranges of x| 0-1048576,2097152-3145728|250 End."),
        ("SITE USAGE x", "250 USAGE 1 FREE 2 TOTAL 3"),
        ("SITE USAGE TOKEN t x", "250 USAGE 1 FREE 2 TOTAL 3"),
        ("SITE USAGE TOKEN t", SYNTAX),
        ("SITE USAGE", SYNTAX),
        ("SITE SLOTS RESERVE 2 9 0 86400 120", SLOTS),
        ("SITE SLOTS RESERVE 0 9 0 86400 120", SLOTS),
        ("SITE SLOTS RESERVE 2 0 0 86400 120", SLOTS),
        ("SITE SLOTS RESERVE 0 0 0 86400 120", ARGUMENTS),
        ("SITE SLOTS RESERVE 2 9 0 0 120", ARGUMENTS),
        ("SITE SLOTS RESERVE 2 9 0 86400 0", ARGUMENTS),
        ("SITE SLOTS RESERVE 4294967296 9 0 86400 120", ARGUMENTS),
        ("SITE SLOTS RESERVE 2 9 -1 86400 120", ARGUMENTS),
        ("SITE SLOTS RESERVE 2 9 0 86400", SYNTAX),
        ("SITE SLOTS RESERVE 2 9 0 86400 120 /x", SYNTAX),
        ("SITE SLOTS EXTEND cd34 60", SLOTS),
        ("SITE SLOTS EXTEND cd34 0", ARGUMENTS),
        ("SITE SLOTS USE cd34", SLOTS),
        ("SITE SLOTS USE none", OK),
        ("SITE SLOTS RELEASE cd34", OK),
        ("SITE SLOTS LIST", "250-Reservations| SLOTS cd34 COUNT 2 RATE 9 FROM 19700101000000 UNTIL 19700102000000 LEASE 19700101000200|250 End."),
        ("SITE SLOTS LIST x", ARGUMENTS),
        ("SITE SLOTS", SYNTAX),
        ("SITE SPACE RESERVE 9 60 x", "250 SPACE ab12 BYTES 9 LEFT 5 UNTIL 19700102000000"),
        ("SITE SPACE RESERVE 0 60", ARGUMENTS),
        ("SITE SPACE RESERVE 9 0", ARGUMENTS),
        ("SITE SPACE RESERVE 9", SYNTAX),
        ("SITE SPACE RESERVE 18446744073709551616 60", ARGUMENTS),
        ("SITE SPACE USE ab12", "250 SPACE ab12 BYTES 9 LEFT 5 UNTIL 19700102000000"),
        ("SITE SPACE USE none", OK),
        ("SITE SPACE EXTEND ab12 60", "250 SPACE ab12 BYTES 9 LEFT 5 UNTIL 19700102000000"),
        ("SITE SPACE EXTEND ab12", SYNTAX),
        ("SITE SPACE EXTEND ab12 0", ARGUMENTS),
        ("SITE SPACE EXTEND ab12 60 60", SYNTAX),
        ("SITE SPACE RELEASE ab12", OK),
        ("SITE SPACE RELEASE", SYNTAX),
        ("SITE SPACE LIST", "250-Reservations| SPACE ab12 BYTES 9 LEFT 5 UNTIL 19700102000000|250 End."),
        ("SITE SPACE", SYNTAX),
        ("SITE SPACE KEEP", ARGUMENTS),
        ("SITE CHROOT sub", OK),
        ("PWD", "257 \"/\" is current directory."),
        ("SITE CHROOT sub", "500 Root directory is already set."),
        ("SITE RESTRICT R/", OK),
        ("SITE RESTRICT R/", "500 Session restricted paths list already set."),
    ]);
    host.answer = |_| Ok(Outcome::Ranges(Default::default()));
    assert_eq!(host.run("SITE RANGES x"), "250-Ranges of x| |250 End.");
    let mut host = Host::logged_in();
    host.answer = missing;
    host.check(&[("SITE CHROOT nope", NOT_FOUND), ("PWD", "257 \"/home/alice\" is current directory.")]);
    host.answer = good;
    host.check(&[("SITE CHROOT d", OK)]);
}

#[test]
fn site_fault_makes_commands_fail() {
    let mut host = Host::logged_in_with(SessionConfig { faults: true, ..SessionConfig::default() });
    host.check(&[
        ("SITE FAULT pwd", "200 Site Command Successful."),
        ("SITE FAULT SITE WHOAMI", "200 Site Command Successful."),
        ("PWD", "501 Fault requested."),
        ("SITE WHOAMI", "501 Fault requested."),
        ("NOOP", "200 NOOP command successful."),
    ]);
}

#[test]
fn disabled_commands_are_unknown() {
    let disabled = BTreeSet::from(["DELE".to_owned(), "SITE RDEL".to_owned(), "MLST".to_owned()]);
    let mut host = Host::logged_in_with(SessionConfig { disabled, ..SessionConfig::default() });
    host.check(&[
        ("DELE x", UNSUPPORTED),
        ("SITE RDEL x", "500 Invalid command."),
        ("HELP DELE", "502 Unknown command 'DELE'."),
        ("RMD x", OK),
    ]);
    assert!(!host.run("FEAT").contains("MLST") && !host.run("HELP").contains("DELE"));
    assert!(!host.run("HELP SITE").contains("RDEL"));
}

#[test]
fn cksm_is_answered_with_markers() {
    let mut host = Host::logged_in();
    host.check(&[
        ("CKSM md5 0 -1 f", "213 6f5902ac237024bdd0c176cb93063dc4"),
        ("CKSM FOO 0 -1 f", "500 Unknown checksum algorithm requested."),
        ("CKSM MD5 x -1 f", "500 Invalid offset."),
        ("OPTS CKSM markers=2;", "200 OPTS Command Successful."),
    ]);
    let Operation::Checksum { offset, length, marker_interval, .. } = host.ask("CKSM XXH3-128 5 7 f") else {
        panic!()
    };
    assert_eq!((offset, length, marker_interval), (5, Some(7), 2));
    host.session.event(Event::Checksummed { timestamp: 17_952_891_462, bytes: 123 });
    assert_eq!(host.poll(), "113-Status Marker| Timestamp: 1795289146.2| Bytes Processed: 123|113 End.");
    host.session.completed(Err(Failure::System { errno: 2, action: "open".to_owned() }));
    assert_eq!(
        host.poll(),
        "500-globus_xio_register_open failed.|500-globus_xio: Unable to open file /home/alice/f|\
         500-globus_xio: System error in open: No such file or directory|\
         500-globus_xio: A system call failed: No such file or directory|500 End."
    );
}

#[test]
fn mlsc_sends_entries_in_chunks() {
    let mut host = Host::logged_in();
    host.run("OPTS MLST Type;");
    let Operation::ListHere { path } = host.ask("MLSC sub/") else { panic!() };
    assert_eq!(path.as_bytes(), b"/home/alice/sub");
    host.session.event(Event::Entries(vec![Entry::new(".", EntryKind::CurrentDirectory), entry()]));
    host.session.completed(Ok(Outcome::Done));
    assert_eq!(host.poll(), "250-Contents of sub/| Type=cdir; .| Type=file; f|250 End.");

    // A long listing is sent in replies with up to a thousand entries each.
    host.ask("MLSC");
    for _ in 0..5 {
        host.session.event(Event::Entries(vec![entry(); 500]));
    }
    let replies = host.poll();
    let replies: Vec<&str> = replies.lines().collect();
    assert_eq!(replies.len(), 2);
    for reply in replies {
        assert!(
            reply.starts_with("150-Contents of /home/alice| Type=file; f|") && reply.ends_with("|150 End.")
        );
        assert_eq!(reply.matches('|').count(), 1001);
    }
    host.session.completed(Ok(Outcome::Done));
    assert_eq!(host.poll().matches('|').count(), 501);

    host.answer = missing;
    host.check(&[("MLSC nope", NOT_FOUND)]);
    host.answer = |_| Ok(Outcome::Done);
    host.check(&[("MLSC empty", "250-Contents of empty|250 End.")]);
}

#[test]
fn session_on_unexpected_outcome_replies_with_failure() {
    let mut host = Host::logged_in();
    host.answer = |_| Ok(Outcome::Size(1));
    assert!(host.run("MLST f").starts_with("451-GlobusError: v=1 c=INTERNAL_ERROR|"));
    host.answer = |_| Err(Failure::Refused { code: 226, text: "fine".to_owned() });
    assert_eq!(host.run("MLST f"), "500 fine");
    host.session.completed(Ok(Outcome::Done));
    host.session.event(Event::Begun { reused: false });
    assert_eq!(host.poll(), "");
}

#[test]
fn new_name_with_line_end_is_refused() {
    const REFUSED: &str = "553 A name must have neither CR nor LF in it: listings could not tell it.";
    let mut host = Host::logged_in();
    host.check(&[
        ("MKD a\rb", REFUSED),
        ("MKD d/a\nb", REFUSED),
        ("SITE SYMLINK f a\rb", REFUSED),
        ("SITE SYMLINKFROM f", "350 OK. Send SITE SYMLINKTO with symlink name."),
        ("SITE SYMLINKTO a\rb", REFUSED),
        ("SITE SYMLINKTO b", ARGUMENTS),
        ("RNFR a\rb", "350 OK. Send RNTO with destination name."),
        ("RNTO a\nb", REFUSED),
        ("RNTO b", ARGUMENTS),
        ("MKD a\rb/c", "257 Directory \"/home/alice/a?b/c\" created successfully."),
        ("DELE a\rb", OK),
        ("RMD a\rb", OK),
        ("SITE RDEL a\rb", OK),
    ]);
}

#[test]
fn leading_tilde_resolves_to_login_directory() {
    let mut host = Host::logged_in();
    host.run("CWD /elsewhere");
    for (given, meant) in [
        ("~", "/home/alice"),
        ("~/", "/home/alice"),
        ("~/a b", "/home/alice/a b"),
        ("~//../c", "/home/c"),
        ("./~", "/elsewhere/~"),
        ("~bob/x", "/elsewhere/~bob/x"),
        ("/~", "/~"),
        ("x/~", "/elsewhere/x/~"),
    ] {
        let Operation::Size(path) = host.ask(&format!("SIZE {given}")) else { panic!("{given}") };
        assert_eq!(path.to_string(), meant, "{given}");
        host.session.completed(Ok(Outcome::Size(1)));
        host.poll();
    }
}
