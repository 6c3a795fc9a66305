//! SITE USAGE and SITE SPACE.

use std::io::Write as _;
use std::sync::Arc;

use ropewalk_server::{AnonymousAccess, Backends, Config, Server, StoreFactory};
use ropewalk_storage::MemoryStore;

use crate::fixture::Fixture;

/// Two quotas for `/data`, which have 100 and 60 bytes.
fn with_quotas() -> Fixture {
    with_quotas_and(|_| ())
}

fn with_quotas_and(change: fn(&mut Config)) -> Fixture {
    Fixture::with(|config, directory| {
        change(config);
        let data = directory.join("root/data");
        std::fs::create_dir(&data).unwrap();
        let text = format!(
            "[[quota]]\nname = \"all\"\ntree = {data:?}\nbytes = 100\n\
             [[quota]]\nname = \"each\"\ntree = {data:?}\nper_user = true\nbytes = 60\n"
        );
        config.quota = Config::parse(&text).unwrap().quota;
        config.space.state_directory = Some(directory.join("state"));
    })
}

#[test]
fn usage_is_that_of_tightest_quota() {
    let server = with_quotas();
    let mut client = server.login();
    assert_eq!(client.command("SITE USAGE /data", 250), "250 USAGE 0 FREE 60 TOTAL 60");
    client.command("ALLO 61", 200);
    client.command("PASV", 227);
    assert!(client.command("STOR /data/f", 552).contains("60 of 60 bytes are free, and 61 more"));
    assert_eq!(client.command("SITE USAGE TOKEN all /data", 250), "250 USAGE 0 FREE 100 TOTAL 100");
    assert_eq!(client.command("SITE USAGE TOKEN each /data", 250), "250 USAGE 0 FREE 60 TOTAL 60");
    client.command("SITE USAGE TOKEN other /data", 550);
    client.command("SITE USAGE /nowhere", 550);
}

#[test]
fn refused_upload_in_place_leaves_the_old_content() {
    let server = with_quotas_and(|config| config.files.part_files = false);
    let mut client = server.login();
    assert_eq!(client.put("STOR /data/f", &[b'a'; 50]).code, 226);
    client.command("ALLO 61", 200);
    client.command("PASV", 227);
    client.command("STOR /data/f", 552);
    assert_eq!(server.read("data/f"), [b'a'; 50]);
    // The space of the old content is free for the new.
    client.command("ALLO 60", 200);
    assert_eq!(client.put("STOR /data/f", &[b'b'; 60]).code, 226);
    assert_eq!(server.read("data/f"), [b'b'; 60]);
    assert_eq!(client.command("SITE USAGE TOKEN each /data", 250), "250 USAGE 60 FREE 0 TOTAL 60");
}

/// The bytes that are used, free and there in all.
fn numbers(usage: &str) -> [u64; 3] {
    let words: Vec<_> = usage.split(' ').collect();
    assert_eq!((words[1], words[3], words[5]), ("USAGE", "FREE", "TOTAL"), "{usage}");
    [2, 4, 6].map(|at| words[at].parse().unwrap())
}

#[test]
fn usage_without_quota_is_that_of_file_system() {
    let relay = Fixture::with(|config, _| config.relay.to = vec!["192.0.2.0/24".into()]);
    for server in [Fixture::new(), relay] {
        let [used, free, total] = numbers(&server.login().command("SITE USAGE /", 250));
        assert!(used > 0 && used + free == total, "{used} {free} {total}");
        server.login().command("SITE USAGE TOKEN any /", 550);
    }
    let server = Fixture::with_store(Arc::new(MemoryStore::new(100)), |_, _| ());
    let mut client = server.login();
    assert_eq!(client.put("STOR /f", b"abcdef").code, 226);
    assert_eq!(client.command("SITE USAGE /", 250), "250 USAGE 6 FREE 94 TOTAL 100");
}

#[test]
fn usage_of_a_quota_that_limits_no_bytes_has_the_total_of_used_and_free() {
    let server = Fixture::with(|config, directory| {
        let data = directory.join("root/data");
        std::fs::create_dir(&data).unwrap();
        let text = format!(
            "[[quota]]\nname = \"many\"\ntree = {data:?}\nfiles = 9\n\
             [[quota]]\nname = \"soft\"\ntree = {data:?}\nsoft_bytes = 5\n"
        );
        config.quota = Config::parse(&text).unwrap().quota;
        config.space.state_directory = Some(directory.join("state"));
    });
    let mut client = server.login();
    assert_eq!(client.put("STOR /data/f", b"abcdef").code, 226);
    for token in ["many", "soft"] {
        let [used, free, total] = numbers(&client.command(&format!("SITE USAGE TOKEN {token} /data"), 250));
        assert!(used == 6 && free > 0 && used + free == total, "{used} {free} {total}");
    }
    client.command("SITE USAGE TOKEN many /", 550);
}

