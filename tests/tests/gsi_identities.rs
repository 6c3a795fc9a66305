//! Third-party transfers between servers of authorities that do not know each other, where the
//! client logs in with a different identity at each.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;

use ropewalk_tests::grid::{LIMIT, Served, Site};
use ropewalk_tests::peers;
use ropewalk_tests::process::run;

/// Two sites, and a client's directory that trusts both authorities.
struct World {
    one: Site,
    other: Site,
    client: Site,
}

impl World {
    fn new() -> Self {
        let [one, other, client] =
            ["one", "other", "client"].map(|unit| Site::named(&format!("/O=Grid/OU={unit}")).unwrap());
        client.trust(&one).unwrap();
        client.trust(&other).unwrap();
        Self { one, other, client }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.client.command().unwrap();
        command.args(words).env_remove("X509_USER_PROXY");
        command
    }

    /// Copies a file from the first server to the second and back, with `ropewalk cp` and with
    /// Ropewalk's globus-url-copy.
    fn copies(&self, from: &Served, to: &Served, options: &[&str], gct_options: &[&str]) {
        let content = self.one.content().unwrap();
        fs::write(self.one.path("root/a"), &content).unwrap();
        let [one, other] = [&self.one, &self.other].map(|site| site.path("proxy").display().to_string());
        let (a, b, c) = (format!("{}/a", from.url), format!("{}/b", to.url), format!("{}/c", from.url));
        let cp = |from: &str, to: &str, source: &str, destination: &str| {
            let named = ["--source-credential", source, "--destination-credential", destination];
            let words = [&["cp", "--quiet", "--retries", "0"], &named[..], options, &[from, to]].concat();
            run(&mut self.command(&words), LIMIT).unwrap().succeeded().unwrap();
        };
        cp(&a, &b, &one, &other);
        assert!(fs::read(self.other.path("root/b")).unwrap() == content);
        cp(&b, &c, &other, &one);
        assert!(fs::read(self.one.path("root/c")).unwrap() == content);
        fs::remove_file(self.other.path("root/b")).unwrap();
        let named = ["globus-url-copy", "-sc", &one, "-dc", &other];
        let words = [&named[..], gct_options, &[&a, &b]].concat();
        run(&mut self.command(&words), LIMIT).unwrap().succeeded().unwrap();
        assert!(fs::read(self.other.path("root/b")).unwrap() == content);
        for place in [self.other.path("root/b"), self.one.path("root/c")] {
            fs::remove_file(place).unwrap();
        }
    }
}

#[test]
fn third_party_between_ropewalk_servers_with_two_identities() {
    let world = World::new();
    let (one, other) = (world.one.serve("", &[]).unwrap(), world.other.serve("", &[]).unwrap());
    world.copies(&one, &other, &[], &[]);
    world.copies(&one, &other, &["-p", "3", "--data-protection", "private"], &["-p", "2", "-dcpriv"]);
    world.copies(&one, &other, &["--data-credential", "auto"], &["-data-cred", "auto"]);
    // A credential of the user that neither server's authority has signed.
    let third = world.client.path("proxy").display().to_string();
    world.copies(&one, &other, &["--data-credential", &third], &["-data-cred", &third]);
    // Many files, with listings on the same sessions between them.
    let tree = world.one.path("root/tree/below");
    fs::create_dir_all(&tree).unwrap();
    for n in 0..20u8 {
        fs::write(tree.join(n.to_string()), vec![n; usize::from(n) * 777]).unwrap();
    }
    let [source, destination] =
        [&world.one, &world.other].map(|site| site.path("proxy").display().to_string());
    let (from, to) = (format!("{}/tree/", one.url), format!("{}/tree/", other.url));
    let words = ["cp", "-q", "-r", "--source-credential", &source, "--destination-credential", &destination];
    run(&mut world.command(&[&words[..], &[&from, &to]].concat()), LIMIT).unwrap().succeeded().unwrap();
    for n in 0..20u8 {
        let got = fs::read(world.other.path(&format!("root/tree/below/{n}"))).unwrap();
        assert_eq!(got, vec![n; usize::from(n) * 777]);
    }
    // With one of the two credentials at both servers, the other server does not know the user.
    let words = ["cp", "-q", "--retries", "0", "--credential", &source, &from, &to, "-r"];
    let text = run(&mut world.command(&words), LIMIT).unwrap().failed().unwrap().errors();
    assert!(text.contains("OU=one/CN=Ropewalk CA") && text.contains("is not in"), "{text}");
}

