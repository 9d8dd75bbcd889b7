"""What is packaged: generated files are current, the version has one place, what the wheel names exists."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from swapd import __version__
from swapd.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


LOOKED_AT = {"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "MIT", "PSF-2.0"}
"""Licences that may be combined with Apache-2.0 and shipped beside it."""


def generator(path: str = "packaging/generate.py") -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_something", ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_current() -> None:
    for name, text in generator().files().items():
        assert (ROOT / "packaging" / name).read_text() == text, f"{name}: run: python packaging/generate.py"


def test_man_page_names_every_command_and_escapes_what_roff_would_eat() -> None:
    page = (ROOT / "packaging" / "man" / "swapd.1").read_text()
    for name in COMMANDS:
        assert f".SS swapd {name} " in page
    macros = (".TH", ".SH", ".SS", ".TP", ".B ", ".I ", ".PP", ".nf", ".fi")
    assert not [line for line in page.splitlines() if line.startswith((".", "'")) and not line.startswith(macros)]


def test_roff_escapes() -> None:
    roff = generator().roff
    assert roff(".dot") == "\\&.dot"
    assert roff("a-b \\ c") == "a\\-b \\e c"


def test_version_has_one_place() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert PROJECT["tool"]["setuptools"]["dynamic"] == {"version": {"attr": "swapd.__version__"}}
    found = [p for p in (ROOT / "src").rglob("*.py") if f'"{__version__}"' in p.read_text()]
    assert found == [ROOT / "src" / "swapd" / "__init__.py"]


@pytest.mark.parametrize("where", list(PROJECT["tool"]["setuptools"]["data-files"]))
def test_what_the_wheel_installs_beside_the_package_exists(where: str) -> None:
    for pattern in PROJECT["tool"]["setuptools"]["data-files"][where]:
        assert list(ROOT.glob(pattern)), pattern


def test_licences_are_current_and_each_was_looked_at() -> None:
    page = (ROOT / "docs" / "licences.md").read_text()
    assert page == generator("docs/generate_licences.py").page(), "run: python docs/generate_licences.py"
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| ") and "| package" not in line]
    assert len(rows) > 15
    for _, name, _, stated, *_ in rows:
        assert set(re.split(r" AND | OR ", stated.strip())) <= LOOKED_AT, name
