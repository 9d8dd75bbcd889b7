"""The documentation: links lead somewhere, generated pages are current, every TOML block is a valid configuration."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from swapd.config import schema
from swapd.config.load import load_text
from swapd.config.resolve import resolve
from swapd.proxy.statuses import STATUSES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "docker").glob("*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_reference", DOCS / "generate_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(language: str) -> Iterator[Any]:
    """Fenced blocks of a language; those marked ``fragment`` and other programs' files are left out."""
    for page in PAGES:
        for number, match in enumerate(FENCE.finditer(page.read_text(encoding="utf-8")), 1):
            info = match[0].split("\n", 1)[0]
            if match[1] == language and "fragment" not in info and 'title="~/' not in info:
                yield pytest.param(match[2], id=f"{name_of(page)}:{number}")


def anchors(page: Path) -> set[str]:
    """Headings as GitHub names them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in LINK.findall(text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert found.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(found), target


def test_every_page_is_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = (t.partition("#")[0] for t in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))))
        found = [(page.parent / t).resolve() for t in links if t and not t.startswith("http")]
        todo += [f for path in found for f in (path.glob("*.md") if path.is_dir() else [path])]
    assert {name_of(p) for p in PAGES if p.parent.name != "docker"} <= {name_of(p) for p in reached}


@pytest.mark.parametrize("page", ["configuration.md", "cli.md", "errors.md", "http.md"])
def test_a_generated_page_is_current(page: str) -> None:
    written = (DOCS / "reference" / page).read_text(encoding="utf-8")
    assert written == generator().pages()[page], "run: python docs/generate_reference.py"


def test_every_section_and_key_of_the_schema_has_words_and_no_other() -> None:
    generate = generator()
    sections = set(generate.SECTIONS.values())
    kinds = {k for k in vars(schema).values() if isinstance(k, type) and issubclass(k, schema.Section)}
    assert kinds - {schema.Section, schema.File} == sections
    for name, section in generate.SECTIONS.items():
        assert set(section.model_fields) == set(generate.WORDS["keys"][name]), name
    assert set(generate.WORDS["keys"]) == set(generate.WORDS["sections"]) == set(generate.SECTIONS)
    documented = {name.split(".")[0] for name in generate.SECTIONS} | {"vars", "defaults"}
    assert documented == set(schema.File.model_fields)


def test_every_error_has_a_remedy_and_no_other() -> None:
    words = generator().WORDS
    assert set(words["remedies"]) == {error.code for error in STATUSES}
    assert set(words["other_errors"]) == set(generator().OTHER_STATUSES)


def test_troubleshooting_has_every_code_and_no_other() -> None:
    text = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `(\w+)`\n\n(\d{3})[.,]", text, re.MULTILINE))
    other = {code: str(status) for code, status in generator().OTHER_STATUSES.items()}
    assert sections == {error.code: str(status) for error, status in STATUSES.items()} | other


CLIENTS = {"aider", "claude", "codex", "llm", "opencode", "pi", "qwen"}
"""Programs whose pages in ``docs/clients`` are tried by ``tests/e2e/clients``."""
NEEDS = {"docker", "gguf", "network", "root", "systemd", "time", "a service"} | CLIENTS
MARKED = re.compile(r"^<!-- needs: ([^>]*) -->\n```(\w+)", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_command_blocks_say_what_they_need_in_known_words(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert {need for need, _ in MARKED.findall(text)} <= NEEDS
    assert text.count("<!-- needs:") == len(MARKED.findall(text)), "a mark stands right before its block"


VALUES: dict[str, str] = {
    "models.ID.keep_context": "true",
}


def test_what_is_said_to_be_not_yet_effective_is_what_check_warns_of() -> None:
    words = generator().WORDS["keys"]
    said = {f"{section}.{key}" for section, keys in words.items() for key, text in keys.items() if "*Not yet" in text}
    assert said == set(VALUES)
    tables: dict[str, list[str]] = {"server": [], "headroom": [], "models.ID": []}
    for place, value in VALUES.items():
        section, _, key = place.rpartition(".")
        tables[section].append(f"{key} = {value}")
    text = "\n".join(f"[{section}]\n" + "\n".join(lines) for section, lines in tables.items())
    resolved = resolve(load_text(text.replace("models.ID", "models.m") + "\ngguf = 'm.gguf'\n", None), files=False)
    warned = {w.split(": ")[1] for w in resolved.warnings if w.endswith("not yet effective")}
    assert warned == {place.replace("models.ID", "models.m") for place in said}


@pytest.mark.parametrize("text", list(blocks("toml")))
def test_a_toml_block_is_a_valid_configuration(text: str) -> None:
    resolve(load_text(text, None, environ={}), files=False, environ={})


@pytest.mark.parametrize("text", list(blocks("json")))
def test_a_json_block_is_json(text: str) -> None:
    json.loads(text)


def test_the_agreed_defaults_are_printed_as_one_writes_them() -> None:
    text = (DOCS / "reference" / "configuration.md").read_text(encoding="utf-8")
    for cell in ('`"1 GiB"`', '`"256 MiB"`', '`["5s", "5m"]`', '`"30m"`', '`"24h"`'):
        assert cell in text
