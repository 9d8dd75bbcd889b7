"""Configurations that nobody wrote."""

from __future__ import annotations

from pathlib import Path

from swapd.config.generated import demo_toml, find_models, found_toml, model_folders
from swapd.config.load import load_text
from swapd.config.resolve import resolve


def test_demo_has_a_pair_that_swaps_and_a_duo_that_stays(tmp_path: Path) -> None:
    model = tmp_path / 'a "model".gguf'
    model.touch()
    found = resolve(load_text(demo_toml(model), None, environ={}), environ={"PATH": ""})
    assert list(found.catalog.models) == ["swap-a", "swap-b", "duo-main", "duo-fast"]
    swaps = {group.members: group.swap for group in found.catalog.groups.values()}
    assert swaps == {("swap-a", "swap-b"): True, ("duo-main", "duo-fast"): False}
    assert {launch.gguf for launch in found.launches.values()} == {str(model)} and found.warnings == ()


def test_found_models_are_named_by_their_files_without_projectors_and_further_shards(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    names = ["a.gguf", "sub/b Q4.gguf", "mmproj-a.gguf", "big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "x.txt"]
    for name in names:
        path = one / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    two.mkdir()
    (two / "a.gguf").touch()
    (two / "broken.gguf").symlink_to(two / "nowhere")
    models = find_models([one, two, tmp_path / "no-such-folder"])
    tree = load_text(found_toml(models), None, environ={}).file.models
    assert list(tree) == ["a", "big", "b Q4", "two/a"]
    assert tree["two/a"].gguf == str(two / "a.gguf") and tree["big"].gguf.endswith("big-00001-of-00002.gguf")


def test_no_models_are_an_empty_configuration() -> None:
    assert load_text(found_toml([]), None, environ={}).file.models == {}


def test_folders_are_looked_through_in_the_contracts_order() -> None:
    assert [str(p) for p in model_folders({"HOME": "/h"})] == [
        "models", "/h/models", "/h/.cache/huggingface/hub", "/h/.cache/llama.cpp",
    ]  # fmt: skip
    environ = {"HOME": "/h", "SWAPD_MODELS": "/m", "HF_HOME": "/hf", "LLAMA_CACHE": "/lc", "XDG_CACHE_HOME": "/c"}
    assert [str(p) for p in model_folders(environ)] == ["/m", "models", "/h/models", "/hf/hub", "/lc"]
