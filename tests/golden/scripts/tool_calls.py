"""Records tool calls as the families' published chat templates write them: tests/golden/chat/tool_calls.json.gz.

usage: tool_calls.py FOLDER

FOLDER holds NAME.jinja files, such as models/templates of llama.cpp. Each template renders conversations that end with
an assistant's message; the text behind the generation prompt is what the model writes. Needs transformers.
"""

import gzip
import json
import re
import sys
from pathlib import Path

from transformers.utils.chat_template_utils import _compile_jinja_template

# Template, the format it is recognized as, what ends a message.
TEMPLATES = {
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": ("hermes", ["<|im_end|>"]),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", ["<|im_end|>"]),
    "Qwen-Qwen3-0.6B": ("hermes", ["<|im_end|>"]),
    "ibm-granite-granite-4.0": ("hermes", ["<|end_of_text|>"]),
    "Qwen3-Coder": ("function-xml", ["<|im_end|>"]),
    "Qwen3.5-4B": ("function-xml", ["<|im_end|>"]),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("function-xml", ["<|im_end|>"]),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama", ["<|eot_id|>", "<|eom_id|>"]),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama", ["<|eot_id|>", "<|eom_id|>"]),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", ["</s>"]),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", ["</s>"]),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", ["</s>"]),
    "LFM2.5-8B-A1B": ("lfm2", ["<|im_end|>"]),
    "openai-gpt-oss-120b": ("harmony", ["<|call|>", "<|return|>"]),
    "google-gemma-4-31B-it": ("gemma4", ["<turn|>", "<|tool_response>"]),
    "GLM-4.6": ("glm", ["<|observation|>", "<|user|>"]),
    "GLM-4.7-Flash": ("glm", ["<|observation|>", "<|user|>"]),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek", ["<｜end▁of▁sentence｜>"]),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek", ["<｜end▁of▁sentence｜>"]),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("command-r7b", ["<|END_OF_TURN_TOKEN|>"]),
    "moonshotai-Kimi-K2": ("kimi-k2", ["<|im_end|>"]),
    "NVIDIA-Nemotron-Nano-v2": ("nemotron", ["\n<SPECIAL_12>", "<SPECIAL_12>"]),
    "StepFun3.5-Flash": ("function-xml", ["<|im_end|>"]),
    "Bielik-11B-v3.0-Instruct": ("hermes", ["<|im_end|>"]),
    "Reka-Edge": ("hermes", ["<sep>"]),
    "unsloth-Apriel-1.5": ("tool-calls", ["\n<|end|>"]),
    "Apriel-1.6-15b-Thinker-fixed": ("tool-calls", ["\n<|end|>"]),
    "ByteDance-Seed-OSS": ("seed-oss", ["<seed:eos>"]),
    "MiniMax-M2": ("minimax-m2", ["[e~["]),
    "deepseek-ai-DeepSeek-V3.2": ("deepseek-v3.2", ["<｜end▁of▁sentence｜>"]),
    "deepseek-ai-DeepSeek-V4": ("deepseek-v4", ["<｜end▁of▁sentence｜>"]),
    "meetkai-functionary-medium-v3.2": ("functionary", ["<|eot_id|>"]),
    "fireworks-ai-llama-3-firefunction-v2": ("firefunction", ["<|eot_id|>"]),
    "GigaChat3-10B-A1.8B": ("gigachat", []),
    "GigaChat3.1-10B-A1.8B": ("gigachat", []),
}


# What opens an answer where the prompt does not.
OPENERS = ["<SPECIAL_11>Assistant\n", "<|turn>model\n", "<｜Assistant｜>", "\n<|begin_assistant|>\n", "]~b]ai\n", "<|start_header_id|>assistant<|end_header_id|>\n\n>>>"]


