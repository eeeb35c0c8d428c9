//! Holds what no compiler does: who may use whom among the rooms of crate/src, that no files use
//! each other in a circle, and that the TypeScript face says what Rust says. Reads `use` lines and
//! paths of the sources; knows nothing of what they do.

mod contract;
mod sources;

use sources::{Module, modules};
use std::collections::{BTreeMap, BTreeSet};

/// The rooms, from the top floor to the ground. A room uses rooms of floors below its own, and of
/// its own floor those that do not lead back to it.
const FLOORS: &[&[&str]] = &[
    &["web"],
    &["task", "diag"],
    &["exec"],
    &["arch", "plan", "kernels", "sample", "reference"],
    &["gpu"],
    &[
        "audio", "chat", "device", "ir", "format", "hub", "text", "vision",
    ],
    &["util"],
    &["error"],
];

fn floor(room: &str) -> usize {
    let found = FLOORS.iter().position(|rooms| rooms.contains(&room));
    found.unwrap_or_else(|| {
        panic!("crate/src/{room} stands on no floor: name it in FLOORS of tests/house/main.rs")
    })
}

/// Who uses whom, by `name`, each with one place where it does.
fn arrows(
    modules: &[Module],
    name: impl Fn(&str) -> String,
) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut arrows: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for module in modules {
        for used in &module.uses {
            let from = name(&module.name);
            let to = name(&used.module);

            if from != to && !from.is_empty() && !to.is_empty() {
                let place = format!("{} uses {}", module.file, used.path);
                arrows.entry(from).or_default().entry(to).or_insert(place);
            }
        }
    }
    arrows
}

/// The names from which a way leads back to themselves, each with the names of its circle.
fn circles(arrows: &BTreeMap<String, BTreeMap<String, String>>) -> BTreeSet<BTreeSet<String>> {
    let reach = |from: &String| {
        let mut seen = BTreeSet::new();
        let mut next = vec![from];
        while let Some(name) = next.pop() {
            next.extend(
                arrows
                    .get(name)
                    .into_iter()
                    .flat_map(BTreeMap::keys)
                    .filter(|to| seen.insert((*to).clone())),
            );
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        arrows.keys().map(|name| (name, reach(name))).collect();

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

/// The places of the arrows inside a circle.
fn places(
    arrows: &BTreeMap<String, BTreeMap<String, String>>,
    circle: &BTreeSet<String>,
) -> String {
    let inside = circle.iter().filter_map(|from| arrows.get(from)).flatten();
    let lines: Vec<String> = inside
        .filter(|(to, _)| circle.contains(*to))
        .map(|(_, place)| format!("  {place}"))
        .collect();
    lines.join("\n")
}

#[test]
fn rooms_use_only_what_stands_below_them() {
    let arrows = arrows(&modules(), |module| {
        module.split('/').next().unwrap_or("").to_owned()
    });
    let mut wrong = Vec::new();
    for (from, uses) in &arrows {
        for (to, place) in uses {
            if floor(to) < floor(from) {
                wrong.push(format!("  {place}: `{from}` stands below `{to}`"));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "arrows that lead up (the floors are in tests/house/main.rs):\n{}",
        wrong.join("\n")
    );
    let circles = circles(&arrows);
    let shown: Vec<String> = circles
        .iter()
        .map(|c| format!("{c:?}:\n{}", places(&arrows, c)))
        .collect();
    assert!(
        circles.is_empty(),
        "rooms that use each other in a circle, {}",
        shown.join("\n")
    );
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let modules = modules();
    let arrows = arrows(&modules, str::to_owned);
    if let Some(circle) = circles(&arrows).first() {
        panic!(
            "files that use each other in a circle, {circle:?}:\n{}",
            places(&arrows, circle)
        );
    }
}

#[test]
fn what_is_read_is_what_stands_there() {
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
    assert!(of("task/generate").contains("exec"));
    assert!(of("format/gptq").contains("format/transcode_job"));
    assert!(!of("kernels/mod").contains("exec"));
    let pair = |a: &str, b: &str| (a.to_owned(), [(b.to_owned(), String::new())].into());
    let three = [pair("a", "b"), pair("b", "c"), pair("c", "b")].into();
    assert_eq!(
        circles(&three),
        [["b", "c"].map(str::to_owned).into()].into()
    );
}
