"""``swapd init``: a configuration from the GGUFs and GPUs found."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swapd.cli.main import swapd
from swapd.config.found import Finds, look
from swapd.config.load import load_text
from swapd.config.resolve import Resolved, resolve
from swapd.errors import ConfigError, SwapdError
from tests.unit.gguf.writer import SMALL, TENSORS, gguf


def put(path: Path, **changes: object) -> Path:
    """A small readable GGUF; ``_`` in a key stands for a dot, ``__`` for the architecture's prefix."""
    shard = re.search(r"-(\d{5})-of-(\d{5})", path.name)
    split = {"split.no": int(shard[1]) - 1, "split.count": int(shard[2])} if shard else {}
    kv = (
        SMALL
        | split
        | {name.replace("__", ".").replace("general_", "general."): value for name, value in changes.items()}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf(kv, TENSORS))
    return path


def projector(path: Path) -> Path:
    return put(path, general_architecture="clip", clip__vision__projection_dim=64)


def run(*args: str) -> Result:
    return CliRunner().invoke(swapd, ["init", *args])


def parsed(text: str) -> Resolved:
    return resolve(load_text(text, None, environ={}), files=True, environ={"PATH": ""})


def ids(finds: Finds) -> list[str]:
    return [model.id for model in finds.models]


def test_written_configuration_passes_the_check_with_its_files(tmp_path: Path) -> None:
    put(tmp_path / "b" / "chat ${x}-Q4.gguf", llama__context_length=131072)
    put(tmp_path / "a.gguf")
    result = run(str(tmp_path))
    assert result.exit_code == 0, result.output
    found = parsed(result.stdout)
    assert list(found.launches) == ["a", "chat ${x}-Q4"]
    assert found.launches["chat ${x}-Q4"].gguf == str(tmp_path / "b" / "chat ${x}-Q4.gguf")
    assert [spec.ctx_tokens for spec in found.launches.values()] == [4096, 32768]
    assert "ctx = 32768  # trained for 131072" in result.stdout
    assert {spec.idle_timeout_s for spec in found.catalog.models.values()} == {900.0}
    assert found.warnings == ()


def test_split_model_is_one_and_an_incomplete_one_is_listed(tmp_path: Path) -> None:
    for number in (1, 2):
        put(tmp_path / f"big-0000{number}-of-00002.gguf")
    put(tmp_path / "torn-00002-of-00003.gguf")
    finds = look([tmp_path])
    assert [model.path.name for model in finds.models] == ["big-00001-of-00002.gguf"] and ids(finds) == ["big"]
    (reason,) = finds.left_out
    assert "torn" in reason and reason.endswith("of 3 files these are missing: 1, 3")


def test_unreadable_files_and_what_is_no_model_are_listed(tmp_path: Path) -> None:
    put(tmp_path / "good.gguf")
    (tmp_path / "text.gguf").write_text("no GGUF")
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    put(tmp_path / "lora.gguf", general_type="adapter")
    (tmp_path / "vocab.gguf").write_bytes(gguf(SMALL))
    finds = look([tmp_path, tmp_path / "no-such-folder"])
    assert ids(finds) == ["good"]
    for name, why in [
        ("text", "not GGUF"),
        ("empty", ""),
        ("gone", "not there"),
        ("lora", "adapter"),
        ("vocab", "vocab"),
    ]:
        (reason,) = [line for line in finds.left_out if f"{name}.gguf" in line]
        assert why in reason
    result = run(str(tmp_path))
    for reason in finds.left_out:
        assert f"# left out: {reason}\n" in result.stdout and f"left out: {reason}\n" in result.stderr


def test_names_that_toml_cannot_have_are_left_out(tmp_path: Path) -> None:
    put(tmp_path / "good.gguf")
    broken = os.fsencode(tmp_path) + b"/\xff.gguf"
    Path(os.fsdecode(broken)).write_bytes((tmp_path / "good.gguf").read_bytes())
    put(tmp_path / "line\nbreak.gguf")
    result = run(str(tmp_path))
    assert list(parsed(result.stdout).launches) == ["good"] and result.stdout.count("# left out") == 2


def test_hugging_face_snapshots_keep_their_links_and_are_named_by_repository(tmp_path: Path) -> None:
    repo = tmp_path / "models--org--Tiny-GGUF"
    blob, old = put(repo / "blobs" / "b1ob"), put(repo / "blobs" / "01d", llama__context_length=8)
    for revision, target in (("aaaa", old), ("bbbb", blob), ("cccc", blob)):
        link = repo / "snapshots" / revision / "tiny-Q4.gguf"
        link.parent.mkdir(parents=True)
        link.symlink_to(Path("../../blobs") / target.name)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("cccc\n")
    other = put(tmp_path / "models--else--Tiny-GGUF" / "snapshots" / "dddd" / "tiny-Q4.gguf")
    finds = look([tmp_path])
    paths = {model.id: model.path for model in finds.models}
    assert paths["org/Tiny-GGUF/tiny-Q4"] == repo / "snapshots" / "cccc" / "tiny-Q4.gguf"
    assert paths["Tiny-GGUF/tiny-Q4"] == other
    assert paths["org/Tiny-GGUF/aaaa/tiny-Q4"] == repo / "snapshots" / "aaaa" / "tiny-Q4.gguf" and len(paths) == 3
    assert finds.left_out == [] and not any("blobs" in str(path) for path in paths.values())


