//! Servers that answer every caller with their own address, so that a test sees where a connect went.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    thread,
    time::Duration,
};

/// Bounds a test that waits for an answer that never comes.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A TCP server on a free port of this address. It runs until the test ends.
///
/// # Panics
///
/// When it cannot listen.
#[must_use]
pub fn tcp(ip: &str) -> SocketAddr {
    tcp_at(SocketAddr::new(ip.parse().expect("an address"), 0))
}

/// A TCP server on this very address. It runs until the test ends.
///
/// # Panics
///
/// When it cannot listen.
#[must_use]
pub fn tcp_at(address: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind(address).expect("listens");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // One that went away is no concern of the others.
            let _ = serve(stream, address);
        }
    });
    address
}

fn serve(mut stream: TcpStream, address: SocketAddr) -> io::Result<()> {
    writeln!(stream, "{address}")
}

/// A UDP server on a free port of this address. It runs until the test ends.
///
/// # Panics
///
/// When it cannot bind.
#[must_use]
pub fn udp(ip: &str) -> SocketAddr {
    let ip = ip.parse().expect("an address");
    let socket = UdpSocket::bind(SocketAddr::new(ip, 0)).expect("binds");
    let address = socket.local_addr().expect("its address");
    thread::spawn(move || {
        let mut packet = [0; 16];
        while let Ok((_, from)) = socket.recv_from(&mut packet) {
            let _ = socket.send_to(format!("{address}\n").as_bytes(), from);
        }
    });
    address
}

/// Reads the address that a server sent.
pub fn answer(stream: &mut impl Read) -> io::Result<SocketAddr> {
    let mut bytes = [0; 64];
    let mut text = String::new();
    while !text.ends_with('\n') {
        let read = stream.read(&mut bytes)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        text.push_str(&String::from_utf8_lossy(bytes.get(..read).unwrap_or_default()));
    }
    text.trim().parse().map_err(io::Error::other)
}
