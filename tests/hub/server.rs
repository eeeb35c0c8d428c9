//! The simulated Hub as a child process, and the files that it serves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Deserialize;
use serde_json::{Value, json};

/// A request received by the server.
#[derive(Debug, Clone, Deserialize)]
pub struct Logged {
    pub origin: String,
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub status: u16,
    pub bytes: u64,
    pub authorization: bool,
}

/// The server with its own folder; both end with this value.
pub struct Server {
    child: Child,
    pub root: PathBuf,
    pub hub: String,
}

impl Server {
    pub fn start() -> Server {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "jerboa-hub-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let root = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&root).expect("a temporary folder");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/hub/hub-server.mjs");
        let mut child = Command::new("node")
            .arg(script)
            .arg("--root")
            .arg(&root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("node, which runs the simulated Hub");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout"))
            .read_line(&mut line)
            .expect("the server's addresses");
        let origins: Value = serde_json::from_str(&line).expect("JSON");
        let hub = origins["hub"].as_str().expect("hub").to_string();
        Server { child, root, hub }
    }

    /// Writes a file of the repository `org/model`.
    pub fn file(&self, name: &str, bytes: &[u8]) {
        let path = self.root.join("org/model").join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, bytes).expect("a file");
    }

    /// Replaces a file of the repository by a new commit.
    pub fn change(&self, name: &str, bytes: &[u8]) {
        self.control(
            "file",
            &json!({ "path": format!("org/model/{name}"), "base64": base64(bytes) }),
        );
    }

    pub fn fault(&self, fault: &Value) {
        self.control("faults", &json!([fault]));
    }

    pub fn gate(&self, token: &str) {
        self.control("gate", &json!({ "org/model": token }));
    }

    /// Every request since the start, or since the first `seen` requests.
    pub fn log(&self, seen: usize) -> Vec<Logged> {
        let log: Vec<Logged> =
            serde_json::from_value(self.control("log", &Value::Null)).expect("a log");
        log[seen..].to_vec()
    }

    pub fn control(&self, what: &str, body: &Value) -> Value {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let host = self.hub.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).expect("the server");
        let length = body.len();
        write!(stream, "POST /_control/{what} HTTP/1.0\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}")
            .expect("a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON")
    }

    /// Stops the server: it is unreachable from now on.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let word =
            group.iter().fold(0u32, |w, b| w << 8 | u32::from(*b)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let value = (word >> (18 - 6 * digit)) & 63;
            out.push(if digit <= group.len() {
                char::from(DIGITS[value as usize])
            } else {
                '='
            });
        }
    }
    out
}

/// A safetensors file of byte tensors.
pub fn safetensors(tensors: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(
            (*name).to_string(),
            json!({ "dtype": "U8", "shape": [bytes.len()], "data_offsets": offsets }),
        );
        data.extend_from_slice(bytes);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    file
}

/// Bytes that depend on seed and offset.
pub fn pattern(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..count).map(|_| next()).collect()
}
