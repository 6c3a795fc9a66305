//! A server that runs as root takes measurements with the rights of the user.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use crate::user_fixture::{ADA, Town, give, is_possible};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn disk_baselines_run_with_user_rights() {
    if !is_possible() {
        return;
    }
    let settings = "[profiling]\nenabled = true\nusers = ['ada', 'bob']\nperf = false\n";
    let town = Town::new(settings);
    let file = town.real("/home/ada/file");
    fs::write(&file, vec![7; 2 << 20]).unwrap();
    give(&file, ADA, ADA, 0o600);
    let mut bob = town.log_in("bob");
    for command in ["READ /home/ada/file", "WRITE /home/ada/new"] {
        let reply = bob.expect(format!("SITE PROFILE BASELINE {command}"), 550).unwrap();
        assert!(reply.text.to_lowercase().contains("permission"), "{command}: {}", reply.text);
    }
    let mut ada = town.log_in("ada");
    let reply = ada.expect("SITE PROFILE BASELINE READ /home/ada/file", 250).unwrap();
    assert!(reply.text.contains("Disk "), "{}", reply.text);
    // The file that is written belongs to the user while it exists, so quotas apply.
    ada.send("SITE PROFILE BASELINE WRITE /home/ada/new").unwrap();
    let deadline = Instant::now() + LIMIT;
    let owner = loop {
        assert!(Instant::now() < deadline, "nothing was written in her directory: {}", town.log());
        let open = fs::read_dir(format!("/proc/{}/fd", town.pid())).unwrap().flatten();
        let hers = |entry: &fs::DirEntry| {
            let name = fs::read_link(entry.path()).unwrap_or_default();
            name.starts_with(town.real("/home/ada")) && name.to_string_lossy().ends_with(" (deleted)")
        };
        if let Some(found) = open.filter(hers).find_map(|entry| fs::metadata(entry.path()).ok()) {
            break (found.uid(), found.gid());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(owner, (ADA, ADA));
    let reply = ada.final_reply().unwrap();
    assert_eq!(reply.code, 250, "{}", reply.text);
    let names: Vec<_> =
        fs::read_dir(town.real("/home/ada")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["file"], "something was left behind");
    for ids in town.threads("Uid") {
        assert_eq!(ids, "0 0 0 0");
    }
}
