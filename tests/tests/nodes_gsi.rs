//! Data nodes and certificates: the credential of a session goes to the nodes.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use ropewalk_gsi::ca;
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::grid::{LIMIT, Served, Site, account};
use ropewalk_tests::nodes::write_token;
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, Program, run};

const SIZE: u64 = 9_000_001;

/// A front end that logs in with certificates.
struct FrontEnd {
    site: Site,
    served: Served,
    join: String,
}

impl FrontEnd {
    fn new() -> Self {
        Self::of(Site::new().unwrap(), &[])
    }

    fn of(site: Site, environment: &[(&str, &Path)]) -> Self {
        write_token(&site.path("token"), 'a');
        let nodes = "[nodes]\nlisten = '127.0.0.1:0'\njoin_token_file = 'token'\n";
        let served = site.serve(nodes, environment).unwrap();
        let joins = |line: &str| line.strip_prefix("Nodes join at ").map(str::to_owned);
        let join = served.program.wait_for_line(LIMIT, joins).unwrap();
        write_random(&site.path("original"), SIZE, 5).unwrap();
        Self { site, served, join }
    }

    fn node(&self, name: &str, authorities: &str) -> Program {
        let mut command = self.site.command().unwrap();
        command.args(["node", "--join", &self.join, "--name", name, "--join-token-file", "token"]);
        command.args(["--root", "root", "--authorities", authorities]).env_remove("X509_USER_PROXY");
        let program = Program::start(&mut command).unwrap();
        let ready = format!("Node {name} ready");
        program.wait_for_line(LIMIT, |line| (line == ready).then_some(())).unwrap();
        program
    }

    fn channels(&self) -> usize {
        self.served.program.log().matches("data channel on a node").count()
    }

    fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.served.url)
    }

    fn ours(&self, options: &[&str], from: &str, to: &str) {
        let copied = self.site.cp(&[options, &["--retries", "0"]].concat(), from, to).unwrap();
        copied.succeeded().unwrap();
    }

    fn guc(&self, options: &[&str], from: &str, to: &str) {
        let mut command = process::command("globus-url-copy");
        self.site.environment(&mut command);
        run(command.args(options).args([from, to]), LIMIT).unwrap().succeeded().unwrap();
    }

    fn is_original(&self, path: &Path) {
        ensure_same(&self.site.path("original"), path).unwrap();
        fs::remove_file(path).unwrap();
    }
}

fn local(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn protected_data_goes_to_nodes() {
    let front = FrontEnd::new();
    let _nodes = [front.node("a", "certificates"), front.node("b", "certificates")];
    let (original, back) = (front.site.path("original"), front.site.path("back"));
    let there = front.site.path("root/f");
    let mut before = 0;
    for options in [
        &["-p", "4"][..],
        &["-p", "2", "--data-protection", "private"],
        &["--mode", "stream", "--data-protection", "safe"],
        &["-p", "2", "--data-credential", "auto"],
        &["-p", "2", "--data-credential", "auto", "--data-protection", "private"],
        &["--stripes", "auto", "-p", "2", "--data-protection", "private"],
        &["--no-dcau"],
        &["--stack", "tcp,gsi"],
        &["--stack", "gsi,tcp", "--data-protection", "private"],
    ] {
        front.ours(options, &local(&original), &front.url("f"));
        front.ours(options, &front.url("f"), &local(&back));
        front.is_original(&back);
        front.is_original(&there);
        let channels = front.channels();
        assert!(channels >= before + 2, "{options:?}: {}", front.served.program.log());
        before = channels;
    }
    // The credential is in no log.
    let log = front.served.program.log();
    assert!(!log.contains("PRIVATE KEY") && !log.contains("LS0tLS1CRUdJ"), "{log}");
}

#[test]
fn programs_of_gct_move_protected_data_with_nodes() {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy"]) {
        return;
    }
    let front = FrontEnd::new();
    let _nodes = [front.node("a", "certificates"), front.node("b", "certificates")];
    let gct = front.site.gct(&[]).unwrap();
    let (original, back) = (front.site.path("original"), front.site.path("back"));
    let as_url = |path: &Path| format!("file://{}", path.display());
    let before = front.channels();
    for options in [
        &["-p", "4"][..],
        &["-dcpriv"],
        &["-dcpriv", "-p", "2", "-stripe"],
        &["-p", "2", "-data-cred", "auto", "-dcsafe"],
    ] {
        front.guc(options, &as_url(&original), &front.url("f"));
        front.guc(options, &front.url("f"), &format!("{}/g", gct.url));
        front.guc(options, &format!("{}/g", gct.url), &front.url("h"));
        front.guc(options, &front.url("h"), &as_url(&back));
        front.is_original(&back);
        ["f", "g", "h"].iter().for_each(|name| front.is_original(&front.site.path("root").join(name)));
    }
    assert!(front.channels() >= before + 16, "{}", front.served.program.log());
}

/// The front end trusts an authority that is in no directory, neither there nor at the node.
#[test]
fn further_authorities_of_front_end_hold_on_nodes() {
    let (site, elsewhere) = (Site::new().unwrap(), Site::named("/O=Elsewhere").unwrap());
    let mapped = ca::gridmap_line(&elsewhere.identity(), &[&account().unwrap()]);
    fs::write(site.path("gridmap"), mapped).unwrap();
    let pem = fs::read_to_string(elsewhere.path("ropewalk-ca/cacert.pem")).unwrap();
    // Its user trusts the host certificate of the front end.
    elsewhere.trust(&site).unwrap();
    let original = elsewhere.path("original");
    write_random(&original, SIZE, 6).unwrap();
    let copy = |front: &FrontEnd, options: &[&str]| {
        let (back, there) = (elsewhere.path("back"), front.site.path("root/f"));
        for (from, to, result) in
            [(local(&original), front.url("f"), &there), (front.url("f"), local(&back), &back)]
        {
            elsewhere.cp(&[options, &["--retries", "0"]].concat(), &from, &to).unwrap().succeeded().unwrap();
            ensure_same(&original, result).unwrap();
        }
        [there, back].iter().for_each(|path| fs::remove_file(path).unwrap());
    };
    let front = FrontEnd::of(site, &[("GLOBUS_GFS_EXTRA_CA_CERTS", Path::new(&pem))]);
    let all = [
        &["-p", "2"][..],
        &["-p", "2", "--data-protection", "private"],
        &["--mode", "stream", "--data-protection", "safe"],
        &["-p", "2", "--data-credential", "auto", "--data-protection", "private"],
    ];
    for options in all {
        copy(&front, options);
    }
    assert_eq!(front.channels(), 0, "there is no node yet");
    let _nodes = [front.node("a", "certificates"), front.node("b", "certificates")];
    let mut before = 0;
    for options in all {
        copy(&front, options);
        let channels = front.channels();
        assert!(channels >= before + 2, "{options:?}: {}", front.served.program.log());
        before = channels;
    }
}

#[test]
fn node_without_authorities_refuses_with_the_reason() {
    let front = FrontEnd::new();
    let _node = front.node("a", "nothing-there");
    let original = local(&front.site.path("original"));
    let options = ["--retries", "0"];
    let refused = front.site.cp(&options, &original, &front.url("f")).unwrap().failed().unwrap();
    assert!(refused.errors().contains("no directory nothing-there"), "{}", refused.errors());
    assert!(!front.site.path("root/f").exists());
}
