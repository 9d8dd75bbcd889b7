"""A model server that plays the other side of a coding agent, in three protocols, by a script instead of a model.

Turn n of a conversation (n tool results are in it) calls the agent's shell tool with ``sh ./step.sh n+1``; after
``STEPS`` results it answers ``Done: `` and the last word that a step printed, so a finished answer shows that every
tool ran and its output came back. A request without tools (a title, a summary) is answered in a line.

Environment: ``LOAD_S``: /health is 503 that long. ``DIE_ONCE=PATH``: the first turn that finds no such file makes it
and dies in mid-stream. ``LOG=PATH``: a line of JSON for each request.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

SHELLS: Final = ("bash", "exec_command", "shell_command", "run_shell_command", "shell")
STEPS: Final = int(os.environ.get("STEPS", "2"))
READY_AT: Final = time.monotonic() + float(os.environ.get("LOAD_S", "0"))
WRITING: Final = threading.Lock()

Event = tuple[str, dict[str, Any] | str]
"""The name of a server-sent event ("" for none), and its data."""


@dataclass(frozen=True)
class Play:
    """What this request is answered with: a tool call, or text."""

    model: str
    text: str = ""
    tool: str = ""
    arguments: str = ""
    turn: int = 1
    """Clients drop what has an id that they know: each turn's ids are its own."""


# ---- the script


def texts(content: Any) -> str:
    """All text of a message's or tool result's content, whatever its form."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return " ".join(map(texts, content))
    if isinstance(content, dict):
        return texts(content.get("text") or content.get("content") or content.get("output") or "")
    return ""


def results(path: str, body: dict[str, Any]) -> list[str]:
    """The output of each tool call so far."""
    if path.endswith("/responses"):
        items = body["input"] if isinstance(body.get("input"), list) else []
        return [texts(item) for item in items if str(item.get("type")).endswith("call_output")]
    messages = body.get("messages", [])
    if path.endswith("/chat/completions"):
        return [texts(message) for message in messages if message.get("role") == "tool"]
    blocks = [b for m in messages if isinstance(m.get("content"), list) for b in m["content"]]
    return [texts(block) for block in blocks if block.get("type") == "tool_result"]


def arguments(schema: dict[str, Any], command: str) -> dict[str, Any]:
    """The command, and something of the right type for whatever else the tool requires."""
    fields = schema.get("properties") or {}
    of_type: dict[str, Any] = {"boolean": False, "number": 60_000, "integer": 60_000, "array": []}
    asked = {name: of_type.get(fields.get(name, {}).get("type"), "a step") for name in schema.get("required") or []}
    return {**asked, **{name: command for name in ("command", "cmd") if name in fields}}


def play(path: str, body: dict[str, Any]) -> Play:
    """The script's answer to this request."""
    model = str(body.get("model"))
    tools: dict[str, dict[str, Any]] = {}
    for tool in body.get("tools") or []:
        function = tool.get("function") or tool
        schema = function.get("parameters") or function.get("input_schema") or {}
        tools[str(function.get("name")).lower()] = {"name": function.get("name"), "schema": schema}
    shell = next((tools[name] for name in SHELLS if name in tools), None)
    if shell is None:
        return Play(model, text="Done: nothing to run")
    done = results(path, body)
    if len(done) < STEPS:
        wanted = arguments(shell["schema"], f"sh ./step.sh {len(done) + 1}")
        return Play(model, tool=shell["name"], arguments=json.dumps(wanted), turn=len(done) + 1)
    words = re.findall(r"word-[0-9a-f]+", " ".join(done))
    return Play(model, text=f"Done: {words[-1] if words else 'no word'}", turn=len(done) + 1)


# ---- the protocols: the events of a stream; the last one holds the whole answer where the protocol has that


