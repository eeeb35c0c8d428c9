//! Rewrites the messages of a conversation to what a chat template reads: names of reasoning
//! fields, calls that the template does not render, tools in the system message.

use super::detect::CallFormat;
use super::scan;
use serde_json::{Map, Value, json};

/// Names under which clients give reasoning back.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Markers of calls in message text. Only the template may write special tokens, so marks stand for
/// them until the prompt is rendered.
#[derive(Debug, Default)]
pub struct CallMarkers {
    marks: [String; 2],
    openers: Vec<String>,
    closers: Vec<String>,
}

impl CallMarkers {
    /// Marks that occur in no message.
    fn unused_in(messages: &[Value]) -> Self {
        let text = messages.iter().map(Value::to_string).collect::<String>();
        let unused = ('\u{F0000}'..='\u{FFFFD}')
            .rev()
            .filter(|c| !text.contains(*c));
        let mut unused = unused.map(String::from);
        Self {
            marks: [(); 2].map(|()| unused.next().unwrap_or_default()),
            ..Self::default()
        }
    }

    /// Returns each mark with the texts that replace it in the rendered prompt, in order.
    pub fn replacements(&self) -> impl Iterator<Item = (&str, &[String])> {
        let texts = [&self.openers[..], &self.closers[..]];
        let pairs = self.marks.iter().map(String::as_str).zip(texts);
        pairs.filter(|(_, texts)| !texts.is_empty())
    }
}

/// Rewrites messages for a template with this text.
pub fn adapt_messages(
    template: &str,
    calls: Option<CallFormat>,
    messages: &mut Vec<Value>,
    tools: Option<&[Value]>,
) -> CallMarkers {
    let reads_calls = template.contains("tool_calls");
    let mut markers = match reads_calls {
        true => CallMarkers::default(),
        false => CallMarkers::unused_in(messages),
    };
    for message in messages.iter_mut().filter_map(Value::as_object_mut) {
        if message.get("role").and_then(Value::as_str) != Some("assistant") {
            continue;
        }
        place_reasoning(template, message);
        if !reads_calls {
            write_calls(calls, message, &mut markers);
        }
    }
    let takes_one = [
        "only supports single tool-calls at once",
        "max 1 tool call per message",
        // GigaChat renders the first call only.
        "render_function_call(message.tool_calls[0])",
        "set function_call = message.tool_calls[0]",
    ];
    if takes_one.iter().any(|text| template.contains(text)) {
        split_calls(messages);
    }
    if let Some(tools) = tools.filter(|tools| !tools.is_empty())
        && template.contains("'tools' in message")
    {
        tools_in_system_message(messages, tools);
    }
    markers
}

/// Writes arguments of calls as JSON text, for templates that join them to text.
pub fn stringify_arguments(messages: &mut [Value]) -> bool {
    let calls = messages
        .iter_mut()
        .filter_map(|message| message.get_mut("tool_calls")?.as_array_mut())
        .flatten();
    let mut changed = false;
    for arguments in calls.filter_map(|call| call.pointer_mut("/function/arguments")) {
        if !arguments.is_string() {
            *arguments = Value::String(arguments.to_string());
            changed = true;
        }
    }
    changed
}

/// Gives the reasoning of a message the name that the template reads, or drops it.
fn place_reasoning(template: &str, message: &mut Map<String, Value>) {
    let fields = REASONING_FIELDS.map(|name| message.shift_remove(name));
    let reasoning = fields
        .into_iter()
        .flatten()
        .find_map(|value| value.as_str().map(str::to_owned));
    let Some(reasoning) = reasoning.filter(|text| !text.is_empty()) else {
        return;
    };
    let splits = ["split('</think>'", "split(\"</think>\""];
    let thinking = ["message.thinking", "\"thinking\" in message"];
    if template.contains("reasoning_content") {
        message.insert("reasoning_content".into(), reasoning.into());
    } else if template.contains("message.reasoning") {
        message.insert("reasoning".into(), reasoning.into());
    } else if thinking.iter().any(|text| template.contains(text)) {
        message.insert("thinking".into(), reasoning.into());
        // GPT-OSS refuses both together with calls.
        if template.contains("Cannot pass both content and thinking")
            && message.contains_key("tool_calls")
        {
            message.insert("content".into(), "".into());
        }
    } else if template.contains("block['thinking']") {
        let mut blocks = vec![json!({ "type": "thinking", "thinking": reasoning })];
        match message.get("content") {
            Some(Value::String(text)) if !text.is_empty() => {
                blocks.push(json!({ "type": "text", "text": text }));
            }
            Some(Value::Array(parts)) => blocks.extend(parts.iter().cloned()),
            _ => {}
        }
        message.insert("content".into(), blocks.into());
    } else if splits.iter().any(|text| template.contains(text))
        && let Some(Value::String(content)) = message.get_mut("content")
    {
        // The template itself finds the reasoning in the content.
        *content = format!("<think>\n{reasoning}\n</think>\n\n{content}");
    }
}

