//! Converts the `conv_template` of mlc-chat-config.json to a Jinja chat template, and its stop
//! tokens and sampling to generation_config.json. Source: mlc-llm `conversation_protocol.py`.

use crate::{Error, Result};
use serde_json::{Map, Value, json};

/// The conversation settings of mlc-chat-config.json.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatSettings {
    /// Chat template in Jinja, if the file has one.
    pub template: Option<String>,
    /// Sampling, stop tokens and `stop_strings`, as in generation_config.json.
    pub generation: Value,
}

/// Parses mlc-chat-config.json.
///
/// # Errors
/// `Config` for invalid JSON or a conversation template that cannot be converted.
pub fn parse_chat_settings(text: &str) -> Result<ChatSettings> {
    let fault = |reason: String| Error::Config {
        file: "mlc-chat-config.json".into(),
        reason,
    };
    let chat: Value = serde_json::from_str(text).map_err(|e| fault(e.to_string()))?;
    let template = chat.get("conv_template").filter(|t| t.is_object());
    Ok(ChatSettings {
        template: template
            .map(|t| chat_template(t, &chat["bos_token_id"]).map_err(|e| fault(e.into())))
            .transpose()?,
        generation: generation(&chat, template.unwrap_or(&Value::Null)),
    })
}

/// Collects unique ids from numbers and lists of numbers.
fn unique_ids(values: [&Value; 2]) -> Vec<u64> {
    let mut all = Vec::new();
    for value in values {
        let listed = value
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_u64);
        let id = value.as_u64().into_iter().chain(listed);
        id.for_each(|id| {
            if !all.contains(&id) {
                all.push(id);
            }
        });
    }
    all
}

fn generation(chat: &Value, template: &Value) -> Value {
    let mut out = Map::new();
    for name in [
        "temperature",
        "top_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
    ] {
        if let Some(value) = chat.get(name).filter(|v| v.is_number()) {
            out.insert(name.into(), value.clone());
        }
    }
    let sampled = chat["temperature"].as_f64().is_some_and(|t| t > 0.0);
    out.insert("do_sample".into(), json!(sampled));
    // The template's ids are those of the family's first model; the ids of the file count too.
    out.insert(
        "eos_token_id".into(),
        json!(unique_ids([
            &chat["eos_token_id"],
            &template["stop_token_ids"]
        ])),
    );
    let stops = template["stop_str"].as_array().cloned().unwrap_or_default();
    out.insert(
        "stop_strings".into(),
        Value::Array(stops.into_iter().filter(|s| s != "").collect()),
    );
    Value::Object(out)
}

/// Builds the template: system message, then each message under its role's name, followed by a
/// separator.
fn chat_template(template: &Value, bos: &Value) -> Result<String, &'static str> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    // A JSON string is a valid Jinja string.
    let literal = |text: &str| Value::from(text).to_string();
    let around = |value: &Value, mark: &str| {
        let whole = value.as_str().unwrap_or(mark);
        let (before, after) = whole.split_once(mark).unwrap_or((whole, ""));
        [literal(before), literal(after)]
    };
    let seps: Vec<String> = template["seps"]
        .as_array()
        .into_iter()
        .flatten()
        .map(&text)
        .collect();
    let Some(first) = seps.first() else {
        return Err("'conv_template.seps' is empty");
    };
    let sep = literal(&text(&template["role_content_sep"]));
    let empty = literal(&text(&template["role_empty_sep"]));

    let mut out = String::new();
    let prefix = unique_ids([&template["system_prefix_token_ids"], &Value::Null]);
    if !prefix.is_empty() {
        if bos.as_u64().is_none_or(|bos| prefix != [bos]) {
            return Err("'conv_template.system_prefix_token_ids' must contain only 'bos_token_id'");
        }
        out += "{{- bos_token -}}";
    }
    let [before, after] = around(&template["system_template"], "{system_message}");
    let system = literal(&text(&template["system_message"]));
    out += "{%- set given = messages and messages[0].role == 'system' -%}";
    out += &format!(
        "{{%- set head = {before} ~ (messages[0].content if given else {system}) ~ {after} -%}}"
    );
    out += "{{- head -}}{%- for message in (messages[1:] if given else messages) -%}";
    let named = template["add_role_after_system_message"] != false;
    let roles = template["roles"]
        .as_object()
        .ok_or("'conv_template.roles' is missing")?;
    for (index, (role, name)) in roles.iter().enumerate() {
        let mark = format!("{{{role}_message}}");
        let [before, after] = around(&template["role_templates"][role], &mark);
        let separator = if role == "assistant" {
            seps.get(1).unwrap_or(first)
        } else {
            first
        };
        let name = literal(&text(name));
        let separator = literal(separator);

        let said = format!("{name} ~ {sep}");
        let said = if named {
            said
        } else {
            format!("('' if loop.first and head else {said})")
        };
        let branch = if index == 0 { "if" } else { "elif" };
        out += &format!("{{%- {branch} message.role == {} -%}}", literal(role));
        out += &format!("{{{{- {said} ~ {before} ~ message.content ~ {after} ~ {separator} -}}}}");
    }
    let assistant = roles
        .get("assistant")
        .ok_or("'conv_template.roles' has no 'assistant'")?;
    out += "{%- else -%}{{- raise_exception('This model does not support messages with the role ' ~ message.role) -}}{%- endif -%}";
    out += "{%- endfor -%}{%- if add_generation_prompt -%}";
    out += &format!(
        "{{{{- {} ~ {empty} -}}}}{{%- endif -%}}",
        literal(&text(assistant))
    );
    Ok(out)
}
