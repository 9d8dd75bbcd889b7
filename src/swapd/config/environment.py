"""Keys of ``[server]`` from the environment: ``SWAPD_SERVER__LISTEN`` and so on, which are text."""

from __future__ import annotations

import json
from typing import Any, Final, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict

from swapd.config.schema import Server

PREFIX: Final = "SWAPD_SERVER__"
_SWITCH: Final = TypeAdapter(bool)


class _Environment(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore")


def server_texts() -> dict[str, str]:
    """By key, as they are set."""
    keys = Server.model_fields
    body: dict[str, Any] = {"__annotations__": dict.fromkeys(keys, str), **dict.fromkeys(keys, "")}
    found = EnvSettingsSource(type("ServerEnvironment", (_Environment,), body))()
    return dict(found)


def value_of(key: str, text: str) -> Any:
    """A list is JSON, a switch ``true``, ``1`` and the like; everything else is text in the file too.

    Raises:
        ValueError: a list that is none; what it holds is not told, for it may be a key.
    """
    kind = Server.model_fields[key].annotation
    if get_origin(kind) is list:
        return _list(text)
    if kind is bool:
        try:
            return _SWITCH.validate_python(text)
        except ValidationError:
            pass  # the schema says what is wrong with it
    return text


def _list(text: str) -> list[str]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise ValueError('should be a JSON list of texts, as in \'["one", "two"]\', quoted for the shell')
    return found
