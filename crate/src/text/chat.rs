//! Chat templates: render a conversation to the model's prompt format, as transformers does.
//! Tokenizing the prompt is the tokenizer's task.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Environment, ErrorKind, Value};
use serde_json::Value as Json;

use super::jinja_python;
use super::local_time::LocalTime;
use super::special_token_guard::{RenderedPrompt, SpecialTokenGuard};
use super::tokenizer::SpecialTokens;
use crate::{Error, Result};

/// Instruction limit of the template engine: stops a hostile template instead of hanging the page.
const MAX_TEMPLATE_STEPS: u64 = 20_000_000;
/// Limit of nested macro calls and blocks, because the stack of a page is small.
const MAX_RECURSION: usize = 120;

/// Marker after the last message, as in transformers; its trailing space shows whether the template
/// trims.
const FINAL_MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Input of a chat template.
#[derive(Debug, Clone, Default)]
pub struct ChatInput {
    /// Messages as in OpenAI's API: objects with `role`, `content`, `tool_calls`, …
    pub messages: Vec<Json>,
    /// Tools as JSON schemas.
    pub tools: Option<Vec<Json>>,
    /// Documents for retrieval-augmented generation.
    pub documents: Option<Vec<Json>>,
    /// Whether the prompt ends with the start of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends with the text of the last message, to be continued.
    pub continue_final_message: bool,
    /// Additional variables, such as `enable_thinking`.
    pub variables: serde_json::Map<String, Json>,
    /// Time for `strftime_now`; the system time if absent.
    pub local_time: Option<LocalTime>,
}

/// The compiled chat templates of a checkpoint.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    names: Vec<String>,
    sources: String,
}

impl ChatTemplate {
    /// Compiles a single template.
    pub fn new(source: &str) -> Result<ChatTemplate> {
        ChatTemplate::named([("default".to_owned(), source.to_owned())])
    }

    /// Compiles named templates. `default` and `tool_use` are selected as in transformers.
    pub fn named(templates: impl IntoIterator<Item = (String, String)>) -> Result<ChatTemplate> {
        let mut environment = environment();
        let mut names = Vec::new();
        let mut sources = String::new();

        for (name, source) in templates {
            sources.push_str(&source);
            let source = generation_blocks(&source.replace("\r\n", "\n").replace('\r', "\n"));
            environment
                .add_template_owned(name.clone(), source)
                .map_err(|e| engine_error(&e))?;
            names.push(name);
        }
        Ok(ChatTemplate {
            environment,
            names,
            sources,
        })
    }

    /// Compiles the templates in a checkpoint's files; `None` if it has none.
    ///
    /// The first of these files counts: chat_template.jinja, chat_template.json, then
    /// tokenizer_config.json, whose `chat_template` is a string or a list of named templates.
    pub fn load(
        chat_template_jinja: Option<&[u8]>,
        chat_template_json: Option<&[u8]>,
        tokenizer_config: Option<&[u8]>,
    ) -> Result<Option<ChatTemplate>> {
        if let Some(bytes) = chat_template_jinja {
            return ChatTemplate::new(
                std::str::from_utf8(bytes)
                    .map_err(|_| template_error("chat_template.jinja is not UTF-8"))?,
            )
            .map(Some);
        }
        for (file, bytes) in [
            ("chat_template.json", chat_template_json),
            ("tokenizer_config.json", tokenizer_config),
        ] {
            let Some(bytes) = bytes else { continue };
            let json: Json = serde_json::from_slice(bytes).map_err(|e| Error::Config {
                file: file.to_owned(),
                reason: format!("is not valid JSON: {e}"),
            })?;
            match json.get("chat_template") {
                None | Some(Json::Null) => {}
                Some(Json::String(source)) => return ChatTemplate::new(source).map(Some),
                Some(list) => return ChatTemplate::named(named_templates(list, file)?).map(Some),
            }
        }
        Ok(None)
    }

    /// Names of the templates.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether message content may be a string: templates of vision models may accept only lists of
    /// parts.
    pub fn accepts_string_content(&self) -> bool {
        !self.sources.contains("content")
            || self.sources.contains("is string")
            || !self.sources.contains("'image'")
    }

