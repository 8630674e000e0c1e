//! Plain HTTP for what has no client here: etcd's gateway and the agent's admin address.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
};

use serde_json::Value;

use crate::echo::PATIENCE;

/// Status and body of an exchange. HTTP/1.0, so that the answer ends with the connection.
pub fn exchange(to: SocketAddr, method: &str, path: &str, body: &str) -> io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "{method} {path} HTTP/1.0\r\nHost: {to}\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no HTTP answer: {answer:?}")))?;
    Ok((status, body.to_owned()))
}

/// Posts JSON and returns the JSON of the answer.
///
/// # Panics
///
/// When there is none.
#[must_use]
pub fn post(to: SocketAddr, path: &str, body: &Value) -> Value {
    let (status, answer) = exchange(to, "POST", path, &body.to_string()).expect("an answer");
    assert_eq!(status, 200, "{path}: {answer}");
    serde_json::from_str(&answer).expect("JSON")
}
