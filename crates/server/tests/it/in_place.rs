//! Uploads into existing files: APPE, ESTO, REST.

use std::io::Write as _;

use crate::fixture::Fixture;

const PART: &str = ".f.ropewalk-part";

#[test]
fn appe_extends_file() {
    let server = Fixture::new();
    let mut client = server.login();
    assert_eq!(client.put("APPE /f", b"abc").code, 226);
    assert_eq!(client.put("APPE /f", b"def").code, 226);
    assert_eq!(server.read("f"), b"abcdef");
}

#[test]
fn rest_and_esto_write_in_place() {
    let server = Fixture::new();
    server.write("f", "hello world");
    let mut client = server.login();
    client.command("REST 6", 350);
    assert_eq!(client.put("STOR /f", b"WORLD").code, 226);
    assert_eq!(server.read("f"), b"hello WORLD");
    assert_eq!(client.put("ESTO A 1 /f", b"ELLO").code, 226);
    assert_eq!(server.read("f"), b"hELLO WORLD");
    assert_eq!(client.put("ESTO A 2 /new", b"x").code, 226);
    assert_eq!(server.read("new"), b"\0\0x");
    client.command("REST 100", 350);
    let _data = client.data();
    client.command("STOR /f", 554);
}

#[test]
fn interrupted_replacement_is_not_mixed_with_old_file() {
    for command in ["STOR /f", "APPE /f"] {
        let server = Fixture::new();
        server.write("f", "old");
        let mut client = server.login();
        let mut data = client.data();
        client.command("STOR /f", 150);
        data.write_all(b"new an").unwrap();
        while std::fs::metadata(server.root().join(PART)).map_or(0, |part| part.len()) < 6 {
            std::thread::yield_now();
        }
        client.send("ABOR");
        client.expect(426);
        client.expect(226);
        drop(data);
        assert_eq!(client.command("SIZE /f", 213), "213 3");
        if command.starts_with("STOR") {
            client.command("REST 3", 350);
        }
        let _data = client.data();
        client.command(command, 554);
        assert_eq!(server.read("f"), b"old", "{command}");
        assert_eq!(client.put("STOR /f", b"new and longer").code, 226);
        assert_eq!(server.read("f"), b"new and longer");
        // No file is left that is in conflict with the upload.
        assert_eq!(client.put("APPE /f", b"!").code, 226);
    }
}

#[test]
fn append_long_after_interrupted_replacement_extends_file() {
    let server = Fixture::new();
    server.write("f", "old");
    let hours_old = |name: &str, hours: u64| {
        let time = std::time::SystemTime::now() - std::time::Duration::from_secs(hours * 3600);
        let file = std::fs::File::options().write(true).open(server.root().join(name)).unwrap();
        file.set_modified(time).unwrap();
    };
    hours_old("f", 2);
    let mut client = server.login();
    client.command("ALLO 100", 200);
    assert_eq!(client.put("STOR /f", b"new an").code, 426);
    let append = |ask: &str| {
        let mut client = server.login();
        if !ask.is_empty() {
            client.send(ask);
            client.reply();
        }
        client.try_put("APPE /f", b"er").code
    };
    assert_eq!(append(""), 554);
    hours_old(PART, 1);
    for ask in ["SIZE /f", "MLST /f", "SIZE f", "MLSC /"] {
        assert_eq!(append(ask), 554, "{ask}");
    }
    assert_eq!(append("SIZE /other"), 226);
    assert_eq!(server.read("f"), b"older");
    // The file is newer now than the upload that was to replace it.
    assert_eq!(append("SIZE /f"), 226);
    assert_eq!(server.read("f"), b"olderer");
    assert!(server.exists(PART));
    // The rest of that upload does not become part of the current file either.
    let mut client = server.login();
    client.command("REST 3", 350);
    assert_eq!(client.try_put("STOR /f", b"erer").code, 554);
    assert_eq!(server.read("f"), b"olderer");
    assert_eq!(client.put("STOR /f", b"all of it").code, 226);
    assert_eq!(server.read("f"), b"all of it");
}

#[test]
fn second_append_at_same_time_is_refused() {
    let server = Fixture::new();
    server.write("log", "0");
    let (mut first, mut second) = (server.login(), server.login());
    let mut data = first.data();
    first.command("APPE /log", 150);
    data.write_all(b"1").unwrap();
    let refused = second.try_put("APPE /log", b"2");
    assert_eq!(refused.code, 451);
    assert!(refused.text.contains("another session appends to it"), "{}", refused.text);
    data.write_all(b"1").unwrap();
    drop(data);
    first.expect(226);
    assert_eq!(second.put("APPE /log", b"2").code, 226);
    assert_eq!(server.read("log"), b"0112");
}

#[test]
fn upload_with_wrong_sum_removes_only_its_data() {
    let server = Fixture::new();
    let wrong = "SCKS MD5 00000000000000000000000000000000";
    let mut first = server.login();
    first.command(wrong, 200);
    let mut data = first.data();
    first.command("ESTO A 0 /f", 150);
    data.write_all(b"wrong").unwrap();
    // Another upload takes the name meanwhile.
    assert_eq!(server.login().put("STOR /f", b"right").code, 226);
    drop(data);
    assert!(first.end().code >= 500);
    assert_eq!(server.read("f"), b"right");
    first.command("DELE /f", 250);
    first.command(wrong, 200);
    assert!(first.put("ESTO A 0 /f", b"wrong").code >= 500);
    assert!(!server.exists("f"));
}
