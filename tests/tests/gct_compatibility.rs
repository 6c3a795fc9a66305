//! Features that GCT's users rely on: older kinds of proxies, passphrases, and environment
//! variables.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use ropewalk_gsi::ca::{self, Ca};
use ropewalk_gsi::testing::Control;
use ropewalk_gsi::{
    After, Credential, Expected, Identity, Initiator, InitiatorOptions, TlsSettings, Trust, proxy_file,
};
use ropewalk_tests::grid::{LIMIT, Site, account, serve};
use ropewalk_tests::peers;
use ropewalk_tests::process::{self, run};

/// Returns the messages of a copy of a file; `None` if it succeeded.
fn copied(mut command: Command, url: &str, to: &Path) -> Option<String> {
    let _ = fs::remove_file(to);
    let outcome = run(command.args([url, &format!("file://{}", to.display())]), LIMIT).unwrap();
    let failed = (!outcome.status.success()).then(|| outcome.errors());
    assert!(failed.is_some() || fs::read(to).unwrap() == b"hello");
    failed
}

/// GCT 6.2 with OpenSSL 3 accepts proxies of RFC 3820 and of its drafts. It accepts legacy proxies
/// (GT2) only below certificates without key usage, because OpenSSL requires the permission to sign
/// certificates there, on control and on data connections. Ropewalk accepts all of them.
#[test]
fn older_proxy_types_are_accepted() {
    if !peers::available(&["globus-gridftp-server", "globus-url-copy", "grid-proxy-init", "openssl"]) {
        return;
    }
    let site = Site::new().unwrap();
    let (ours, gct) = (site.serve("", &[]).unwrap(), site.gct(&[]).unwrap());
    fs::write(site.path("root/file"), "hello").unwrap();
    // A certificate of the same subject without key usage.
    let openssl = |words: &str| {
        let mut command = process::command("openssl");
        run(command.args(words.split(' ')).current_dir(site.path("")), LIMIT).unwrap().succeeded().unwrap();
    };
    fs::write(
        site.path("subject.cnf"),
        "[req]\ndistinguished_name=d\nprompt=no\n[d]\nO=Grid\nOU=site\nCN=Test User\n",
    )
    .unwrap();
    openssl("req -new -newkey rsa:2048 -nodes -keyout oldkey.pem -config subject.cnf -out old.csr");
    openssl(
        "x509 -req -in old.csr -CA ropewalk-ca/cacert.pem -CAkey ropewalk-ca/cakey.pem -set_serial 77 -out oldcert.pem",
    );
    for (certificate, words, gct_takes) in [
        ("user", "", true),
        ("user", "-draft", true),
        ("user", "-draft -limited", true),
        ("user", "-old", false),
        ("user", "-old -limited", false),
        ("old", "-draft", true),
        ("old", "-old", true),
        ("old", "-old -limited", true),
    ] {
        let mut init = process::command("grid-proxy-init");
        site.environment(&mut init);
        let (cert, key) = (format!("{certificate}cert.pem"), format!("{certificate}key.pem"));
        init.args(["-cert", &cert, "-key", &key, "-out", "proxy", "-bits", "2048"]);
        run(init.args(words.split_whitespace()), LIMIT).unwrap().succeeded().unwrap();
        for server in [&ours, &gct] {
            let url = format!("{}/file", server.url);
            let mut guc = process::command("globus-url-copy");
            site.environment(&mut guc);
            if !gct_takes {
                // The client would not accept the server, which presents a proxy of this proxy on
                // data connections.
                guc.arg("-nodcau");
            }
            let mut cp = site.command().unwrap();
            cp.args(["cp", "--quiet", "--retries", "0"]);
            let refused = [copied(guc, &url, &site.path("got")), copied(cp, &url, &site.path("got"))];
            for (refused, client) in refused.iter().zip(["globus-url-copy", "ropewalk"]) {
                let works = gct_takes || std::ptr::eq(server, &ours);
                assert_eq!(refused.is_none(), works, "{certificate} {words} {url} {client}: {refused:?}");
            }
        }
    }
}