#[test]
fn third_party_between_ropewalk_and_gct_with_two_identities() {
    if !peers::available(&["globus-gridftp-server"]) {
        return;
    }
    let world = World::new();
    let (one, other) = (world.one.serve("", &[]).unwrap(), world.other.gct(&[]).unwrap());
    world.copies(&one, &other, &[], &[]);
    world.copies(&one, &other, &["-p", "3", "--data-protection", "private"], &["-p", "2"]);
    let (one, other) = (world.one.gct(&[]).unwrap(), world.other.serve("", &[]).unwrap());
    world.copies(&one, &other, &[], &[]);
    let third = world.client.path("proxy").display().to_string();
    world.copies(&one, &other, &["--data-credential", &third], &["-data-cred", "auto"]);
}

/// A server without DCSC keeps its own credential on data connections. The other server then
/// receives a matching credential through DCSC, or each server receives the expected subject (DCAU
/// S).
#[test]
fn third_party_without_dcsc_transfers() {
    if !peers::available(&["globus-gridftp-server"]) {
        return;
    }
    let world = World::new();
    let ours = "disabled_commands = ['DCSC']";
    let (one, other) = (world.one.serve(ours, &[]).unwrap(), world.other.gct(&[]).unwrap());
    world.copies(&one, &other, &[], &[]);
    let (one, other) = (world.one.serve("", &[]).unwrap(), world.other.serve(ours, &[]).unwrap());
    world.copies(&one, &other, &[], &[]);
    // DCAU S requires that both servers know both authorities.
    world.one.trust(&world.other).unwrap();
    world.other.trust(&world.one).unwrap();
    let (one, other) = (world.one.serve(ours, &[]).unwrap(), world.other.serve(ours, &[]).unwrap());
    world.copies(&one, &other, &[], &["-dcpriv"]);
    let gct = world.other.gct(&["-disable-command-list", "DCSC"]).unwrap();
    world.copies(&one, &gct, &[], &[]);
    // An explicitly requested credential that cannot be sent is an error.
    let [source, destination] =
        [&world.one, &world.other].map(|site| site.path("proxy").display().to_string());
    let (from, to) = (format!("{}/a", one.url), format!("{}/b", other.url));
    let words = ["cp", "-q", "--retries", "0", "--source-credential", &source, "--destination-credential"];
    let words = [&words[..], &[&destination, "--data-credential", "auto", &from, &to]].concat();
    let text = run(&mut world.command(&words), LIMIT).unwrap().failed().unwrap().errors();
    assert!(text.contains("DCSC"), "{text}");
}

#[test]
fn subject_of_each_end_is_checked() {
    let world = World::new();
    let (one, other) = (world.one.serve("", &[]).unwrap(), world.other.serve("", &[]).unwrap());
    fs::write(world.one.path("root/a"), "hello").unwrap();
    let [source, destination] =
        [&world.one, &world.other].map(|site| site.path("proxy").display().to_string());
    let (from, to) = (format!("{}/a", one.url), format!("{}/b", other.url));
    let copy = |first: &str, second: &str| {
        let words = ["globus-url-copy", "-sc", &source, "-dc", &destination, "-ss", first, "-ds", second];
        run(&mut world.command(&[&words[..], &[&from, &to]].concat()), LIMIT).unwrap()
    };
    copy("/O=Grid/OU=one/CN=localhost", "/O=Grid/OU=other/CN=localhost").succeeded().unwrap();
    let text = copy("/O=Grid/OU=one/CN=localhost", "/O=Grid/OU=one/CN=localhost").failed().unwrap().errors();
    assert!(text.contains("is /O=Grid/OU=other/CN=localhost, not /O=Grid/OU=one/CN=localhost"), "{text}");
    let text = copy("/O=Grid/CN=x", "/O=Grid/OU=other/CN=localhost").failed().unwrap().errors();
    assert!(text.contains("is /O=Grid/OU=one/CN=localhost, not /O=Grid/CN=x"), "{text}");
}
