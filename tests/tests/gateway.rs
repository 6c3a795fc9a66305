//! `ropewalk gateway`: plain FTP clients in front, servers of several kinds behind.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use ropewalk_tests::control::Control;
use ropewalk_tests::gateway::{Gateway, LIMIT, SETTINGS, write_passwords};
use ropewalk_tests::process::{self, Outcome, run};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::{Kind, Server, Setup};
use ropewalk_tests::{files, grid, peers};

const SIZE: u64 = (6 << 20) + 321;

/// Names that clients quote, escape or take for patterns.
const ODD: [&str; 5] = ["a b", "-x", "\u{e9} \u{20ac}", "100%25", "a#b?c"];

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A server with a file `f`, a directory and odd names.
fn far(kind: Kind) -> (Scratch, Server) {
    let scratch = Scratch::new().unwrap();
    let root = scratch.directory("root").unwrap();
    files::write_random(&root.join("f"), SIZE, 1).unwrap();
    fs::create_dir(root.join("d")).unwrap();
    for name in ODD {
        fs::write(root.join("d").join(name), name).unwrap();
    }
    (scratch, Setup::new(kind, &root).start().unwrap())
}

/// The path of `name` beneath the root of the tests, as a client of the server names it.
fn remote(server: &Server, name: &str) -> String {
    String::from_utf8(server.remote_path(name)).unwrap()
}

fn python(script: &str, arguments: &[&str]) -> Outcome {
    run(process::command("python3").args(["-c", script]).args(arguments), LIMIT).unwrap()
}

/// Every command of ftplib, in passive and active mode.
const FTPLIB: &str = r#"
import ftplib, io, ssl, sys
host, port, target, base, tls = sys.argv[1:6]
class Reuse(ftplib.FTP_TLS):
    """Resumes the TLS session for data, which ftplib does not do by itself."""
    def ntransfercmd(self, cmd, rest=None):
        conn, size = ftplib.FTP.ntransfercmd(self, cmd, rest)
        return self.context.wrap_socket(conn, server_hostname=self.host, session=self.sock.session), size
f = ftplib.FTP()
if tls == "tls":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    f = Reuse(context=context)
f.encoding = "utf-8"
f.connect(host, int(port), timeout=30)
f.login("anonymous::" + target, "x")
if tls == "tls":
    f.prot_p()
f.cwd(base)
f.voidcmd("TYPE I")
size = f.size("f")
assert len(f.sendcmd("MDTM f")) == 18
def get(name, rest=None):
    parts = []
    f.retrbinary("RETR " + name, parts.append, rest=rest)
    return b"".join(parts)
whole = get("f")
assert len(whole) == size
assert get("f", 1000000) == whole[1000000:]
names = {"a b", "-x", "\u00e9 \u20ac", "100%25", "a#b?c"}
assert set(f.nlst("d")) >= names, f.nlst("d")
assert {name for name, facts in f.mlsd("d") if facts["type"] == "file"} == names
lines = []
f.retrlines("LIST d", lines.append)
assert len([line for line in lines if line.startswith("-")]) == len(names), lines
for name in names:
    assert get("d/" + name).decode() == name
if tls != "tls":
    f.set_pasv(False)
    assert get("f") == whole
    f.storbinary("STOR active", io.BytesIO(whole))
    f.set_pasv(True)
    assert get("active") == whole
f.storbinary("STOR up", io.BytesIO(whole))
assert get("up") == whole
f.storbinary("STOR up", io.BytesIO(b"abc"))
assert get("up") == b"abc", "a file is replaced"
f.storbinary("APPE up", io.BytesIO(b"def"))
assert get("up") == b"abcdef"
f.storbinary("STOR up", io.BytesIO(b"XY"), rest=4)
assert get("up") == b"abcdXY"
f.mkd("new")
f.rename("up", "new/moved")
f.delete("new/moved")
f.rmd("new")
for command in ("RETR none", "CWD none", "DELE none"):
    try:
        f.voidcmd(command)
        raise SystemExit(command + " succeeded")
    except ftplib.error_perm:
        pass
# ABOR in the middle; the session goes on. Each transfer has one or two more replies.
data = f.transfercmd("RETR f")
data.recv(1000)
f.sock.sendall(b"ABOR\r\nPWD\r\n")
data.close()
while True:
    try:
        if f.getresp().startswith("257"):
            break
    except ftplib.Error:
        pass
assert get("f") == whole
print("done")
"#;

