//! Normalizes every config.json before any family reads a field. Moves the text model's fields to
//! the top and RoPE fields of all spellings to `rope_parameters`. Writes whole numbers as integers,
//! and adds transformers' defaults for absent fields. Rules: transformers 5.23,
//! `modeling_rope_utils.py` (`convert_rope_params_to_dict`, `standardize_rope_params`). Does not
//! depend on any family.

use serde_json::{Map, Value};

/// Names under which published files nest the text model.
const TEXT_CONFIG_FIELDS: [&str; 3] = ["text_config", "language_config", "llm_config"];

/// All RoPE fields of one level.
const ROPE_FIELDS: [&str; 4] = [
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "partial_rotary_factor",
];

/// Some families' names for RoPE fields, and the common names.
const ROPE_ALIASES: [(&str, &str); 3] = [
    ("rotary_emb_base", "rope_theta"),
    ("rotary_pct", "partial_rotary_factor"),
    ("rope_pct", "partial_rotary_factor"),
];

/// RoPE of families whose sliding-window layers have a separate one.
#[derive(Debug, Clone, Copy)]
pub struct RopeByType {
    /// Field and default of the base of full attention.
    pub full: (&'static str, f64),
    /// Field and default of the base of sliding-window layers.
    pub sliding: (&'static str, f64),
    /// Whether `rope_scaling` also applies to sliding-window layers.
    pub scales_sliding: bool,
}

/// Normalizes a configuration. `defaults` holds the family's defaults for absent fields.
pub fn normalize(config: &Value, defaults: Map<String, Value>, kinds: Option<RopeByType>) -> Value {
    let mut out = config.as_object().cloned().unwrap_or_default();
    let nested = TEXT_CONFIG_FIELDS
        .iter()
        .find_map(|name| config.get(*name)?.as_object());
    if let Some(text) = nested {
        hoist_text_config(&mut out, text);
    }
    for (key, value) in defaults {
        out.entry(key).or_insert(value);
    }
    for (theirs, usual) in ROPE_ALIASES {
        if let Some(value) = non_null(&out, theirs) {
            out.insert(usual.into(), value);
        }
    }
    merge_rope(&mut out, kinds);
    for name in ["vision_config", "encoder_config"] {
        out.get_mut(name)
            .and_then(Value::as_object_mut)
            .into_iter()
            .for_each(|part| merge_rope(part, None));
    }
    out.values_mut().for_each(floats_to_integers);
    Value::Object(out)
}

/// Moves the fields of a nested text model to the top.
fn hoist_text_config(out: &mut Map<String, Value>, text: &Map<String, Value>) {
    // If the nested text model has any RoPE field, only its own count.
    if ROPE_FIELDS
        .iter()
        .any(|name| text.get(*name).is_some_and(|v| !v.is_null()))
    {
        ROPE_FIELDS.iter().for_each(|name| drop(out.remove(*name)));
    }
    for (key, value) in text {
        // A shared embedding width (`projection_dim`) belongs to the whole model.
        let unset = value.is_null() || key == "projection_dim";
        if key != "architectures" && key != "model_type" && !(unset && out.contains_key(key)) {
            out.insert(key.clone(), value.clone());
        }
    }
}

/// Converts integral floats such as 4096.0 to integers, which readers of counts require.
fn floats_to_integers(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(floats_to_integers),
        Value::Object(map) => map.values_mut().for_each(floats_to_integers),
        Value::Number(n) if n.is_f64() => {
            // Beyond 2^53 an f64 cannot represent every integer.
            if let Some(float) = n.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15) {
                *value = (float as i64).into();
            }
        }
        _ => {}
    }
}

/// Returns a field unless it is absent or null.
fn non_null(map: &Map<String, Value>, name: &str) -> Option<Value> {
    map.get(name).filter(|v| !v.is_null()).cloned()
}

/// Returns an object's fields without nulls, also inside layer types; `None` if none are left.
fn without_nulls(value: Option<Value>) -> Option<Map<String, Value>> {
    let Some(Value::Object(mut map)) = value else {
        return None;
    };
    // A null layer type means layers without RoPE.
    map.retain(|key, value| !value.is_null() || key.ends_with("_attention"));
    map.values_mut()
        .filter_map(Value::as_object_mut)
        .for_each(|own| own.retain(|_, value| !value.is_null()));
    Some(map).filter(|map| !map.is_empty())
}

/// Merges all RoPE fields into `rope_parameters`. Leaves a level unchanged if it has neither
/// object.
fn merge_rope(out: &mut Map<String, Value>, kinds: Option<RopeByType>) {
    let scaling = without_nulls(out.remove("rope_scaling"));
    let parameters = without_nulls(out.remove("rope_parameters"));

    let mut all = match kinds {
        Some(kinds) => Some(rope_by_type(
            out,
            kinds,
            scaling.as_ref(),
            parameters.unwrap_or_default(),
        )),
        None => scaling.or(parameters),
    };
    let nested = all.iter().flat_map(Map::values).any(Value::is_object);
    let levels: Vec<&mut Map<String, Value>> = match &mut all {
        None => return,
        Some(all) if nested => all.values_mut().filter_map(Value::as_object_mut).collect(),
        Some(all) => vec![all],
    };
    for level in levels {
        for name in ["rope_theta", "partial_rotary_factor"] {
            non_null(out, name).map(|value| level.entry(name).or_insert(value));
        }
        normalize_rope_type(level);
        if matches!(
            level.get("rope_type").and_then(Value::as_str),
            Some("llama3" | "yarn" | "longrope")
        ) {
            const ORIGINAL: &str = "original_max_position_embeddings";
            // Phi-3 has it next to the parameters, and that value wins.
            if let Some(beside) = non_null(out, ORIGINAL).filter(|_| !nested) {
                level.insert(ORIGINAL.into(), beside);
            } else if let Some(most) = non_null(out, "max_position_embeddings") {
                level.entry(ORIGINAL).or_insert(most);
            }
        }
    }
    out.extend(all.map(|all| ("rope_parameters".to_string(), Value::Object(all))));
}

/// Builds the parameters of both layer types from separate fields; `rope_scaling` applies to full
/// attention.
fn rope_by_type(
    out: &Map<String, Value>,
    kinds: RopeByType,
    scaling: Option<&Map<String, Value>>,
    mut parameters: Map<String, Value>,
) -> Map<String, Value> {
    let all = [
        ("full_attention", kinds.full, true),
        ("sliding_attention", kinds.sliding, kinds.scales_sliding),
    ];
    let own = all.map(|(kind, (field, default), scaled)| {
        let mut own = without_nulls(parameters.remove(kind))
            .unwrap_or_else(|| Map::from_iter([("rope_type".to_string(), "default".into())]));
        let shared = scaling.filter(|_| scaled).into_iter().flatten();
        own.extend(shared.map(|(name, value)| (name.clone(), value.clone())));
        own.entry("rope_theta")
            .or_insert_with(|| non_null(out, field).unwrap_or(default.into()));
        (kind.to_string(), Value::Object(own))
    });
    Map::from_iter(own)
}

/// Sets `rope_type` from either of its names, mapping old names to current ones.
fn normalize_rope_type(own: &mut Map<String, Value>) {
    let kind = own
        .get("rope_type")
        .or(own.get("type"))
        .and_then(Value::as_str)
        .unwrap_or("default");
    let kind = match kind {
        "mrope" => "default",
        "su" => "longrope",
        "yarn" if own.contains_key("short_factor") => "longrope",
        other => other,
    };
    let kind = kind.to_string();
    own.insert("rope_type".into(), kind.into());
}
