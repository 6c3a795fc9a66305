//! LIST, NLST, MLSD, MLSR, MLSC.

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::testing::{Deed, Hooked};
use ropewalk_storage::{MemoryStore, Store};

use crate::fixture::Fixture;

fn server() -> Fixture {
    let server = Fixture::new();
    server.write("d/a.txt", "12345");
    server.write("d/b c", "");
    server.write("d/sub/deep/x", "1");
    std::os::unix::fs::symlink("a.txt", server.root().join("d/link")).unwrap();
    std::os::unix::fs::symlink("nowhere", server.root().join("d/dangling")).unwrap();
    server.write("d/.e.ropewalk-part", "not whole");
    server
}

fn name(line: &str) -> &str {
    line.split_once(' ').unwrap().1
}

#[test]
fn mlsd_lists_facts() {
    let server = server();
    let mut client = server.login();
    let lines = client.list("MLSD /d");
    assert!(lines[0].starts_with("Type=cdir;") && lines[0].ends_with(" ."), "{lines:?}");
    assert!(lines[0].contains("X.count=5;"), "{}", lines[0]);
    assert!(lines[1].starts_with("Type=pdir;") && lines[1].ends_with(" .."), "{lines:?}");
    let mut names: Vec<_> = lines[2..].iter().map(|line| name(line)).collect();
    names.sort_unstable();
    assert_eq!(names, ["a.txt", "b c", "dangling", "link", "sub"]);
    let of = |wanted: &str| lines.iter().find(|line| name(line) == wanted).unwrap();
    assert!(of("a.txt").starts_with("Type=file;") && of("a.txt").contains("Size=5;Perm=awr;UNIX.mode=0644;"));
    assert!(
        of("link").starts_with("Type=file;") && of("link").contains("UNIX.slink=a.txt;"),
        "{}",
        of("link")
    );
    assert!(of("dangling").contains("Error=InvalidLink;"), "{}", of("dangling"));
    assert!(of("sub").contains("Perm=cfmpel;"), "{}", of("sub"));
    let file = client.list("MLSD /d/a.txt");
    assert_eq!((file.len(), name(&file[0])), (1, "a.txt"));
}

#[test]
fn list_and_nlst_list_entries() {
    let server = server();
    let mut client = server.login();
    client.command("CWD /d", 250);
    let lines = client.list("LIST -la");
    let a = lines.iter().find(|line| line.ends_with(" a.txt") && !line.starts_with('l')).unwrap();
    assert!(a.starts_with("-rw-r--r--   1 "), "{a}");
    assert!(a.contains("            5 "), "{a}");
    assert!(lines.iter().any(|line| line.ends_with("link -> a.txt")), "{lines:?}");
    let mut names = client.list("NLST");
    names.sort();
    assert_eq!(names, ["a.txt", "b c", "dangling", "link", "sub"]);
    assert_eq!(client.list("NLST *.txt"), ["a.txt"]);
    assert_eq!(client.list("LIST a.tx?").len(), 1);
    let _data = client.data();
    client.command("NLST *.none", 550);
}

#[test]
fn mlsr_lists_tree() {
    let server = server();
    let mut client = server.login();
    let lines = client.list("MLSR /d");
    assert!(lines[0].starts_with("Type=cdir;"), "{lines:?}");
    let mut names: Vec<_> = lines.iter().map(|line| name(line)).collect();
    names.sort_unstable();
    assert_eq!(names, [".", "a.txt", "b c", "dangling", "link", "sub", "sub/deep", "sub/deep/x"]);
    assert!(lines.iter().any(|line| line.starts_with("Type=slink;") && name(line) == "link"), "{lines:?}");
}

/// Only entries that lead back are left out and reported.
#[test]
fn mlsr_through_links_lists_loops_once() {
    let server = Fixture::new();
    std::fs::create_dir_all(server.root().join("d/a/b")).unwrap();
    server.write("d/a/b/f", "x");
    for (link, target) in [("d/la", "a"), ("d/za", "a"), ("d/a/b/up", "../../../d")] {
        std::os::unix::fs::symlink(target, server.root().join(link)).unwrap();
    }
    let mut client = server.login();
    client.command("OPTS MLSR traversesymboliclinks=true;", 200);
    let lines = client.list("MLSR /d");
    let mut names: Vec<_> = lines.iter().map(|line| name(line)).collect();
    names.sort_unstable();
    let one = |name: &str| ["", "/b", "/b/f", "/b/up"].map(|rest| format!("{name}{rest}"));
    let expected: Vec<_> =
        [".".to_owned()].into_iter().chain(["a", "la", "za"].into_iter().flat_map(one)).collect();
    assert_eq!(names, expected);
    for line in lines.iter().filter(|line| name(line).ends_with("/up")) {
        assert!(line.contains("Error=Loop;"), "{line}");
    }
}

