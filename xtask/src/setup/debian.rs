//! Debian's packages. Knows apt, not who needs which package.

use crate::command::{as_root, ask, command, exists, run, step};
use anyhow::{Result, bail};

/// Installs the packages that are missing.
pub fn install(packages: &[&str]) -> Result<()> {
    let missing: Vec<&str> = packages.iter().copied().filter(|package| !installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(", ");
    if !exists("apt-get") {
        bail!("this machine has no apt-get: install what Debian calls {list} by hand");
    }
    step(&format!("installing Debian's {list} (a minute or two)"), || {
        run(as_root("apt-get").args(["update", "-qq"]))?;
        run(as_root("env")
            .args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", "--no-install-recommends"])
            .args(["-o", "DPkg::Lock::Timeout=300"])
            .args(&missing))
    })
}

fn installed(package: &str) -> bool {
    let query = ["-W", "-f=${db:Status-Status}", package];
    ask(command("dpkg-query").args(query)).is_some_and(|status| status == "installed")
}
