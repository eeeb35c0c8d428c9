//! One form of every config.json, made before any family reads a field: the text model's fields at the top, whole numbers
//! without a fraction, what transformers takes where the file is silent, and one `rope_parameters` for all places and
//! spellings of the rotation. Rules: transformers 5.23, `modeling_rope_utils.py` (`convert_rope_params_to_dict`,
//! `standardize_rope_params`). Knows no family.

use serde_json::{Map, Value};

/// Marks a configuration that has this form.
const STANDARD: &str = "standardized";

/// Where published files nest the text model.
const NESTED: [&str; 3] = ["text_config", "language_config", "llm_config"];

/// All places of the rotation at one level.
const ROPE: [&str; 4] = ["rope_scaling", "rope_parameters", "rope_theta", "partial_rotary_factor"];

/// Names of some families for the rotation's fields.
const ALIASES: [(&str, &str); 3] =
    [("rotary_emb_base", "rope_theta"), ("rotary_pct", "partial_rotary_factor"), ("rope_pct", "partial_rotary_factor")];

/// The rotations of families whose layers with a window have one of their own.
#[derive(Debug, Clone, Copy)]
pub struct RopeKinds {
    /// The field with the base of full attention, and the default.
    pub full: (&'static str, f64),
    /// The same of layers with a window.
    pub sliding: (&'static str, f64),
    /// Whether `rope_scaling` goes for layers with a window too.
    pub scales_sliding: bool,
}

/// Whether the configuration has this form.
pub fn is_standard(config: &Value) -> bool {
    config.get(STANDARD).is_some()
}

/// The configuration in this form. `silent` is what its family takes where the file is silent.
pub fn standard(config: &Value, silent: Map<String, Value>, kinds: Option<RopeKinds>) -> Value {
    let mut out = config.as_object().cloned().unwrap_or_default();
    let nested = NESTED.iter().find_map(|name| config.get(*name)?.as_object());
    if let Some(text) = nested {
        lift(&mut out, text);
    }
    for (key, value) in silent {
        out.entry(key).or_insert(value);
    }
    for (theirs, usual) in ALIASES {
        if let Some(value) = known(&out, theirs) {
            out.insert(usual.into(), value);
        }
    }
    out.values_mut().for_each(whole);
    rope(&mut out, kinds);
    for name in ["vision_config", "encoder_config"] {
        out.get_mut(name).and_then(Value::as_object_mut).into_iter().for_each(|part| rope(part, None));
    }
    out.insert(STANDARD.into(), true.into());
    Value::Object(out)
}

/// Brings the fields of a nested text model to the top.
fn lift(out: &mut Map<String, Value>, text: &Map<String, Value>) {
    // The text model reads its own places alone, where it has any.
    if ROPE.iter().any(|name| text.get(*name).is_some_and(|v| !v.is_null())) {
        ROPE.iter().for_each(|name| drop(out.remove(*name)));
    }
    for (key, value) in text {
        // The width of a space that a text part shares is the whole's.
        let unset = value.is_null() || key == "projection_dim";
        if key != "architectures" && key != "model_type" && !(unset && out.contains_key(key)) {
            out.insert(key.clone(), value.clone());
        }
    }
}

/// Writes whole numbers as such: readers of counts take no 4096.0.
fn whole(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(whole),
        Value::Object(map) => map.values_mut().for_each(whole),
        Value::Number(n) if n.is_f64() => {
            // Beyond 2^53 not every whole number is a float.
            if let Some(float) = n.as_f64().filter(|f| f.fract() == 0.0 && f.abs() < 9e15) {
                *value = (float as i64).into();
            }
        }
        _ => {}
    }
}

/// A field that is there and no null.
fn known(map: &Map<String, Value>, name: &str) -> Option<Value> {
    map.get(name).filter(|v| !v.is_null()).cloned()
}

/// Fields without nulls, by kinds of layers or without; none where there are no fields.
fn fields(value: Option<Value>) -> Option<Map<String, Value>> {
    let Some(Value::Object(mut map)) = value else { return None };
    // A null in place of a kind's parameters is a kind without rotation.
    map.retain(|key, value| !value.is_null() || key.ends_with("_attention"));
    map.values_mut().filter_map(Value::as_object_mut).for_each(|own| own.retain(|_, value| !value.is_null()));
    Some(map).filter(|map| !map.is_empty())
}

/// Merges all places of the rotation into `rope_parameters`; leaves a level alone that has neither of the two objects.
fn rope(out: &mut Map<String, Value>, kinds: Option<RopeKinds>) {
    let (scaling, parameters) = (fields(out.remove("rope_scaling")), fields(out.remove("rope_parameters")));
    let mut all = match kinds {
        Some(kinds) => Some(by_kind(out, kinds, scaling.as_ref(), parameters.unwrap_or_default())),
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
            known(out, name).map(|value| level.entry(name).or_insert(value));
        }
        standard_type(level);
        if matches!(level.get("rope_type").and_then(Value::as_str), Some("llama3" | "yarn" | "longrope")) {
            const ORIGINAL: &str = "original_max_position_embeddings";
            // Phi-3 has it beside the parameters, and there it counts.
            if let Some(beside) = known(out, ORIGINAL).filter(|_| !nested) {
                level.insert(ORIGINAL.into(), beside);
            } else if let Some(most) = known(out, "max_position_embeddings") {
                level.entry(ORIGINAL).or_insert(most);
            }
        }
    }
    out.extend(all.map(|all| ("rope_parameters".to_string(), Value::Object(all))));
}

/// The parameters of both kinds of layers, of fields of their own; `rope_scaling` is what full attention has.
fn by_kind(
    out: &Map<String, Value>,
    kinds: RopeKinds,
    scaling: Option<&Map<String, Value>>,
    mut parameters: Map<String, Value>,
) -> Map<String, Value> {
    let all = [("full_attention", kinds.full, true), ("sliding_attention", kinds.sliding, kinds.scales_sliding)];
    let own = all.map(|(kind, (field, default), scaled)| {
        let plain = || Map::from_iter([("rope_type".to_string(), "default".into())]);
        let mut own = fields(parameters.remove(kind)).unwrap_or_else(plain);
        let shared = scaling.filter(|_| scaled).into_iter().flatten();
        own.extend(shared.map(|(name, value)| (name.clone(), value.clone())));
        own.entry("rope_theta").or_insert_with(|| known(out, field).unwrap_or(default.into()));
        (kind.to_string(), Value::Object(own))
    });
    Map::from_iter(own)
}

/// Gives parameters a `rope_type` by either of its names, and what older files call otherwise its name of today.
fn standard_type(own: &mut Map<String, Value>) {
    let kind = own.get("rope_type").or(own.get("type")).and_then(Value::as_str).unwrap_or("default");
    let kind = match kind {
        "mrope" => "default",
        "su" => "longrope",
        "yarn" if own.contains_key("short_factor") => "longrope",
        other => other,
    };
    let kind = kind.to_string();
    own.insert("rope_type".into(), kind.into());
}