#[test]
fn ftplib_uses_a_server_of_ropewalk_through_the_gateway() {
    let (_scratch, server) = far(Kind::Ropewalk);
    let gateway = Gateway::open();
    let target = format!("ftp://{}/", server.address());
    for tls in ["clear", "tls"] {
        let port = gateway.address.port().to_string();
        let outcome = python(FTPLIB, &["127.0.0.1", &port, &target, &remote(&server, ""), tls]);
        assert!(outcome.succeeded().unwrap().text().contains("done"), "{}", gateway.program.log());
    }
}

#[test]
fn curl_uses_servers_of_others_through_the_gateway() {
    let gateway = Gateway::open();
    for kind in [Kind::Ropewalk, Kind::Gct, Kind::Vsftpd] {
        let needed = match kind {
            Kind::Gct => "globus-gridftp-server",
            Kind::Vsftpd => "vsftpd",
            _ => "curl",
        };
        if !peers::available(&["curl", needed]) {
            continue;
        }
        let (scratch, server) = far(kind);
        let user = format!("anonymous::ftp://{}/:x", server.address());
        let url = |name: &str| format!("ftp://{}/{}", gateway.address, remote(&server, name));
        let curl = |arguments: &[&str]| {
            let mut command = process::command("curl");
            run(command.args(["-sS", "--path-as-is", "-u", &user]).args(arguments), LIMIT).unwrap()
        };
        let got = scratch.join("got");
        curl(&["-o", &text(&got), &url("f")]).succeeded().unwrap();
        files::ensure_same(&got, &server.root().join("f")).unwrap();
        // Resumes a download.
        fs::File::options().write(true).open(&got).unwrap().set_len(2_000_000).unwrap();
        curl(&["-C", "-", "-o", &text(&got), &url("f")]).succeeded().unwrap();
        files::ensure_same(&got, &server.root().join("f")).unwrap();
        curl(&["-T", &text(&got), &url("up")]).succeeded().unwrap();
        files::ensure_same(&got, &server.root().join("up")).unwrap();
        let listing = curl(&[&url("d/")]).succeeded().unwrap().text();
        assert!(listing.contains("a b") && listing.contains("100%25"), "{listing}");
        let names = curl(&["-l", &url("d/")]).succeeded().unwrap().text();
        assert!(names.lines().any(|line| line == "a b"), "{names}");
        let odd = curl(&[&url("d/a%20b")]).succeeded().unwrap().text();
        assert_eq!(odd, "a b");
    }
}

#[track_caller]
fn has_odd_names(directory: &Path) {
    for name in ODD {
        assert_eq!(fs::read_to_string(directory.join(name)).unwrap(), name);
    }
}

/// The beginning of a file, as an interrupted transfer leaves it: newer than the file.
fn beginning(of: &Path, at: &Path) {
    fs::copy(of, at).unwrap();
    let file = fs::File::options().write(true).open(at).unwrap();
    file.set_len(2_000_000).unwrap();
    let modified = fs::metadata(of).unwrap().modified().unwrap();
    file.set_modified(modified + Duration::from_secs(3600)).unwrap();
}

#[test]
fn lftp_mirrors_and_resumes_trees_through_the_gateway() {
    if !peers::available(&["lftp"]) {
        return;
    }
    let (scratch, server) = far(Kind::Ropewalk);
    let gateway = Gateway::open();
    let lftp = |script: &str| {
        let script = format!(
            "set ssl:verify-certificate no; set net:max-retries 1; debug 9; \
             open -u 'anonymous::ftp://{}/,x' ftp://{}; {script}",
            server.address(),
            gateway.address,
        );
        run(process::command("lftp").args(["-c", &script]), LIMIT).unwrap().succeeded().unwrap().errors()
    };
    let (mirror, there) = (scratch.join("mirror"), server.root().to_owned());
    lftp(&format!("mirror /d {0}; mirror -R {0} /copy", text(&mirror)));
    has_odd_names(&mirror);
    has_odd_names(&there.join("copy"));
    // An interrupted tree, and an interrupted upload.
    let tree = scratch.directory("tree").unwrap();
    beginning(&there.join("f"), &tree.join("f"));
    let log = lftp(&format!("mirror -c -i ^f$ / {}", text(&tree)));
    assert!(log.contains("---> REST 2000000"), "{log}");
    files::ensure_same(&tree.join("f"), &there.join("f")).unwrap();
    fs::create_dir(there.join("up")).unwrap();
    beginning(&tree.join("f"), &there.join("up/f"));
    let log = lftp(&format!("put -c {}/f -o /up/f", text(&tree)));
    assert!(log.contains("---> REST 2000000"), "{log}");
    files::ensure_same(&tree.join("f"), &there.join("up/f")).unwrap();
}

