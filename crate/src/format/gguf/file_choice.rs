//! Chooses the model's file among the GGUF files of a folder or a repository.

use super::mmproj::is_mmproj;
use super::parse_split_name;

/// Parts of file names by preference: 4 bits, then more, then fewer, then 16 bits. `q3_` also
/// matches IQ3.
const PREFERRED: [&str; 18] = [
    "q4_k_m", "q4_k_xl", "q4_0", "q4_k_s", "iq4_nl", "iq4_xs", "q4_", "mxfp4", "q5_k_m", "q5_",
    "q6_k", "q8_", "q3_k_m", "q3_", "q2_", "q1_", "bf16", "f16",
];

fn part_number(name: &str) -> Option<usize> {
    parse_split_name(name).map(|(_, number, _)| number)
}

/// Whether the name suggests a file that belongs to a model: an importance matrix, a LoRA adapter or
/// a draft head.
fn is_side_file(name: &str) -> bool {
    let lower = name.to_lowercase();
    let file = lower.rsplit('/').next().unwrap_or(&lower);
    let mut words = file.split(|c: char| !c.is_ascii_alphanumeric());
    file.starts_with("mtp-") || words.any(|word| word == "imatrix" || word == "lora")
}

/// Lists the GGUF files that may be the model: single files and first parts. Files whose name
/// suggests something else count only if there are no others.
pub fn model_files(names: &[String]) -> Vec<&String> {
    let is_model = |name: &&String| {
        name.to_lowercase().ends_with(".gguf")
            && !is_mmproj(name)
            && part_number(name).is_none_or(|number| number == 1)
    };
    let all: Vec<&String> = names.iter().filter(is_model).collect();
    let (side, main): (Vec<&String>, Vec<&String>) =
        all.into_iter().partition(|name| is_side_file(name));
    if main.is_empty() { side } else { main }
}

/// Chooses a file: 4 bits if available, else the next best, preferring single files over shards.
/// Without any, returns a later part, whose first part is missing.
pub fn preferred_file(names: &[String]) -> Option<String> {
    let rank = |name: &&String| {
        let lower = name.to_lowercase();
        let kind = PREFERRED.iter().position(|kind| lower.contains(kind));
        (kind.unwrap_or(PREFERRED.len()), part_number(name).is_some())
    };
    let later = || names.iter().filter(|name| part_number(name).is_some());
    let best = model_files(names).into_iter().min_by_key(rank);
    best.or_else(|| later().min_by_key(rank)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str]) -> Option<String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_string()).collect();
        preferred_file(&names)
    }

    #[test]
    fn files_beside_the_model_are_not_chosen() {
        for (names, expected) in [
            (
                &["imatrix.gguf", "model-Q3_K_M.gguf"][..],
                "model-Q3_K_M.gguf",
            ),
            (&["m.imatrix.gguf", "m-f32.gguf"], "m-f32.gguf"),
            (&["m-LoRA-Q4_K_M.gguf", "m-Q8_0.gguf"], "m-Q8_0.gguf"),
            (
                &["mtp-m-Q4_0.gguf", "mmproj-F16.gguf", "m-BF16.gguf"],
                "m-BF16.gguf",
            ),
            // Models made with an importance matrix, or merged with an adapter.
            (
                &["m-imatrix.gguf", "m-imatrix-Q4_K_M.gguf"],
                "m-imatrix-Q4_K_M.gguf",
            ),
            (&["m-lora-merged.gguf"], "m-lora-merged.gguf"),
            (
                &["explorations-Q4_0.gguf", "m-Q8_0.gguf"],
                "explorations-Q4_0.gguf",
            ),
        ] {
            assert_eq!(chosen(names).as_deref(), Some(expected), "{names:?}");
        }
        assert_eq!(chosen(&["mmproj-F16.gguf", "README.md"]), None);
    }

    #[test]
    fn four_bits_are_preferred_and_16_bits_come_last() {
        let order = [
            "m-Q4_K_M.gguf",
            "m-UD-Q4_K_XL.gguf",
            "m-Q4_0.gguf",
            "m-IQ4_XS.gguf",
            "m-Q5_K_M.gguf",
            "m-UD-Q6_K_XL.gguf",
            "m-Q8_0.gguf",
            "m-Q3_K_S.gguf",
            "m-UD-IQ2_XXS.gguf",
            "m-IQ1_S.gguf",
            "BF16/m-BF16-00001-of-00002.gguf",
            "m-F16.gguf",
            "m.gguf",
        ];
        for at in 0..order.len() {
            let mut names = order[at..].to_vec();
            names.reverse();
            assert_eq!(chosen(&names).as_deref(), Some(order[at]));
        }
        let parts = ["m-Q4_0-00002-of-00002.gguf", "m-Q4_0-00001-of-00002.gguf"];
        assert_eq!(chosen(&parts).as_deref(), Some(parts[1]));
        assert_eq!(
            chosen(&[parts[1], "m-Q4_0.gguf"]).as_deref(),
            Some("m-Q4_0.gguf")
        );
    }
}