/// Six directories, each with links to the others: hundreds of paths.
#[test]
fn tree_listing_with_many_links_ends() {
    let server = Fixture::new();
    for n in 0..6 {
        std::fs::create_dir_all(server.root().join(format!("d/{n}"))).unwrap();
        for other in (0..6).filter(|other| *other != n) {
            let link = server.root().join(format!("d/{n}/to{other}"));
            std::os::unix::fs::symlink(format!("../{other}"), link).unwrap();
        }
    }
    let mut client = server.login();
    client.command("OPTS MLSR traversesymboliclinks=true;", 200);
    let lines = client.list("MLSR /d");
    // Each of the directories, and sixteen paths to each, with five entries each.
    assert!((6 * 6..=1 + 6 + (6 + 6 * 16) * 5).contains(&lines.len()), "{}", lines.len());
    assert!(lines.iter().any(|line| line.contains("Error=Loop;")));
}

#[test]
fn mlsc_lists_on_control_connection() {
    let server = server();
    let mut client = server.login();
    let text = client.command("MLSC /d", 250);
    assert!(text.starts_with("250-Contents of /d| Type=cdir;"), "{text}");
    assert!(text.ends_with("|250 End."), "{text}");
    assert_eq!(text.split('|').count(), 9);
}

#[test]
fn large_directory_is_listed_in_full() {
    let server = Fixture::new();
    std::fs::create_dir(server.root().join("d")).unwrap();
    for i in 0..1000 {
        server.write(&format!("d/file-{i:05}"), "");
    }
    let mut client = server.login();
    let lines = client.list("MLSD /d");
    assert_eq!(lines.len(), 1002);
    assert!(lines[0].starts_with("Type=cdir;"), "{}", lines[0]);
    let mut total = 0;
    client.send("MLSC /d");
    loop {
        let reply = client.reply();
        total += reply.text.matches(" Type=file;").count();
        if reply.code != 150 {
            assert_eq!(reply.code, 250);
            break;
        }
    }
    assert_eq!(total, 1000);
}

#[test]
fn listing_that_client_stops_reading_ends() {
    let server = Fixture::new();
    std::fs::create_dir(server.root().join("d")).unwrap();
    for i in 0..1000 {
        server.write(&format!("d/file-{i:05}"), "");
    }
    let mut client = server.login();
    let mut data = client.data();
    client.command("MLSD /d", 150);
    data.read_exact(&mut [0; 10]).unwrap();
    drop(data);
    let code = client.reply().code;
    assert!(code == 426 || code == 226, "{code}");
    client.command("NOOP", 200);
}

#[test]
fn unlistable_paths_are_refused() {
    let server = Fixture::new();
    let mut client = server.login();
    let _data = client.data();
    for command in ["LIST /nope", "MLSD /nope", "MLSR /nope"] {
        client.send(command);
        let reply = client.reply();
        assert!(reply.code >= 500, "{command}: {}", reply.text);
    }
    client.command("MLSC /nope", 550);
}

#[test]
fn very_long_pattern_is_taken_as_name() {
    let server = Fixture::new();
    server.write("a", "");
    let mut client = server.login();
    assert_eq!(client.list("NLST [a]*"), ["a"]);
    let _data = client.data();
    client.command(&format!("NLST *[{}]", "a".repeat(1000)), 451);
}

/// A directory of millions of entries, none of which matches: the client is still read from, and
/// ABOR ends the search.
#[test]
fn listing_without_rows_can_be_aborted() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new(1 << 20));
    store.make_directory(&VirtualPath::parse(b"/d").unwrap(), 0o755).unwrap();
    let endless = Hooked::new(
        store,
        |deed, path| {
            if deed == Deed::ListEnd { Err(Hooked::failure(path)) } else { Ok(()) }
        },
    );
    let server = Fixture::with_store(Arc::new(endless), |_, _| ());
    let mut client = server.login();
    let _data = client.data();
    client.send("NLST /zz*");
    client.send("ABOR");
    client.expect(426);
    client.expect(226);
    // The death of a client ends it as well; otherwise the server would never stop.
    let _data = client.data();
    client.send("NLST /zz*");
    drop(client);
    crate::uploads::wait_for(|| server.handle.sessions() == 0);
}