/// Runs Ropewalk at its own terminal, at which `typed` is entered.
fn at_terminal(site: &Site, arguments: &str, typed: &str) -> (bool, String) {
    let program = peers::ropewalk().unwrap();
    let mut command = process::command("script");
    site.environment(&mut command);
    command.env_remove("X509_USER_PROXY").args([
        "-qec",
        &format!("{} {arguments}", program.display()),
        "/dev/null",
    ]);
    fs::write(site.path("typed"), typed).unwrap();
    let typed = fs::File::open(site.path("typed")).unwrap();
    let output = command.stdin(typed).stderr(Stdio::piped()).stdout(Stdio::piped()).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn passphrases_are_asked_for() {
    if !peers::available(&["script", "setsid"]) {
        return;
    }
    let site = Site::new().unwrap();
    let (well, text) =
        at_terminal(&site, "ca user Ada --encrypt --cert ada.pem --key adakey.pem", "secret\nsecret\n");
    assert!(well && text.contains("the person's key, again"), "{text}");
    let mode = |name: &str| fs::metadata(site.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("ada.pem"), mode("adakey.pem")), (0o644, 0o600));
    assert!(fs::read_to_string(site.path("adakey.pem")).unwrap().contains("ENCRYPTED PRIVATE KEY"));
    let init = "proxy init --cert ada.pem --key adakey.pem --out adaproxy";
    let (well, text) = at_terminal(&site, init, "wrong\nsecret\n");
    assert!(well && text.contains("is wrong") && text.contains("CN=Ada"), "{text}");
    assert_eq!(mode("adaproxy"), 0o600);
    // Passphrases that differ, are too short, and of an authority.
    let (well, text) =
        at_terminal(&site, "ca user Bob --encrypt --cert b.pem --key bk.pem", "secret\nother\n");
    assert!(!well && text.contains("the passphrases differ"), "{text}");
    let (well, text) = at_terminal(&site, "ca user Bob --encrypt --cert b.pem --key bk.pem", "abc\n");
    assert!(!well && text.contains("at least 4 are required"), "{text}");
    let (well, text) = at_terminal(&site, "ca init --encrypt --ca sealed --install i", "secret\nsecret\n");
    assert!(well, "{text}");
    assert_eq!((mode("sealed"), mode("sealed/cakey.pem")), (0o700, 0o600));
    let (well, text) =
        at_terminal(&site, "ca host --ca sealed --cert h.pem --key hk.pem h.example.org", "secret\n");
    assert!(well && text.contains("CN=h.example.org"), "{text}");

    // A transfer with the long-lived certificate itself asks for the passphrase before it begins,
    // because standard input may be the data.
    let server = site.serve("", &[]).unwrap();
    fs::write(site.path("root/file"), "hello").unwrap();
    fs::create_dir_all(site.path("home/.globus")).unwrap();
    for (from, to) in [("ada.pem", "usercert.pem"), ("adakey.pem", "userkey.pem")] {
        fs::copy(site.path(from), site.path("home/.globus").join(to)).unwrap();
    }
    let line = ca::gridmap_line("/O=Grid/OU=site/CN=Ada", &[&account().unwrap()]);
    fs::write(site.path("gridmap"), line).unwrap();
    let url = format!("{}/file", server.url);
    let home = site.path("home");
    let wrapped = |words: &str| format!("sh -c 'HOME={} {words}'", home.display());
    let ropewalk = peers::ropewalk().unwrap();
    let words = format!("cp --quiet --retries 0 {url} got");
    let mut command = process::command("script");
    site.environment(&mut command);
    command.env_remove("X509_USER_PROXY");
    command.args(["-qec", &wrapped(&format!("{} {words}", ropewalk.display())), "/dev/null"]);
    fs::write(site.path("typed"), "secret\n").unwrap();
    let output = command.stdin(fs::File::open(site.path("typed")).unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(fs::read(site.path("got")).unwrap(), b"hello");

    // Without a terminal the client cannot ask.
    for words in [&words, init] {
        let mut command = process::command("setsid");
        site.environment(&mut command);
        command
            .arg("--wait")
            .arg(&ropewalk)
            .args(words.split(' '))
            .env("HOME", &home)
            .env_remove("X509_USER_PROXY");
        let text = run(&mut command, LIMIT).unwrap().failed().unwrap().errors();
        assert!(text.contains("encrypted") && text.contains("there is no terminal to ask at"), "{text}");
    }
}

fn identity(credential: Credential, trust: Trust) -> Identity {
    Identity::new(Arc::new(credential), Arc::new(trust), &TlsSettings::default()).unwrap()
}

fn initiator(identity: &Identity, host: &str) -> Initiator {
    let options = InitiatorOptions {
        expected: Expected::host(host),
        delegate: None,
        after: After::Flag,
        server_name: Some(host.into()),
    };
    Initiator::new(identity, options).unwrap()
}

/// `X509_VHOST_CRED_DIR`, `GLOBUS_GFS_EXTRA_CA_CERTS`, `GSI_AUTHZ_CONF`, and `GLOBUS_GSSAPI_*` at
/// the server.
#[test]
fn server_environment_variables_are_honoured() {
    let (site, elsewhere) = (Site::new().unwrap(), Site::named("/O=Elsewhere").unwrap());
    let authority = Ca::open(&site.path("ropewalk-ca"), &mut |_| None).unwrap();
    for host in ["data.example.org", "*.other.example.org"] {
        let directory = site.path("vhosts").join(host.replace('*', "any"));
        fs::create_dir_all(&directory).unwrap();
        let credential = authority.issue_host(&[host], 10).unwrap();
        ca::write_pair(&credential, &directory.join("hostcert.pem"), &directory.join("hostkey.pem")).unwrap();
    }
    fs::write(site.path("authz.conf"), "globus_mapping /lib/libnone.so none\n").unwrap();
    let pem = fs::read_to_string(elsewhere.path("ropewalk-ca/cacert.pem")).unwrap();
    let mapped = [&site, &elsewhere].map(|of| ca::gridmap_line(&of.identity(), &[&account().unwrap()]));
    fs::write(site.path("gridmap"), mapped.join("\n")).unwrap();
    let environment = [
        ("X509_VHOST_CRED_DIR", site.path("vhosts")),
        ("GSI_AUTHZ_CONF", site.path("authz.conf")),
        ("GLOBUS_GFS_EXTRA_CA_CERTS", pem.into()),
        ("GLOBUS_GSSAPI_MAX_TLS_PROTOCOL", "TLS1_2_VERSION".into()),
    ];
    let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_path())).collect();
    let server = site.serve("", &environment).unwrap();
    server.program.wait_for_log(LIMIT, |log| log.contains("mapping callouts")).unwrap();
    let user = Credential::load(&site.path("proxy"), &mut |_| None).unwrap();
    let user = identity(user, Trust::directory(site.path("certificates")));
    for host in ["localhost", "data.example.org", "x.other.example.org"] {
        let mut control = Control::connect(server.address);
        control.authenticate(initiator(&user, host)).unwrap();
        assert_eq!(control.session().unwrap().version(), "TLSv1.2");
        control.log_in();
    }
    let refused = Control::connect(server.address).authenticate(initiator(&user, "example.com")).unwrap_err();
    assert!(refused.contains("the server is not example.com"), "{refused}");
    let other = Credential::load(&elsewhere.path("proxy"), &mut |_| None).unwrap();
    let other = identity(other, Trust::directory(site.path("certificates")));
    let mut control = Control::connect(server.address);
    control.authenticate(initiator(&other, "localhost")).unwrap();
    control.log_in();
    drop(server);

    // A directory without a key, and a directory that does not exist.
    fs::remove_file(site.path("vhosts/data.example.org/hostkey.pem")).unwrap();
    let error = site.serve("", &environment[..1]).err().unwrap().to_string();
    assert!(error.contains("has 0 files whose name ends with key.pem"), "{error}");
    let nowhere = site.path("nowhere");
    let error = site.serve("", &[("X509_VHOST_CRED_DIR", &nowhere)]).err().unwrap().to_string();
    assert!(error.contains("X509_VHOST_CRED_DIR") && error.contains("nowhere"), "{error}");
}

