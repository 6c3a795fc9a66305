//! SITE USAGE.

use ropewalk_server::Config;

use crate::fixture::Fixture;

/// Two quotas for `/data`, which have 100 and 60 bytes.
fn with_quotas() -> Fixture {
    Fixture::with(|config, directory| {
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
fn usage_without_quota_is_that_of_file_system() {
    let server = Fixture::new();
    let usage = server.login().command("SITE USAGE /", 250);
    let words: Vec<_> = usage.split(' ').collect();
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    assert_eq!((words[1], words[3], words[5]), ("USAGE", "FREE", "TOTAL"));
    assert_eq!(number(2) + number(4), number(6), "{usage}");
    server.login().command("SITE USAGE TOKEN any /", 550);
}
