//! Whole labs, from start to end. Without root these tests print a message and pass.
#![allow(clippy::unwrap_used)]

mod common;

use common::{TWO_HOSTS, lab_test, own_program, run_text, scenario};
use ropewalk_lab::{
    results::{End, RunResult},
    run::{Event, Lab, RunError, RunOptions, Stop, change, run, shell},
    scenario::Value,
};
use std::sync::Arc;

use parking_lot::Mutex;

/// The tests use this binary as the programs on the hosts: a server that reads everything, and a
/// client that sends.
#[test]
#[ignore = "a program for the other tests"]
fn program_sink() {
    common::sink();
}

#[test]
#[ignore = "a program for the other tests"]
fn program_source() {
    common::source();
}

#[test]
#[ignore = "a program for the other tests"]
fn program_chooser() {
    common::chooser();
}

#[test]
fn lab_with_two_hosts_has_the_configured_path() {
    lab_test(|| {
        let result = run_text(&format!("{TWO_HOSTS}{}", common::transfer("2MiB")));
        let upload = result.command("upload").unwrap();
        assert_eq!(upload.end, End::Exit(0), "{upload:?}");
        // 2 MiB at 20 Mbit/s take 0.87 s with headers; slow start over 40 ms takes additional time.
        assert!(upload.seconds >= 0.85, "{}", upload.seconds);
        assert!(upload.goodput.unwrap() < 20e6);
        let sender = common::connections(&result, "left").next().unwrap();
        assert!(sender.last.rtt_min >= 0.0395, "{sender:?}");
        assert_eq!((sender.last.acked, sender.congestion.as_str()), ((2 << 20) + 2, "reno"));
        let receiver = common::connections(&result, "right").next().unwrap();
        // The receiver counts the FIN as one more byte, and the sender also counts the SYN
        // (tcp_info).
        assert_eq!(receiver.last.received, (2 << 20) + 1);
        assert_eq!(receiver.remote, sender.local);
        assert!(upload.streams_max == 1 && upload.cpu_user + upload.cpu_system < upload.seconds);
        let link = &result.links[0];
        assert!(link.forward.bytes > 2 << 20 && link.backward.bytes < 1 << 20, "{link:?}");
        let series = &result.series;
        let carried: f64 = common::integral(&series.links[0].forward.times, &series.links[0].forward.rate);
        assert!((carried / 8.0 / link.forward.bytes as f64 - 1.0).abs() < 0.05, "{carried} {link:?}");
        let received: f64 = common::integral(&series.times, &series.hosts[1].received);
        assert!((received / 8.0 / f64::from(2 << 20) - 1.0).abs() < 0.02, "{received}");
    });
}

