"""The official Python SDKs against real llama.cpp, and against a scripted model where an answer needs sense."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from swapd.llama import demo
from tests.integration.swapd_process import Swapd, in_background

BINARY = os.environ.get("LLAMA_SERVER_BIN", "")
MODEL = demo.demo_model_path()
SCRIPT = Path(__file__).parent / "clients" / "scripted_model.py"
IDS = ["coder", "embed", "scripted"]
COLD = {"temperature": 0}
HI: Any = [{"role": "user", "content": "Say hi."}]
LONG = "word " * 6000
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
BASH = {"name": "bash", "description": "Runs a command", "parameters": SCHEMA}


def world(folder: Path, binary: str) -> Swapd:
    """Two real models and a scripted one; one thread each, for several wait for each other where cores are shared."""
    own = {"gguf": str(MODEL), "binary": "real" if binary else "", "vram": "auto", "gpus": []}
    models = {
        "coder": {**own, "args": "--parallel 1 --threads 1", "ctx": 4096, "aliases": ["claude-coder"]},
        "embed": {**own, "args": "--embeddings --pooling mean --threads 1", "ctx": 512},
        "scripted": {"gguf": "", "cmd": [sys.executable, str(SCRIPT), "--port", "${PORT}"], "gpus": [], "takes": 0,
                     "vram": "auto", "knobs": {"STEPS": 1}},
    }  # fmt: skip
    extra = f'[binaries.real]\npath = "{binary}"\n' if binary else ""
    return Swapd(folder, models, gpus=(), devices={"source": "none"}, extra=extra)


NO_DEMO = demo.what_is_missing()
NO_BINARY = "" if BINARY and MODEL else "LLAMA_SERVER_BIN names no llama-server, or there is no model"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("", id="embedded", marks=pytest.mark.skipif(bool(NO_DEMO), reason=NO_DEMO)),
        pytest.param(
            BINARY,
            id="llama-server",
            marks=[pytest.mark.engine, pytest.mark.skipif(bool(NO_BINARY), reason=NO_BINARY)],
        ),
    ],
)
def swapd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapd]:
    with world(tmp_path_factory.mktemp("sdks"), request.param) as one:
        yield one


@pytest.fixture
def gpt(swapd: Swapd) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{swapd.url}/v1", api_key="any", max_retries=0, timeout=90) as one:
        yield one


@pytest.fixture
def claude(swapd: Swapd) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=swapd.url, api_key="any", max_retries=0, timeout=90) as one:
        yield one


PAGE = (Path(__file__).parents[2] / "docs" / "clients" / "sdks.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(from (openai|anthropic) .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", [text for text, _ in EXAMPLES], ids=[name for _, name in EXAMPLES])
def test_example_of_the_page_prints_an_answer(swapd: Swapd, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(text.replace("http://127.0.0.1:8080", swapd.url), {})
    assert capsys.readouterr().out.strip()


# ---- openai


def test_openai_chat_and_its_stream(gpt: openai.OpenAI) -> None:
    whole = gpt.chat.completions.create(model="coder", messages=HI, max_tokens=6, temperature=0)
    pieces = list(
        gpt.chat.completions.create(
            model="coder", messages=HI, max_tokens=6, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole.choices[0].message.content and text
    assert whole.usage and pieces[-1].usage and whole.usage.completion_tokens == pieces[-1].usage.completion_tokens


def test_openai_structured_output(gpt: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"c": {"enum": ["Rome"]}},
        "required": ["c"],
        "additionalProperties": False,
    }
    answer = gpt.chat.completions.create(
        model="coder",
        messages=HI,
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"name": "w", "schema": schema}},
    )
    assert json.loads(answer.choices[0].message.content or "") == {"c": "Rome"}


def test_openai_embeddings(gpt: openai.OpenAI) -> None:
    """The SDK asks for base64 unless told otherwise."""
    one, other = (gpt.embeddings.create(model="embed", input=["hello", "world"]).data for _ in range(2))
    assert len(one) == 2 and len(one[0].embedding) == 576 and one[0].embedding == other[0].embedding


def test_openai_responses_and_their_stream(gpt: openai.OpenAI) -> None:
    whole = gpt.responses.create(model="coder", input="Say hi.", max_output_tokens=6, temperature=0)
    events = list(gpt.responses.create(model="coder", input="Say hi.", max_output_tokens=6, temperature=0, stream=True))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    told = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert told == whole.output_text == events[-1].response.output_text and told


def test_openai_tool_calls_whole_and_streamed(gpt: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "function": BASH}]
    whole = gpt.chat.completions.create(model="scripted", messages=HI, tools=tools).choices[0].message.tool_calls
    with gpt.chat.completions.stream(model="scripted", messages=HI, tools=tools) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    answer = gpt.responses.create(model="scripted", input="x", tools=[{"type": "function", "strict": False, **BASH}])
    with gpt.responses.stream(
        model="scripted", input="x", tools=[{"type": "function", "strict": False, **BASH}]
    ) as events:
        last = events.get_final_response().output[0]
    asked = [whole and whole[0].function, streamed and streamed[0].function, answer.output[0], last]  # type: ignore[union-attr]
    assert [json.loads(call.arguments)["command"] for call in asked] == ["sh ./step.sh 1"] * 4  # type: ignore[union-attr]


def test_openai_tools_are_taken_by_the_real_engine(gpt: openai.OpenAI) -> None:
    tools: Any = [{"type": "function", "function": BASH}]
    answer = gpt.chat.completions.create(model="coder", messages=HI, tools=tools, max_tokens=4)
    assert answer.choices[0].finish_reason in ("length", "stop", "tool_calls")


def test_openai_lists_models_without_loading(swapd: Swapd, gpt: openai.OpenAI) -> None:
    before = swapd.loaded()
    assert [model.id for model in gpt.models.list()] == IDS
    assert gpt.models.retrieve("embed").id == "embed"
    assert swapd.loaded() == before


# ---- anthropic


def test_anthropic_messages_and_their_stream(claude: anthropic.Anthropic) -> None:
    whole = claude.messages.create(model="coder", messages=HI, max_tokens=6, extra_body=COLD)
    with claude.messages.stream(model="coder", messages=HI, max_tokens=6, extra_body=COLD) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert whole.content[0].type == "text" and whole.content[0].text == text == final.content[0].text and text  # type: ignore[union-attr]
    assert final.usage.output_tokens == whole.usage.output_tokens == 6


def test_anthropic_counts_tokens_as_the_engine_does(claude: anthropic.Anthropic) -> None:
    counted = claude.messages.count_tokens(model="coder", messages=HI).input_tokens
    usage = claude.messages.create(model="coder", messages=HI, max_tokens=1).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_anthropic_tool_calls_whole_and_streamed(claude: anthropic.Anthropic) -> None:
    tools: Any = [{"name": "bash", "description": "Runs a command", "input_schema": SCHEMA}]
    whole = claude.messages.create(model="scripted", messages=HI, tools=tools, max_tokens=99)
    with claude.messages.stream(model="scripted", messages=HI, tools=tools, max_tokens=99) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        assert message.stop_reason == "tool_use" and message.content[0].input == {"command": "sh ./step.sh 1"}  # type: ignore[union-attr]


def test_anthropic_lists_models(claude: anthropic.Anthropic) -> None:
    assert [(model.id, model.display_name) for model in claude.models.list()] == [(id_, id_) for id_ in IDS]


def test_anthropic_name_by_alias_answers_with_the_models_process(swapd: Swapd, claude: anthropic.Anthropic) -> None:
    assert claude.messages.create(model="claude-coder", messages=HI, max_tokens=1).usage.output_tokens == 1
    assert "coder" in swapd.loaded()


# ---- errors, as each SDK's typed exceptions


def test_unknown_model_is_not_found(gpt: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    with pytest.raises(openai.NotFoundError, match="valid ids: coder, embed, scripted"):
        gpt.responses.create(model="gpt-4", input="x")
    with pytest.raises(anthropic.NotFoundError, match="valid ids: coder, embed, scripted"):
        claude.messages.create(model="opus", messages=HI, max_tokens=1)


def test_prompt_that_is_too_long_has_the_words_that_clients_act_on(
    gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    too_long: Any = [{"role": "user", "content": LONG}]
    asked: list[Callable[[], object]] = [
        lambda: gpt.chat.completions.create(model="coder", messages=too_long, stream=True),
        lambda: gpt.responses.create(model="coder", input=LONG),
    ]
    for ask in asked:
        with pytest.raises(openai.BadRequestError, match="exceeds the available context size") as refused:
            ask()
        assert refused.value.code == "context_length_exceeded"
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 60\d\d tokens > 4096 maximum") as told:
        claude.messages.create(model="coder", messages=too_long, max_tokens=1)
    assert told.value.type == "invalid_request_error"


def test_unload_by_force_in_mid_stream_is_an_error_of_the_sdk(
    swapd: Swapd, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    """Both generate without an end meanwhile."""
    asked: list[tuple[type[Exception], Callable[[], Any]]] = [
        (openai.APIError, lambda: gpt.chat.completions.create(
            model="coder", messages=HI, max_tokens=3000, stream=True, extra_body={"ignore_eos": True})),
        (anthropic.APIStatusError, lambda: claude.messages.create(
            model="coder", messages=HI, max_tokens=3000, stream=True, extra_body={"ignore_eos": True})),
    ]  # fmt: skip
    for kind, ask in asked:
        stream = iter(ask())
        next(stream)
        unloading = in_background(swapd.unload, "coder", "?force=1")
        with pytest.raises(kind, match="unloaded"):
            for _piece in stream:
                pass
        assert unloading.result(20).status == 200


def test_keys_are_asked_in_both_header_forms(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {}}, server={"api_keys": ["right"]}) as locked:
        right = openai.OpenAI(base_url=f"{locked.url}/v1", api_key="right", max_retries=0)
        assert [model.id for model in right.models.list()] == ["a"]
        assert [model.id for model in anthropic.Anthropic(base_url=locked.url, api_key="right").models.list()] == ["a"]
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0).models.list()
        with pytest.raises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=locked.url, api_key="wrong", max_retries=0).models.list()


# ---- a task of three turns: the tool's first call has another model asked, its second kills the task's own


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Swapd]:
    """A scripted ``coder`` and a ``small`` that does not fit beside it."""
    command = [sys.executable, str(SCRIPT), "--port", "${PORT}"]
    coder = {"gguf": "", "cmd": command, "vram": "6000 MiB", "takes": 0, "knobs": {"STEPS": 2}}
    with Swapd(tmp_path, {"coder": coder, "small": {"vram": "5000 MiB"}}) as one:
        yield one


def run_tool(swapd: Swapd, command: str) -> str:
    """What an agent's shell would do."""
    if command.endswith("1"):
        assert swapd.chat("small").status == 200
        assert swapd.loaded() == {"small"}
        return "swapped"
    os.kill(swapd.model("coder")["pid"], signal.SIGKILL)
    return "word-c0ffee"


