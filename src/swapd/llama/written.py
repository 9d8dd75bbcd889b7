"""A llama-server's command line that somebody wrote for another manager, taken apart."""

from __future__ import annotations

from collections.abc import Sequence

from swapd.core.flags import MANAGED_FLAGS, flag_name
from swapd.llama.flags import llama_server_args, values_taken


def read_server(words: Sequence[str]) -> tuple[dict[str, str], list[str]] | None:
    """Of a command whose program is a llama-server: the flags that swapd sets itself, and the other arguments.

    The former by their usual names with their last value. ``None``: it is another program.
    """
    if not words or llama_server_args(words[:1]) is None:
        return None
    managed: dict[str, str] = {}
    others: list[str] = []
    position = 1
    while position < len(words):
        word = words[position]
        typed, equals, joined = word.partition("=")
        name = flag_name(typed)
        following = words[position + 1] if position + 1 < len(words) else None
        is_flag = word.startswith("-") and word != "-"
        taken = values_taken(name, following) if is_flag and not equals else 0
        if name in MANAGED_FLAGS:
            managed[MANAGED_FLAGS[name]] = joined if equals else " ".join(words[position + 1 : position + 1 + taken])
        else:
            others += words[position : position + 1 + taken]
        position += 1 + taken
    return managed, others
