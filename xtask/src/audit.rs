//! Known vulnerabilities of the dependencies, by `cargo audit` and `npm audit`. Both ask a server;
//! without an answer the check is skipped with a message.

use crate::command::{command, output_of, print_heading, run_step};
use crate::workspace;
use anyhow::{Result, bail};
use serde_json::Value;
use std::process::Command;

/// Checks the crates of Cargo.lock and the npm packages of both lock files.
pub fn run() -> Result<()> {
    run_step("known vulnerabilities", || {
        crates()?;
        for folder in ["", "www/docs"] {
            packages(folder)?;
        }
        Ok(())
    })
}

fn crates() -> Result<()> {
    if output_of(command("cargo").args(["audit", "--version"])).is_none() {
        skipped(
            "cargo audit",
            "it is not installed (`cargo install --locked cargo-audit`)",
        );
        return Ok(());
    }
    let mut audit = command("cargo");
    audit.args(["audit", "--json", "--file"]);
    audit.arg(workspace::path("Cargo.lock"));
    let report = report_of(&mut audit)?;
    let Some(list) = report["vulnerabilities"]["list"].as_array() else {
        skipped("cargo audit", "the advisory database cannot be fetched");
        return Ok(());
    };
    let names: Vec<String> = list
        .iter()
        .map(|each| format!("{} ({})", each["package"]["name"], each["advisory"]["id"]))
        .collect();
    refuse("crates", &names)
}

/// Audits the packages of a folder's package-lock.json, from severity "high" up.
fn packages(folder: &str) -> Result<()> {
    let mut audit = command("npm");
    audit
        .args(["audit", "--json", "--package-lock-only"])
        .current_dir(workspace::path(folder));
    let report = report_of(&mut audit)?;
    let Some(found) = report["vulnerabilities"].as_object() else {
        let reason = report["message"]
            .as_str()
            .unwrap_or("the registry does not answer");
        skipped("npm audit", reason);
        return Ok(());
    };
    let grave = |each: &Value| matches!(each["severity"].as_str(), Some("high" | "critical"));
    let names: Vec<String> = found
        .iter()
        .filter(|(_, each)| grave(each))
        .map(|(name, each)| format!("{name} ({})", each["severity"]))
        .collect();
    refuse("npm packages", &names)
}

/// The JSON that a program prints, whatever its exit status; null if it prints none.
fn report_of(program: &mut Command) -> Result<Value> {
    let output = program.output()?;
    Ok(serde_json::from_slice(&output.stdout).unwrap_or_default())
}

fn refuse(what: &str, names: &[String]) -> Result<()> {
    if names.is_empty() {
        return Ok(());
    }
    bail!("{what} with known vulnerabilities: {}", names.join(", "))
}

fn skipped(program: &str, reason: &str) {
    print_heading(&format!("{program} is skipped: {reason}"));
}
