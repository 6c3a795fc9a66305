//! Certificates that Ropewalk's server must reject.

use std::os::unix::fs::PermissionsExt;

use openssl::hash::MessageDigest;
use ropewalk_gsi::testing::{Control, Forged, Site, chain, key, name};
use ropewalk_gsi::{Credential, ca};
use ropewalk_tests::{grid, process};

use crate::fixture::{Yard, initiator};

const HOUR: i64 = 3600;

fn check(yard: &Yard, served: &ropewalk_tests::grid::Served, credential: &Credential, reason: &str) {
    let answer = yard.refusal(served, credential);
    assert!(answer.starts_with("530 GSSAPI authentication failed: "), "{answer}");
    assert!(answer.contains(reason), "{answer:?} does not say {reason:?}");
    let audit = std::fs::read_to_string(yard.path("audit")).unwrap();
    let last = audit.lines().last().unwrap();
    let refused = last.contains(r#""event":"log-in","decision":"refused""#);
    assert!(refused && last.contains(r#""mechanism":"gsi""#) && last.contains(reason), "{last}");
}

#[test]
fn certificates_with_bad_times_names_or_signatures_are_refused() {
    let yard = Yard::new();
    let served = yard.serve();
    let (authority, user) = (yard.site.authority(), yard.site.user());
    let late = name("/O=Grid/OU=test/CN=Late");
    let of_authority = |valid| Forged { valid, ..Forged::signed_by(&authority, &late) }.alone();
    let expired = of_authority((-2 * HOUR, -HOUR));
    check(&yard, &served, &expired, "the certificate of /O=Grid/OU=test/CN=Late expired at 2");
    check(&yard, &served, &of_authority((HOUR, 2 * HOUR)), "CN=Late is valid only from 2");
    let proxy = Forged { valid: (-2 * HOUR, -HOUR), ..Forged::proxy(&user) }.below(&user);
    check(&yard, &served, &proxy, "CN=Test User/CN=7 expired at 2");

    let elsewhere = tempfile::tempdir().unwrap();
    let stranger = Site::named(elsewhere.path(), "/O=Elsewhere").user();
    check(
        &yard,
        &served,
        &stranger,
        "the authority /O=Elsewhere/CN=Test CA, which signed the certificate of",
    );
    let own = key();
    let alone = Forged { issuer: &late, signer: &own, ..Forged::signed_by(&authority, &late) }.alone();
    check(&yard, &served, &alone, "CN=Late is signed by itself and not in /");
    // The authority's name with another key.
    let forged = Forged { signer: &own, ..Forged::signed_by(&authority, &late) }.alone();
    check(&yard, &served, &forged, "the signature on the certificate of /O=Grid/OU=test/CN=Late is wrong");
    let md5 = Forged { digest: MessageDigest::md5(), ..Forged::signed_by(&authority, &late) }.alone();
    check(&yard, &served, &md5, "CN=Late is signed with MD5, which is not allowed");
    let md5 = Forged { digest: MessageDigest::md5(), ..Forged::proxy(&user) }.below(&user);
    check(&yard, &served, &md5, "CN=Test User/CN=7 is signed with MD5");
    // A valid proxy is accepted.
    let proxy = Forged::proxy(&user).below(&user);
    drop(yard.logged_in(&served, &proxy));
}

#[test]
fn loops_and_long_chains_are_refused() {
    let yard = Yard::new();
    let served = yard.serve();
    let user = yard.site.user();
    let own = key();
    let round = name("/CN=proxy");
    let round =
        Forged { issuer: &round, signer: &own, base: &round, more: &[], ..Forged::proxy(&user) }.make(&own);
    let rounds = Credential::new(round.clone(), vec![round.clone(), round], own).unwrap();
    check(&yard, &served, &rounds, "the issuer of the proxy /CN=proxy, /CN=proxy, is not in the chain");
    let mut deep = user.clone();
    for _ in 0..40 {
        deep = Forged::proxy(&deep).below(&deep);
    }
    check(&yard, &served, &deep, "the chain has 41 certificates; at most 32 are looked at");
    let padded = vec![yard.site.ca.certificate().clone(); 100];
    let padded = Credential::new(user.certificate().clone(), padded, user.key().clone()).unwrap();
    check(&yard, &served, &padded, "the chain has 101 certificates; at most 32 are looked at");
}

#[test]
fn revoked_and_unauthorised_certificates_are_refused() {
    let yard = Yard::new();
    let served = yard.serve();
    let user = yard.site.user();
    let certificates = yard.site.certificates();
    let hash = yard.site.ca.install(&certificates, 10).unwrap();
    let policy = certificates.join(format!("{hash}.signing_policy"));
    drop(yard.logged_in(&served, &user));

    let good = std::fs::read_to_string(&policy).unwrap();
    std::fs::write(&policy, good.replace("OU=test/*", "OU=other/*")).unwrap();
    check(
        &yard,
        &served,
        &user,
        "does not let /O=Grid/OU=test/CN=Test CA certify /O=Grid/OU=test/CN=Test User",
    );
    std::fs::write(&policy, "access_id_CA X509 '").unwrap();
    check(&yard, &served, &user, "signing_policy: line 1: a quote is not closed");
    std::fs::write(&policy, &good).unwrap();
    std::fs::set_permissions(&policy, PermissionsExt::from_mode(0o666)).unwrap();
    check(&yard, &served, &user, "signing_policy (mode 0666), so it is not believed; `chmod o-w");
    std::fs::remove_file(&policy).unwrap();
    check(&yard, &served, &user, "has no signing policy: /");

    // The revoked certificate and its proxies are refused at once.
    yard.site.ca.revoke(user.certificate()).unwrap();
    yard.site.ca.install(&certificates, 10).unwrap();
    check(&yard, &served, &user, "was revoked by /O=Grid/OU=test/CN=Test CA at 2");
    check(&yard, &served, &Forged::proxy(&user).below(&user), "was revoked by");
    let list = certificates.join(format!("{hash}.r0"));
    std::fs::write(&list, "nothing").unwrap();
    check(&yard, &served, &user, ".r0 is no revocation list");
}

#[test]
fn unmapped_subject_is_refused() {
    let yard = Yard::new();
    let served = yard.serve();
    let nobody = yard.site.ca.issue_user("Nobody", 10).unwrap();
    let mut control = Control::connect(served.address);
    control.authenticate(initiator(&yard.identity(&nobody))).unwrap();
    control.ask("USER :globus-mapping:");
    let answer = control.ask("PASS dummy");
    assert!(answer.starts_with("530") && answer.contains("CN=Nobody is not in the gridmap"), "{answer}");
    // A gridmap that any user can write is ignored.
    let line = ca::gridmap_line(nobody.identity(), &["nobody"]);
    std::fs::write(yard.path("gridmap"), line).unwrap();
    std::fs::set_permissions(yard.path("gridmap"), PermissionsExt::from_mode(0o666)).unwrap();
    let mut control = Control::connect(served.address);
    control.authenticate(initiator(&yard.identity(&nobody))).unwrap();
    control.ask("USER :globus-mapping:");
    let answer = control.ask("PASS dummy");
    assert!(answer.starts_with("530") && answer.contains("cannot read its gridmap"), "{answer}");
}

/// `serve --check` reports problems that would otherwise surface at log-ins.
#[test]
fn serve_check_reports_expired_certificates_and_lists() {
    let yard = Yard::new();
    let configure = |text: &str| std::fs::write(yard.path("server.toml"), text).unwrap();
    let gsi = "root = 'root'\n[gsi]\ncertificate = 'hostcert.pem'\nkey = 'hostkey.pem'\nauthorities = 'certificates'\n\
               gridmap = 'gridmap'\n[identity]\nmapped = false\n[tls]\n";
    let run = |code: i32| {
        let mut check = ropewalk_tests::peers::ropewalk_command().unwrap();
        check.current_dir(yard.directory.path()).args(["serve", "--check", "--config", "server.toml"]);
        check.env("XDG_STATE_HOME", yard.path("state")).env_remove("STATE_DIRECTORY");
        let outcome = process::run(&mut check, grid::LIMIT).unwrap();
        let said = outcome.errors();
        assert_eq!(outcome.status.code(), Some(code), "{said}");
        said.lines()
            .filter(|line| line.contains("gsi: ") || line.contains("tls: "))
            .collect::<Vec<_>>()
            .join("\n")
    };
    configure(&format!("{gsi}enabled = false"));
    assert_eq!(run(0), "");
    // An expired authority, and an authority whose revocation list has expired.
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Site::named(elsewhere.path(), "/O=Elsewhere");
    let own = other.authority();
    let name = own.certificate().subject_name();
    let ended = Forged { valid: (-2 * HOUR, -HOUR), ..Forged::signed_by(&own, name) }.alone();
    let at = |name: &str| yard.site.certificates().join(name);
    let hash = format!("{:08x}", own.certificate().subject_name_hash());
    std::fs::write(at(&format!("{hash}.0")), ended.certificate().to_pem().unwrap()).unwrap();
    let ours = format!("{:08x}.r0", yard.site.ca.certificate().subject_name_hash());
    std::fs::write(at(&ours), yard.site.ended_list()).unwrap();
    let said = run(0);
    let wanted = format!("{hash}.0: the certificate of /O=Elsewhere/CN=Test CA expired at 2");
    assert!(said.starts_with("warning: gsi: /") && said.contains(&wanted), "{said}");
    assert!(said.contains(&format!("{ours} expired at 2")), "{said}");
    assert!(said.contains("without a fresh one, /O=Grid/OU=test/CN=Test CA is not believed"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    // The server also reports it at its start.
    let served = yard.serve();
    // A separate thread reads the server's standard error.
    let told = |log: &str| log.contains("without a fresh one");
    served.program.wait_for_log(grid::LIMIT, told).unwrap();
    drop(served);
    configure(&format!("{gsi}enabled = false"));
    std::fs::remove_file(at(&format!("{hash}.0"))).unwrap();
    yard.site.ca.install(&yard.site.certificates(), 10).unwrap();
    assert_eq!(run(0), "");
    // The server's own certificate: about to expire, and expired.
    let authority = yard.site.authority();
    let host = self::name("/O=Grid/OU=test/CN=localhost");
    let made = |valid| Forged { valid, ..Forged::signed_by(&authority, &host) }.alone();
    yard.site.write_host(&made((-2 * HOUR, 30 * HOUR)));
    assert!(run(0).contains("warning: gsi: the certificate of /O=Grid/OU=test/CN=localhost ends soon, at 2"));
    yard.site.write_host(&made((-2 * HOUR, -HOUR)));
    assert!(run(2).contains("error: gsi: the certificate of /O=Grid/OU=test/CN=localhost expired at 2"));
    // The same with TLS and the revocation lists for its clients.
    std::fs::write(yard.path("list.pem"), yard.site.ended_list()).unwrap();
    configure(
        "root = 'root'\n[anonymous]\n[identity]\nmapped = false\n[tls]\ncertificate = 'hostcert.pem'\nkey = 'hostkey.pem'\n\
         client_authorities = 'ca/cacert.pem'\nclient_revocations = 'list.pem'\n",
    );
    let said = run(0);
    assert!(
        said.contains("hostcert.pem: the certificate of /O=Grid/OU=test/CN=localhost expired at 2"),
        "{said}"
    );
    assert!(said.contains("list.pem expired at 2"), "{said}");
}

/// The server rejects even its own certificate.
#[test]
fn server_with_bad_certificate_does_not_start() {
    let yard = Yard::new();
    let authority = yard.site.authority();
    let host = name("/O=Grid/OU=test/CN=localhost");
    let expired = Forged { valid: (-2 * HOUR, -HOUR), ..Forged::signed_by(&authority, &host) }.alone();
    yard.site.write_host(&expired);
    let error = ropewalk_tests::grid::serve(yard.directory.path(), "", &[]).err().unwrap().to_string();
    assert!(error.contains("the certificate of /O=Grid/OU=test/CN=localhost expired at 2"), "{error}");
    yard.site.write_host(yard.site.host());
    std::fs::set_permissions(yard.path("hostkey.pem"), PermissionsExt::from_mode(0o644)).unwrap();
    let error = ropewalk_tests::grid::serve(yard.directory.path(), "", &[]).err().unwrap().to_string();
    assert!(error.contains("(mode 0644); `chmod 600 /"), "{error}");
    assert_eq!(chain(yard.site.host()).len(), 1);
}