def test_ids_are_never_the_same_nor_reserved(tmp_path: Path) -> None:
    for name in ("a/m.gguf", "b/m.gguf", "c/a/m.gguf", "load.gguf"):
        put(tmp_path / name)
    found = ids(look([tmp_path]))
    assert len(set(found)) == 4 and "m" in found and "load" not in found
    assert list(parsed(run(str(tmp_path)).stdout).launches) == found


@pytest.mark.parametrize(
    ("files", "pairs"),
    [
        (["m-Q4_K_M.gguf", "m-Q8_0.gguf", "mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf"],
         {"m-Q4_K_M": "mmproj-F16.gguf", "m-Q8_0": "mmproj-F16.gguf"}),
        (["gemma-4b-Q4.gguf", "llama-8b.gguf", "mmproj-gemma-4b-f16.gguf"],
         {"gemma-4b-Q4": "mmproj-gemma-4b-f16.gguf"}),
        (["one.gguf", "other.gguf", "mmproj.gguf"], {}),
        (["one.gguf", "sub/mmproj.gguf"], {}),
        (["v-00001-of-00002.gguf", "v-00002-of-00002.gguf", "vision.mmproj.gguf"], {"v": "vision.mmproj.gguf"}),
    ],
)  # fmt: skip
def test_projectors_go_to_the_models_they_are_meant_for(
    tmp_path: Path, files: list[str], pairs: dict[str, str]
) -> None:
    for name in files:
        projector(tmp_path / name) if "mmproj" in name else put(tmp_path / name, llama__embedding_length=32)
    finds = look([tmp_path])
    assert {model.id: model.mmproj.name for model in finds.models if model.mmproj} == pairs
    launches = parsed(run(str(tmp_path)).stdout).launches
    assert {id_: Path(spec.args[1]).name for id_, spec in launches.items() if "--mmproj" in spec.args} == pairs
    lost = {name for name in files if "mmproj" in name} - set(pairs.values())
    assert len([line for line in finds.left_out if "projector" in line]) == len(lost)


def test_projector_without_a_name_goes_to_the_model_of_its_size(tmp_path: Path) -> None:
    put(tmp_path / "one.gguf", llama__embedding_length=64)
    put(tmp_path / "other.gguf", llama__embedding_length=32)
    projector(tmp_path / "mmproj-f16.gguf")
    assert [model.mmproj is not None for model in look([tmp_path]).models] == [True, False]


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"general_architecture": "bert", "bert__context_length": 512}, "--embeddings"),
        ({"llama__pooling_type": 3}, "--embeddings"),
        ({"llama__pooling_type": 4}, "--reranking"),
        ({"llama__pooling_type": 0}, ""),
        ({}, ""),
    ],
)
def test_embedding_models_are_recognized(tmp_path: Path, changes: dict[str, object], flag: str) -> None:
    put(tmp_path / "m.gguf", **changes)
    args = parsed(run(str(tmp_path)).stdout).launches["m"].args
    assert args[:1] == ((flag,) if flag else ())
    assert not flag or args[2] == args[4] == ("512" if "bert" in str(changes) else "2048")


def test_gpus_are_listed(tmp_path: Path) -> None:
    put(tmp_path / "models" / "a.gguf")
    machine = tmp_path / "machine.json"
    gpu = {"id": "GPU-7", "index": 0, "name": "Sim", "total_mib": 24576, "free_mib": 24000}
    machine.write_text(json.dumps({"gpus": [gpu], "ram_available_mib": 8000}))
    assert "# GPU 0: Sim, 24.0 GiB (GPU-7)\n" in run(str(tmp_path / "models"), "--devices", str(machine)).stdout


def test_folders_of_the_default_are_searched_without_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a.gguf")
    for name in ("HOME", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "LLAMA_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "nothing"))
    monkeypatch.setenv("SWAPD_MODELS", str(tmp_path))
    assert list(parsed(run().stdout).launches) == ["a"]


def test_output_is_written_whole_and_overwritten_only_by_force(tmp_path: Path) -> None:
    put(tmp_path / "models" / "a.gguf")
    target, models = tmp_path / "swapd.toml", str(tmp_path / "models")
    result = run(models, "--output", str(target))
    assert (result.exit_code, result.stdout) == (0, "") and list(parsed(target.read_text()).launches) == ["a"]
    put(tmp_path / "models" / "b.gguf")
    before = target.read_text()
    refused = run(models, "-o", str(target))
    assert isinstance(refused.exception, ConfigError) and "--force" in str(refused.exception)
    assert target.read_text() == before
    assert run(models, "-o", str(target), "--force").exit_code == 0
    assert list(parsed(target.read_text()).launches) == ["a", "b"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["models", "swapd.toml"]


@pytest.mark.parametrize("args", [["no-such-folder"], [".", "-o", "no/such/folder.toml"]])
def test_folders_that_are_not_there_are_bad_usage(args: list[str]) -> None:
    result = run(*args)
    assert isinstance(result.exception, ConfigError) and result.stdout == ""


def test_no_model_is_a_failure_that_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").touch()
    result = run(str(tmp_path), "-o", str(tmp_path / "swapd.toml"))
    assert isinstance(result.exception, SwapdError) and not isinstance(result.exception, ConfigError)
    assert "x.gguf" in result.stderr and result.stdout == "" and not (tmp_path / "swapd.toml").exists()
