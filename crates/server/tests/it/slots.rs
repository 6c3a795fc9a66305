//! SITE SLOTS.

use std::fs;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ropewalk_protocol::slots::ReservedSlots;
use ropewalk_server::{BandwidthLimit, Config, Server};

use crate::client::{Client, connect};
use crate::fixture::{Fixture, passwords};

/// Eight permits and 1000 bytes/s, half of which can be reserved.
fn server() -> Fixture {
    Fixture::with(settings)
}

fn settings(config: &mut Config, directory: &Path) {
    let users = passwords(directory, &[("ada", "sesame"), ("eve", "sesame")]);
    config.password_file = Some(users);
    config.limits.active = 8;
    config.bandwidth = bandwidth("rate = '1000B/s'");
    config.reservations.state_file = Some(directory.join("state/reservations"));
    config.reservations.slots = 50;
    config.reservations.bandwidth = 50;
}

fn bandwidth(limit: &str) -> Vec<BandwidthLimit> {
    Config::parse(&format!("[[bandwidth]]\n{limit}\n")).unwrap().bandwidth
}

fn log_in(server: &Fixture, user: &str) -> Client {
    let mut client = server.connect();
    client.login(user, "sesame");
    client
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn reserved(reply: &str) -> ReservedSlots {
    ReservedSlots::parse(reply.strip_prefix("250 ").unwrap().as_bytes()).unwrap()
}

fn reserve(client: &mut Client, amounts: &str) -> ReservedSlots {
    reserved(&client.command(&format!("SITE SLOTS RESERVE {amounts}"), 250))
}

#[test]
fn slots_that_cannot_be_reserved_are_refused_with_the_reason() {
    let server = Fixture::with(|config, directory| {
        settings(config, directory);
        config.reservations.max_reservations = 2;
    });
    let mut client = log_in(&server, "ada");
    let mut refused = |command: &str, code, text: &str| {
        let reply = client.command(&format!("SITE SLOTS {command}"), code);
        assert!(reply.contains(text), "{reply}");
    };
    refused("RESERVE 5 0 0 3600 60", 550, "4 of 4 slots can be reserved in this window, and 5 are");
    refused("RESERVE 0 501 0 3600 60", 550, "500 of 500 bytes/s can be reserved");
    refused("RESERVE 4294967296 0 0 3600 60", 501, "");
    refused("RESERVE 1 18446744073709551615 0 3600 60", 550, "500 of 500 bytes/s");
    refused("RESERVE 1 0 0 86401 60", 501, "at most 86400 seconds");
    refused("RESERVE 1 0 0 18446744073709551615 60", 501, "at most 86400 seconds");
    refused("RESERVE 1 0 18446744073709551615 60 60", 501, "begins in 2592000 seconds at the latest");
    refused("RESERVE 0 0 0 60 60", 501, "");
    for command in ["USE 0123", "RELEASE 0123", "EXTEND 0123 60"] {
        refused(command, 550, "no reservation of slots with this token");
    }
    refused("RESERVE 3 400 0 3600 18446744073709551615", 250, "SLOTS ");
    refused("RESERVE 2 0 3590 60 60", 550, "1 of 4 slots can be reserved");
    refused("RESERVE 1 101 0 60 60", 550, "100 of 500 bytes/s can be reserved");
    refused("RESERVE 4 500 3600 60 60", 250, "SLOTS ");
    refused("RESERVE 0 1 7200 60 60", 550, "You have 2 reservations, and may have 2");
    for command in ["RESERVE 1 0 0 60 60", "LIST", "USE NONE"] {
        let reply = server.login().command(&format!("SITE SLOTS {command}"), 550);
        assert!(reply.contains("Anonymous users reserve no slots"), "{reply}");
    }
}

#[test]
fn slots_of_a_server_that_has_nothing_to_divide_are_refused() {
    let refused = |change: fn(&mut Config), command: &str, text: &str| {
        let server = Fixture::with(|config, directory| {
            settings(config, directory);
            change(config);
        });
        let reply = log_in(&server, "ada").command(command, 550);
        assert!(reply.contains(text), "{reply}");
    };
    let (slots, rate) = ("SITE SLOTS RESERVE 1 0 0 60 60", "SITE SLOTS RESERVE 0 1 0 60 60");
    refused(|config| config.reservations = Default::default(), slots, "reserves no slots and no rate");
    refused(|config| config.reservations.slots = 0, slots, "reserves no slots for transfers");
    refused(|config| config.reservations.bandwidth = 0, rate, "reserves no rate");
    refused(|config| config.bandwidth.clear(), rate, "no limit on the rate of all transfers");
    refused(|config| config.bandwidth = bandwidth("rate = '1k'\nuser = 'ada'"), rate, "no limit on");
    refused(
        |config| config.bandwidth.extend(bandwidth("rate = '9B/s'\nuser = 'ada'")),
        "SITE SLOTS RESERVE 0 10 0 60 60",
        "Your limit lets 9 of 9 bytes/s be reserved",
    );
}

#[test]
fn wrong_settings_of_reservations_are_refused_at_the_start() {
    for (change, setting) in [
        ((|config| config.reservations.slots = 91) as fn(&mut Config), "reservations.slots"),
        (|config| config.reservations.bandwidth = 91, "reservations.bandwidth"),
        (|config| config.reservations.state_file = None, "reservations.state_file"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let mut config = crate::fixture::config(directory.path());
        settings(&mut config, directory.path());
        change(&mut config);
        let error = Server::bind(config).err().unwrap().to_string();
        assert!(error.contains(setting), "{error}");
    }
}

#[test]
fn reservations_belong_to_their_user_and_survive_a_restart() {
    let mut server = server();
    let (mut ada, mut eve) = (log_in(&server, "ada"), log_in(&server, "eve"));
    let before = now();
    let held = reserve(&mut ada, "2 300 3600 7200 120");
    assert_eq!((held.slots, held.rate, held.until - held.from), (2, 300, 7200));
    assert!((before + 3600..before + 3660).contains(&held.from), "{held:?} at {before}");
    assert_eq!(held.lease + 3600 - 120, held.from);
    for command in ["USE", "RELEASE"] {
        eve.command(&format!("SITE SLOTS {command} {}", held.token), 550);
    }
    eve.command(&format!("SITE SLOTS EXTEND {} 60", held.token), 550);
    assert_eq!(eve.command("SITE SLOTS LIST", 250), "250-Reservations|250 End.");
    let kept = reserved(&ada.command(&format!("SITE SLOTS EXTEND {} 999999", held.token), 250));
    assert_eq!(kept, ReservedSlots { lease: held.until, ..held.clone() });

    // The file is that of one server.
    let mut other = crate::fixture::config(&server.root());
    settings(&mut other, server.directory.path());
    let error = Server::bind(other.clone()).err().unwrap().to_string();
    assert!(error.contains("another server uses it"), "{error}");

    drop((ada, eve));
    server.handle.stop();
    server.join();
    // The handle of the server keeps its lock for as long as the process runs.
    let (file, copy) = ("state/reservations", "state/copy");
    fs::copy(server.directory.path().join(file), server.directory.path().join(copy)).unwrap();
    other.reservations.state_file = Some(server.directory.path().join(copy));
    let again = Server::bind(other).unwrap();
    let (address, handle) = (again.local_addrs()[0], again.handle());
    let thread = std::thread::spawn(move || again.run().unwrap());
    let mut ada = Client::connect(address);
    ada.login("ada", "sesame");
    let listed = ada.command("SITE SLOTS LIST", 250);
    assert_eq!(listed, format!("250-Reservations| {kept}|250 End."));
    ada.command(&format!("SITE SLOTS USE {}", held.token), 250);
    ada.command("SITE SLOTS USE NONE", 250);
    ada.command(&format!("SITE SLOTS RELEASE {}", held.token), 250);
    ada.command(&format!("SITE SLOTS RELEASE {}", held.token), 550);
    assert_eq!(ada.command("SITE SLOTS LIST", 250), "250-Reservations|250 End.");
    drop(ada);
    handle.stop();
    thread.join().unwrap();
    let file = fs::read_to_string(server.directory.path().join(copy)).unwrap();
    assert_eq!(file, "{\"schema\":1,\"reservations\":[]}");
}

#[test]
fn window_begins_no_earlier_than_asked_and_lasts_as_long() {
    let server = server();
    let mut client = log_in(&server, "ada");
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // The clock shows whole seconds with bad luck only.
    for _ in 0..5 {
        let before = clock();
        let held = reserve(&mut client, "1 0 100 60 160");
        let after = clock();
        let from = Duration::from_secs(held.from);
        assert!(from >= before + Duration::from_secs(100), "{held:?} at {before:?}");
        assert!(from < after + Duration::from_secs(101), "{held:?} at {after:?}");
        assert_eq!((held.until, held.lease), (held.from + 60, held.from + 60));
        let before = clock();
        let extend = format!("SITE SLOTS EXTEND {} 120", held.token);
        let extended = reserved(&client.command(&extend, 250));
        assert!(Duration::from_secs(extended.lease) >= before + Duration::from_secs(120), "{extended:?}");
        client.command(&format!("SITE SLOTS RELEASE {}", held.token), 250);
    }
    // One without a delay is in force at once.
    let before = clock();
    let held = reserve(&mut client, "1 0 0 60 60");
    assert!(Duration::from_secs(held.from) <= clock(), "{held:?}");
    assert!(Duration::from_secs(held.until) >= before + Duration::from_secs(60), "{held:?}");
    assert_eq!(held.lease, held.until);
}

/// The file of a server with one reservation for this window.
fn file_of_one((from, until): (u64, u64), slots: u32) -> String {
    let times = format!("\"from\":{from},\"until\":{until},\"lease\":{until}");
    format!(
        "{{\"schema\":1,\"reservations\":[{{\"token\":\"a\",\"user\":\"ada\",\"slots\":{slots},\"rate\":1,{times}}}]}}"
    )
}

#[test]
fn reservation_of_more_slots_than_there_are_leaves_some_to_others() {
    let server = Fixture::with(|config, directory| {
        settings(config, directory);
        fs::create_dir(directory.join("state")).unwrap();
        fs::write(directory.join("state/reservations"), file_of_one((0, u64::MAX), u32::MAX)).unwrap();
    });
    server.write("f", "abc");
    let mut client = log_in(&server, "eve");
    let address = stall(&mut client);
    finish(&mut client, address);
}

#[test]
fn damaged_file_of_reservations_is_refused_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = crate::fixture::config(directory.path());
    settings(&mut config, directory.path());
    fs::create_dir(directory.path().join("state")).unwrap();
    let reversed = file_of_one((now() + 5000, now() + 100), 1);
    for text in ["", "{\"schema\":1,\"reservations\":[{}]}", "{\"schema\":2,\"reservations\":[]}", &reversed]
    {
        fs::write(directory.path().join("state/reservations"), text).unwrap();
        let error = Server::bind(config.clone()).err().unwrap().to_string();
        assert!(error.contains("reservations.state_file"), "{error}");
    }
}

/// Begins a download that holds its permit, or waits for one, until its data connection is opened.
fn stall(client: &mut Client) -> SocketAddr {
    let address = client.pasv();
    client.send("RETR /f");
    address
}

/// Opens the data connection of such a download, and reads to its end.
fn finish(client: &mut Client, address: SocketAddr) {
    let mut data = connect(address);
    client.expect(150);
    io::copy(&mut data, &mut io::sink()).unwrap();
    client.expect(226);
}

#[test]
fn reserved_transfer_starts_at_once_while_others_wait() {
    let server = Fixture::with(|config, directory| {
        settings(config, directory);
        config.limits.active = 2;
        config.bandwidth.clear();
    });
    server.write("f", "abc");
    let mut ada = log_in(&server, "ada");
    let held = reserve(&mut ada, "1 0 0 3600 3600");
    // One permit is for the reservation, the other for all else.
    let mut first = log_in(&server, "eve");
    let blocked = stall(&mut first);
    let mut queued: Vec<_> = (0..3).map(|_| log_in(&server, "eve")).collect();
    let waiting: Vec<_> = queued.iter_mut().map(stall).collect();
    ada.command(&format!("SITE SLOTS USE {}", held.token), 250);
    for _ in 0..3 {
        assert_eq!(ada.get("RETR /f"), b"abc");
    }
    // Those that wait begin as before when the reservation has ended.
    ada.command(&format!("SITE SLOTS RELEASE {}", held.token), 250);
    for (client, address) in queued.iter_mut().zip(waiting) {
        finish(client, address);
    }
    finish(&mut first, blocked);
}

#[test]
fn reserved_transfer_comes_before_the_queue_when_its_window_begins() {
    let server = Fixture::with(|config, directory| {
        settings(config, directory);
        config.limits.active = 2;
        config.bandwidth.clear();
    });
    server.write("f", "abc");
    let mut ada = log_in(&server, "ada");
    // Both permits are in use before the window begins, and others wait.
    let mut uploads = ["a", "b"].map(|name| {
        let mut client = log_in(&server, "eve");
        let data = client.data();
        client.command(&format!("STOR /{name}"), 150);
        (client, data)
    });
    let mut queued: Vec<_> = (0..3).map(|_| log_in(&server, "eve")).collect();
    queued.iter_mut().for_each(|client| {
        stall(client);
    });
    let held = reserve(&mut ada, "1 0 0 3600 3600");
    ada.command(&format!("SITE SLOTS USE {}", held.token), 250);
    let mut data = ada.data();
    ada.send("RETR /f");
    // The permit that is released goes to it, though it has come last: the others would never end.
    let (client, upload) = &mut uploads[0];
    upload.shutdown(Shutdown::Both).unwrap();
    client.expect(226);
    ada.expect(150);
    io::copy(&mut data, &mut io::sink()).unwrap();
    ada.expect(226);
}
