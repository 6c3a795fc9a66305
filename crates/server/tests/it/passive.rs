//! PASV and related commands: addresses, ranges of ports, families.

use std::io::Read as _;
use std::net::SocketAddr;

use crate::client::{Client, accept, connect, parse_227};
use crate::fixture::Fixture;

#[test]
fn delayed_passive_reports_address_with_transfer() {
    let server = Fixture::new();
    server.write("f", "abc");
    let mut client = server.login();
    client.command("OPTS PASV AllowDelayed=1;", 200);
    assert_eq!(client.command("PASV", 200), "200 Passive delayed.");
    let mut data = connect(parse_227(&client.command("RETR /f", 127)));
    client.expect(150);
    let mut bytes = Vec::new();
    data.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, b"abc");
    client.expect(226);
    client.command("PASV", 200);
    let _data = connect(parse_227(&client.command("RETR /nope", 127)));
    client.expect(500);
    client.command("PASV", 200);
    let mut data = connect(parse_227(&client.command("NLST /", 127)));
    client.expect(150);
    data.read_to_end(&mut Vec::new()).unwrap();
    client.expect(226);
}

#[test]
fn advertised_address_is_reported() {
    let server = Fixture::with(|config, _| config.data.advertise = Some([192, 0, 2, 7].into()));
    let mut client = server.login();
    assert_eq!(client.pasv().ip().to_string(), "192.0.2.7");
    let text = client.command("SPAS", 229);
    assert!(
        text.starts_with("229-Entering Striped Passive Mode.| 192,0,2,7,") && text.ends_with("|229 End"),
        "{text}"
    );
    assert_eq!(text.split('|').count(), 3);
}

#[test]
fn passive_ports_stay_in_range() {
    // A port that is free at this moment.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let server = Fixture::with(|config, _| config.data.ports = Some((port, port)));
    let (mut one, mut two) = (server.login(), server.login());
    assert_eq!(one.pasv().port(), port);
    // The old channel makes room for the new one.
    assert_eq!(one.pasv().port(), port);
    two.command("PASV", 425);
    one.command("QUIT", 221);
    one.expect_end();
    assert_eq!(two.pasv().port(), port);
}

fn epsv(client: &mut Client, command: &str) -> u16 {
    let text = client.command(command, 229);
    text.split("|||").nth(1).unwrap().split('|').next().unwrap().parse().unwrap()
}

#[test]
fn epsv_for_ipv6_client_is_accepted() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return;
    }
    let server = Fixture::with(|config, _| config.listen = vec!["[::]:0".parse().unwrap()]);
    server.write("f", "abc");
    let port = server.address.port();
    let mut client = Client::connect(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], port)));
    client.login("ftp", "x");
    for command in ["EPSV", "EPSV 2"] {
        let mut data = connect(SocketAddr::new("::1".parse().unwrap(), epsv(&mut client, command)));
        client.command("RETR /f", 150);
        let mut bytes = Vec::new();
        data.read_to_end(&mut bytes).unwrap();
        client.expect(226);
        assert_eq!(bytes, b"abc");
    }
    client.command("EPSV 1", 522);
    client.command("PASV", 522);
    let listener = std::net::TcpListener::bind("[::1]:0").unwrap();
    client.command(&format!("EPRT |2|::1|{}|", listener.local_addr().unwrap().port()), 200);
    client.send("RETR /f");
    let mut data = accept(&listener);
    data.read_to_end(&mut Vec::new()).unwrap();
    client.expect(150);
    client.expect(226);

    // An IPv4 client of the same socket.
    let mut client = Client::connect(SocketAddr::from(([127, 0, 0, 1], port)));
    client.login("ftp", "x");
    assert_eq!(client.get("RETR /f"), b"abc");
    let port = epsv(&mut client, "EPSV");
    let mut data = connect(SocketAddr::from(([127, 0, 0, 1], port)));
    client.command("RETR /f", 150);
    data.read_to_end(&mut Vec::new()).unwrap();
    client.expect(226);
    let address = client.local_addr();
    client.command(&format!("EPRT |1|{}|{}|", address.ip(), 5000), 200);
}
