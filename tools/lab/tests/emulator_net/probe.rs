//! Test packets through a net.
#![allow(dead_code, unreachable_pub, unsafe_code, clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::{Namespace, RIGHT, RIGHT6};

/// Sorted round trip times of `count` ICMP echoes from `from` to the right host, sent `gap` apart.
/// The kernel of the right host answers them. A request is sent even if the one before has no
/// answer yet.
pub fn ping(from: &Namespace, v6: bool, count: u16, gap: Duration) -> Vec<Duration> {
    let (domain, protocol, to): (_, _, SocketAddr) = if v6 {
        let to: Ipv6Addr = RIGHT6.parse().unwrap();
        (Domain::IPV6, Protocol::ICMPV6, SocketAddrV6::new(to, 0, 0, 0).into())
    } else {
        (Domain::IPV4, Protocol::ICMPV4, SocketAddrV4::new(RIGHT, 0).into())
    };
    let mut socket = from.run(move || Socket::new(domain, Type::RAW, Some(protocol))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    socket.connect(&to.into()).unwrap();
    let sender = socket.try_clone().unwrap();
    let sending = thread::spawn(move || {
        let mut sent = Vec::new();
        for sequence in 0..count {
            thread::sleep(gap);
            let request = request(v6, sequence);
            sent.push(Instant::now());
            sender.send(&request).unwrap();
        }
        sent
    });
    let mut received = vec![None; usize::from(count)];
    while received.contains(&None) {
        let mut buffer = [0; 256];
        assert!(socket.read(&mut buffer).unwrap() >= 8);
        let now = Instant::now();
        // A raw socket of IPv4 delivers the IP header too.
        let icmp = if v6 { &buffer[..] } else { &buffer[20..] };
        if icmp[0] == if v6 { 129 } else { 0 } {
            received[usize::from(u16::from_be_bytes([icmp[6], icmp[7]]))].get_or_insert(now);
        }
    }
    let sent = sending.join().unwrap();
    let mut times: Vec<Duration> = received.iter().zip(sent).map(|(to, from)| to.unwrap() - from).collect();
    times.sort();
    times
}

fn request(v6: bool, sequence: u16) -> [u8; 64] {
    let mut request = [0u8; 64];
    request[0] = if v6 { 128 } else { 8 };
    request[6..8].copy_from_slice(&sequence.to_be_bytes());
    if !v6 {
        let sum = u32::from(request[0]) * 256 + u32::from(sequence);
        request[2..4].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    }
    request
}

/// A UDP socket on the right host with a large buffer, and one on the left that is connected to it.
pub fn udp_pair(left: &Namespace, right: &Namespace) -> (UdpSocket, UdpSocket) {
    let receiver = right.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.bind(&SocketAddrV4::new(RIGHT, 0).into()).unwrap();
        // The size exceeds the limit of ordinary users; the tests run as root.
        socket2::SockRef::from(&socket).set_recv_buffer_size(64 << 20).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
        UdpSocket::from(socket)
    });
    let to = receiver.local_addr().unwrap();
    let sender = left.run(move || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(to).unwrap();
        socket
    });
    (sender, receiver)
}

/// The result of a flood of datagrams.
#[derive(Debug)]
pub struct Flood {
    pub sent: u64,
    /// Numbers of the received datagrams, in the order of arrival.
    pub received: Vec<u64>,
    /// Time from the first arrival to the last.
    pub time: Duration,
    /// Time from before the first datagram was sent to the last arrival.
    pub whole_time: Duration,
}

/// Sends `count` numbered datagrams of `bytes` (IP packets) at no more than `rate` bits per second,
/// and waits until none has arrived for `quiet`.
pub fn flood(
    left: &Namespace,
    right: &Namespace,
    count: u64,
    bytes: usize,
    rate: f64,
    quiet: Duration,
) -> Flood {
    let (sender, receiver) = udp_pair(left, right);
    receiver.set_read_timeout(Some(quiet)).unwrap();
    let receiving = thread::spawn(move || {
        let (mut received, mut buffer) = (Vec::new(), [0; 65536]);
        let (mut first, mut last) = (None, Instant::now());
        loop {
            match receiver.recv(&mut buffer) {
                Ok(_) => {
                    last = Instant::now();
                    first.get_or_insert(last);
                    received.push(u64::from_be_bytes(buffer[..8].try_into().unwrap()));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock && first.is_some() => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
        }
        (received, first.unwrap(), last)
    });
    let start = Instant::now();
    let mut datagram = vec![0; bytes - 28];
    for number in 0..count {
        let due = Duration::from_secs_f64(number as f64 * bytes as f64 * 8.0 / rate);
        if let Some(left) = due.checked_sub(start.elapsed())
            && left > Duration::from_millis(1)
        {
            thread::sleep(left);
        }
        datagram[..8].copy_from_slice(&number.to_be_bytes());
        sender.send(&datagram).unwrap();
    }
    let (received, first, last) = receiving.join().unwrap();
    Flood { sent: count, received, time: last - first, whole_time: last - start }
}

/// Sends `bytes` over TCP from left to right, checks every byte, and returns the time from the
/// established connection to the end.
pub fn transfer(left: &Namespace, right: &Namespace, v6: bool, bytes: usize) -> Duration {
    let listener = right.run(move || {
        if v6 { TcpListener::bind((RIGHT6, 0)).unwrap() } else { TcpListener::bind((RIGHT, 0)).unwrap() }
    });
    let to = listener.local_addr().unwrap();
    let pattern = |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0];
    let receiving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (mut seen, mut buffer) = (0, vec![0; 1 << 20]);
        loop {
            let length = stream.read(&mut buffer).unwrap();
            if length == 0 {
                return seen;
            }
            for (i, byte) in buffer[..length].iter().enumerate() {
                assert_eq!(*byte, pattern(seen + i), "at {}", seen + i);
            }
            seen += length;
        }
    });
    let mut stream = left.run(move || TcpStream::connect(to)).unwrap();
    let start = Instant::now();
    let mut sent = 0;
    while sent < bytes {
        let chunk: Vec<u8> = (sent..bytes.min(sent + (1 << 20))).map(pattern).collect();
        stream.write_all(&chunk).unwrap();
        sent += chunk.len();
    }
    drop(stream);
    assert_eq!(receiving.join().unwrap(), bytes);
    start.elapsed()
}

/// A socket that sends arbitrary bytes through the interface of `space`, and the address to which
/// they have to be sent.
pub fn packet_socket(space: &Namespace) -> (Socket, SockAddr) {
    let socket = space.run(|| Socket::new(Domain::PACKET, Type::DGRAM, None)).unwrap();
    let index = rustix::net::netdevice::name_to_index(&socket, super::TUN).unwrap();
    // SAFETY: the address is a whole `sockaddr_ll`, which fits into a `sockaddr_storage`.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, length| {
            let address = storage.cast::<libc::sockaddr_ll>();
            address.write(std::mem::zeroed());
            (*address).sll_family = libc::AF_PACKET as u16;
            (*address).sll_protocol = (libc::ETH_P_IP as u16).to_be();
            (*address).sll_ifindex = index as i32;
            *length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            Ok(())
        })
    }
    .unwrap();
    (socket, address)
}
