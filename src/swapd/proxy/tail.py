"""What an answer's first and last bytes tell of the work behind it; best effort on a copy, unknown is None."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

TAIL_BYTES: Final = 8192
FRONT_BYTES: Final = 1024
FEWEST_PROMPT_TOKENS: Final = 64
_OBJECT_BYTES: Final = 2048
_MOST_PER_SECOND: Final = 1e9
_NUMBER_BYTES: Final = 40
"""More than the longest of them has, and what is in front of it."""
_RAW_DECODE = json.JSONDecoder().raw_decode


class Told(NamedTuple):
    """An engine's own figures: times in seconds, rates in tokens per second; ``prompt_tokens`` includes cached ones."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    prefill_s: float | None = None
    decode_s: float | None = None
    prefill_tps: float | None = None
    decode_tps: float | None = None
    draft_tokens: int | None = None
    draft_accepted: int | None = None


NOTHING_TOLD: Final = Told()
_LAST_EVENTS: Final = (b"data: [DONE]\n", b"event: message_stop\n", b"event: response.completed\n")


def prefill_rate(tail: bytes) -> float:
    """Prompt tokens a second from the ``timings`` in an answer's last bytes.

    0 if it has none, or read too few tokens (all others were cached) for a rate to mean anything.
    """
    start = tail.rfind(b'"timings"')
    if start < 0:
        return 0.0
    read = _number_of(b'"prompt_n"', tail, start)
    if read is not None and read < FEWEST_PROMPT_TOKENS:
        return 0.0
    return min(_number_of(b'"prompt_per_second"', tail, start) or 0.0, _MOST_PER_SECOND)


def _number_of(name: bytes, text: bytes, start: int) -> float | None:
    """The number of that (quoted) name behind ``start``; found without reading what is between."""
    at = text.find(name, start)
    if at < 0:
        return None
    at += len(name)
    colon, _, value = text[at : at + _NUMBER_BYTES].partition(b":")
    try:
        number = float(value.partition(b",")[0].partition(b"}")[0])
    except ValueError:
        return None
    return number if number >= 0 and not colon.strip() else None


def is_keep_alive(data: bytes) -> bool:
    """Whether it is nothing but whole comments of an event stream, as llama-server sends every 30 s of a prefill."""
    return data[:1] == b":" and data[-1:] == b"\n" and all(not line or line[:1] == b":" for line in data.splitlines())


def is_complete(text: bytes) -> bool:
    """Whether an event stream's last bytes have its protocol's last event."""
    return any(mark in text for mark in _LAST_EVENTS)


def told_by(front: bytes, text: bytes) -> Told:
    """Read ``timings`` (llama-server's) and ``usage`` (each protocol's) from the first and the last bytes of an answer.

    The front is where embeddings have their ``usage``, and streams of messages the prompt's.
    """
    timings = last_object(text, b'"timings"')
    cached = _count(timings.get("cache_n"))
    read, written = _count(timings.get("prompt_n")), _count(timings.get("predicted_n"))
    if cached is not None and read is not None and written is not None:
        prompt: int | None = read + cached
    else:
        prompt, cached, written = _used(front, text, cached, read, written)
    return Told(
        prompt,
        cached,
        written,
        _seconds(timings.get("prompt_ms")),
        _seconds(timings.get("predicted_ms")),
        _number(timings.get("prompt_per_second")),
        _number(timings.get("predicted_per_second")),
        _count(timings.get("draft_n")),
        _count(timings.get("draft_n_accepted")),
    )


def last_object(text: bytes, name: bytes) -> Mapping[str, Any]:
    """The last member of that (quoted) name, if it is a small object that can be read; else an empty one."""
    start = text.rfind(name)
    if start < 0:
        return {}
    brace = text.find(b"{", start)
    if brace < 0 or text[start + len(name) : brace].strip() != b":":
        return {}
    try:
        found, _ = _RAW_DECODE(text[brace : brace + _OBJECT_BYTES].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return found  # type: ignore[no-any-return]  # it begins with a brace


def _used(
    front: bytes, text: bytes, cached: int | None, read: int | None, written: int | None
) -> tuple[int | None, int | None, int | None]:
    """Prompt, cached and written tokens, from ``usage`` where ``timings`` do not say."""
    usage = last_object(text, b'"usage"')
    if "prompt_tokens" not in usage and "input_tokens" not in usage:
        usage = {**last_object(front, b'"usage"'), **usage}
    if "prompt_tokens" in usage:  # chat, completions, embeddings
        prompt = _count(usage["prompt_tokens"])
        completion, details = usage.get("completion_tokens"), usage.get("prompt_tokens_details")
    else:  # responses, messages
        prompt = _count(usage.get("input_tokens"))
        completion, details = usage.get("output_tokens"), usage.get("input_tokens_details")
    if isinstance(details, dict):
        cached = _first(cached, _count(details.get("cached_tokens")))
    elif prompt is not None and (hits := _count(usage.get("cache_read_input_tokens"))) is not None:
        cached = hits  # messages count the prompt's parts each by itself
        prompt += hits + (_count(usage.get("cache_creation_input_tokens")) or 0)
    if prompt is None and read is not None and cached is not None:
        prompt = read + cached
    return prompt, cached, _first(written, _count(completion))


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def _number(value: object) -> float | None:
    if type(value) is float or type(value) is int:
        return float(value) if 0 <= value < 1e15 else None  # an int may be beyond all floats
    return None


def _seconds(milliseconds: object) -> float | None:
    value = _number(milliseconds)
    return None if value is None else round(value / 1000, 6)
