//! Data channels of a server session: addresses, options, and their end.

#![allow(clippy::unwrap_used)]

mod common;

use common::Host;
use ropewalk_protocol::server::{
    Event, Failure, Family, List, Listen, Mode, Operation, Outcome, RepresentationType, SessionConfig,
    StripeLayout, Transfer,
};

const PASSIVE: &str = "227 Entering Passive Mode (127,0,0,1,179,217)";
const ACTIVE: &str = "200 PORT Command successful.";
const NO_CHANNEL: &str = "500 Command failed. : No data channel: send PASV, EPSV or PORT first.";
const MODE_CHANGED: &str = "425 Can't open data connection: MODE has closed the data channel, which had other settings. \
                            Send PASV, EPSV or PORT again.";

fn transfer(host: &mut Host, line: &str) -> Transfer {
    match host.ask(line) {
        Operation::Transfer(transfer) => *transfer,
        other => panic!("{line}: {other:?}"),
    }
}

fn list(host: &mut Host, line: &str) -> List {
    match host.ask(line) {
        Operation::List(list) => *list,
        other => panic!("{line}: {other:?}"),
    }
}

fn listen(host: &mut Host, line: &str) -> Listen {
    match host.ask_and_do(line) {
        Operation::Listen(listen) => listen,
        other => panic!("{line}: {other:?}"),
    }
}

fn end(host: &mut Host) -> String {
    host.session.completed(Ok(Outcome::Transferred { checksum: None }));
    host.poll()
}

/// Creates a channel and starts a transfer.
fn started(host: &mut Host, line: &str) -> Transfer {
    assert_eq!(host.run("PASV"), PASSIVE);
    transfer(host, line)
}

#[test]
fn passive_commands_return_addresses() {
    Host::logged_in().check(&[
        ("PASV", PASSIVE),
        ("EPSV", "229 Entering Extended Passive Mode (|||46041|)"),
        ("EPSV 1", "229 Entering Extended Passive Mode (|||46041|)"),
        ("EPSV 3", "501 Invalid protocol."),
        ("EPSV x", "501 Invalid network command."),
        ("SPAS", "229-Entering Striped Passive Mode.| 127,0,0,1,168,169| 127,0,0,1,164,219|229 End"),
        ("SPAS 1", "229-Entering Striped Passive Mode.| |1|127.0.0.1|43177|| |1|127.0.0.1|42203||229 End"),
    ]);
    let mut host = Host::logged_in_with(SessionConfig { epsv_address: true, ..SessionConfig::default() });
    host.check(&[("EPSV", "229 Entering Extended Passive Mode (|1|127.0.0.1|46041|)")]);
    host.answer = |_| Ok(Outcome::Addresses(vec!["[::1]:46041".parse().unwrap()]));
    host.check(&[
        ("PASV", "425 Can't open passive connection."),
        ("EPSV 2", "229 Entering Extended Passive Mode (|2|::1|46041|)"),
        ("SPAS", "229-Entering Striped Passive Mode.| |2|::1|46041||229 End"),
    ]);
    host.answer = |_| Ok(Outcome::Addresses(vec!["[::ffff:127.0.0.1]:46041".parse().unwrap()]));
    host.check(&[("PASV", PASSIVE)]);
    host.answer = |_| Ok(Outcome::Addresses(Vec::new()));
    host.check(&[("EPSV", "425 Can't open passive connection.")]);
    host.answer = |_| Err(Failure::DataConnection("no free port".to_owned()));
    host.check(&[(
        "EPSV",
        "425-GlobusError: v=1 c=DATA_CHANNEL_COMMUNICATION_FAILURE|425-GridFTP-Reason: no free port|425 End.",
    ), ("RETR f", NO_CHANNEL)]);
}

#[test]
fn active_commands_are_answered() {
    let mut host = Host::logged_in();
    host.check(&[
        ("PORT 127,0,0,1,172,43", ACTIVE),
        ("EPRT |2|::1|1234|", ACTIVE),
        ("SPOR 127,0,0,1,4,4 127,0,0,1,4,5", ACTIVE),
        ("PORT 127,0,0,1,0,0", "501 Illegal PORT command."),
        ("PORT x", "501 Illegal PORT command."),
        ("EPRT |3|x|1|", "522 Network protocol not supported, use (1,2)."),
        ("EPRT |1|x|1|", "501 Malformed argument."),
    ]);
    let Operation::Connect(connect) = host.ask_and_do("SPOR 127,0,0,1,4,4 |2|::1|5|") else { panic!() };
    assert_eq!(connect.addresses, ["127.0.0.1:1028".parse().unwrap(), "[::1]:5".parse().unwrap()]);
    host.answer = |_| Err(Failure::NotAllowed);
    host.check(&[("PORT 192,0,2,1,4,4", "501 Illegal PORT command."), ("RETR f", NO_CHANNEL)]);
}

