//! Programs in place of files: SITE SETDISKSTACK with the driver `popen`.

use std::fs::Permissions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use ropewalk_server::Config;

use crate::blocks::{EOD, EOF, block, mode_e, sample};
use crate::client::Client;
use crate::fixture::{Fixture, passwords};

/// A local account that every host has. Programs do not run as root, who may run these tests.
const USER: &str = "nobody";

/// A server whose sessions may run the shell, which only tests may, and `cat`.
fn server(change: impl FnOnce(&mut Config)) -> Fixture {
    let server = Fixture::with(|config, directory| {
        config.password_file = Some(passwords(directory, &[(USER, "secret")]));
        config.root = Some(directory.join("root"));
        config.identity.mapped = rustix::process::geteuid().is_root();
        config.identity.allow_system = true;
        config.identity.allow_disabled = true;
        config.files.drivers = ["file", "popen", "ordering"].map(str::to_owned).to_vec();
        let programs = [("cat", "/bin/cat"), ("sh", "/bin/sh")];
        config.files.programs = programs.map(|(name, path)| (name.to_owned(), path.into())).into();
        change(config);
    });
    let open = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    open(server.directory.path(), 0o755);
    open(&server.root(), 0o777);
    server
}

fn login(server: &Fixture) -> Client {
    let mut client = server.connect();
    client.login(USER, "secret");
    client
}

fn run(client: &mut Client, script: &str) {
    client.command(&format!("SITE SETDISKSTACK popen:argv=#sh#-c#{script}"), 250);
}

#[test]
fn download_of_program_sends_its_output() {
    let server = server(|_| ());
    server.write("f", sample(300_000));
    let mut client = login(&server);
    client.command("SITE SETDISKSTACK popen:argv=#cat#f", 250);
    assert!(client.get("RETR /anything") == sample(300_000));
    // By its path, and again with another program.
    client.command("SITE SETDISKSTACK popen:argv=|/bin/cat|f|f,ordering", 250);
    assert_eq!(client.get("RETR /anything").len(), 600_000);
    client.command("SITE SETDISKSTACK default", 250);
    assert!(client.get("RETR /f") == sample(300_000));
}

#[test]
fn upload_to_program_writes_its_input() {
    let server = server(|_| ());
    let mut client = login(&server);
    run(&mut client, "cat > stored");
    let data = sample(1 << 20);
    assert_eq!(client.put("STOR /anything", &data).code, 226);
    assert!(server.read("stored") == data);
    assert!(!server.exists("anything"));
}

#[test]
fn upload_over_several_streams_into_program_is_in_order() {
    let server = server(|_| ());
    let mut client = login(&server);
    run(&mut client, "cat > stored");
    mode_e(&mut client);
    let address = client.pasv();
    let mut streams = [(); 2].map(|()| crate::client::connect(address));
    client.send("STOR /x");
    streams[1].write_all(&[block(0, 3, b"def"), block(EOD, 0, b"")].concat()).unwrap();
    streams[0].write_all(&[block(0, 0, b"abc"), block(EOD | EOF, 2, b"")].concat()).unwrap();
    while client.reply().code != 226 {}
    assert_eq!(server.read("stored"), b"abcdef");
}

#[test]
fn program_that_fails_fails_the_transfer_with_its_last_message() {
    let server = server(|_| ());
    let mut client = login(&server);
    run(&mut client, "echo data && echo first >&2 && echo it broke >&2 && exit 3");
    let mut data = client.data();
    client.command("RETR /x", 150);
    let text = client.expect(500);
    assert_eq!(text, "500 Command failed. : the program sh failed: exit code 3: it broke");
    let _ = data.read_to_end(&mut Vec::new());
    run(&mut client, "cat > /dev/null && echo full >&2 && kill -9 $$");
    let reply = client.try_put("STOR /x", b"abc");
    assert!(reply.text.contains("ended by signal 9: full"), "{}", reply.text);
    run(&mut client, "true");
    let mut data = client.data();
    client.command("STOR /x", 150);
    // The server breaks the connection off.
    let _ = data.write_all(&sample(4 << 20));
    let reply = client.end();
    assert!(reply.code == 500 && reply.text.contains("stopped reading"), "{}", reply.text);
    client.command("NOOP", 200);
}

