"""OpenAI's Python client against `jerboa serve`: openai-python.test.mjs starts the server and runs this.

usage: openai_client.py URL KEY CHAT_MODEL EMBEDDING_MODEL"""
import asyncio
import json
import sys
import unittest
from typing import Literal

import openai
from pydantic import BaseModel, Field

URL, KEY, CHAT, EMBEDDING = sys.argv[1:5]
MESSAGES = [{"role": "user", "content": "A cat."}]
SHORT = {"max_tokens": 8, "temperature": 0}
# Software adapters are slow.
OPTIONS = {"base_url": URL, "max_retries": 0, "timeout": 600}
client = openai.OpenAI(api_key=KEY, **OPTIONS)


class Pet(BaseModel):
    kind: Literal["cat", "dog"]
    legs: int = Field(ge=1, le=4)


class Weather(BaseModel):
    """Returns the weather of a city."""

    city: Literal["Oslo", "Rome"]


class ServerTest(unittest.TestCase):
    def test_models(self):
        self.assertEqual([model.id for model in client.models.list()], [CHAT, EMBEDDING])
        self.assertEqual(client.models.retrieve(CHAT).id, CHAT)

    def test_chat(self):
        whole = client.chat.completions.create(model=CHAT, messages=MESSAGES, **SHORT)
        text = whole.choices[0].message.content
        self.assertTrue(text)
        self.assertEqual((whole.choices[0].finish_reason, whole.usage.completion_tokens), ("length", 8))
        chunks = list(
            client.chat.completions.create(
                model=CHAT, messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **SHORT
            )
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
        self.assertEqual("".join(pieces), text)
        self.assertGreater(len(pieces), 3)
        self.assertEqual(chunks[-1].usage.completion_tokens, 8)
        with client.chat.completions.stream(model=CHAT, messages=MESSAGES, **SHORT) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
            self.assertEqual("".join(deltas), text)
            # The client's own error for an answer that the limit cut.
            with self.assertRaises(openai.LengthFinishReasonError) as cut:
                stream.get_final_completion()
            self.assertEqual(cut.exception.completion.choices[0].message.content, text)

    def test_a_closed_stream_frees_the_model(self):
        stream = client.chat.completions.create(model=CHAT, messages=MESSAGES, stream=True, max_tokens=400)
        next(iter(stream))
        stream.close()
        self.assertTrue(client.chat.completions.create(model=CHAT, messages=MESSAGES, **SHORT).choices[0].message.content)

    def test_tools(self):
        options = {
            "model": CHAT,
            "messages": MESSAGES,
            "tools": [openai.pydantic_function_tool(Weather)],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "max_tokens": 120,
            "temperature": 0,
        }
        choice = client.chat.completions.create(**options).choices[0]
        (call,) = choice.message.tool_calls
        self.assertEqual((choice.finish_reason, call.function.name), ("tool_calls", "Weather"))
        self.assertIn(json.loads(call.function.arguments)["city"], ("Oslo", "Rome"))
        (parsed,) = client.chat.completions.parse(**options).choices[0].message.tool_calls
        self.assertEqual(parsed.function.parsed_arguments, Weather(**json.loads(call.function.arguments)))
        streamed = [chunk.choices[0].delta.tool_calls for chunk in client.chat.completions.create(**options, stream=True) if chunk.choices]
        functions = [each.function for calls in streamed if calls for each in calls]
        self.assertEqual("".join(function.name or "" for function in functions), "Weather")
        self.assertEqual("".join(function.arguments or "" for function in functions), call.function.arguments)
        result = [*MESSAGES, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "7 degrees"}]
        self.assertTrue(client.chat.completions.create(model=CHAT, messages=result, **SHORT).choices[0].message.content)

    def test_structured_output(self):
        options = {"model": CHAT, "messages": MESSAGES, "max_tokens": 120, "temperature": 0}
        choice = client.chat.completions.parse(**options, response_format=Pet).choices[0]
        self.assertIsInstance(choice.message.parsed, Pet)
        self.assertEqual(choice.finish_reason, "stop")
        with client.chat.completions.stream(**options, response_format=Pet) as stream:
            self.assertEqual(stream.get_final_completion().choices[0].message.parsed, choice.message.parsed)

    def test_completions(self):
        options = {"model": CHAT, "prompt": "Once upon a time", **SHORT}
        whole = client.completions.create(**options)
        streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True) if chunk.choices)
        self.assertTrue(whole.choices[0].text)
        self.assertEqual((streamed, whole.usage.completion_tokens), (whole.choices[0].text, 8))

    def test_responses(self):
        options = {"model": CHAT, "input": "A cat.", "max_output_tokens": 8, "temperature": 0}
        whole = client.responses.create(**options)
        self.assertTrue(whole.output_text)
        self.assertEqual(client.responses.retrieve(whole.id).output_text, whole.output_text)
        events = list(client.responses.create(**options, stream=True))
        self.assertEqual("".join(event.delta for event in events if event.type == "response.output_text.delta"), whole.output_text)
        self.assertEqual((events[0].type, events[-1].type), ("response.created", "response.incomplete"))
        after = client.responses.create(**{**options, "input": "A dog."}, previous_response_id=whole.id)
        self.assertGreater(after.usage.input_tokens, whole.usage.input_tokens)
        parsed = client.responses.parse(model=CHAT, input="A pet.", text_format=Pet, max_output_tokens=120, temperature=0)
        self.assertIsInstance(parsed.output_parsed, Pet)

    def test_embeddings(self):
        texts = ["one", "two"]
        # The client asks for base64 by default.
        packed = client.embeddings.create(model=EMBEDDING, input=texts).data
        plain = client.embeddings.create(model=EMBEDDING, input=texts, encoding_format="float").data
        self.assertEqual([len(each.embedding) for each in packed], [56, 56])
        self.assertEqual([each.embedding for each in packed], [each.embedding for each in plain])
        self.assertNotEqual(packed[0].embedding, packed[1].embedding)

    def test_errors(self):
        def error(kind, **changes):
            with self.assertRaises(kind) as caught:
                client.chat.completions.create(**{"model": CHAT, "messages": MESSAGES, **SHORT, **changes})
            self.assertIsInstance(caught.exception, openai.APIStatusError)
            return caught.exception

        unknown = error(openai.NotFoundError, model="other")
        self.assertEqual((unknown.status_code, unknown.code, unknown.body["jerboa_code"]), (404, "model_not_found", "model_name"))
        self.assertTrue(unknown.request_id.startswith("req_"))
        self.assertIn("other", unknown.message)
        wrong = error(openai.BadRequestError, temperature=-1)
        self.assertEqual((wrong.status_code, wrong.code, wrong.type), (400, "request", "invalid_request_error"))
        self.assertIn("temperature", wrong.message)
        format = error(openai.BadRequestError, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "purple"}}})
        self.assertIn("purple", format.message)
        vectors = error(openai.BadRequestError, model=EMBEDDING)
        self.assertTrue(vectors.message)
        with self.assertRaises(openai.AuthenticationError) as caught:
            openai.OpenAI(api_key="guess", **OPTIONS).models.list()
        refused = caught.exception
        self.assertEqual((refused.status_code, refused.code, refused.type), (401, "invalid_api_key", "invalid_request_error"))
        self.assertTrue(refused.request_id.startswith("req_"))

    def test_asyncio(self):
        async def answer():
            async with openai.AsyncOpenAI(api_key=KEY, **OPTIONS) as remote:
                stream = await remote.chat.completions.create(model=CHAT, messages=MESSAGES, stream=True, **SHORT)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

        whole = client.chat.completions.create(model=CHAT, messages=MESSAGES, **SHORT)
        self.assertEqual(asyncio.run(answer()), whole.choices[0].message.content)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