#[test]
fn epsv_all_refuses_other_commands() {
    const REFUSED: &str = "503 Only EPSV is allowed after EPSV ALL.";
    Host::logged_in().check(&[
        ("EPSV ALL", "229 EPSV ALL Successful."),
        ("PASV", REFUSED),
        ("SPAS", REFUSED),
        ("PORT 127,0,0,1,4,4", REFUSED),
        ("EPRT |1|127.0.0.1|5|", REFUSED),
        ("SPOR 127,0,0,1,4,4", REFUSED),
        ("EPSV", "229 Entering Extended Passive Mode (|||46041|)"),
    ]);
}

#[test]
fn channel_options_are_those_at_its_creation() {
    let mut host = Host::logged_in();
    let before = listen(&mut host, "PASV");
    assert_eq!((before.family, before.striped), (Some(Family::V4), false));
    assert_eq!(before.channel.mode, Mode::Stream);
    assert_eq!(before.channel.representation, RepresentationType::Ascii);
    assert_eq!(before.channel.layout, StripeLayout::ServerDefault);
    assert_eq!(
        (before.channel.parallelism, before.channel.send_buffer, before.channel.receive_buffer),
        (1, None, None)
    );

    for line in [
        "MODE E",
        "TYPE I",
        "OPTS RETR StripeLayout=Blocked;BlockSize=65536;Parallelism=4,4,4;",
        "SITE STORBUFSIZE 100",
        "SITE RETRBUFSIZE 200",
    ] {
        assert!(host.run(line).starts_with("200 "), "{line}");
    }
    let after = listen(&mut host, "EPSV 2");
    assert_eq!((after.family, after.striped), (Some(Family::V6), false));
    assert_eq!(after.channel.mode, Mode::ExtendedBlock);
    assert_eq!(after.channel.representation, RepresentationType::Image);
    assert_eq!(after.channel.layout, StripeLayout::Blocked { block_size: Some(65536) });
    assert_eq!(
        (after.channel.parallelism, after.channel.send_buffer, after.channel.receive_buffer),
        (4, Some(100), Some(200))
    );

    host.run("OPTS RETR StripeLayout=Partitioned;");
    host.run("SBUF 0");
    let striped = listen(&mut host, "SPAS");
    assert_eq!((striped.family, striped.striped), (None, true));
    assert_eq!(striped.channel.layout, StripeLayout::Partitioned);
    assert_eq!((striped.channel.send_buffer, striped.channel.receive_buffer), (None, None));
    assert_eq!(listen(&mut host, "EPSV").family, None);
}

#[test]
fn automatic_and_fixed_buffers_replace_each_other() {
    let mut host = Host::logged_in();
    let buffers = |host: &mut Host| {
        let channel = listen(host, "PASV").channel;
        (channel.automatic_buffers, channel.send_buffer, channel.receive_buffer)
    };
    host.run("SBUF 5");
    assert_eq!(buffers(&mut host), (None, Some(5), Some(5)));
    let operation = host.ask("ABUF 8388608");
    assert!(matches!(operation, Operation::AdviseBuffers { ceiling: 8_388_608 }));
    host.session.completed(Ok(Outcome::Advice("left alone.".to_owned())));
    assert_eq!(host.poll(), "200 ABUF: left alone.");
    assert_eq!(buffers(&mut host), (Some(8 << 20), None, None));
    for (line, fixed) in [
        ("SITE STORBUFSIZE 7", (None, Some(7), None)),
        ("SITE RETRBUFSIZE 8", (None, None, Some(8))),
        ("SBUF 9", (None, Some(9), Some(9))),
        ("SITE SBUF 0", (None, None, None)),
        ("ABUF 0", (None, None, None)),
    ] {
        host.run("ABUF 100");
        assert_eq!(buffers(&mut host), (Some(100), None, None));
        host.run(line);
        assert_eq!(buffers(&mut host), fixed, "{line}");
    }
    host.run("ABUF 100");
    host.run("MKD x");
    assert_eq!(host.run("ABUF x"), "502 Invalid Parameter.");
    assert_eq!(buffers(&mut host), (Some(100), None, None));
}