def chat(answer: Play, usage: bool) -> Iterator[Event]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return "", {**head, "choices": [choice]}

    head = {"id": f"chatcmpl-{answer.turn}", "object": "chat.completion.chunk", "created": 1, "model": answer.model}
    yield chunk({"role": "assistant", "content": ""})
    if answer.tool:
        call = {
            "index": 0,
            "id": f"call_{answer.turn}",
            "type": "function",
            "function": {"name": answer.tool, "arguments": ""},
        }
        yield chunk({"tool_calls": [call]})
        for piece in halves(answer.arguments):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
    else:
        for piece in halves(answer.text):
            yield chunk({"content": piece})
    yield chunk({}, "tool_calls" if answer.tool else "stop")
    if usage:
        yield "", {**head, "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}}
    yield "", "[DONE]"


def responses(answer: Play) -> Iterator[Event]:
    number = itertools.count()

    def event(kind: str, **more: Any) -> Event:
        return kind, {"type": kind, "sequence_number": next(number), **more}

    usage = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 14,
    }
    response = {
        "id": f"resp_{answer.turn}",
        "object": "response",
        "created_at": 1,
        "model": answer.model,
        "output": [],
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
    yield event("response.created", response=response)
    if answer.tool:
        item = {
            "type": "function_call",
            "id": f"fc_{answer.turn}",
            "call_id": f"call_{answer.turn}",
            "name": answer.tool,
            "status": "completed",
            "arguments": answer.arguments,
        }
        yield event(
            "response.output_item.added", output_index=0, item={**item, "arguments": "", "status": "in_progress"}
        )
        for piece in halves(answer.arguments):
            yield event(
                "response.function_call_arguments.delta", output_index=0, item_id=f"fc_{answer.turn}", delta=piece
            )
    else:
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        item = {
            "type": "message",
            "id": f"msg_{answer.turn}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
        yield event("response.output_item.added", output_index=0, item={**item, "content": [], "status": "in_progress"})
        where = {"item_id": f"msg_{answer.turn}", "output_index": 0, "content_index": 0}
        yield event("response.content_part.added", **where, part={**part, "text": ""})
        for piece in halves(answer.text):
            yield event("response.output_text.delta", **where, delta=piece, logprobs=[])
        yield event("response.output_text.done", **where, text=answer.text, logprobs=[])
    yield event("response.output_item.done", output_index=0, item=item)
    yield event("response.completed", response={**response, "status": "completed", "output": [item], "usage": usage})


def messages(answer: Play) -> Iterator[Event]:
    def event(kind: str, **more: Any) -> Event:
        return kind, {"type": kind, **more}

    message = {
        "id": f"msg_{answer.turn}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 1},
    }
    yield event("message_start", message=message)
    if answer.tool:
        block = {"type": "tool_use", "id": f"toolu_{answer.turn}", "name": answer.tool, "input": {}}
        yield event("content_block_start", index=0, content_block=block)
        for piece in halves(answer.arguments):
            yield event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": piece})
    else:
        yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        for piece in halves(answer.text):
            yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})
    yield event("content_block_stop", index=0)
    why = {"stop_reason": "tool_use" if answer.tool else "end_turn", "stop_sequence": None}
    yield event("message_delta", delta=why, usage={"output_tokens": 5})
    yield event("message_stop")


def halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def whole(path: str, answer: Play) -> dict[str, Any]:
    """The answer to a request without ``stream``."""
    if path.endswith("/responses"):
        completed = list(responses(answer))[-1][1]
        assert isinstance(completed, dict)
        found: dict[str, Any] = completed["response"]
        return found
    call = json.loads(answer.arguments) if answer.tool else None
    if path.endswith("/messages"):
        block = {"type": "tool_use", "id": f"toolu_{answer.turn}", "name": answer.tool, "input": call}
        return {
            "id": f"msg_{answer.turn}",
            "type": "message",
            "role": "assistant",
            "model": answer.model,
            "stop_sequence": None,
            "content": [block if answer.tool else {"type": "text", "text": answer.text}],
            "stop_reason": "tool_use" if answer.tool else "end_turn",
            "usage": {"input_tokens": 9, "output_tokens": 5},
        }
    function = {"name": answer.tool, "arguments": answer.arguments}
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.tool:
        message["tool_calls"] = [{"id": f"call_{answer.turn}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if answer.tool else "stop"}
    return {
        "id": f"chatcmpl-{answer.turn}",
        "object": "chat.completion",
        "created": 1,
        "model": answer.model,
        "choices": [choice],
        "usage": {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14},
    }


STREAMS: Final[dict[str, Callable[[Play, dict[str, Any]], Iterator[Event]]]] = {
    "/chat/completions": lambda answer, body: chat(
        answer, bool((body.get("stream_options") or {}).get("include_usage"))
    ),
    "/responses": lambda answer, _: responses(answer),
    "/messages": lambda answer, _: messages(answer),
}


# ---- HTTP


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_args: object) -> None:
        """The log is ``LOG``."""

    def reply(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        ready = time.monotonic() >= READY_AT
        self.reply(200 if ready else 503, {"status": "ok" if ready else "loading"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path.partition("?")[0]
        if path.endswith("/count_tokens"):
            return self.reply(200, {"input_tokens": len(json.dumps(body)) // 4})
        stream = next((events for end, events in STREAMS.items() if path.endswith(end)), None)
        if stream is None:
            return self.reply(404, {"error": {"message": f"no {path}", "type": "invalid_request_error", "code": 404}})
        answer = play(path, body)
        dies = self.dies(answer)
        note(path=path, stream=body.get("stream"), tool=answer.tool, text=answer.text, dies=dies, model=answer.model)
        if dies and not body.get("stream"):
            os.kill(os.getpid(), signal.SIGKILL)
        if not body.get("stream"):
            return self.reply(200, whole(path, answer))
        return self.stream(list(stream(answer, body)), dies=dies)

    def dies(self, answer: Play) -> bool:
        """Whether this is the turn in which it dies; a request without tools is none."""
        mark = os.environ.get("DIE_ONCE")
        if not mark or answer.text.endswith("nothing to run") or os.path.exists(mark):
            return False
        Path(mark).touch()
        return True

    def stream(self, events: list[Event], *, dies: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for place, (name, data) in enumerate(events):
            if dies and place == len(events) // 2:
                time.sleep(0.2)
                os.kill(os.getpid(), signal.SIGKILL)
            text = data if isinstance(data, str) else json.dumps(data)
            self.chunk((f"event: {name}\n" if name else "") + f"data: {text}\n\n")
        self.chunk("")

    def chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def note(**what: object) -> None:
    if path := os.environ.get("LOG"):
        with WRITING, open(path, "a", encoding="utf-8") as log:
            log.write(json.dumps(what) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), Handler).serve_forever()


if __name__ == "__main__":
    main()
