//! Every form of a command on the wire, and lines that are not commands.

#![allow(clippy::unwrap_used)]

use ropewalk_protocol::command::{ChecksumAlgorithm, Command, CommandError, Password};

fn parse(line: &str) -> Result<Command, CommandError> {
    Command::parse(line.as_bytes())
}

fn text(command: &Command) -> String {
    String::from_utf8(command.to_line().unwrap()).unwrap()
}

/// Lines that are printed as they were parsed.
#[test]
fn command_in_canonical_form_is_printed_unchanged() {
    for line in [
        "ABOR",
        "ABUF 65536",
        "ADAT FgMBAA==",
        "ALLO 10000000",
        "APPE /x y ",
        "AUTH GSSAPI",
        "CDUP",
        "CKSM MD5 0 -1 /f",
        "CKSM XXH3-128 10 20  leading space",
        "CONF abc=",
        "CWD /data",
        "DCAU A",
        "DCAU N",
        "DCAU S /O=Grid/CN=Test User",
        "DCSC D",
        "DCSC P LS0tLS1CRUdJTg==",
        "DELE /x",
        "ENC abc=",
        "EPRT |1|127.0.0.1|1234|",
        "EPRT |2|::1|1234|",
        "EPSV",
        "EPSV 1",
        "EPSV 2",
        "EPSV ALL",
        "ERET P 1000 500 /f10m",
        "ERET mod=\"a b=c\" /f x",
        "ESTO A 1000 /pb",
        "ESTO mod=\"\" /pb",
        "FEAT",
        "HELP",
        "HELP SITE",
        "LANG",
        "LANG EN",
        "LIST",
        "LIST -la /x",
        "MDTM f",
        "MFMT 20200101000000 f",
        "MIC abc=",
        "MKD new ",
        "MLSC",
        "MLSD /data/dir/",
        "MLSR .",
        "MLST f",
        "MODE E",
        "MODE S",
        "NLST",
        "NOOP",
        "OPTS CKSM markers=5;",
        "OPTS MLSR onerror=continue;traversesymboliclinks=true;",
        "OPTS MLST ;",
        "OPTS MLST Type;Size;",
        "OPTS PASV AllowDelayed=1;",
        "OPTS RETR StripeLayout=Blocked;BlockSize=65536;Parallelism=4,4,4;",
        "OPTS RETR markers=5;Checksum=CRC32C;",
        "OPTS RETR Checksum=;",
        "PASS ",
        "PASS  secret ",
        "PASV",
        "PBSZ 1048576",
        "PORT 127,0,0,1,172,43",
        "PROT C",
        "PROT P",
        "PROT S",
        "PWD",
        "QUIT",
        "REST 0-1267990528",
        "REST 0-5,7-9",
        "REST 5",
        "RETR /f10m",
        "RMD d",
        "RNFR a",
        "RNTO b",
        "SBUF 5",
        "SCKS MD5 6e8600183b2d3e5f",
        "SITE AUTHZ_ASSERT eA==",
        "SITE CHGRP users f",
        "SITE CHMOD 0644 f",
        "SITE CHROOT /x",
        "SITE CLIENTINFO scheme=gsiftp;appname=\"globus-url-copy\";appver=\"10.12 (gcc64)\";",
        "SITE DATAKEY NONE",
        "SITE HOPLOGIN data.example:2811 ada secret",
        "SITE DATAKEY 0123456789abcdef 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
        "SITE DSI file",
        "SITE FAULT PWD",
        "SITE HELP",
        "SITE HELP NOOP",
        "SITE HTTP CONFIG CA_CERTS=x;",
        "SITE RANGES /.x.ropewalk-part",
        "SITE RDEL d",
        "SITE USAGE /a b",
        "SITE USAGE TOKEN atlas /a b",
        "SITE RESTRICT R/,RW/x",
        "SITE RETRBUFSIZE 5",
        "SITE SBUF 5",
        "SITE STREAMS 5",
        "SITE SETDISKSTACK file",
        "SITE SETNETSTACK udt,gsi",
        "SITE SHARING TESTPATH x",
        "SITE SLOTS RESERVE 2 9 0 86400 120",
        "SITE SLOTS EXTEND cd34 60",
        "SITE SLOTS RELEASE cd34",
        "SITE SLOTS USE cd34",
        "SITE SLOTS USE NONE",
        "SITE SLOTS LIST",
        "SITE SPACE RESERVE 5 60",
        "SITE SPACE RESERVE 5 60 /a b",
        "SITE SPACE EXTEND ab12 60",
        "SITE SPACE RELEASE ab12",
        "SITE SPACE USE ab12",
        "SITE SPACE USE NONE",
        "SITE SPACE LIST",
        "SITE STORATTR modify=20200101000000;checksum.md5=49f68a;",
        "SITE STORBUFSIZE 5",
        "SITE SYMLINK a b c",
        "SITE SYMLINKFROM a b",
        "SITE SYMLINKTO c",
        "SITE TASKID x y",
        "SITE TRNC 5 f",
        "SITE UPAS 0",
        "SITE UPRT x",
        "SITE UTIME 20200101000000 f",
        "SITE VERSION",
        "SITE WHOAMI",
        "SIZE f",
        "SPAS",
        "SPAS 2",
        "SPOR 127,0,0,1,168,209 127,0,0,1,164,219",
        "STAT",
        "STAT f",
        "STOR /out/p2",
        "STRU F",
        "SYST",
        "TREV PERF 5",
        "TREV RESTART 0",
        "TYPE A",
        "TYPE I",
        "USER :globus-mapping:",
    ] {
        let command = parse(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(text(&command), line);
        assert_eq!(command.verb(), line.split(' ').next().unwrap());
    }
}

/// Lines that are equivalent to another line.
#[test]
fn command_in_other_spelling_is_printed_canonically() {
    for (line, canonical) in [
        ("noop", "NOOP"),
        ("NOOP x", "NOOP"),
        ("PASV ", "PASV"),
        ("USER   a b", "USER a b"),
        ("PASS", "PASS "),
        ("TYPE i", "TYPE I"),
        ("TYPE A N", "TYPE A"),
        ("TYPE IX", "TYPE I"),
        ("MODE e", "MODE E"),
        ("STRU f", "STRU F"),
        ("ALLO 5 R 6", "ALLO 5"),
        ("REST 0-5, 7-9", "REST 0-5,7-9"),
        ("REST 7-9,0-5,4-6", "REST 0-6,7-9"),
        ("REST 0-0", "REST 0"),
        ("CKSM md5  0  -1 f", "CKSM MD5 0 -1 f"),
        ("dcau n", "DCAU N"),
        ("PROT c", "PROT C"),
        ("EPSV all", "EPSV ALL"),
        ("EPRT !1!127.0.0.1!55!", "EPRT |1|127.0.0.1|55|"),
        ("SPOR |1|127.0.0.1|1234|  127,0,0,1,4,4", "SPOR 127,0,0,1,4,210 127,0,0,1,4,4"),
        ("TREV perf 5 info", "TREV PERF 5"),
        ("site  whoami", "SITE WHOAMI"),
        ("SBUF  5 ", "SBUF 5"),
        ("SITE RBUFSZ 5", "SITE RETRBUFSIZE 5"),
        ("SITE RBUFSIZ 5", "SITE RETRBUFSIZE 5"),
        ("SITE SBUFSZ 5", "SITE STORBUFSIZE 5"),
        ("SITE SBUFSIZ 5", "SITE STORBUFSIZE 5"),
        ("SITE BUFSIZE 5", "SITE SBUF 5"),
        ("SITE CHMOD 644 f", "SITE CHMOD 0644 f"),
        ("SITE STORATTR x.checksum.MD5=aa", "SITE STORATTR checksum.md5=aa;"),
        ("SITE STORATTR foo=1;Modify=20200101000000;", "SITE STORATTR modify=20200101000000;"),
        ("LANG en", "LANG en"),
    ] {
        assert_eq!(text(&parse(line).unwrap_or_else(|e| panic!("{line}: {e}"))), canonical, "{line}");
    }
}

/// GCT's replies to lines that are not valid commands.
#[test]
fn invalid_command_is_answered_as_gct_does() {
    const SYNTAX: &str = "501 Syntax error in parameters or arguments.";
    const ARGUMENTS: &str = "501 Invalid command arguments.";
    const PORT: &str = "501 Illegal PORT command.";
    const UNSUPPORTED: &str = "500 Command not supported.";
    const PARTIAL: &str = "500 command failed.";
    const BAD: &str = "501 bad parameter.";
    for (line, reply) in [
        ("", SYNTAX),
        ("FOOBAR", SYNTAX),
        ("N1", SYNTAX),
        ("123", SYNTAX),
        ("NOOP\r", SYNTAX),
        ("NOOP\nNOOP", SYNTAX),
        ("NO\0OP", SYNTAX),
        ("CWD a\0b", SYNTAX),
        (" NOOP", UNSUPPORTED),
        ("XYZ", UNSUPPORTED),
        ("REIN", UNSUPPORTED),
        ("ACCT x", UNSUPPORTED),
        ("GET path=/x;pasv;", UNSUPPORTED),
        ("USER", SYNTAX),
        ("CWD", SYNTAX),
        ("CWD ", SYNTAX),
        ("RETR", SYNTAX),
        ("TYPE", SYNTAX),
        ("TYPE L 8", "501 'TYPE L 8' unrecognized type."),
        ("MODE", SYNTAX),
        ("MODE B", "501 'MODE B' unrecognized transfer mode."),
        ("STRU", SYNTAX),
        ("STRU R", "501 Syntax error in parameter."),
        ("STRU F x", "501 Syntax error in parameter."),
        ("LANG FR", "501 'LANG FR' unrecognized language."),
        ("ALLO", SYNTAX),
        ("ALLO x", SYNTAX),
        ("REST", SYNTAX),
        ("REST a", BAD),
        ("REST -1", BAD),
        ("REST 5-3", BAD),
        ("REST 0-5,", BAD),
        ("REST 0-5,7", BAD),
        ("REST 99999999999999999999999", BAD),
        ("EPSV 3", "501 Invalid protocol."),
        ("EPSV x", "501 Invalid network command."),
        ("SPAS 3", "501 Invalid protocol."),
        ("PORT", SYNTAX),
        ("PORT 1,2", PORT),
        ("PORT a", PORT),
        ("PORT 127,0,0,1,0,0", PORT),
        ("PORT 256,0,0,1,4,4", PORT),
        ("PORT 127,0,0,1,4,4,5", PORT),
        ("EPRT", SYNTAX),
        ("EPRT |3|x|1|", "522 Network protocol not supported, use (1,2)."),
        ("EPRT |1|x|1|", "501 Malformed argument."),
        ("EPRT |1|::1|55|", "501 Malformed argument."),
        ("EPRT |1|127.0.0.1|0|", "501 Malformed argument."),
        ("EPRT |1|127.0.0.1|99999|", "501 Malformed argument."),
        ("SPOR", SYNTAX),
        ("SPOR x", PORT),
        ("SPOR 127,0,0,1,4,4 x", PORT),
        ("ERET", SYNTAX),
        ("ERET P", PARTIAL),
        ("ERET P 0 5", BAD),
        ("ERET P a 5 f", PARTIAL),
        ("ERET P 0 -1 f", PARTIAL),
        ("ERET X 0 5 f", PARTIAL),
        ("ESTO", SYNTAX),
        ("ESTO A", PARTIAL),
        ("ESTO A 5", BAD),
        ("ESTO A x f", BAD),
        ("ESTO X 4 f", PARTIAL),
        ("MFMT", SYNTAX),
        ("MFMT 20200101000000", SYNTAX),
        ("MFMT 2020 f", ARGUMENTS),
        ("MFMT 20201301000000 f", ARGUMENTS),
        ("CKSM", SYNTAX),
        ("CKSM MD5 0 -1", SYNTAX),
        ("CKSM FOO 0 -1 f", "500 Unknown checksum algorithm requested."),
        ("CKSM MD5 x -1 f", "500 Invalid offset."),
        ("CKSM MD5 -1 5 f", "500 Invalid offset."),
        ("CKSM MD5 0 y f", "500 Invalid length."),
        ("SCKS MD5", SYNTAX),
        ("SCKS FOO aa", "500 Unknown checksum algorithm requested."),
        ("SBUF", SYNTAX),
        ("SBUF x", "502 Invalid Parameter."),
        ("ABUF x", "502 Invalid Parameter."),
        ("SBUF 1 2", SYNTAX),
        ("ABUF 1 2", SYNTAX),
        ("PBSZ 1 2", SYNTAX),
        ("TREV PERF", SYNTAX),
        ("TREV FOO 5", "502 Unsupported event."),
        ("TREV PERF x", SYNTAX),
        ("PBSZ", SYNTAX),
        ("PBSZ 99999999999", "501 Bad value for PBSZ: 99999999999"),
        ("PBSZ x", "501 Bad value for PBSZ: x"),
        ("PROT", SYNTAX),
        ("PROT E", "536 E protection level not supported."),
        ("PROT CX", "536 CX protection level not supported."),
        ("DCAU", SYNTAX),
        ("DCAU X", "501 Bad DCAU mode."),
        ("DCAU S", "501 DCAU S expected subject."),
        ("DCAU N x", "501 Bad Parameter to DCAU."),
        ("DCSC", SYNTAX),
        ("DCSC 9", ARGUMENTS),
        ("OPTS", SYNTAX),
        ("OPTS FOO", "500 OPTS failed."),
        ("OPTS UTF8 OFF", "500 OPTS failed."),
        ("SITE", SYNTAX),
        ("SITE FOO", "500 Invalid command."),
        ("SITE VERSION x", ARGUMENTS),
        ("SITE CLIENTINFO", SYNTAX),
        ("SITE RETRBUFSIZE x", SYNTAX),
        ("SITE STORBUFSIZE 1 2", SYNTAX),
        ("SITE CHMOD 644", SYNTAX),
        ("SITE CHMOD 9 f", ARGUMENTS),
        ("SITE CHMOD 77777 f", ARGUMENTS),
        ("SITE CHGRP x", SYNTAX),
        ("SITE UTIME 2020 f", ARGUMENTS),
        ("SITE UTIME 20200101000000", SYNTAX),
        ("SITE TRNC 5", SYNTAX),
        ("SITE TRNC x f", "500 Invalid length."),
        ("SITE TRNC -5 f", "500 Invalid length."),
        ("SITE STORATTR modify=2020;", ARGUMENTS),
        ("SITE STORATTR checksum.foo=aa;", "500 Unknown checksum algorithm requested."),
        ("SITE SYMLINK a", SYNTAX),
    ] {
        assert_eq!(parse(line).map_err(|e| e.reply().to_string()), Err(reply.to_owned()), "{line}");
    }
}

#[test]
fn command_with_line_end_in_argument_is_not_printed() {
    for path in ["a\r\nDELE b", "a\nDELE b", "a\0b"] {
        assert!(Command::Retr(path.into()).to_line().is_err());
    }
    let error = Command::Pass(Password::new("se\ncret")).to_line().unwrap_err();
    assert!(!error.to_string().contains("cret"));
    assert_eq!(text(&Command::Retr("a\rb".into())), "RETR a\rb");
}

#[test]
fn password_command_debug_hides_the_password() {
    assert_eq!(format!("{:?}", parse("PASS secret").unwrap()), "Pass(Password(***))");
}

#[test]
fn checksum_algorithm_names_are_parsed() {
    for algorithm in ChecksumAlgorithm::ALL {
        assert_eq!(algorithm.name().to_lowercase().parse(), Ok(algorithm));
    }
    assert!("MD4".parse::<ChecksumAlgorithm>().is_err());
}
