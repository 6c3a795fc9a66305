//! Path rules, and links that lead out of what is open.

use std::os::unix::fs::symlink;

use crate::fixture::Fixture;

fn server() -> Fixture {
    let server = Fixture::with(|config, _| config.rules = Some("R/pub,RW/in,N/pub/no,R/deep/*/x".into()));
    for name in ["pub/a", "pub/no/b", "in/c", "secret/d", "deep/1/x/e", "deep/1/y/f"] {
        server.write(name, "data");
    }
    symlink("/secret/d", server.root().join("pub/absolute")).unwrap();
    symlink("../secret", server.root().join("in/directory")).unwrap();
    symlink("../secret/new", server.root().join("in/dangling")).unwrap();
    symlink("../pub/a", server.root().join("in/good")).unwrap();
    server
}

#[test]
fn what_is_open_and_what_is_not() {
    let server = server();
    let mut client = server.login();
    assert_eq!(client.get("RETR /pub/a"), b"data");
    assert_eq!(client.get("RETR /in/good"), b"data");
    assert_eq!(client.get("RETR /deep/1/x/e"), b"data");
    let _data = client.data();
    for path in
        ["/secret/d", "/pub/no/b", "/pub/absolute", "/in/directory/d", "/deep/1/y/f", "/in/../secret/d"]
    {
        client.send(&format!("RETR {path}"));
        let reply = client.reply();
        assert_eq!(reply.text, "500 Command failed : Path not allowed.", "{path}");
    }
    for path in ["/pub/x", "/secret/x", "/in/directory/x", "/in/dangling", "/x"] {
        client.send(&format!("STOR {path}"));
        let reply = client.reply();
        assert_eq!(reply.text, "500 Command failed : Path not allowed.", "{path}");
    }
    assert_eq!(client.put("STOR /in/x", b"1").code, 226);
    assert!(!server.exists("secret/new"));
}

#[test]
fn commands() {
    let server = server();
    let mut client = server.login();
    for command in [
        "SIZE /secret/d",
        "MDTM /in/directory/d",
        "MLST /secret",
        "DELE /pub/a",
        "DELE /in/directory/d",
        "MKD /in/directory/x",
        "RMD /secret",
        "CKSM MD5 0 -1 /secret/d",
        "SITE RDEL /pub",
        "SITE CHMOD 777 /in/directory/d",
        "SITE TRNC 0 /in/directory/d",
        "RNFR /secret/d",
    ] {
        client.send(command);
        let reply = client.reply();
        assert!(reply.code == 500 && reply.text.contains("Path not allowed"), "{command}: {}", reply.text);
    }
    let text = client.command("CWD /secret", 550);
    assert_eq!(text, "550 /secret: Could not change directory. : Path not allowed.");
    client.command("RNFR /in/c", 350);
    client.command("RNTO /secret/c", 500);
    client.command("SITE SYMLINKFROM /secret/d", 500);
    client.command("SITE SYMLINK ../secret/d /in/link", 500);
    client.command("SITE SYMLINKFROM /pub/a", 350);
    client.command("SITE SYMLINKTO /in/link", 250);
    assert_eq!(std::fs::read_link(server.root().join("in/link")).unwrap().to_str(), Some("../pub/a"));
    client.command("RNFR /in/c", 350);
    client.command("RNTO /in/c2", 250);
    // A link that leads out may be removed: it is an entry of an open directory.
    client.command("DELE /in/directory", 250);
    assert!(server.exists("secret/d"));
}

#[test]
fn listings_show_what_leads_to_something() {
    let server = server();
    let mut client = server.login();
    let names = |lines: Vec<String>| {
        let mut names: Vec<_> = lines.into_iter().filter(|name| name != "." && name != "..").collect();
        names.sort();
        names
    };
    assert_eq!(names(client.list("NLST /")), ["deep", "in", "pub"]);
    assert_eq!(names(client.list("NLST /pub")), ["a", "absolute"]);
    assert_eq!(names(client.list("NLST /deep")), ["1"]);
    assert_eq!(names(client.list("NLST /deep/1")), ["x"]);
    let facts = client.list("MLSD /pub");
    let absolute = facts.iter().find(|line| line.ends_with(" absolute")).unwrap();
    assert!(absolute.contains("Error=InvalidLink;") && !absolute.contains("Size=4;"), "{absolute}");
    let recursive = client.list("MLSR /");
    assert!(
        !recursive.iter().any(|line| line.contains("secret") && !line.contains("slink")),
        "{recursive:?}"
    );
    assert!(recursive.iter().any(|line| line.ends_with(" deep/1/x/e")), "{recursive:?}");
}

#[test]
fn a_session_can_restrict_itself() {
    let server = Fixture::new();
    server.write("a/x", "1");
    server.write("b/y", "2");
    let mut client = server.login();
    client.command("SITE RESTRICT R/a", 250);
    client.command("SIZE /a/x", 213);
    client.command("SIZE /b/y", 500);
    client.command("DELE /a/x", 500);
    client.command("SITE RESTRICT RW/", 500);
}
