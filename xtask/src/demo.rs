//! `cargo xtask demo`: builds what is missing and serves the page on this machine. Knows no content of the page.

use crate::command::{say, step};
use crate::{npm, package, setup, workspace};
use anyhow::{Context, Result, bail};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const PORT: u16 = 5173;

/// Sets up, builds, serves until it is interrupted.
pub fn run(args: &[String]) -> Result<()> {
    let wanted = match args {
        [] => PORT,
        [flag, port] if flag == "--port" => port.parse().with_context(|| format!("'{port}' is not a port"))?,
        _ => bail!("`cargo xtask demo` takes `--port N` and nothing else"),
    };
    let toolchain = setup::for_build()?;
    package::build(toolchain)?;
    let port = free_port(wanted)?;
    let mut server = step("starting the server", || serve(port))?;
    say(&format!("Jerboa's demo page: http://localhost:{port}/   (Ctrl+C ends it)"));
    let status = server.wait().context("waiting for the server")?;
    if !status.success() {
        bail!("the server ended with {status}");
    }
    Ok(())
}

/// The first free port from the one that is wanted.
fn free_port(wanted: u16) -> Result<u16> {
    let found = (wanted..=wanted.saturating_add(50)).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    found.with_context(|| format!("no port from {wanted} on is free: name another with --port"))
}

/// Vite's own server for built pages: MIME types, ranges, and the headers of www/vite.config.ts.
fn serve(port: u16) -> Result<Child> {
    let mut server = npm::program("vite/bin/vite.js")
        .args(["preview", "--host", "127.0.0.1", "--strictPort", "--logLevel", "warn", "--port", &port.to_string()])
        .current_dir(workspace::path("www"))
        .stdin(Stdio::null())
        .spawn()
        .context("starting vite preview")?;
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if let Some(status) = server.try_wait()? {
            bail!("the server ended with {status} before it answered");
        }
        if start.elapsed() > Duration::from_secs(30) {
            server.kill().ok();
            bail!("the server does not answer on port {port}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(server)
}
