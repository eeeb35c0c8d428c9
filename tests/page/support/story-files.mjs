/** The bundled story model with a chat template, for clients that chat. */

/** Renders texts, tools and calls, in Hermes's form. */
export const TEMPLATE = `{%- for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}</tool_call>{% endfor %} {% endfor %}
{%- if tools %}{{ tools[0].function.name }} {% endif %}Once upon a time`;

/** In the page: the model's files at /model/, with the template. */
export async function storyFiles(template) {
  const names = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"];
  const files = await Promise.all(names.map(async (name) => new File([await (await fetch(`/model/${name}`)).blob()], name)));
  return [...files, new File([template], "chat_template.jinja")];
}

/** In the page: all values of an iterable. */
export async function collect(iterable) {
  const all = [];
  for await (const each of iterable) all.push(each);
  return all;
}