    /// Renders a conversation. `special_spellings` are those of the tokenizer. The prompt records
    /// where a message contains one, so that it is encoded as text
    /// ([`super::Tokenizer::special_spellings`], [`super::Tokenizer::encode_prompt`]).
    pub fn render(
        &self,
        input: &ChatInput,
        special_tokens: &SpecialTokens,
        special_spellings: &[String],
    ) -> Result<RenderedPrompt> {
        let has_tools = input.tools.as_ref().is_some_and(|tools| !tools.is_empty());
        let mut messages = input.messages.clone();
        let last = match input.continue_final_message {
            true => Some(self.mark_final(messages.last_mut())?),
            false => None,
        };
        let messages = Json::Array(messages);
        let tools = input.tools.clone().map_or(Json::Null, Json::Array);
        let documents = input.documents.clone().map_or(Json::Null, Json::Array);
        let variables = Json::Object(input.variables.clone());
        let all = [&messages, &tools, &documents, &variables];
        let mut guard = SpecialTokenGuard::new(special_spellings, all, &self.sources);

        let mut context: Vec<(String, Value)> = Vec::new();
        for (name, token) in special_tokens.iter() {
            context.push((name.to_owned(), Value::from(token)));
        }
        context.push((
            "messages".to_owned(),
            jinja_python::value(&guard.protect(&messages)),
        ));
        context.push((
            "tools".to_owned(),
            jinja_python::value(&guard.protect(&tools)),
        ));
        context.push((
            "documents".to_owned(),
            jinja_python::value(&guard.protect(&documents)),
        ));
        context.push((
            "add_generation_prompt".to_owned(),
            Value::from(input.add_generation_prompt),
        ));
        let clock = input.local_time;

        context.push((
            "strftime_now".to_owned(),
            Value::from_function(move |format: &str| {
                clock.unwrap_or_else(LocalTime::now).strftime(format)
            }),
        ));
        for (name, value) in input.variables.iter() {
            context.push((name.clone(), jinja_python::value(&guard.protect(value))));
        }

        let rendered = self.template(has_tools)?.render(Value::from_pairs(context));
        let rendered = rendered.map_err(|e| {
            let mut error = engine_error(&e);
            if let Error::ChatTemplate { reason } = &mut error {
                *reason = guard.reveal(reason).text;
            }
            error
        })?;
        let mut prompt = guard.reveal(&rendered);
        if let Some(text) = last {
            let found = prompt
                .text
                .rfind(FINAL_MARK.trim_end())
                .filter(|_| prompt.text.contains(text.trim()));
            let reason = "the last message cannot be continued: the template drops parts of it";
            let end = found.ok_or_else(|| template_error(reason))?;
            let spaced = prompt.text[end..].starts_with(FINAL_MARK);
            prompt.text.truncate(end);
            if !spaced {
                prompt.text.truncate(prompt.text.trim_end().len());
            }
            let length = prompt.text.len();
            prompt.protected_offsets.retain(|place| *place < length);
        }
        Ok(prompt)
    }

    /// Appends [`FINAL_MARK`] to the text of the last message; returns that text.
    fn mark_final(&self, message: Option<&mut Json>) -> Result<String> {
        let refuse = |reason: &str| {
            template_error(format!("the last message cannot be continued: {reason}"))
        };
        if !self.sources.contains("content") {
            return Err(refuse("the template does not read 'content'"));
        }
        let content = message.and_then(|message| message.get_mut("content"));
        let text = match content {
            Some(Json::Array(parts)) => {
                parts.iter_mut().rev().find_map(|part| part.get_mut("text"))
            }
            content => content,
        };
        let Some(Json::String(text)) = text else {
            return Err(refuse("it has no text"));
        };
        let before = text.clone();
        text.push_str(FINAL_MARK);
        Ok(before)
    }

    fn template(&self, has_tools: bool) -> Result<minijinja::Template<'_, '_>> {
        let has = |name: &str| self.names.iter().any(|n| n == name);
        let name = match self.names.as_slice() {
            [only] => only.as_str(),
            _ if has_tools && has("tool_use") => "tool_use",
            _ if has("default") => "default",
            names => {
                return Err(template_error(format!(
                    "the checkpoint has several templates ({}), but none is named 'default'",
                    names.join(", ")
                )));
            }
        };
        self.environment
            .get_template(name)
            .map_err(|e| engine_error(&e))
    }
}

fn template_error(reason: impl Into<String>) -> Error {
    Error::ChatTemplate {
        reason: reason.into(),
    }
}