#[test]
fn congestion_control_is_limited_to_allowed_names() {
    let congestion = ["bbr", "cubic"].map(|name| name.parse().unwrap()).to_vec();
    let mut host = Host::logged_in_with(SessionConfig { congestion, ..SessionConfig::default() });
    assert!(host.run("FEAT").contains(
        "| ROPEWALK PassiveSender;InlineChecksum;Ranges;Streams;PathMarkers;Resend;Usage;Space;SpaceExtend;Slots;Replace;Upload;Congestion;|"
    ));
    assert_eq!(listen(&mut host, "PASV").channel.congestion, None);
    assert_eq!(host.run("OPTS RETR Congestion=BBR;"), "200 OPTS Command Successful.");
    let bbr = "bbr".parse().ok();
    assert_eq!(listen(&mut host, "PASV").channel.congestion, bbr);
    // The other settings of a refused OPTS are not applied either.
    let refused = "501 Congestion control reno is not allowed here, only bbr, cubic.";
    assert_eq!(host.run("OPTS RETR Parallelism=7;Congestion=reno;"), refused);
    let channel = listen(&mut host, "PASV").channel;
    assert_eq!((channel.congestion, channel.parallelism), (bbr, 1));
    // An existing channel uses the new setting for the next transfer.
    host.run("OPTS RETR Congestion=cubic;");
    assert_eq!(started(&mut host, "RETR f").congestion, "cubic".parse().ok());
    end(&mut host);
    assert_eq!(host.run("OPTS RETR Congestion=default;"), "200 OPTS Command Successful.");
    assert_eq!(listen(&mut host, "PASV").channel.congestion, None);
    let mut host = Host::logged_in();
    let refused = "501 Congestion control bbr cannot be set: this site leaves no choice.";
    assert_eq!(host.run("OPTS RETR Congestion=bbr;"), refused);
    assert_eq!(host.run("OPTS RETR Congestion=default;"), "200 OPTS Command Successful.");
    assert!(!host.run("FEAT").contains("Congestion"));
}

#[test]
fn mode_change_closes_channel() {
    let mut host = Host::logged_in();
    host.check(&[("MODE S", "200 Mode set to S."), ("PASV", PASSIVE), ("MODE S", "200 Mode set to S.")]);
    assert!(matches!(host.ask("MODE E"), Operation::CloseChannel));
    host.session.completed(Ok(Outcome::Done));
    assert_eq!(host.poll(), "200 Mode set to E.");
    host.check(&[("STOR f", MODE_CHANGED), ("MODE S", "200 Mode set to S.")]);
    // The TYPE is that at the time of the transfer.
    host.check(&[("PASV", PASSIVE), ("TYPE I", "200 Type set to I.")]);
    assert_eq!(transfer(&mut host, "RETR f").representation, RepresentationType::Image);
}

#[test]
fn delayed_passive_sends_addresses_with_transfer() {
    let mut host = Host::logged_in();
    host.check(&[
        ("OPTS PASV AllowDelayed=1;", "200 OPTS Command Successful."),
        ("OPTS RETR Parallelism=3;", "200 OPTS Command Successful."),
        ("MODE E", "200 Mode set to E."),
        ("PASV", "200 Passive delayed."),
        ("OPTS RETR Parallelism=9;", "200 OPTS Command Successful."),
    ]);
    let put = transfer(&mut host, "STOR f");
    let listen = put.delayed.unwrap();
    assert_eq!((listen.channel.parallelism, listen.channel.mode), (3, Mode::ExtendedBlock));
    let addresses = vec!["127.0.0.1:38141".parse().unwrap()];
    host.session.event(Event::Listening(addresses.clone()));
    assert_eq!(host.poll(), "127 Entering Passive Mode (127,0,0,1,148,253)");
    host.session.event(Event::Listening(addresses.clone()));
    host.session.event(Event::Begun { reused: false });
    assert_eq!(host.poll(), "150 Beginning transfer.");
    assert_eq!(end(&mut host), "226 Transfer Complete.");
    // After this transfer the channel is like any other channel.
    assert_eq!(transfer(&mut host, "STOR f").delayed, None);
    end(&mut host);

    // The new command closes the old channel.
    assert!(matches!(host.ask("EPSV"), Operation::CloseChannel));
    host.session.completed(Ok(Outcome::Done));
    assert_eq!(host.poll(), "200 Passive delayed.");
    list(&mut host, "MLSD");
    host.session.event(Event::Listening(addresses.clone()));
    assert_eq!(host.poll(), "129 Entering Extended Passive Mode (|||38141|)");
    host.session.completed(Err(Failure::System { errno: 2, action: "stat".to_owned() }));
    assert!(host.poll().starts_with("550-"));

    host.ask_and_do("SPAS");
    assert!(transfer(&mut host, "STOR f").delayed.unwrap().striped);
    host.session.event(Event::Listening(addresses));
    assert_eq!(host.poll(), "129-Entering Striped Passive Mode.| 127,0,0,1,148,253|129 End");
    end(&mut host);

    // The addresses were never sent, so there is no channel.
    host.ask_and_do("PASV");
    transfer(&mut host, "STOR f");
    host.session.completed(Err(Failure::NotAllowed));
    assert_eq!(host.poll(), "500 Command failed : Path not allowed.");
    assert_eq!(host.run("STOR f"), NO_CHANNEL);

    host.check(&[("OPTS PASV AllowDelayed=0;", "200 OPTS Command Successful."), ("PASV", PASSIVE)]);
}
