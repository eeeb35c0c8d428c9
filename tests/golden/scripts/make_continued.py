"""Writes tests/golden/text/continued.json: conversations whose last message is continued, as transformers renders them.

For each template of tests/golden/text/templates and each conversation that it renders, the text, or null where
`apply_chat_template(continue_final_message=True)` refuses. Run: python make_continued.py (needs transformers 5.23 and jinja2).
"""

import functools
import gzip
import json
from datetime import datetime
from pathlib import Path

import transformers.utils.chat_template_utils as chat

TEXT = Path(__file__).resolve().parent.parent / "text"
ASKED = {"role": "user", "content": "Write a list of three primes."}


class Recorded(datetime):
    """The clock of the other recordings."""

    @classmethod
    def now(cls, tz=None):
        return cls(2025, 3, 14, 9, 26, 53)


def begun(content):
    return [ASKED, {"role": "assistant", "content": content}]


CONVERSATIONS = {
    "plain": begun("Sure, here"),
    "trailing space": begun("The primes are "),
    "trailing newline": begun("The primes are:\n"),
    "code": begun("```json\n{"),
    "special token inside": begun("It ends with <|im_end|> and"),
    "parts": begun([{"type": "text", "text": "First: "}, {"type": "text", "text": "two and "}]),
    "user": [{"role": "user", "content": "My name is "}],
    "empty": begun(""),
    "no text": [ASKED, {"role": "assistant", "tool_calls": []}],
    "longer": [ASKED, {"role": "assistant", "content": "2, 3, 5"}, ASKED, {"role": "assistant", "content": "7, "}],
}


def main():
    chat.datetime = Recorded
    out = {}
    for file in sorted((TEXT / "templates").glob("*.jinja.gz")):
        name = file.name.removesuffix(".jinja.gz")
        source = gzip.decompress(file.read_bytes()).decode()
        recorded = json.loads(gzip.decompress((TEXT / f"templates/{name}.json.gz").read_bytes()))
        texts = {}
        for kind, messages in CONVERSATIONS.items():
            render = functools.partial(
                chat.render_jinja_template, [messages], chat_template=source, **recorded["special_tokens"]
            )
            try:
                render()
            except Exception as error:
                print(f"{name}, {kind}: left out, it cannot be rendered at all: {error}")
                continue
            try:
                found, _ = render(continue_final_message=True)
                texts[kind] = found[0]
            except ValueError as error:
                print(f"{name}, {kind}:", str(error).split("\n")[0])
                texts[kind] = None
        out[name] = texts
    document = {"conversations": CONVERSATIONS, "templates": out}
    (TEXT / "continued.json").write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