/// `X509_USER_CERT`, `X509_USER_KEY`, `X509_CERT_DIR`, `GRIDMAP`, `GRIDMAPDIR`, at the server and
/// at the client, and `GLOBUS_IGNORE_CRED_PERMS`.
#[test]
fn credential_and_map_variables_are_honoured() {
    let site = Site::new().unwrap();
    fs::create_dir(site.path("pool")).unwrap();
    fs::write(site.path("pool/grid001"), "").unwrap();
    fs::write(site.path("poolmap"), ca::gridmap_line(&site.identity(), &[".grid"])).unwrap();
    fs::write(site.path("root/file"), "hello").unwrap();
    // The configuration contains none of these paths.
    fs::write(site.path("server.toml"), "[gsi]\nrequired = true\n[identity]\nmapped = false\n").unwrap();
    let mut command = site.command().unwrap();
    command.args(["serve", "--config", "server.toml", "--listen", "127.0.0.1:0", "--root", "root"]);
    command.env_remove("X509_USER_PROXY").env("GRIDMAP", "poolmap").env("GRIDMAPDIR", "pool");
    command.env("X509_USER_CERT", "hostcert.pem").env("X509_USER_KEY", "hostkey.pem");
    let program = process::Program::start(&mut command).unwrap();
    let port = |line: &str| {
        line.contains("listening").then(|| line.trim().rsplit(':').next()?.parse::<u16>().ok()).flatten()
    };
    let url = format!("gsiftp://localhost:{}/file", program.wait_for_line(LIMIT, port).unwrap());
    let client = || {
        let mut command = site.command().unwrap();
        command
            .args(["cp", "--quiet", "--retries", "0"])
            .env_remove("X509_USER_PROXY")
            .env("HOME", site.path("home"));
        command.env("X509_USER_CERT", "usercert.pem").env("X509_USER_KEY", "userkey.pem");
        command
    };
    assert_eq!(copied(client(), &url, &site.path("got")), None);
    let lease = fs::read_dir(site.path("pool")).unwrap().count();
    assert_eq!(lease, 2, "the account is leased");
    fs::set_permissions(site.path("userkey.pem"), PermissionsExt::from_mode(0o644)).unwrap();
    let text = copied(client(), &url, &site.path("got")).unwrap();
    assert!(text.contains("`chmod 600 userkey.pem` mends it"), "{text}");
    let mut careless = client();
    careless.env("GLOBUS_IGNORE_CRED_PERMS", "1");
    assert_eq!(copied(careless, &url, &site.path("got")), None);
    fs::set_permissions(site.path("userkey.pem"), PermissionsExt::from_mode(0o600)).unwrap();
    let mut lost = client();
    lost.env("X509_CERT_DIR", "nowhere");
    let text = copied(lost, &url, &site.path("got")).unwrap();
    assert!(text.contains("there is no directory nowhere"), "{text}");
}

/// `ropewalk ca revoke` takes effect at once.
#[test]
fn revocation_takes_effect_at_once() {
    let site = Site::new().unwrap();
    let server = serve(&site.path(""), "", &[]).unwrap();
    fs::write(site.path("root/file"), "hello").unwrap();
    let url = format!("{}/file", server.url);
    let client = || {
        let mut command = site.command().unwrap();
        command.args(["cp", "--quiet", "--retries", "0"]);
        command
    };
    assert_eq!(copied(client(), &url, &site.path("got")), None);
    site.ca(&["revoke", "usercert.pem"]).unwrap();
    let text = copied(client(), &url, &site.path("got")).unwrap();
    assert!(
        text.contains("530") && text.contains("CN=Test User") && text.contains("was revoked by"),
        "{text}"
    );
    // A new proxy of the revoked certificate is refused as well.
    let user =
        Credential::load_pair(&site.path("usercert.pem"), &site.path("userkey.pem"), &mut |_| None).unwrap();
    proxy_file::init(&user, &site.path("proxy"), 2048, &Default::default()).unwrap();
    assert!(copied(client(), &url, &site.path("got")).unwrap().contains("was revoked by"));
}