/// Reads `[{"name": …, "template": …}, …]` or `{name: template, …}`.
fn named_templates(list: &Json, file: &str) -> Result<Vec<(String, String)>> {
    let text = |value: Option<&Json>| value.and_then(Json::as_str).map(str::to_owned);
    let named: Option<Vec<(String, String)>> = match list {
        Json::Array(items) => items
            .iter()
            .map(|i| Some((text(i.get("name"))?, text(i.get("template"))?)))
            .collect(),
        Json::Object(fields) => fields
            .iter()
            .map(|(name, t)| Some((name.clone(), text(Some(t))?)))
            .collect(),
        _ => None,
    };
    named
        .filter(|templates| !templates.is_empty())
        .ok_or_else(|| Error::Config {
            file: file.to_owned(),
            reason: "chat_template must be a string or a list of named templates".to_owned(),
        })
}

/// Formats an error of the template engine in one line: message, cause and template line.
fn engine_error(error: &minijinja::Error) -> Error {
    let mut reason = match error.kind() {
        // Exceptions raised by the template are reported verbatim.
        ErrorKind::InvalidOperation => error.detail().unwrap_or("invalid operation").to_owned(),
        kind => error
            .detail()
            .map_or_else(|| kind.to_string(), |detail| format!("{kind}: {detail}")),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        let _ = write!(reason, " ({error})");
        cause = error.source();
    }
    if let Some(line) = error.line() {
        let _ = write!(reason, " (line {line} of the template)");
    }
    template_error(reason)
}

/// Creates a Jinja environment with the settings of transformers.
fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    if let Ok(syntax) = env
        .syntax()
        .to_builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build()
    {
        env.set_syntax(syntax);
    }
    env.set_recursion_limit(MAX_RECURSION);
    env.set_fuel(Some(MAX_TEMPLATE_STEPS));
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(jinja_python::method);
    env.set_formatter(|out, _, value| {
        if value.kind() == ValueKind::Number && !value.is_integer() {
            let number = jinja_python::number(f64::try_from(value.clone())?);
            return out.write_str(&number).map_err(minijinja::Error::from);
        }
        write!(out, "{value}").map_err(minijinja::Error::from)
    });
    env.add_filter("tojson", jinja_python::tojson);
    env.add_filter("indent", jinja_python::indent);
    env.add_filter("trim", jinja_python::trim);
    env.add_filter("length", jinja_python::length);
    env.add_filter("count", jinja_python::length);
    env.add_filter("string", |value: &Value| value.to_string());
    env.add_filter("safe", |value: &Value| value.to_string());
    env.add_test("sequence", jinja_python::is_sequence);
    env.add_test("iterable", jinja_python::is_iterable);
    env.add_function(
        "raise_exception",
        |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
        },
    );
    env
}