#[test]
fn lab_with_a_relay_forwards_between_links() {
    lab_test(|| {
        let text = TWO_HOSTS
            .replace("[hosts.right]", "[hosts.relay]\n[hosts.right]")
            .replace(r#"between = ["left", "right"]"#, r#"between = ["left", "relay"]"#);
        let far =
            "[[links]]\nbetween = [\"relay\", \"right\"]\npath = { round_trip = \"20ms\", mtu = 9000 }\n";
        let result = run_text(&format!("{text}{far}{}", common::transfer("256KiB")));
        assert_eq!(result.command("upload").unwrap().end, End::Exit(0));
        let sender = common::connections(&result, "left").next().unwrap();
        assert!(sender.last.rtt_min >= 0.0595, "{sender:?}");
        assert_eq!(common::connections(&result, "relay").count(), 0);
        assert!(result.links.iter().all(|link| link.forward.bytes > 256 << 10), "{:?}", result.links);
    });
}

#[test]
fn lab_with_jumbo_packets_and_ipv6_transfers() {
    lab_test(|| {
        if !std::fs::exists("/proc/sys/net/ipv6").unwrap() {
            eprintln!("NOT TESTED: this machine has no IPv6");
            return;
        }
        let text = TWO_HOSTS.replace("path = {", "path = { mtu = 9000,");
        let transfer = common::transfer("1MiB").replace("{addr:right}", "[{addr6:right}]");
        let result = run_text(&format!("{text}{transfer}"));
        let sender = common::connections(&result, "left").next().unwrap();
        assert!(sender.remote.starts_with("[fd77::2]:"), "{sender:?}");
        assert_eq!(sender.last.mss, 9000 - 40 - 20 - 12);
        assert!(result.links[0].forward.packets_in < 300, "{:?}", result.links);
    });
}

#[test]
fn cross_traffic_with_periods_starts_and_stops() {
    lab_test(|| {
        let text = format!(
            "{TWO_HOSTS}{}",
            r#"
            [[traffic]]
            name = "long"
            from = "left"
            to = "right"
            flows = 2
            start = "500ms"
            stop = "1500ms"
            [[traffic]]
            name = "bursts"
            from = "right"
            to = "left"
            on = "200ms"
            off = "300ms"
            congestion = "cubic"
            [[commands]]
            name = "wait"
            host = "left"
            run = "sleep 2.2"
            "#
        );
        let result = run_text(&text);
        let [long, bursts] = &result.traffic[..] else { panic!("{:?}", result.traffic) };
        assert_eq!(long.flows, 2);
        assert!(long.rate > 0.0 && bursts.flows > 1, "{long:?}, {bursts:?}");
        let times = &result.series.times;
        let rates = &result.series.hosts[1].traffic_received;
        let at = |from: f64, to: f64| {
            let picked = times.iter().zip(rates).filter(|(time, _)| (from..to).contains(*time));
            picked.map(|(_, rate)| *rate).fold(0.0, f64::max)
        };
        assert_eq!(at(0.0, 0.45), 0.0);
        assert!(at(0.5, 1.8) > 0.0, "{rates:?}");
        assert_eq!(at(1.8, 2.2), 0.0, "{rates:?}");
        assert!(result.series.hosts.iter().all(|host| host.streams.iter().all(|streams| *streams == 0)));
        let of_bursts =
            result.connections.iter().filter(|connection| connection.traffic.as_deref() == Some("bursts"));
        assert!(of_bursts.filter(|end| end.host == "right").all(|end| end.congestion == "cubic"));
    });
}

#[test]
fn cross_traffic_with_a_rate_is_paced() {
    lab_test(|| {
        // Without pacing, each chunk of ten milliseconds would be 43 packets at once, some of which
        // would be lost.
        let text = r#"
            title = "paced"
            [kernel]
            congestion = "cubic"
            [hosts.left]
            [hosts.right]
            [[links]]
            between = ["left", "right"]
            path = { round_trip = "20ms", both = { rate = "100Mbit/s", queue = 20 } }
            [[traffic]]
            name = "flow"
            from = "left"
            to = "right"
            rate = "50Mbit/s"
            [[commands]]
            name = "meanwhile"
            host = "left"
            run = "sleep 3"
        "#;
        let result = run_text(text);
        assert!((1.0..52e6).contains(&result.traffic[0].rate), "{:?} {:?}", result.traffic, result.links);
    });
}

#[test]
fn path_with_scheduled_changes_changes_its_rate() {
    lab_test(|| {
        let text = format!(
            "{TWO_HOSTS}{}",
            r#"
            [[links.changes]]
            at = "1s"
            both = { rate = "5Mbit/s" }
            [[traffic]]
            name = "long"
            from = "left"
            to = "right"
            [[commands]]
            name = "wait"
            host = "left"
            run = ["sleep", "2"]
            "#
        );
        let result = run_text(&text);
        let forward = &result.series.links[0].forward;
        let highest = |from: f64, to: f64| {
            let picked =
                forward.times.iter().zip(&forward.rate).filter(|(time, _)| (from..to).contains(*time));
            picked.map(|(_, rate)| *rate).fold(0.0, f64::max)
        };
        assert!(highest(0.0, 1.0) > 5.5e6, "{forward:?}");
        assert!((1.0..5.5e6).contains(&highest(1.4, 2.0)), "{forward:?}");
    });
}

#[test]
fn disk_with_limits_keeps_its_rates() {
    lab_test(|| {
        let text = TWO_HOSTS
            .replace("[hosts.left]", "[hosts.left]\ndisk = { read = \"40MiB/s\", write = \"20MiB/s\" }");
        let commands = r#"
            [[files]]
            host = "left"
            path = "{disk}/big"
            size = "80MiB"
            [[commands]]
            name = "read"
            host = "left"
            run = "cat {disk}/big > {dir}/copy"
            bytes = "80MiB"
            [[commands]]
            name = "write"
            host = "left"
            run = "cp {dir}/copy {disk}/new"
            bytes = "80MiB"
            [[commands]]
            name = "again"
            host = "left"
            run = "cmp {disk}/big {disk}/new && mkdir {disk}/d && mv {disk}/new {disk}/d/x && ls {disk}/d && rm -r {disk}/d"
        "#;
        // Data that was read once stays in memory, even if the file is opened again. So the file
        // and the copy are read once each. The kernel may reclaim some pages if it looks for idle
        // memory (DAMON), and those are read again. If it reclaims many, the run is repeated.
        let twice = |result: &RunResult| {
            result.hosts[0].disk.as_ref().map_or(u64::MAX, |disk| disk.read.saturating_sub(160 << 20))
        };
        let mut result = run_text(&format!("{text}{commands}"));
        for _ in 0..2 {
            if twice(&result) < 4 << 20 {
                break;
            }
            result = run_text(&format!("{text}{commands}"));
        }
        assert!(twice(&result) < 4 << 20, "{:?}", result.hosts[0].disk);
        let rate = |name: &str| result.command(name).unwrap().goodput.unwrap() / 8.0 / f64::from(1 << 20);
        assert!((0.1..40.0 * 1.05).contains(&rate("read")), "{}", rate("read"));
        assert!((0.1..20.0 * 1.05).contains(&rate("write")), "{}", rate("write"));
        assert_eq!(result.command("again").unwrap().stdout, "x\n");
        let disk = result.hosts[0].disk.as_ref().unwrap();
        assert!(disk.busy > 0.0 && disk.written == 80 << 20, "{disk:?}");
        let written = common::integral(&result.series.times, &result.series.hosts[0].disk_written) / 8.0;
        assert!((written / f64::from(80 << 20) - 1.0).abs() < 0.02, "{written}");
    });
}

#[test]
fn disk_with_modes_devices_and_unlinked_files_works() {
    lab_test(|| {
        let text = TWO_HOSTS.replace("[hosts.left]", "[hosts.left]\ndisk = { read = \"1GiB/s\" }");
        let commands = r#"
            [[files]]
            host = "left"
            path = "{disk}/dev/null"
            kind = "null"
            [[commands]]
            name = "modes"
            host = "left"
            run = "cd {disk} && umask 0 && touch f && mkdir d && mkfifo p && stat -c %a f d p && echo x > {disk}/dev/null"
            [[commands]]
            name = "unnamed"
            host = "left"
            run = "cd {disk} && exec 3<>u && rm u && chmod 640 /proc/self/fd/3 && touch -d @1 /proc/self/fd/3 && stat -L -c '%a %Y %h' /proc/self/fd/3"
        "#;
        let result = run_text(&format!("{text}{commands}"));
        assert_eq!(result.command("modes").unwrap().stdout, "666\n777\n666\n");
        assert_eq!(result.command("unnamed").unwrap().stdout, "640 1 0\n");
    });
}

#[test]
fn link_counters_start_at_time_zero() {
    lab_test(|| {
        // Bytes that are sent before time zero must not be counted.
        let text = r#"
            [[prepare]]
            host = "left"
            run = ["bash", "-c", "for i in 1 2 3 4 5 6 7 8; do head -c 8000 /dev/zero > /dev/udp/{addr:right}/9; done"]
            [[commands]]
            name = "nothing"
            host = "left"
            run = "true"
        "#;
        let result = run_text(&format!("{TWO_HOSTS}{text}"));
        // Some of the packets were still on the path at time zero.
        assert!(result.links[0].forward.packets_in < 20, "{:?}", result.links[0]);
    });
}

#[test]
fn files_of_special_kinds_take_no_memory() {
    lab_test(|| {
        let result = run_text(&format!(
            "{TWO_HOSTS}
            [[files]]
            host = 'left'
            path = '{{disk}}/source'
            kind = 'hole'
            size = '100 GiB'
            [[files]]
            host = 'left'
            path = '{{disk}}/dev/null'
            kind = 'null'
            [[commands]]
            name = 'look'
            host = 'left'
            run = \"\"\"
            cd {{disk}}
            stat -c '%s %b' source
            head -c 3 source | od -An -tx1
            echo gone > dev/null && stat -c '%F %a %s' dev/null\"\"\"
            "
        ));
        let look = result.command("look").unwrap();
        assert_eq!(look.end, End::Exit(0), "{look:?}");
        assert_eq!(look.stdout, "107374182400 0\n 00 00 00\ncharacter special file 666 0\n");
    });
}

#[test]
fn hosts_with_settings_have_their_names_and_values() {
    lab_test(|| {
        let text = TWO_HOSTS.replace(
            "[hosts.right]",
            "[hosts.right]\nkernel = { congestion = \"cubic\", tcp_rmem = [\"4KiB\", \"64KiB\", \"64KiB\"], \
             sysctl = { \"net.ipv4.tcp_sack\" = false } }\nenvironment = { WHO = \"{host}-{addr:left}\" }",
        );
        let check = "uname -n; getent hosts left | cut -d' ' -f1; cat /proc/sys/net/ipv4/tcp_rmem \
                     /proc/sys/net/ipv4/tcp_sack; echo $WHO $GLOBUS_HOSTNAME; ls /sys/class/net; pwd; echo $$";
        let command = format!("[[commands]]\nname = \"check\"\nhost = \"right\"\nrun = '''{check}'''\n");
        let result = run_text(&format!("{text}{command}"));
        let lines: Vec<_> = result.commands[0].stdout.lines().collect();
        let expected = [
            "right",
            "10.77.0.1",
            "4096\t65536\t65536",
            "0",
            "right-10.77.0.1 10.77.0.2",
            "lo",
            "wan0",
            "/ropewalk-lab/right",
        ];
        assert_eq!(&lines[..8], expected, "{lines:?}");
        // The command sees only the processes of its own lab.
        assert!(lines[8].parse::<u32>().unwrap() < 1000, "{lines:?}");
        assert_eq!(result.hosts[1].kernel.congestion.as_deref(), Some("cubic"));
    });
}

/// If this machine does not let namespaces choose the congestion control, a route sets that of the
/// host, and this replaces the one that a socket had before it was connected.
#[test]
fn program_that_chooses_a_congestion_control_gets_it() {
    lab_test(|| {
        let hosts = TWO_HOSTS.replace("[hosts.left]", "[hosts.left]\nkernel = { congestion = \"cubic\" }");
        let text = hosts + &common::transfer("1KiB").replace("program_source", "program_chooser");
        let result = run_text(&text);
        assert_eq!(result.commands[0].end, End::Exit(0), "{:?}", result.commands[0]);
    });
}

#[test]
fn run_when_a_step_fails_reports_the_reason() {
    lab_test(|| {
        let command = |run: &str, more: &str| {
            format!("{TWO_HOSTS}[[commands]]\nname = \"it\"\nhost = \"left\"\nrun = '''{run}'''\n{more}")
        };
        let error = |text: String| run(&scenario(&text), &RunOptions::default()).unwrap_err().to_string();
        let failed = error(command("echo out; echo bad >&2; exit 3", ""));
        assert!(failed.starts_with("it on left ended with code 3") && failed.contains("  bad"), "{failed}");
        let hung = error(command("sleep 60", "timeout = \"200ms\""));
        assert_eq!(hung, "it on left took longer than its timeout, 200ms, without output");
        let text = command("sleep 60", "").replace("title", "timeout = \"300ms\"\ntitle");
        assert!(error(text).contains("longer than its timeout, 300ms; still running: it"));
        let missing = error(command("", "").replace("''''''", "[\"/no/such/program\"]"));
        assert!(missing.contains("cannot run /no/such/program: No such file"), "{missing}");
        let server = |run: &str, ready: &str| {
            format!(
                "{TWO_HOSTS}[[servers]]\nname = \"s\"\nhost = \"right\"\nrun = \"{run}\"\nready = {ready}\ntimeout = \"300ms\"\n"
            )
        };
        let late = error(server("sleep 60", "{ port = 80 }"));
        assert_eq!(late, "s on right was not ready after 300ms: nothing listens at port 80, without output");
        let ended = error(server("echo no; exit 1", "{ line = 'yes' }"));
        assert!(ended.contains("ended without a line with `yes`") && ended.contains("  no"), "{ended}");
        let sysctl =
            TWO_HOSTS.replace("[hosts.left]", "[hosts.left]\nkernel.sysctl.\"net.ipv4.tcp_mem\" = 1");
        assert!(error(sysctl).contains("net.ipv4.tcp_mem is a setting of the whole machine"));
        let maximum =
            std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap().trim().parse::<u64>().unwrap();
        let setting = |value: u64| {
            let text = format!("[hosts.left]\nkernel.sysctl.\"net.core.rmem_max\" = {value}");
            TWO_HOSTS.replace("[hosts.left]", &text)
        };
        assert!(error(setting(maximum + 1)).contains(&format!("It is {maximum} now")));
        run_text(&setting(maximum));
        let congestion = TWO_HOSTS.replace("reno", "nonsense");
        assert!(error(congestion).contains("congestion control nonsense is not available"),);
        common::assert_clean();
    });
}

#[test]
fn labs_at_the_same_time_are_separate_and_can_be_entered() {
    lab_test(|| {
        let events = Arc::new(Mutex::new(Vec::new()));
        let own = events.clone();
        let options = |name: &str| RunOptions {
            name: Some(name.to_owned()),
            program: Some(own_program()),
            events: Some(Arc::new({
                let own = own.clone();
                move |event: &Event| own.lock().push(event.clone())
            })),
            ..RunOptions::default()
        };
        let text = format!("{TWO_HOSTS}{}", common::transfer("64KiB"));
        let names = ["one", "two"].map(|name| format!("{name}-{}", std::process::id()));
        let labs = names.each_ref().map(|name| Lab::start(&scenario(&text), &options(name)).unwrap());
        let taken = Lab::start(&scenario(&text), &options(&names[0])).err();
        assert!(matches!(taken, Some(RunError::NameTaken(_))));
        let test = ["sh", "-c", "test $(uname -n) = left && test -d /ropewalk-lab/left"].map(String::from);
        assert!(shell(&names[1], "left", &test).unwrap().success());
        assert!(matches!(shell(&names[1], "middle", &test), Err(RunError::NoSuchHost { .. })));
        assert!(matches!(shell("nobody", "left", &test), Err(RunError::NoSuchLab { .. })));
        let results: Vec<RunResult> = std::thread::scope(|scope| {
            let run = |mut lab: Lab| {
                lab.run_commands().unwrap();
                lab.finish()
            };
            let threads = labs.map(|lab| scope.spawn(move || run(lab)));
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(results.iter().all(|result| result.command("upload").unwrap().end == End::Exit(0)));
        assert!(events.lock().contains(&Event::Ready { server: "sink".into() }));
        common::assert_clean();
    });
}

#[test]
fn lab_when_changed_from_outside_has_a_warning() {
    lab_test(|| {
        let name = format!("changed-{}", std::process::id());
        let text =
            format!("{TWO_HOSTS}[[commands]]\nname = \"wait\"\nhost = \"left\"\nrun = \"sleep 0.3\"\n");
        let options = RunOptions { name: Some(name.clone()), ..RunOptions::default() };
        let mut lab = Lab::start(&scenario(&text), &options).unwrap();
        let set = |field: &str, value: &str| change(&name, &[(field.into(), Value::Text(value.into()))]);
        let changed = set("links[0].path.both.rate", "3Mbit/s").unwrap();
        assert_eq!((changed.len(), changed[0].0.as_str()), (1, "links[0]"));
        assert_eq!(changed[0].1.forward.rate.get(), Some(3_000_000));
        assert_eq!(
            changed[0].1.backward.delay,
            std::time::Duration::from_millis(20),
            "what is not named stays"
        );
        let said = set("links[1].path.both.loss", "1%").unwrap_err().to_string();
        assert!(said.contains("no path `links[1]`: expected one of links[0]"), "{said}");
        assert!(matches!(change("nobody", &[]), Err(RunError::NoSuchLab { .. })));
        lab.run_commands().unwrap();
        let result = lab.finish();
        // The result may have a warning of a busy machine as well.
        let changes =
            result.warnings.iter().filter(|w| w.starts_with("links[0] was changed from outside after"));
        assert_eq!(changes.count(), 1, "{:?}", result.warnings);
        common::assert_clean();
    });
}

#[test]
fn lab_when_waiting_for_a_stop_records_nothing() {
    lab_test(|| {
        let stop = Stop::default();
        let started = stop.clone();
        let options = RunOptions {
            stop,
            events: Some(Arc::new(move |event: &Event| {
                if matches!(event, Event::Started) {
                    started.stop();
                }
            })),
            ..RunOptions::default()
        };
        let mut lab = Lab::start(&scenario(TWO_HOSTS), &options).unwrap();
        lab.wait().unwrap();
        let result = lab.finish();
        assert!(result.series.times.is_empty() && result.connections.is_empty(), "{:?}", result.series);
        common::assert_clean();
    });
}

#[test]
fn run_with_unavailable_resources_fails_before_any_program() {
    lab_test(|| {
        for (added, expected) in [
            (
                "[[traffic]]\nname = \"t\"\nfrom = \"left\"\nto = \"right\"\nstart = \"1h\"\ncongestion = \"nonesuch\"\n",
                "host left: cross traffic t: congestion control nonesuch: No such file",
            ),
            (
                "[variables]\nup = \"/../../../etc/ropewalk-lab-test\"\n\
                 [[files]]\nhost = \"left\"\npath = \"{disk}{up}\"\ntext = \"x\"\n",
                "this is not below {dir} or {disk}",
            ),
            (
                "[[files]]\nhost = \"left\"\npath = \"{disk}/x\"\nsize = \"1TiB\"\ncount = 4000000000\n",
                "in memory for the lab's files",
            ),
        ] {
            let said = run(&scenario(&format!("{TWO_HOSTS}{added}")), &RunOptions::default()).unwrap_err();
            assert!(said.to_string().contains(expected), "{said}");
        }
        assert!(!std::fs::exists("/etc/ropewalk-lab-test").unwrap());
        common::assert_clean();
    });
}

#[test]
fn lab_when_its_process_is_killed_leaves_nothing() {
    lab_test(common::kill_the_runner);
}

#[test]
#[ignore = "a program for the other tests"]
fn program_runner() {
    common::runner();
}

#[test]
fn run_when_stopped_ends_with_stopped() {
    lab_test(|| {
        let options = RunOptions::default();
        let stop = options.stop.clone();
        let options = RunOptions {
            events: Some(Arc::new(move |event: &Event| {
                if matches!(event, Event::CommandStarted { .. }) {
                    stop.stop();
                }
            })),
            ..options
        };
        let text = format!("{TWO_HOSTS}[[commands]]\nname = \"it\"\nhost = \"left\"\nrun = \"sleep 60\"\n");
        assert!(matches!(run(&scenario(&text), &options), Err(RunError::Stopped)));
    });
}
