//! Installs Debian packages with apt.

use crate::command::{as_root, command, is_installed, output_of, run, run_step};
use anyhow::{Result, bail};

/// Installs missing packages.
pub fn install(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|package| !installed(package))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(", ");
    if !is_installed("apt-get") {
        bail!(
            "apt-get is not available. Install the equivalents of these Debian packages: {list}."
        );
    }
    run_step(
        &format!("installing Debian packages {list} (1 to 2 minutes)"),
        || {
            run(as_root("apt-get").args(["update", "-qq"]))?;
            run(as_root("env")
                .args([
                    "DEBIAN_FRONTEND=noninteractive",
                    "apt-get",
                    "install",
                    "-y",
                    "-qq",
                    "--no-install-recommends",
                ])
                .args(["-o", "DPkg::Lock::Timeout=300"])
                .args(&missing))
        },
    )
}

fn installed(package: &str) -> bool {
    let query = ["-W", "-f=${db:Status-Status}", package];
    output_of(command("dpkg-query").args(query)).is_some_and(|status| status == "installed")
}