def function(name, properties):
    parameters = {"type": "object", "properties": properties, "required": [], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


# As in tests/chat/main.rs.
TOOLS = [
    function("weather", {"city": {"type": "string", "description": "c"}, "days": {"type": "integer", "description": "d"}, "metric": {"type": "boolean", "description": "m"}}),
    function("search", {"query": {"type": "string", "description": "q"}, "limit": {"type": "integer", "description": "l"}, "score": {"type": "number", "description": "s"}, "tags": {"type": "array", "items": {"type": "string"}, "description": "t"}, "filter": {"type": "object", "description": "f"}}),
    function("now", {}),
    function("python", {"code": {"type": "string", "description": "c"}}),
]

# The content before the calls, and the calls.
ANSWERS = [
    ("", [("weather", {"city": "Oslo"})]),
    ("", [("now", {})]),
    ("", [("weather", {"city": "Oslo", "days": 3, "metric": True})]),
    ("", [("search", {"query": "a \"quoted\" text, with {braces} and [brackets]"})]),
    ("", [("search", {"query": "x", "tags": ["a", "b c"], "score": 1.5})]),
    ("", [("search", {"query": "x", "filter": {"kind": "k", "deep": {"list": [1, True, None]}}})]),
    ("", [("python", {"code": "def f(x):\n    return x < 3 and x > 1\n\nprint(f(2), 'a', \"b\")"})]),
    ("", [("search", {"query": "größer 🚀 \\ / \t", "limit": -4})]),
    ("", [("weather", {"city": "Oslo"}), ("weather", {"city": "Bergen", "days": 0})]),
    ("", [("now", {}), ("search", {"query": "", "tags": []}), ("now", {})]),
    ("I look it up.", [("weather", {"city": "Oslo"})]),
    ("I look it up.", [("now", {}), ("weather", {"city": "São Paulo", "metric": False})]),
]


def words(source):
    """The words by which a template's format and its variants are recognized."""
    found = re.findall(r"<[^<>\s'\"]{2,40}>|\[[A-Z_]{3,}\]|<function=|｜DSML｜|(?:function|tool)_calls>|>>>\$\{recipient\}|functools\[|function call|<\|\\?\"\|>|\"parameters\": dictionary of argument name and its value", source)
    return sorted(set(found))


def render(template, messages, prompt):
    return template.render(messages=messages, tools=TOOLS, add_generation_prompt=prompt, bos_token="", eos_token="", enable_thinking=False, functions="", datetime="")


def recorded(template, ends, content, calls):
    user = {"role": "user", "content": "?"}
    fault = "the answer does not follow the prompt"
    arguments = lambda style, given: json.dumps(given, ensure_ascii=False) if style == "text" else given
    for style in ("object", "text"):
        tool_calls = [
            {"id": f"abcdefgh{at}", "type": "function", "function": {"name": name, "arguments": arguments(style, given)}}
            for at, (name, given) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": content, "tool_calls": tool_calls}
        try:
            before = render(template, [user], True)
            whole = render(template, [user, message], False)
            if not whole.startswith(before):
                before = render(template, [user], False)
            if not whole.startswith(before):
                continue
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
            continue
        text = whole[len(before):]
        for opener in OPENERS:
            text = text.removeprefix(opener)
        cut = min((at for at in (text.find(end) for end in ends) if at >= 0), default=len(text))
        return text[:cut]
    print("   ", fault)
    return None


def main():
    folder = Path(sys.argv[1])
    out = []
    for name, (format, ends) in TEMPLATES.items():
        path = folder / f"{name}.jinja"
        source = path.read_text() if path.exists() else print("missing", name)
        if not source:
            continue
        template = _compile_jinja_template(source)
        cases = []
        for content, calls in ANSWERS:
            text = recorded(template, ends, content, calls)
            # Some templates write one call or no content, or do not escape quotes.
            is_quoted = format == "lfm2" and any("'" in given.get("code", "") for _, given in calls)
            if text is None or is_quoted or any(text.count(called) < [name for name, _ in calls].count(called) for called, _ in calls):
                continue
            written = content if content in text else ""
            parts = {"reasoning": written} if format == "harmony" else {"content": written}
            cases.append({"text": text, "calls": [list(call) for call in calls], **{key: part for key, part in parts.items() if part}})
        print(f"{name}: {len(cases)}")
        out.append({"template": name, "format": format, "words": words(source), "cases": cases})
    target = Path(__file__).parents[1] / "chat" / "tool_calls.json.gz"
    target.parent.mkdir(exist_ok=True)
    data = json.dumps(out, ensure_ascii=False, separators=(",", ":")).encode()
    with open(target, "wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as packed:
        packed.write(data)
    print(target, target.stat().st_size)


if __name__ == "__main__":
    main()