#[test]
fn ncftp_copies_trees_and_resumes_downloads_through_the_gateway() {
    if !peers::available(&["ncftpget", "ncftpput"]) {
        return;
    }
    let (scratch, server) = far(Kind::Ropewalk);
    let gateway = Gateway::open();
    let (port, user) =
        (gateway.address.port().to_string(), format!("anonymous::ftp://{}/", server.address()));
    let trace = scratch.join("trace");
    // Its own files go to the home directory.
    let ncftp = |program: &str, arguments: &[&str]| {
        let _ = fs::remove_file(&trace);
        let mut command = process::command(program);
        command.args(["-V", "-u", &user, "-p", "x", "-P", &port, "-d", &text(&trace)]).args(arguments);
        run(command.env("HOME", scratch.join("")), LIMIT).unwrap().succeeded().unwrap();
        fs::read_to_string(&trace).unwrap_or_default()
    };
    let (here, there) = (scratch.directory("here").unwrap(), server.root().to_owned());
    ncftp("ncftpget", &["-R", "-T", "127.0.0.1", &text(&here), "/d"]);
    has_odd_names(&here.join("d"));
    ncftp("ncftpput", &["-m", "-R", "127.0.0.1", "/copy", &text(&here.join("d"))]);
    has_odd_names(&there.join("copy/d"));
    // An interrupted download. ncftpput -z is not tested: version 3.2.6 sends the whole file behind
    // the part that the server has, also to other servers.
    beginning(&there.join("f"), &here.join("f"));
    let log = ncftp("ncftpget", &["-z", "127.0.0.1", &text(&here), "/f"]);
    assert!(log.contains("REST 2000000"), "{log}");
    files::ensure_same(&here.join("f"), &there.join("f")).unwrap();
    fs::create_dir(there.join("up")).unwrap();
    ncftp("ncftpput", &["127.0.0.1", "/up", &text(&here.join("f"))]);
    files::ensure_same(&here.join("f"), &there.join("up/f")).unwrap();
}

#[test]
fn tnftp_gets_puts_and_resumes_through_the_gateway() {
    if !peers::available(&["tnftp"]) {
        return;
    }
    let (scratch, server) = far(Kind::Ropewalk);
    let gateway = Gateway::open();
    let here = scratch.directory("here").unwrap();
    let tnftp = |commands: &str| {
        let script = scratch.join("script");
        let user = format!("user anonymous::ftp://{}/ x\nbinary\n", server.address());
        fs::write(&script, format!("{user}{commands}\nquit\n")).unwrap();
        let port = gateway.address.port().to_string();
        let mut command = process::command("sh");
        let line = "exec tnftp -n -d 127.0.0.1 $0 < \"$1\"";
        command.args(["-c", line, &port, &text(&script)]).env("HOME", scratch.join("")).current_dir(&here);
        run(&mut command, LIMIT).unwrap().succeeded().unwrap()
    };
    let get = |name: &str| format!("get \"/d/{name}\" \"./{name}\"\n");
    let put = |name: &str| format!("put \"./{name}\" \"/new/{name}\"\n");
    tnftp(&ODD.map(get).concat());
    has_odd_names(&here);
    tnftp(&format!("mkdir /new\n{}", ODD.map(put).concat()));
    has_odd_names(&server.root().join("new"));
    beginning(&server.root().join("f"), &here.join("f"));
    let log = tnftp("reget /f f");
    let log = log.text() + &log.errors();
    assert!(log.contains("REST 2000000"), "{log}");
    files::ensure_same(&here.join("f"), &server.root().join("f")).unwrap();
    tnftp("put f /new/f");
    files::ensure_same(&here.join("f"), &server.root().join("new/f")).unwrap();
}

#[test]
fn user_with_a_password_has_his_own_credential_behind() {
    let site = grid::Site::new().unwrap();
    let content = site.content().unwrap();
    let served = site.serve("", &[]).unwrap();
    let passwords = site.path("passwords");
    write_passwords(&passwords, &["ada", "bob"]);
    let settings = format!(
        "{SETTINGS}[sites.dtn]\nurl = '{}/'\n[users.ada]\ncredential = {:?}\n",
        served.url.trim_end_matches('/'),
        site.path("proxy")
    );
    let environment = [
        // A credential of the process, which no user may have.
        ("X509_USER_PROXY", site.path("proxy")),
        ("X509_CERT_DIR", site.path("certificates")),
    ];
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_path()));
    let gateway = Gateway::start_with(&["--password-file", &text(&passwords)], &settings, &environment);

    let got = site.path("got");
    let mut curl = process::command("curl");
    curl.args(["-sS", "-u", "ada::dtn:secret-ada", "-o", &text(&got)]);
    curl.args(["-T", &text(&site.path("source")), &format!("ftp://{}/up", gateway.address)]);
    run(&mut curl, LIMIT).unwrap().succeeded().unwrap_or_else(|e| panic!("{e} {}", gateway.program.log()));
    assert!(fs::read(site.path("root/up")).unwrap() == content);

    let (code, refused) = gateway.log_in("bob::dtn", "secret-bob");
    assert!(code == 530 && refused.contains("no credential of user bob"), "{refused}");
    let (code, refused) = gateway.log_in("ada::dtn", "secret-bob");
    assert!(code == 530 && refused.contains("Invalid user or password"), "{refused}");
    // Rules for targets hold for authenticated users too: the server is at no public address.
    let url = format!("gsiftp://127.0.0.1:{}/", served.address.port());
    let (code, refused) = gateway.log_in(&format!("ada::{url}"), "secret-ada");
    assert!(code == 530 && refused.contains("no public address"), "{refused}");
}

