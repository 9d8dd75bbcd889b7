"""For MkDocs: links to files outside ``docs`` become paths, and a folder in the navigation its pages."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\[([^\]]*)\]\(((?!https?://)[^)\s#]+)(#[^)\s]*)?\)")


def on_config(config: Any) -> Any:
    """``Decisions: adr`` in the navigation means every page of that folder, in order."""
    for section in config.nav:
        for entries in section.values():
            if isinstance(entries, list):
                entries[:] = [_folder(entry, Path(config.docs_dir)) for entry in entries]
    return config


def _folder(entry: dict[str, str], docs: Path) -> dict[str, Any]:
    (name, target), *_ = entry.items()
    pages = sorted((docs / target).glob("*.md")) if (docs / target).is_dir() else []
    return {name: [page.relative_to(docs).as_posix() for page in pages]} if pages else entry


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that leave ``docs`` become their text and path; the repository's own checks see that they exist."""
    folder = posixpath.dirname(page.file.src_uri)

    def plain(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[2]))
        return f"{match[1]} (`{path.removeprefix('../')}`)" if path.startswith("../") else match[0]

    return _LINK.sub(plain, markdown)