#[test]
fn aborted_transfer_kills_the_program() {
    let server = server(|_| ());
    let mut client = login(&server);
    run(&mut client, "echo $$ > pid.tmp && mv pid.tmp pid && exec sleep 600");
    let _data = client.data();
    client.command("RETR /x", 150);
    let path = server.root().join("pid");
    let until = Instant::now() + Duration::from_secs(20);
    while !path.exists() {
        assert!(Instant::now() < until, "the program has not started");
        std::thread::yield_now();
    }
    let pid = std::fs::read_to_string(path).unwrap();
    client.send("ABOR");
    client.expect(426);
    client.expect(226);
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn ranges_of_program_are_refused() {
    let server = server(|_| ());
    let mut client = login(&server);
    run(&mut client, "cat");
    for (command, what) in [("ERET P 0 10 /x", "ERET"), ("ESTO A 5 /x", "ESTO"), ("APPE /x", "APPE")] {
        client.command("PASV", 227);
        let text = client.command(command, 504);
        assert!(text.contains(what), "{text}");
    }
    client.command("PASV", 227);
    client.command("REST 5", 350);
    client.command("RETR /x", 504);
}

#[test]
fn program_that_is_not_listed_is_refused_with_the_text_of_gct() {
    let server = server(|_| ());
    let mut client = login(&server);
    let denied = "500-Setting filesystem driver stack failed.|500-Approving popen arguments failed.|500-";
    for (stack, expected) in [
        ("popen:argv=#/bin/tar#cf#-", format!("{denied}program '/bin/tar' not whitelisted.|500 End.")),
        ("popen:argv=#tar", format!("{denied}program 'tar' not whitelisted.|500 End.")),
    ] {
        assert_eq!(client.command(&format!("SITE SETDISKSTACK {stack}"), 500), expected);
    }
    for (stack, why) in [
        ("popen", "popen needs a program"),
        ("popen:argv=", "popen needs a program"),
        ("popen:argv=#", "popen needs a program"),
        ("popen:argv=#cat;env=#A=b", "popen option env is not supported"),
        ("popen:argv=#cat;ignore_errors=1", "popen option ignore_errors is not supported"),
        ("popen:argv=#cat,file", "file driver is not at its place"),
        ("ordering,popen:argv=#cat", "ordering driver is not at its place"),
        ("file,ordering:x=1", "ordering option x is not supported"),
        ("multicast", "multicast driver not whitelisted"),
    ] {
        let text = client.command(&format!("SITE SETDISKSTACK {stack}"), 500);
        assert!(text.contains(why), "{stack}: {text}");
    }
    client.command("SITE SETDISKSTACK file,ordering", 250);
}

#[test]
fn limited_session_runs_no_programs() {
    let refused = |server: &Fixture, why: &str| {
        let text = login(server).command("SITE SETDISKSTACK popen:argv=#cat#/x", 500);
        assert!(text.contains(why), "{text}");
    };
    refused(&server(|config| config.rules = Some("RW/".to_owned())), "limited to some paths");
    refused(&server(|config| config.defaults.read_only = Some(true)), "read-only");
    let server = server(|_| ());
    let mut client = login(&server);
    std::fs::create_dir(server.root().join("d")).unwrap();
    client.command("SITE SETDISKSTACK popen:argv=#cat#/x", 250);
    // The program is not kept when the session limits itself.
    client.command("SITE CHROOT /d", 250);
    client.command("SITE SETDISKSTACK popen:argv=#cat#/x", 500);
    client.command("PASV", 227);
    client.command("RETR /x", 550);
    let text = server.login().command("SITE SETDISKSTACK popen:argv=#cat#/x", 500);
    assert!(text.contains("anonymous"), "{text}");
}