/// Replaces `{% generation %}`, which marks the assistant's tokens for training, by a plain scope.
fn generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        let body = tag.trim_start_matches(['-', '+']);
        let (sign, inner) = tag.split_at(tag.len() - body.len());
        let word = inner.trim_start();
        let replaced = [("generation", "with"), ("endgeneration", "endwith")]
            .into_iter()
            .find_map(|(from, to)| {
                let after = word.strip_prefix(from)?;
                let end = after.trim_start();
                let closes =
                    end.starts_with("%}") || end.starts_with("-%}") || end.starts_with("+%}");
                closes.then(|| (format!("{sign} {to}"), after))
            });
        match replaced {
            Some((tag, after)) => {
                out.push_str(&tag);
                rest = after;
            }
            None => rest = tag,
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(source: &str, variables: &Json) -> Result<String> {
        let input = ChatInput {
            variables: variables.as_object().cloned().unwrap_or_default(),
            ..ChatInput::default()
        };
        Ok(ChatTemplate::new(source)?
            .render(&input, &SpecialTokens::default(), &[])?
            .text)
    }

    fn shows(source: &str, want: &str) {
        let variables = json!({"d": {"b": 1, "a": [true, null, 1.5, "x'y"], "items": {"k": 2}}, "s": " a b ", "n": null, "big": 1e20});
        assert_eq!(render(source, &variables).expect(source), want, "{source}");
    }

    #[test]
    fn python_values() {
        shows(
            "{{ d }}",
            "{'b': 1, 'a': [True, None, 1.5, \"x'y\"], 'items': {'k': 2}}",
        );
        shows(
            "{{ n }}|{{ none ~ true }}|{{ undefined_name }}|{{ 1.0 }}|{{ big }}",
            "None|NoneTrue||1.0|1e+20",
        );
        shows(
            "{{ d | tojson }}",
            r#"{"b": 1, "a": [true, null, 1.5, "x'y"], "items": {"k": 2}}"#,
        );
        shows("{{ d['items'] | tojson(indent=2) }}", "{\n  \"k\": 2\n}");
        shows(
            "{{ d | tojson(separators=(',', ':'), sort_keys=true) }}",
            r#"{"a":[true,null,1.5,"x'y"],"b":1,"items":{"k":2}}"#,
        );
        shows(
            "{{ 'h\u{e9}\u{1f600}<' | tojson }}{{ '\u{e9}\u{1f600}' | tojson(ensure_ascii=true) }}",
            "\"h\u{e9}\u{1f600}<\"\"\\u00e9\\ud83d\\ude00\"",
        );
        shows(
            "{% for k, v in d.items() %}{{ k }},{% endfor %}",
            "b,a,items,",
        );
        shows(
            "{{ s.strip() }}|{{ s.split() | tojson }}|{{ 'a-b-c'.rsplit('-', 1) | tojson }}|{{ 'abc'[::-1] }}|{{ 'abc'[-2:] }}",
            "a b|[\"a\", \"b\"]|[\"a-b\", \"c\"]|cba|bc",
        );
        shows(
            "{{ '{\n' | indent(2, first=true) }}|{{ 'a\n\nb' | indent(1) }}|{{ 'a\r\nb\n'.splitlines() | tojson }}",
            "  {\n|a\n\n b|[\"a\", \"b\"]",
        );
        shows(
            "{{ d.get('zz', 'no') }}{{ d.get('zz') }}{{ 'x' if n else 'y' }}{{ 'x' is sequence }}{{ d is iterable }}",
            "noNoneyTrueTrue",
        );
    }

    #[test]
    fn blocks() {
        shows(
            "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "013",
        );
        shows(
            "  {% set ns = namespace(x=1) %}\n  {% for i in range(3) %}\n    {% set ns.x = ns.x + i %}\n  {% endfor %}\n{{ ns.x }}\n",
            "4",
        );
        shows("a{%- generation -%} b {%- endgeneration %} c", "ab c");
        shows("{% generation %}\nx\n{% endgeneration %}\ny", "x\ny");
        shows(
            "{% macro m(a, b='q') %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(1, b=2) }}",
            "1q12",
        );
    }

    #[test]
    fn errors_have_the_message_and_the_line() {
        let error = render(
            "a\nb {{ raise_exception('Roles must alternate') }}",
            &Json::Null,
        )
        .expect_err("raised");
        assert_eq!(
            error.to_string(),
            "the chat template failed: Roles must alternate (line 2 of the template)"
        );
        for broken in [
            "{% if %}",
            "{{ 'a' + 1 }}",
            "{{ x.y.z }}",
            "{{ [1].append(2) }}",
            "{{ nofunction() }}",
            "{% for i in range(100000) %}{% for j in range(100000) %}{{ i }}{% endfor %}{% endfor %}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        ] {
            let error = render(broken, &Json::Null).expect_err(broken);
            assert!(
                matches!(error, Error::ChatTemplate { .. }),
                "{broken}: {error}"
            );
            assert!(error.to_string().contains("line 1"), "{broken}: {error}");
        }
    }

    #[test]
    fn files() {
        let config =
            br#"{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}"#;
        let template = ChatTemplate::load(None, None, Some(config))
            .expect("readable")
            .expect("there");
        let mut input = ChatInput::default();
        let text = |input: &ChatInput| {
            template
                .render(input, &SpecialTokens::default(), &[])
                .expect("renders")
                .text
        };
        assert_eq!(text(&input), "D");
        input.tools = Some(vec![json!({})]);
        assert_eq!(text(&input), "T");
        let sidecar = ChatTemplate::load(Some(b"S"), None, Some(config))
            .expect("readable")
            .expect("there");
        assert_eq!(
            sidecar
                .render(&input, &SpecialTokens::default(), &[])
                .expect("renders")
                .text,
            "S"
        );
        assert!(
            ChatTemplate::load(None, None, Some(b"{}"))
                .expect("readable")
                .is_none()
        );
        assert!(ChatTemplate::load(None, None, Some(b"{")).is_err());
        assert!(ChatTemplate::load(None, None, Some(br#"{"chat_template": 3}"#)).is_err());
        assert!(ChatTemplate::load(Some(b"\xff"), None, None).is_err());
    }
}
