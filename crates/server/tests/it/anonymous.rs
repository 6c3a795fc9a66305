//! Access without a password.

use ropewalk_server::AnonymousAccess;

use crate::fixture::Fixture;

#[test]
fn anonymous_session_without_write_is_read_only() {
    let server = Fixture::with(|config, _| config.anonymous = Some(AnonymousAccess::default()));
    server.write("f", "abc");
    let mut client = server.login();
    assert_eq!(client.get("RETR /f"), b"abc");
    let _data = client.data();
    for command in ["STOR /g", "APPE /f", "ESTO A 0 /f"] {
        let reply = {
            client.send(command);
            client.reply()
        };
        assert!(reply.code >= 500, "{command}: {}", reply.text);
    }
    for command in ["MKD /d", "DELE /f", "RMD /d", "SITE CHMOD 600 /f", "MFMT 20200101000000 /f"] {
        let text = client.command(command, 550);
        assert!(text.contains("PERMISSION_DENIED"), "{text}");
    }
    client.command("SITE RDEL /f", 500);
    let facts = client.command("MLST /f", 250);
    assert!(facts.contains("Perm=r;"), "{facts}");
    let facts = client.command("MLST /", 250);
    assert!(facts.contains("Perm=el;"), "{facts}");
    assert_eq!(server.read("f"), b"abc");
}

#[test]
fn anonymous_names_log_in() {
    let server = Fixture::with(|config, _| {
        config.anonymous =
            Some(AnonymousAccess { names: vec!["guest".into()], ..AnonymousAccess::default() });
    });
    server.connect().login("guest", "");
    let mut client = server.connect();
    client.command("USER anonymous", 331);
    assert_eq!(client.command("PASS x", 530), "530 Login incorrect. : Access denied by configuration.");
    // The session may try again.
    client.command("USER guest", 331);
    client.command("PASS x", 230);
}

#[test]
fn anonymous_wildcard_accepts_unknown_names() {
    let server = Fixture::with(|config, _| {
        config.anonymous = Some(AnonymousAccess { names: vec!["*".into()], ..AnonymousAccess::default() });
    });
    let mut client = server.connect();
    client.command("USER who ever", 331);
    assert_eq!(client.command("PASS x", 230), "230 User anonymous logged in.");
    assert_eq!(client.command("SITE WHOAMI", 200), "200 anonymous");
}

#[test]
fn mapped_user_without_gsi_is_anonymous() {
    let server = Fixture::with(|config, _| config.anonymous = Some(AnonymousAccess::default()));
    let mut client = server.connect();
    client.command("USER :globus-mapping:", 331);
    assert_eq!(client.command("PASS x", 230), "230 User anonymous logged in.");
}