#[test]
fn targets_that_are_not_permitted_are_refused() {
    let (_scratch, server) = far(Kind::Ropewalk);
    let gateway =
        Gateway::start(&["--authorized-hosts", "127.0.0.1", "--allow-target", "127.0.0.1"], SETTINGS);
    let port = server.address().port();
    let own = format!("ftp://{}/", gateway.address);
    for (target, reason) in [
        (format!("ftp://127.0.0.2:{port}/"), "permit no connection"),
        (format!("ftp://[::1]:{port}/"), "permit no connection"),
        // The name is permitted nowhere, whatever it resolves to.
        ("ftp://192.0.2.1:21/".to_owned(), "permit no connection"),
        (own, "its own target"),
        ("http://127.0.0.1/".to_owned(), "unknown scheme"),
        ("file:///etc/passwd".to_owned(), "no server"),
        ("sshftp://127.0.0.1/".to_owned(), "ssh"),
        (format!("ftp://ada:hunter2@127.0.0.1:{port}/"), "user or a password"),
        (format!("ftp://127.0.0.1:{port}/d"), "path"),
        (format!("gsiftp://127.0.0.1:{port}/"), "no credential"),
        ("nowhere".to_owned(), "no site"),
        (String::new(), "Name a server"),
        ("ftp://127.0.0.1:1/".to_owned(), "127.0.0.1:1"),
    ] {
        let (code, text) = gateway.log_in(&format!("anonymous::{target}"), "x");
        assert!(code == 530 && text.contains(reason), "{target}: {code} {text}");
    }
    // A URL with a password is refused, and its password does not reach the log.
    assert!(!gateway.program.log().contains("hunter2"), "{}", gateway.program.log());
    // The same server by a permitted address is let in.
    let (code, text) = gateway.log_in(&format!("anonymous::ftp://127.0.0.1:{port}/"), "x");
    assert_eq!(code, 230, "{text}");
}

#[test]
fn client_of_another_host_is_turned_away() {
    let gateway =
        Gateway::start(&["--authorized-hosts", "192.0.2.0/24", "--allow-target", "127.0.0.1"], SETTINGS);
    let mut control = Control::connect_silently(gateway.address).unwrap();
    assert!(control.reply().map_or(true, |greeting| greeting.code >= 400));
}

#[test]
fn gateway_without_a_log_in_or_with_des_passwords_does_not_start() {
    for (options, reason) in [
        (&[][..], "no client could log in"),
        (&["--allow-target", "127.0.0.1"], "no client could log in"),
        (&["--pwfile", "/etc/gwftp"], "DES"),
        (&["--authorized-hosts", "nowhere"], "authorized-hosts"),
        (&["--authorized-hosts", "127.0.0.1", "--allow-target", "ftp://h/"], "allow-target"),
        (&["--authorized-hosts", "127.0.0.1", "--default", "http://h/"], "default"),
        (&["--password-file", "/nonexistent"], "password_file"),
        (&["--password-file", "/nonexistent", "--credential", "/c"], "hosts"),
        (&["--config", "/nonexistent"], "cannot read"),
        (&["--client-authorities", "/ca"], "no certificate belongs to a user"),
        (&["--client-authorities", "/ca", "--authorized-hosts", "127.0.0.1"], "belongs to a user"),
        (&["--implicit-tls", "127.0.0.1:0"], "no client could log in"),
        (&["--implicit-tls", "127.0.0.1:0", "--no-tls"], "cannot be used with"),
    ] {
        let mut command = peers::ropewalk_command().unwrap();
        command.args(["gateway", "--listen", "127.0.0.1:0"]).args(options);
        let outcome = run(&mut command, LIMIT).unwrap();
        let said = outcome.errors();
        assert!(outcome.status.code() == Some(2) && said.contains(reason), "{options:?}: {said}");
    }
}
