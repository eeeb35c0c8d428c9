//! `cargo xtask demo`: builds what is missing and serves the demo page on this machine.

use crate::command::{print_heading, run_step};
use crate::{npm, package, setup, workspace};
use anyhow::{Context, Result, bail};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

const PORT: u16 = 5173;

/// Sets up, builds, and serves until interrupted.
pub fn run(args: &[String]) -> Result<()> {
    let wanted = match args {
        [] => PORT,
        [flag, port] if flag == "--port" => port
            .parse()
            .with_context(|| format!("'{port}' is not a port"))?,
        _ => bail!("`cargo xtask demo` accepts only `--port N`"),
    };
    let toolchain = setup::for_build()?;
    package::build(toolchain)?;
    let port = free_port(wanted)?;
    let mut server = run_step("starting the server", || serve(port))?;
    print_heading(&format!(
        "Jerboa's demo page: http://localhost:{port}/   (Ctrl+C to stop)"
    ));
    let status = server.wait().context("waiting for the server")?;
    if !status.success() {
        bail!("the server exited with {status}");
    }
    Ok(())
}

/// The first free port at or above the requested one.
fn free_port(wanted: u16) -> Result<u16> {
    let found = (wanted..=wanted.saturating_add(50))
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    found.with_context(|| format!("no free port from {wanted} on. Choose another with --port."))
}

/// Starts Vite's preview server: MIME types, ranges, and the headers of www/vite.config.ts.
fn serve(port: u16) -> Result<Child> {
    let mut server = npm::program("vite/bin/vite.js")
        .args([
            "preview",
            "--host",
            "127.0.0.1",
            "--strictPort",
            "--logLevel",
            "warn",
            "--port",
            &port.to_string(),
        ])
        .current_dir(workspace::path("www"))
        .stdin(Stdio::null())
        .spawn()
        .context("starting vite preview")?;
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if let Some(status) = server.try_wait()? {
            bail!("the server exited with {status} before it responded");
        }
        if start.elapsed() > Duration::from_secs(30) {
            server.kill().ok();
            bail!("the server does not respond on port {port}");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(server)
}
