"""The wheel and the sdist, built from what is tracked, and swapd run from an environment of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from swapd import __version__
from tests.integration.swapd_process import Swapd

ROOT = Path(__file__).parents[2]
_BUILD = "import setuptools.build_meta as b, sys; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"


def build(kind: str, source: Path, target: Path) -> Path:
    """A ``wheel`` or an ``sdist``, without an index."""
    command = [sys.executable, "-c", _BUILD, kind, str(target)]
    done = subprocess.run(command, cwd=source, env=clean(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]
    return target / done.stdout.splitlines()[-1]


def clean() -> dict[str, str]:
    """No way to this checkout."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What git tracks or would: nothing that only lies around here."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("no git checkout")
    folder = tmp_path_factory.mktemp("source")
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel alone; what it depends on is lent by this one."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*install, "--disable-pip-version-check", str(wheel)], env=clean(), check=True, timeout=60)
    site = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def run(environment: Path, *words: str, cwd: Path) -> str:
    done = subprocess.run(
        [str(environment / "bin" / words[0]), *words[1:]],
        cwd=cwd,
        env=clean(),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_installed_commands_are_those_of_the_wheel(environment: Path, tmp_path: Path) -> None:
    where = run(environment, "python", "-c", "import swapd; print(swapd.__file__)", cwd=tmp_path)
    assert where.startswith(str(environment))
    assert run(environment, "swapd", "version", cwd=tmp_path) == f"swapd {__version__}\n"
    assert run(environment, "python", "-m", "swapd", "version", cwd=tmp_path) == f"swapd {__version__}\n"
    assert "_SWAPD_COMPLETE" in run(environment, "swapd", "completion", "zsh", cwd=tmp_path)


def test_completion_knows_commands_and_options(environment: Path) -> None:
    program = str(environment / "bin" / "swapd")
    for words, word, expected in (("swapd st", 1, "plain,status"), ("swapd serve --l", 2, "plain,--listen")):
        asked = {**clean(), "_SWAPD_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(word)}
        done = subprocess.run([program], env=asked, capture_output=True, text=True, timeout=20)
        assert expected in done.stdout.splitlines(), done.stderr


def test_static_files_are_where_shells_and_man_look(environment: Path, tmp_path: Path) -> None:
    share = environment / "share"
    for name in (
        "man/man1/swapd.1", "bash-completion/completions/swapd", "zsh/site-functions/_swapd",
        "fish/vendor_completions.d/swapd.fish", "swapd/systemd/swapd.service", "swapd/systemd/user/swapd.service",
    ):  # fmt: skip
        assert (share / name).is_file(), name
    profile = str(share / "swapd" / "profiles" / "host-l.toml")
    words = ["check", profile, "--devices", profile.replace(".toml", ".sim.json"), "--no-files"]
    assert "no mistakes" in run(environment, "swapd", *words, cwd=tmp_path)


def test_installed_swapd_starts_models(environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(environment / "bin" / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with Swapd(tmp_path, {"a": {}}) as swapd:
        assert swapd.chat("a").status == 200
        assert os.readlink(f"/proc/{swapd.pid}/exe") == os.path.realpath(sys.executable)


def test_sdist_builds_the_same_wheel(source: Path, wheel: Path, tmp_path: Path) -> None:
    sdist = build("sdist", source, tmp_path)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / f"swapd-{__version__}"
    for name in ("CHANGELOG.md", "docker/compose.yaml", "tests/unit/test_packaging.py", "docs/architecture.md"):
        assert (unpacked / name).exists(), name
    again = build("wheel", unpacked, tmp_path / "again")
    assert again.name == wheel.name and again.stat().st_size == pytest.approx(wheel.stat().st_size, rel=0.01)


def test_images_copy_what_the_wheel_needs(source: Path, tmp_path: Path) -> None:
    """The container's own build, from nothing but what its Dockerfile copies."""
    folder = tmp_path / "image"
    folder.mkdir()
    lines = (source / "docker" / "Dockerfile").read_text().splitlines()
    for line in lines[: next(i for i, text in enumerate(lines) if "pip install" in text)]:
        if line.startswith("COPY ") and "--from" not in line:
            *found, target = line.split()[1:]
            for one in found:
                there = folder / target / (one if target == "./" else "")
                copy = shutil.copytree if (source / one).is_dir() else shutil.copy
                copy(source / one, there)
    build("wheel", folder, folder / "out")
