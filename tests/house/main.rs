//! Rules that no compiler checks: layers of crate/src, no import cycles between files, the
//! TypeScript facade's agreement with Rust, the list of the Rust API, links of doc comments, and the
//! words of comments and messages. Reads sources as text.

mod contract;
mod links;
mod rust_api;
mod schema;
mod sources;
mod words;

use sources::{Module, modules};
use std::collections::{BTreeMap, BTreeSet};

/// Folders of crate/src by layer, from top to bottom. A folder uses folders of lower layers, and of
/// its own layer those that do not lead back to it.
const LAYERS: &[&[&str]] = &[
    &["web"],
    &["task", "diag"],
    &["exec"],
    &["arch", "plan", "kernels", "sample", "reference"],
    &["gpu"],
    &[
        "audio", "chat", "device", "ir", "format", "hub", "text", "vision",
    ],
    &["schema"],
    &["util"],
    &["error"],
];

fn layer(folder: &str) -> usize {
    let found = LAYERS.iter().position(|folders| folders.contains(&folder));
    found.unwrap_or_else(|| {
        panic!("crate/src/{folder} is in no layer. Add it to LAYERS in tests/house/main.rs.")
    })
}

/// Dependencies by `name`, each with one example.
fn dependencies(
    modules: &[Module],
    name: impl Fn(&str) -> String,
) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut dependencies: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for module in modules {
        for used in &module.uses {
            let from = name(&module.name);
            let to = name(&used.module);

            if from != to && !from.is_empty() && !to.is_empty() {
                let example = format!("{} uses {}", module.file, used.path);
                dependencies
                    .entry(from)
                    .or_default()
                    .entry(to)
                    .or_insert(example);
            }
        }
    }
    dependencies
}

/// Dependency cycles: names that lead back to themselves, with the names of their cycle.
fn cycles(dependencies: &BTreeMap<String, BTreeMap<String, String>>) -> BTreeSet<BTreeSet<String>> {
    let reach = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut next = vec![from];
        while let Some(name) = next.pop() {
            next.extend(
                dependencies
                    .get(name)
                    .into_iter()
                    .flat_map(BTreeMap::keys)
                    .filter(|to| seen.insert((*to).clone())),
            );
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = dependencies
        .keys()
        .map(|name| (name, reach(name)))
        .collect();

    reached
        .iter()
        .filter_map(|(name, seen): (&&String, &BTreeSet<String>)| {
            let back =
                |other: &&String| reached.get(other).is_some_and(|back| back.contains(*name));
            seen.contains(*name)
                .then(|| seen.iter().filter(back).cloned().collect())
        })
        .collect()
}

/// Examples of the dependencies inside a cycle.
fn examples(
    dependencies: &BTreeMap<String, BTreeMap<String, String>>,
    cycle: &BTreeSet<String>,
) -> String {
    let inside = cycle
        .iter()
        .filter_map(|from| dependencies.get(from))
        .flatten();
    let lines: Vec<String> = inside
        .filter(|(to, _)| cycle.contains(*to))
        .map(|(_, example)| format!("  {example}"))
        .collect();
    lines.join("\n")
}

#[test]
fn folders_use_only_lower_layers() {
    let dependencies = dependencies(&modules(), |module| {
        module.split('/').next().unwrap_or("").to_owned()
    });
    let mut wrong = Vec::new();
    for (from, uses) in &dependencies {
        for (to, example) in uses {
            if layer(to) < layer(from) {
                wrong.push(format!("  {example}: `{from}` is below `{to}`"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "dependencies on higher layers (see LAYERS in tests/house/main.rs):\n{}",
        wrong.join("\n")
    );
    let cycles = cycles(&dependencies);
    let shown: Vec<String> = cycles
        .iter()
        .map(|c| format!("{c:?}:\n{}", examples(&dependencies, c)))
        .collect();
    assert!(
        cycles.is_empty(),
        "import cycles between folders of crate/src: {}",
        shown.join("\n")
    );
}

#[test]
fn files_have_no_import_cycles() {
    let modules = modules();
    let dependencies = dependencies(&modules, str::to_owned);
    if let Some(cycle) = cycles(&dependencies).first() {
        panic!(
            "import cycle between files, {cycle:?}:\n{}",
            examples(&dependencies, cycle)
        );
    }
}

#[test]
fn methods_are_in_the_folder_of_their_type() {
    let modules = modules();
    let mut wrong = Vec::new();
    for module in &modules {
        let at_home = |of: &&String| {
            let mut homes = modules.iter().filter(|m| m.types.contains(of)).peekable();
            // A type made by a macro is defined nowhere in plain text.
            homes.peek().is_none()
                || homes.any(|m| {
                    module.name == m.name || module.name.starts_with(&format!("{}/", m.name))
                })
        };
        let strangers = module.impls.iter().filter(|of| !at_home(of));
        wrong.extend(strangers.map(|of| format!("  {}: impl {of}", module.file)));
    }
    assert!(
        wrong.is_empty(),
        "inherent `impl` blocks outside the file of their type and its folder:\n{}",
        wrong.join("\n")
    );
}

/// Types that share a name: those of browsers and of other hosts, of which one is compiled, and the
/// values of graphs and of templates, which never meet.
const SHARED_NAMES: [&str; 8] = [
    "Buffer",
    "BufferInner",
    "Pipeline",
    "Program",
    "HostBytes",
    "Readback",
    "Sleep",
    "Value",
];

#[test]
fn type_names_are_unique() {
    let mut files: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for module in modules() {
        // Macros define types without a name in plain text.
        for name in module.types.into_iter().filter(|name| !name.is_empty()) {
            files.entry(name).or_default().push(module.file.clone());
        }
    }
    files.retain(|name, files| files.len() > 1 && !SHARED_NAMES.contains(&name.as_str()));
    assert!(files.is_empty(), "types that share a name: {files:#?}");
}

#[test]
fn dependencies_are_read_correctly() {
    let modules = modules();
    let of = |name: &str| {
        let module = modules.iter().find(|m| m.name == name);
        module
            .into_iter()
            .flat_map(|m| &m.uses)
            .map(|u| u.module.clone())
            .collect::<BTreeSet<_>>()
    };
    // A group of names, a path in a function, a path from the parent, and no word of a comment.
    assert!(
        of("plan/lower").is_superset(&["ir", "device", "kernels/matmul"].map(str::to_owned).into())
    );
    assert!(of("task/chat_model/generate").contains("exec"));
    assert!(of("format/gptq").contains("format/transcode_job"));
    assert!(!of("kernels/mod").contains("exec"));
    let session = modules.iter().find(|m| m.name == "exec/session");
    let session = session.expect("the module of sessions");
    assert!(session.types.contains(&"Session".to_owned()));
    assert!(session.impls.contains(&"Session".to_owned()));
    let blocks =
        "\nimpl A {\nimpl<'a, T: Fn() -> u8> b::B<'a, T> {\nimpl fmt::Display for C {\nimpls D {";
    assert_eq!(sources::inherent_impls(blocks), ["A", "B"]);
    let pair = |a: &str, b: &str| (a.to_owned(), [(b.to_owned(), String::new())].into());
    let three = [pair("a", "b"), pair("b", "c"), pair("c", "b")].into();
    assert_eq!(
        cycles(&three),
        [["b", "c"].map(str::to_owned).into()].into()
    );
}
