//! Chat templates: render a conversation to the model's prompt format, as transformers does.
//! Tokenizing the prompt is the tokenizer's task.

use serde_json::Value as Json;

use super::jinja::{self, TemplateFault, Variable};
use super::local_time::LocalTime;
use super::special_token_guard::{RenderedPrompt, SpecialTokenGuard};
use super::tokenizer::SpecialTokens;
use crate::util::limits::MAX_VALUE_NESTING;
use crate::{Error, Result};

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
    templates: Vec<jinja::Template>,
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
        let mut compiled = Vec::new();
        let mut names = Vec::new();
        let mut sources = String::new();

        for (name, source) in templates {
            sources.push_str(&source);
            let source = source.replace("\r\n", "\n").replace('\r', "\n");
            compiled.push(jinja::compile(&source).map_err(template_fault)?);
            names.push(name);
        }
        Ok(ChatTemplate {
            templates: compiled,
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

    /// Text of all templates, which shows what a model's format is.
    pub fn source(&self) -> &str {
        &self.sources
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
        input.check_nesting()?;
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

        let [messages, tools, documents] =
            [messages, tools, documents].map(|value| guard.protect(&value));
        let prompted = Json::Bool(input.add_generation_prompt);
        // FireFunction's names of the tools and the time.
        let own_names = self.sources.contains("functools[").then(|| {
            let functions = input.tools.iter().flatten();
            let functions = functions.map(|tool| tool.get("function").unwrap_or(tool));
            let functions = Json::from_iter(functions.cloned()).to_string();
            let now = input.local_time.unwrap_or_else(LocalTime::now);
            (
                guard.protect(&functions.into()),
                now.strftime("%b %d %Y %H:%M:%S"),
            )
        });
        let own: Vec<(&String, Json)> = input
            .variables
            .iter()
            .map(|(name, value)| (name, guard.protect(value)))
            .collect();

        // The first of a name counts: the caller's variables come before special tokens.
        let mut context: Vec<(&str, Variable)> = Vec::new();
        for (name, value) in &own {
            context.push((name, Variable::Json(value)));
        }
        if let Some((functions, now)) = &own_names {
            context.push(("functions", Variable::Json(functions)));
            context.push(("datetime", Variable::Text(now)));
        }
        context.push(("messages", Variable::Json(&messages)));
        context.push(("tools", Variable::Json(&tools)));
        context.push(("documents", Variable::Json(&documents)));
        context.push(("add_generation_prompt", Variable::Json(&prompted)));
        for (name, token) in special_tokens.iter() {
            context.push((name, Variable::Text(token)));
        }

        let template = self.template(has_tools)?;
        let rendered = jinja::render(template, &context, input.local_time).map_err(|mut e| {
            e.reason = guard.reveal(&e.reason).text;
            template_fault(e)
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

    fn template(&self, has_tools: bool) -> Result<&jinja::Template> {
        if let [only] = self.templates.as_slice() {
            return Ok(only);
        }
        // Of two templates of a name the last one counts.
        let named = |name: &str| {
            let at = self.names.iter().rposition(|own| own == name)?;
            self.templates.get(at)
        };
        let tool_use = named("tool_use").filter(|_| has_tools);
        tool_use.or_else(|| named("default")).ok_or_else(|| {
            template_error(format!(
                "the checkpoint has several templates ({}), but none is named 'default'",
                self.names.join(", ")
            ))
        })
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

/// Formats a fault of a template in one line: the reason, then the line.
fn template_fault(fault: TemplateFault) -> Error {
    let TemplateFault { reason, line } = fault;
    template_error(format!("{reason} (line {line} of the template)"))
}

impl ChatInput {
    /// Refuses values that nest too deep to be converted or compared.
    fn check_nesting(&self) -> Result<()> {
        let lists = [
            ("messages", Some(&self.messages)),
            ("tools", self.tools.as_ref()),
            ("documents", self.documents.as_ref()),
        ];
        for (name, list) in lists {
            if list.is_some_and(|list| list.iter().any(is_too_deep)) {
                return Err(too_deep(name));
            }
        }
        match self.variables.iter().find(|(_, value)| is_too_deep(value)) {
            Some((name, _)) => Err(too_deep(name)),
            None => Ok(()),
        }
    }
}

fn too_deep(name: &str) -> Error {
    Error::Request {
        parameter: name.to_owned(),
        reason: format!("has more than {MAX_VALUE_NESTING} nested lists and objects"),
    }
}

/// Whether a value nests deeper than templates accept, found without recursion.
fn is_too_deep(value: &Json) -> bool {
    let mut open = vec![(value, 1)];
    while let Some((value, depth)) = open.pop() {
        // The list of messages is a level of its own.
        if depth >= MAX_VALUE_NESTING {
            return true;
        }
        match value {
            Json::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Json::Object(fields) => open.extend(fields.values().map(|field| (field, depth + 1))),
            _ => {}
        }
    }
    false
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
