//! SITE PROFILE: the measurements of the server's host, and the accounts that may take them.

use std::io::Read as _;
use std::time::Duration;

use ropewalk_profiler::profile::{CollectorName, CollectorState, HostProfile};

use ropewalk_server::AnonymousAccess;

use crate::fixture::{Fixture, passwords};

/// ada may take profiles, bob may not.
fn fixture() -> Fixture {
    Fixture::with(|config, directory| {
        config.password_file = Some(passwords(directory, &[("ada", "a-secret"), ("bob", "b-secret")]));
        config.profiling.enabled = true;
        config.profiling.users = vec!["ada".into()];
        config.profiling.longest = Duration::from_secs(60);
        // perf takes long, and is tested with the profiler.
        config.profiling.perf = false;
        config.profiling.at_once = 1;
    })
}

#[test]
fn profile_unless_enabled_is_unknown_command() {
    let fixture = Fixture::new();
    let mut client = fixture.login();
    assert!(!client.command("FEAT", 211).contains("Profile;"));
    assert!(!client.command("HELP SITE", 214).contains("PROFILE"));
    for line in ["START", "CLOCK", "STOP", "FETCH"] {
        client.command(&format!("SITE PROFILE {line}"), 500);
    }
}

#[test]
fn profile_by_other_users_is_refused() {
    let fixture = fixture();
    let mut client = fixture.connect();
    assert!(!client.command("FEAT", 211).contains("Profile;"));
    client.command("SITE PROFILE CLOCK", 530);
    for (user, password) in [("bob", "b-secret"), ("anonymous", "ada"), ("ftp", "x")] {
        let mut client = fixture.connect();
        client.login(user, password);
        assert!(client.command("FEAT", 211).contains("Profile;"));
        for line in ["START", "CLOCK", "STOP"] {
            client.command(&format!("SITE PROFILE {line}"), 550);
        }
        let _data = client.data();
        client.command("SITE PROFILE FETCH", 550);
    }
}

#[test]
fn profile_is_taken_and_fetched() {
    let fixture = fixture();
    // More than the kernel buffers for a slow reader.
    fixture.write("file", "");
    std::fs::File::options().write(true).open(fixture.root().join("file")).unwrap().set_len(1 << 30).unwrap();
    let mut client = fixture.connect();
    client.login("ada", "a-secret");
    client.command("SITE PROFILE FETCH", 500);
    client.command("SITE PROFILE STOP", 503);
    client.command("SITE PROFILE START 61", 501);
    client.command("SITE PROFILE START 0", 501);
    assert_eq!(client.command("SITE PROFILE START 30", 250), "250 Profiling 30 seconds at most.");
    client.command("SITE PROFILE START", 503);
    let clock = client.command("SITE PROFILE CLOCK", 250);
    let clock: f64 = clock.strip_prefix("250 Clock ").unwrap().parse().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((now - clock).abs() < 20.0, "{clock}");

    // A transfer of another session of the same user counts; one of another user does not.
    let mut other = fixture.connect();
    other.login("ada", "a-secret");
    let mut data = other.data();
    other.command("RETR file", 150);
    let mut first = vec![0; 1 << 20];
    data.read_exact(&mut first).unwrap();
    let mut bob = fixture.connect();
    bob.login("bob", "b-secret");
    let bobs = bob.data();
    bob.command("RETR file", 150);
    // The last sample is at the end: both transfers are still running.
    let stopped = client.command("SITE PROFILE STOP", 250);
    let said: usize =
        stopped.strip_prefix("250 Profile ").unwrap().split(' ').next().unwrap().parse().unwrap();
    let port = data.local_addr().unwrap().port();
    drop((data, bobs));
    other.expect(426);
    bob.expect(426);

    // Another profile has to wait as long as this one is kept.
    let refused = other.command("SITE PROFILE START", 451);
    assert!(refused.contains("1 profiles"), "{refused}");
    let bytes = client.get("SITE PROFILE FETCH");
    assert_eq!(bytes.len(), said);
    let host = HostProfile::from_json(&bytes).unwrap();
    assert_eq!(host.connections.len(), 1, "{:?}", host.connections);
    assert!(host.connections[0].remote.ends_with(&format!(":{port}")));
    let stages = host.stages.unwrap();
    assert!(stages.stream_seconds > 0.0 && stages.socket.waited > 0.0, "{stages:?}");
    let facts = host.collectors.iter().find(|report| report.name == CollectorName::Facts).unwrap();
    assert_eq!(facts.state, CollectorState::Used);
    assert!(host.collectors.iter().all(|report| report.name != CollectorName::Perf));
    assert_eq!(host.programs.len(), 1);
    // A profile can be fetched once.
    let _data = client.data();
    client.command("SITE PROFILE FETCH", 503);
    other.command("SITE PROFILE START 5", 250);
}