#[test]
fn reservation_that_cannot_be_made_is_refused_with_reason() {
    let server = Fixture::with(|config, directory| {
        let data = directory.join("root/data");
        std::fs::create_dir(&data).unwrap();
        let text = format!("[[quota]]\nname = \"all\"\ntree = {data:?}\nbytes = 100\n");
        config.quota = Config::parse(&text).unwrap().quota;
        config.space.state_directory = Some(directory.join("state"));
        config.space.max_reservations = 2;
        config.space.max_reservation = Some(90);
    });
    let mut client = server.login();
    let mut refused = |command: &str, code, text: &str| {
        let reply = client.command(command, code);
        assert!(reply.contains(text), "{reply}");
    };
    refused("SITE SPACE RESERVE 91 60 /data", 501, "at most 90 bytes");
    refused("SITE SPACE RESERVE 90 86401 /data", 501, "at most 86400 seconds");
    refused("SITE SPACE RESERVE 90 18446744073709551615 /data", 501, "at most 86400 seconds");
    refused("SITE SPACE RESERVE 5 60 /", 550, "No quota counts your files there");
    refused("SITE SPACE RESERVE 5 60 /nowhere", 550, "No such file");
    refused("SITE SPACE USE 0123", 550, "no reservation with this token");
    refused("SITE SPACE RELEASE 0123", 550, "no reservation with this token");
    refused("SITE SPACE EXTEND 0123 60", 550, "no reservation with this token");
    refused("SITE SPACE EXTEND 0123 86401", 501, "at most 86400 seconds");
    refused("SITE SPACE LIST", 550, "anonymous");
    refused("SITE SPACE RESERVE 60 60 /data", 250, "BYTES 60 LEFT 60 UNTIL ");
    refused("SITE SPACE RESERVE 41 60 /data", 552, "40 of 100 bytes are free, and 41 more");
    refused("SITE SPACE RESERVE 30 60 /data", 250, "LEFT 30");
    refused("SITE SPACE RESERVE 1 60 /data", 550, "You have 2 reservations, and may have 2");
    refused("SITE USAGE /data", 250, "USAGE 90 FREE 10 TOTAL 100");
}

#[test]
fn reservation_without_quotas_is_refused() {
    let server = Fixture::new();
    assert!(server.login().command("SITE SPACE RESERVE 5 60 /", 550).contains("no quotas"));
}

#[test]
fn reservation_lowers_free_space_of_other_uploads() {
    let server = Fixture::with(|config, directory| {
        let data = directory.join("root/data");
        std::fs::create_dir(&data).unwrap();
        let text = format!("[[quota]]\nname = \"all\"\ntree = {data:?}\nfiles = 9\n");
        config.quota = Config::parse(&text).unwrap().quota;
        config.space.state_directory = Some(directory.join("state"));
    });
    let mut client = server.login();
    let usage = client.command("SITE USAGE /", 250);
    let free: u64 = usage.split(' ').nth(4).unwrap().parse().unwrap();
    client.command(&format!("SITE SPACE RESERVE {} 60 /data", free / 2), 250);
    let refused = client.command(&format!("SITE SPACE RESERVE {} 60 /data", free / 4 * 3), 552);
    assert!(refused.contains("bytes are free beside"), "{refused}");
    client.command(&format!("ALLO {}", free / 4 * 3), 200);
    client.command("PASV", 227);
    let refused = client.command("STOR /f", 552);
    assert!(refused.contains("NO_SPACE_LEFT") && refused.contains("that are reserved"), "{refused}");
}

#[test]
fn quotas_over_storage_that_is_no_directory_are_refused_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let text = format!("[[quota]]\nname = \"all\"\ntree = {:?}\nbytes = 100\n", directory.path());
    let mut config = Config::parse(&text).unwrap();
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    config.anonymous = Some(AnonymousAccess::default());
    config.space.state_directory = Some(directory.path().join("state"));
    let stores: StoreFactory = Arc::new(|_| Ok(Arc::new(MemoryStore::new(1 << 20))));
    let backends = Backends { stores: Some(stores), ..Backends::default() };
    let error = Server::bind_with(config, backends).err().unwrap().to_string();
    assert!(error.contains("quotas need directories of this host"), "{error}");
}

#[test]
fn upload_that_cannot_fit_on_the_disk_is_refused_with_what_is_free() {
    let server = Fixture::new();
    let mut client = server.login();
    client.command("ALLO 9000000000000000000", 200);
    client.command("PASV", 227);
    let reply = client.command("STOR /f", 552);
    assert!(reply.contains("bytes are free, and 9000000000000000000 are needed"), "{reply}");
}

#[test]
fn uploads_that_do_not_fit_together_are_not_both_admitted() {
    // Once by the quota of the directory, once by the disk.
    let quota = Fixture::with(|config, directory| {
        let data = directory.join("root/data");
        std::fs::create_dir(&data).unwrap();
        let text = format!("[[quota]]\nname = \"all\"\ntree = {data:?}\nbytes = 100\n");
        config.quota = Config::parse(&text).unwrap().quota;
        config.space.state_directory = Some(directory.join("state"));
    });
    let memory = Fixture::with_store(Arc::new(MemoryStore::new(100)), |_, _| ());
    for (server, directory, reason) in [
        (quota, "/data", "40 of 100 bytes are free, and 41 more are needed"),
        (memory, "", "40 bytes are free beside 60 that other uploads still need, and 41 are needed"),
    ] {
        let (mut first, mut second) = (server.login(), server.login());
        let mut data = first.data();
        first.command("ALLO 60", 200);
        first.command(&format!("STOR {directory}/a"), 150);
        let begin = |size| format!("SITE UPLOAD BEGIN u size={size}; {directory}/b");
        second.command("ALLO 41", 200);
        second.command("PASV", 227);
        let refused = second.command(&format!("STOR {directory}/b"), 552);
        assert!(refused.contains(reason), "{refused}");
        let refused = second.command(&begin(41), 552);
        assert!(refused.contains(reason), "{refused}");
        second.command(&begin(40), 250);
        // The upload still needs what is left.
        data.write_all(&[1; 60]).unwrap();
        drop(data);
        first.expect(226);
        first.command("ALLO 1", 200);
        first.command("PASV", 227);
        first.command(&format!("STOR {directory}/c"), 552);
        second.command("SITE UPLOAD DISCARD u", 250);
        first.command("ALLO 40", 200);
        assert_eq!(first.put(&format!("STOR {directory}/c"), &[3; 40]).code, 226);
    }
}