def test_openai_task_survives_a_swap_and_a_killed_model(office: Swapd) -> None:
    gpt = openai.OpenAI(base_url=f"{office.url}/v1", api_key="any", timeout=60)
    messages: list[Any] = list(HI)
    tools: Any = [{"type": "function", "function": BASH}]
    for _turn in range(3):
        message = gpt.chat.completions.create(model="coder", messages=messages, tools=tools).choices[0].message
        messages.append(message)
        for call in message.tool_calls or []:
            output = run_tool(office, json.loads(call.function.arguments)["command"])  # type: ignore[union-attr]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
    assert messages[-1].content == "Done: word-c0ffee" and office.model("coder")["loads"] == 3


def test_anthropic_task_survives_a_swap_and_a_killed_model(office: Swapd) -> None:
    claude = anthropic.Anthropic(base_url=office.url, api_key="any", timeout=60)
    messages: list[Any] = list(HI)
    tools: Any = [{"name": "bash", "description": "Runs a command", "input_schema": SCHEMA}]
    for _turn in range(3):
        with claude.messages.stream(model="coder", messages=messages, tools=tools, max_tokens=99) as stream:
            message = stream.get_final_message()
        messages.append({"role": "assistant", "content": message.content})
        for call in (block for block in message.content if block.type == "tool_use"):
            result = {"type": "tool_result", "tool_use_id": call.id, "content": run_tool(office, call.input["command"])}
            messages.append({"role": "user", "content": [result]})
    assert messages[-1]["content"][0].text == "Done: word-c0ffee" and office.model("coder")["loads"] == 3