/// If listings left these names out, a copy would not contain them.
#[test]
fn names_with_line_breaks_are_listed_and_refused_for_new_files() {
    let server = Fixture::new();
    server.write("d/a\rb", "12345");
    server.write("d/a?b", "1");
    server.write("d/x\r\n-rw y/inner", "");
    std::os::unix::fs::symlink("nowhere\nz", server.root().join("d/link")).unwrap();
    let mut client = server.login();
    let sorted = |mut lines: Vec<String>| {
        lines.sort_unstable();
        lines
    };
    for command in ["MLSD /d", "MLSR /d"] {
        let lines = client.list(command);
        assert!(lines[0].contains("X.count=4;"), "{command}: {lines:?}");
        let lines: Vec<_> = lines.iter().filter(|line| !name(line).starts_with('.')).cloned().collect();
        let told = |line: &String| {
            let error = line.contains("Error=UnprintableName;");
            (name(line).to_owned(), line.split_once(';').unwrap().0.to_owned(), error)
        };
        let mut told: Vec<_> = lines.iter().map(told).collect();
        told.sort_unstable();
        let entry = |name: &str, kind: &str, error| (name.to_owned(), format!("Type={kind}"), error);
        let expected = [
            entry("a?b", "OS.unix=other", true),
            entry("a?b", "file", false),
            entry("link", "slink", false),
            entry("x??-rw y", "OS.unix=other", true),
        ];
        assert_eq!(told, expected, "{command}");
    }
    let here = client.command("MLSC /d", 250);
    assert_eq!(here.matches("Type=OS.unix=other;").count(), 2, "{here}");
    assert_eq!(sorted(client.list("NLST /d")), ["a?b", "a?b", "link", "x??-rw y"]);
    let long = client.list("LIST /d");
    assert_eq!(long.len(), 4, "{long:?}");
    for end in [" x??-rw y", " link -> nowhere?z", " a?b"] {
        assert!(long.iter().any(|line| line.ends_with(end)), "{end}: {long:?}");
    }
}

/// Files with such names that were created in another way can be read and renamed.
#[test]
fn files_with_line_breaks_in_names_can_be_read_renamed_and_removed() {
    let server = Fixture::new();
    server.write("a\rb", "12345");
    server.write("c\nd", "");
    let mut client = server.login();
    assert!(client.command("MLST a\rb", 250).contains("| Type=file;"));
    assert_eq!(client.get("RETR a\rb"), b"12345");
    client.command("RNFR a\rb", 350);
    client.command("RNTO ab", 250);
    client.command("DELE c\nd", 250);
    assert_eq!(client.list("NLST"), ["ab"]);
    // No other file gets such a name.
    client.command("RNFR ab", 350);
    client.command("RNTO a\rb", 553);
    for line in ["MKD a\rb", "MKD a\nb", "SITE SYMLINK ab a\rb"] {
        client.command(line, 553);
    }
    let _data = client.data();
    for line in ["STOR a\rb", "APPE a\nb", "ESTO A 0 a\rb"] {
        client.command(line, 553);
    }
    assert_eq!(client.list("NLST"), ["ab"]);
}

#[test]
fn listing_of_old_or_future_time_shows_year() {
    let server = Fixture::new();
    // 2024-02-29T12:00:00 and 2100-01-02T03:04:05.
    for (name, seconds) in [("leap", 1_709_208_000), ("later", 4_102_542_245)] {
        server.write(name, "x");
        let file = std::fs::File::options().write(true).open(server.root().join(name)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }
    server.write("new", "x");
    let mut client = server.login();
    let lines = client.list("LIST");
    let line = |name: &str| lines.iter().find(|line| line.ends_with(name)).unwrap().as_str();
    assert!(line("leap").ends_with(" Feb 29  2024 leap"), "{lines:?}");
    assert!(line("later").ends_with(" Jan  2  2100 later"), "{lines:?}");
    let time = line("new").split_whitespace().nth(7).unwrap();
    assert_eq!((time.len(), time.as_bytes()[2]), (5, b':'), "{lines:?}");
    assert!(client.command("STAT leap", 213).contains(" Feb 29  2024 leap"));
}
