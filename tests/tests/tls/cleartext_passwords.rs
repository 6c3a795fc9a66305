//! Passwords that cross a network in clear.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use ropewalk_tests::peers;
use ropewalk_tests::process::{self, Program, run};

use crate::site::LIMIT;

/// A client that sends a password in clear over a network prints one warning.
#[test]
fn a_password_in_clear_is_warned_of() {
    if !rustix::process::geteuid().is_root() {
        peers::skip("only root can make a network of its own");
        return;
    }
    if !peers::available(&["unshare", "nsenter", "ip"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path();
    fs::create_dir(home.join("root")).unwrap();
    fs::write(home.join("root/a"), "content").unwrap();
    // Accepts any name with any password, on loopback and on another interface.
    let text = "root = 'root'\nlisten = ['127.0.0.1:0', '192.0.2.1:0']\n[anonymous]\nnames = ['*']\nrun_as = 'server'\n\
                [tls]\nstate_directory = 'tls'\n";
    fs::write(home.join("server.toml"), text).unwrap();
    let mut command = process::command("unshare");
    command.args(["--net", "--", "sh", "-c"]);
    command.arg("ip link set lo up && ip address add 192.0.2.1/32 dev lo && exec \"$@\"").arg("sh");
    command.arg(peers::ropewalk().unwrap()).args(["serve", "--config"]).arg(home.join("server.toml"));
    let program = Program::start(&mut command).unwrap();
    let address = || {
        let found =
            program.wait_for_line(LIMIT, |line| line.strip_prefix("Server listening at ")?.parse().ok());
        found.unwrap_or_else(|e| panic!("{e}: {}", program.log()))
    };
    let (loopback, network): (SocketAddr, SocketAddr) = (address(), address());
    let within = |words: &[&str]| {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", program.pid())).arg(peers::ropewalk().unwrap());
        command.args(words).current_dir(home).env("XDG_STATE_HOME", home.join("state"));
        let outcome = run(&mut command, LIMIT).unwrap().succeeded().unwrap();
        outcome.errors().matches("goes over the network in clear").count()
    };
    fs::write(home.join("password"), "secret\n").unwrap();
    fs::set_permissions(home.join("password"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let url = |address: SocketAddr, user: &str| format!("ftp://{user}{address}/a");
    let copy =
        |options: &[&str], url: &str| within(&[&["cp", "--retries", "0"], options, &[url, "got"]].concat());
    let password = ["--password-file", "password"];
    for options in [&password[..], &["--quiet", "--password-file", "password", "--files", "4"]] {
        assert_eq!(copy(options, &url(network, "ada@")), 1, "{options:?}");
    }
    assert_eq!(within(&["ls", "--password-file", "password", &url(network, "ada@")]), 1);
    // Loopback cannot be read by others, and an anonymous password is not a secret.
    assert_eq!(copy(&password, &url(loopback, "ada@")), 0);
    assert_eq!(copy(&["--tls", "--accept-new", "--password-file", "password"], &url(network, "ada@")), 0);
    assert_eq!(copy(&password, &url(network, "anonymous@")), 0);
    assert_eq!(copy(&[], &url(network, "")), 0);
}