/// Appends calls to the content of a message, in the family's format.
fn write_calls(
    format: Option<CallFormat>,
    message: &mut Map<String, Value>,
    markers: &mut CallMarkers,
) {
    let Some(calls) = message.get("tool_calls").and_then(Value::as_array) else {
        return;
    };
    let functions: Vec<&Value> = calls
        .iter()
        .filter_map(|call| call.get("function"))
        .collect();
    let Some((opener, body, closer)) = format.and_then(|format| spell(format, &functions)) else {
        return;
    };
    let content = message.get("content").and_then(Value::as_str);
    let [open, close] = &markers.marks;
    let text = format!("{}{open}{body}{close}", content.unwrap_or_default());
    markers.openers.push(opener.to_owned());
    markers.closers.push(closer.to_owned());
    message.insert("content".into(), text.into());
}

/// Spells calls between markers; None for formats whose templates render calls.
fn spell(format: CallFormat, functions: &[&Value]) -> Option<(&'static str, String, &'static str)> {
    let objects = || {
        functions.iter().map(|function| {
            let arguments = arguments_of(function);
            let name = function.get("name").cloned().unwrap_or_default();
            format!("{{\"name\": {name}, \"arguments\": {arguments}}}")
        })
    };
    let list = || format!("[{}]", objects().collect::<Vec<_>>().join(", "));
    Some(match format {
        CallFormat::Hermes => {
            let between = "\n</tool_call>\n<tool_call>\n";
            let body = objects().collect::<Vec<_>>().join(between);
            ("<tool_call>\n", body, "\n</tool_call>")
        }
        CallFormat::Granite => ("<|tool_call|>", list(), ""),
        CallFormat::Phi4 => ("<|tool_call|>", list(), "<|/tool_call|>"),
        CallFormat::Lfm2 => {
            let calls = functions.iter().map(|function| pythonic(function));
            let body = format!("[{}]", calls.collect::<Vec<_>>().join(", "));
            ("<|tool_call_start|>", body, "<|tool_call_end|>")
        }
        _ => return None,
    })
}

/// Arguments as an object, also where they are JSON text.
fn arguments_of(function: &Value) -> Value {
    match function.get("arguments") {
        Some(Value::String(text)) => {
            serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into())
        }
        Some(value) => value.clone(),
        None => json!({}),
    }
}

fn pythonic(function: &Value) -> String {
    let name = function
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let arguments = arguments_of(function);
    let pairs = arguments.as_object().into_iter().flatten();
    let pairs: Vec<String> = pairs
        .map(|(key, value)| format!("{key}={}", python_literal(value)))
        .collect();
    format!("{name}({})", pairs.join(", "))
}

fn python_literal(value: &Value) -> String {
    let join = |items: Vec<String>| items.join(", ");
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Array(items) => format!("[{}]", join(items.iter().map(python_literal).collect())),
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| format!("{}: {}", scan::quoted(key), python_literal(value)));
            format!("{{{}}}", join(fields.collect()))
        }
        Value::String(text) => scan::quoted(text),
        Value::Number(number) => number.to_string(),
    }
}

/// Gives each call a message of its own, followed by its result.
fn split_calls(messages: &mut Vec<Value>) {
    let mut split = Vec::with_capacity(messages.len());
    let mut rest = std::mem::take(messages).into_iter().peekable();
    while let Some(message) = rest.next() {
        let calls = message.get("tool_calls").and_then(Value::as_array).cloned();
        let Some(calls) = calls.filter(|calls| calls.len() > 1) else {
            split.push(message);
            continue;
        };
        let mut results = Vec::new();
        while let Some(result) = rest.next_if(|m| m.get("role") == Some(&json!("tool"))) {
            results.push(result);
        }
        for (position, call) in calls.into_iter().enumerate() {
            let mut part = message.clone();
            if position > 0 {
                part["content"] = "".into();
                REASONING_FIELDS.iter().for_each(|name| {
                    part.as_object_mut()
                        .map(|fields| fields.shift_remove(*name));
                });
            }
            let id = call.get("id").cloned();
            part["tool_calls"] = json!([call]);
            split.push(part);
            let answers =
                |result: &Value| id.is_some() && result.get("tool_call_id") == id.as_ref();
            // Results without ids answer in order.
            let found = results
                .iter()
                .position(answers)
                .or((!results.is_empty()).then_some(0));
            split.extend(found.map(|at| results.remove(at)));
        }
        split.extend(results);
    }
    *messages = split;
}

/// Puts the functions into the system message, where templates of Phi-4 read them.
fn tools_in_system_message(messages: &mut Vec<Value>, tools: &[Value]) {
    let functions: Vec<&Value> = tools
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool))
        .collect();
    let has_system = messages
        .first()
        .is_some_and(|m| m.get("role") == Some(&json!("system")));
    if !has_system {
        let content = "You are a helpful assistant with some tools.";
        messages.insert(0, json!({ "role": "system", "content": content }));
    }
    messages[0]["tools"] = json!(functions).to_string().into();
}
