"""``swapd plan``: what it prints for headers without data."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from swapd.cli.main import swapd
from swapd.errors import ConfigError, GgufError
from tests.unit.gguf.measured import host_models, prediction
from tests.unit.gguf.writer import write_model

GPU = "id=GPU-0,total=143771MiB,free=143155MiB,overhead=597.5MiB"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_model(tmp_path / "small.gguf", host_models()["host-l-4b"])


@pytest.fixture
def big(tmp_path: Path) -> Path:
    return write_model(tmp_path / "big.gguf", host_models()["host-n-35b"])


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(swapd, ["plan", *map(str, words)], catch_exceptions=False)


def tree(*words: str | Path) -> Any:
    return json.loads(run(*words, "--json").stdout)


def test_prediction_of_exact_flags_has_the_promised_fields(small: Path) -> None:
    found = tree(small, "--args", "-ngl 99 -c 4096 -np 1", "--gpu", GPU)
    device = found["devices"][0]
    assert found["n_ctx"] == 4096 and found["exact"] is True
    assert device["id"] == "GPU-0"
    parts = ("weights_mib", "kv_mib", "state_mib", "compute_mib", "overhead_mib")
    assert device["need_mib"] == pytest.approx(sum(device[p] for p in parts), abs=0.05)
    assert device["peak_mib"] >= device["need_mib"] > 2900
    assert device["kv_mib"] == 36 * 2 * 8 * 128 * 2 * 4096 / 2**20
    assert {"need_mib", "mapped_mib", "anon_mib"} <= found["host"].keys()


def test_each_gpu_given_is_listed_also_one_that_only_gets_a_context(small: Path) -> None:
    second = GPU.replace("GPU-0", "GPU-1")
    found = tree(small, "--args", "-ngl 99 -c 4096 -np 1 -sm none -mg 1", "--gpu", GPU, "--gpu", second)
    assert [d["id"] for d in found["devices"]] == ["GPU-0", "GPU-1"]
    assert found["devices"][0]["weights_mib"] == 0 < found["devices"][0]["need_mib"]


def test_the_file_says_the_same_as_its_header_in_memory(tmp_path: Path) -> None:
    from tests.unit.gguf.measured import models

    file = write_model(tmp_path / "q8b.gguf", models()["q8b"])
    found = tree(file, "--args", "-ngl 99 -np 1 -c 4096", "--gpu", GPU)
    wanted = prediction("q8b", "-ngl 99 -np 1 -c 4096").devices[0]
    assert found["devices"][0]["need_mib"] == round(wanted.need / 2**20, 2)


def test_search_prints_a_table_and_toml_that_swapd_check_accepts(big: Path, tmp_path: Path) -> None:
    result = run(big, "--gpu", "12GiB", "--gpu", "10GiB", "--ctx", "32768", "--ram", "60GiB", "--cores", "8")
    assert "experts of" in result.stdout and "estimated" in result.stdout
    text = result.stdout[result.stdout.index("[models.big]") :]
    table = tomllib.loads(text)["models"]["big"]
    assert table["n_cpu_moe"] > 0 and table["ctx"] == 32768 and "-ts" in table["args"]
    config = tmp_path / "swapd.toml"
    config.write_text(text)
    sim = tmp_path / "sim.json"
    sizes_mib = ((0, 12288), (1, 10240))
    gpus = [{"id": f"GPU-{i}", "index": i, "name": "s", "total_mib": m, "free_mib": m} for i, m in sizes_mib]
    rooms = {f"GPU-{i}": (m - 1024) << 20 for i, m in sizes_mib}
    sim.write_text(json.dumps({"gpus": gpus, "ram_available_mib": 60000}))
    from swapd import wiring

    resolved = wiring.configure(str(config), devices=str(sim), files=False)
    sizes = wiring.check(resolved, files=False).sizes["big"]
    assert all(sizes.on(gpu) <= room for gpu, room in rooms.items()), "what plan chose, serve admits"


@pytest.mark.parametrize(("name", "key"), [("", 1), ("id=GPU-77aa,total=", "GPU-77aa")])
def test_a_gpu_of_several_is_named_as_its_machine_knows_it(small: Path, big: Path, name: str, key: str | int) -> None:
    found = tree(big, small, "--gpu", "24GiB", "--gpu", f"{name}10GiB", "--ram", "60GiB", "--ctx", "8192")
    models = tomllib.loads(found["toml"])["models"]
    assert models["small"]["gpus"] == [key] and models["big"]["gpus"] == [0]


def test_a_set_shares_the_machine(small: Path, big: Path) -> None:
    found = tree(big, small, "--gpu", "24GiB", "--ram", "60GiB", "--ctx", "8192")
    taken = [m["options"][0]["prediction"]["devices"] for m in found["models"]]
    assert sum(d[0]["peak_mib"] for d in taken if d) <= 23 * 1024
    assert "swap = false" in found["toml"]


def test_what_does_not_fit_says_how_much_is_missing(big: Path) -> None:
    result = run(big, "--args", "-ngl 99 -c 8192", "--gpu", "8GiB")
    assert "does not fit with the headroom: GPU-0 is" in result.stdout and "short" in result.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--gpu", "lots"), "not a size"),
        (("--gpu", "id=a,size=3GiB"), "'size=3GiB' is not one of"),
        (("--gpu", "id=a,free=3GiB"), "total is missing"),
        (("--gpu", "id=a,total=3GiB", "--gpu", "id=a,total=4GiB"), "same id"),
        (("--gpu", "8GiB", "--ladder", "pool"), "not FLAG=STEPS"),
        (("--gpu", "8GiB", "--args", "'"), "--args"),
    ],
)
def test_bad_input_is_named(small: Path, words: tuple[str, ...], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run(small, *words)


def test_files_that_are_missing_or_no_gguf_are_named(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"nothing\.gguf: No such file"):
        run(tmp_path / "nothing.gguf", "--gpu", "8GiB")
    (tmp_path / "bad.gguf").write_bytes(b"PK\x03\x04 no model at all")
    with pytest.raises(GgufError):
        run(tmp_path / "bad.gguf", "--gpu", "8GiB")


def test_laws_that_the_flags_break_are_warned_of(big: Path) -> None:
    result = run(big, "--args", "-ngl 99 -c 8192 --n-cpu-moe 20 -t 16 -ub 128", "--gpu", "24GiB", "--cores", "8")
    assert {"N2", "N6"} <= {line.split(": ")[1] for line in result.stderr.splitlines()}
    fixed = run(big, "--args", "-ngl 99 -c 8192 -t 8", "--gpu", "48GiB", "--cores", "8")
    assert fixed.stderr == ""


def test_what_the_search_chooses_breaks_no_law(big: Path) -> None:
    result = run(big, "--gpu", "12GiB", "--gpu", "10GiB", "--ctx", "32768", "--ram", "60GiB", "--cores", "8")
    assert result.stderr == ""