#[test]
fn profile_ends_after_time_and_with_session() {
    let fixture = fixture();
    let mut client = fixture.connect();
    client.login("ada", "a-secret");
    client.command("SITE PROFILE START 1", 250);
    drop(client);
    // The server notices the end of the session a moment later.
    let mut client = fixture.connect();
    client.login("ada", "a-secret");
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        client.send("SITE PROFILE START 1");
        match client.reply().code {
            250 => break,
            451 if std::time::Instant::now() < deadline => std::thread::yield_now(),
            code => panic!("{code}"),
        }
    }
    // Longer than the profile may take: it was measured within its second.
    std::thread::sleep(Duration::from_millis(1500));
    client.command("SITE PROFILE STOP", 250);
    let host = HostProfile::from_json(&client.get("SITE PROFILE FETCH")).unwrap();
    assert!(host.system.last().unwrap().time < 1.45, "{:?}", host.system.last().unwrap().time);
}

#[test]
fn baselines_of_disk_and_processor_are_measured() {
    let fixture = fixture();
    fixture.write("small", "x");
    fixture.write("file", "x".repeat(2 << 20));
    std::fs::create_dir(fixture.root().join("directory")).unwrap();
    let mut client = fixture.connect();
    client.login("ada", "a-secret");
    let rate = |reply: &str| -> f64 { reply.split(' ').nth(2).unwrap().parse().unwrap() };
    let read = client.command("SITE PROFILE BASELINE READ file", 250);
    assert!(read.starts_with("250 Disk ") && rate(&read) > 1e3, "{read}");
    assert!(client.command("SITE PROFILE BASELINE READ small", 550).contains("1 bytes"));
    client.command("SITE PROFILE BASELINE READ none", 550);
    client.command("SITE PROFILE BASELINE READ directory", 550);
    let written = client.command("SITE PROFILE BASELINE WRITE directory/new", 250);
    assert!(written.starts_with("250 Disk ") && rate(&written) > 1e3, "{written}");
    client.command("SITE PROFILE BASELINE WRITE directory/none/new", 250);
    assert_eq!(std::fs::read_dir(fixture.root().join("directory")).unwrap().count(), 0, "something is left");
    let processor = client.command("SITE PROFILE BASELINE CPU", 250);
    assert!(processor.starts_with("250 Processor ") && rate(&processor) > 1e5, "{processor}");
    assert!(client.command("SITE PROFILE BASELINE IPERF", 550).contains("profiling.iperf3"));
    client.command("SITE PROFILE BASELINE", 501);
    // A baseline cannot be measured during a profile.
    client.command("SITE PROFILE START", 250);
    client.command("SITE PROFILE BASELINE CPU", 451);
    let mut bob = fixture.connect();
    bob.login("bob", "b-secret");
    for part in ["READ file", "WRITE new", "CPU", "IPERF"] {
        bob.command(&format!("SITE PROFILE BASELINE {part}"), 550);
    }
}

#[test]
fn baseline_without_write_permission_is_refused() {
    let fixture = Fixture::with(|config, directory| {
        config.password_file = Some(passwords(directory, &[("ada", "a-secret")]));
        config.profiling.enabled = true;
        config.profiling.users = vec!["ada".into(), "anonymous".into()];
        config.anonymous = Some(AnonymousAccess::default());
    });
    fixture.write("file", "x".repeat(2 << 20));
    let mut client = fixture.connect();
    client.login("anonymous", "x");
    client.command("SITE PROFILE BASELINE WRITE new", 550);
    let names: Vec<_> = std::fs::read_dir(fixture.root()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["file"]);
}

#[test]
fn profile_with_raw_files_can_be_fetched() {
    let fixture = fixture();
    let mut client = fixture.connect();
    client.login("ada", "a-secret");
    client.command("SITE PROFILE START 30 RAW", 250);
    // sar reports nothing for less than a second.
    std::thread::sleep(Duration::from_secs(3));
    let stopped = client.command("SITE PROFILE STOP", 250);
    if !stopped.contains("raw") {
        assert!(std::env::var_os("CI").is_none(), "sysstat is missing: {stopped}");
        eprintln!("SKIPPED: there is no sysstat");
        return;
    }
    assert!(stopped.contains("raw sar sadf.json"), "{stopped}");
    let json = client.get("SITE PROFILE FETCH sadf.json");
    assert!(json.starts_with(b"{\"sysstat\"") || json.trim_ascii_start().starts_with(b"{"), "no JSON");
    assert!(!client.get("SITE PROFILE FETCH sar").is_empty());
    {
        let _data = client.data();
        client.command("SITE PROFILE FETCH other", 550);
    }
    assert!(HostProfile::from_json(&client.get("SITE PROFILE FETCH")).is_ok());
}
