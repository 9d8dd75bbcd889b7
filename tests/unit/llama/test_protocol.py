from __future__ import annotations

import pytest

from swapd.llama.protocol import CAUSE_TEXTS, RouterLines, StateMessage, classify, explain, last_lines

LOADING = (
    b'cmd_child_to_router:state:{"state":"loading","payload":{"stages":["text_model","mmproj"],'
    b'"current":"mmproj","value":0.5}}\n'
)
READY = b'cmd_child_to_router:state:{"state":"ready","payload":{"id":"a","meta":{"n_ctx":1024}}}\n'


def test_progress_is_counted_over_all_stages() -> None:
    assert RouterLines().feed(LOADING) == [StateMessage("loading", 0.75, "mmproj")]


def test_ready_tells_the_context() -> None:
    assert RouterLines().feed(READY) == [StateMessage("ready", n_ctx=1024)]


def test_older_builds_only_say_ready() -> None:
    assert RouterLines().feed(b"cmd_child_to_router:ready\n") == [StateMessage("ready")]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_pieces_of_any_size_give_the_same_messages(size: int) -> None:
    stream = b"noise \xff\n" + LOADING + b"more noise\n" + READY
    lines = RouterLines()
    found = [message for at in range(0, len(stream), size) for message in lines.feed(stream[at : at + size])]
    assert [message.state for message in found] == ["loading", "ready"]


@pytest.mark.parametrize(
    "line",
    [b"cmd_child_to_router:state:{broken\n", b"cmd_child_to_router:state:[1]\n", b"cmd_child_to_router:sleep\n",
     b'cmd_child_to_router:state:{"state":"loading","payload":{"value":"x"}}\n'],
)  # fmt: skip
def test_what_cannot_be_read_is_no_message(line: bytes) -> None:
    assert RouterLines().feed(line) == []


def test_an_endless_line_does_not_eat_memory() -> None:
    lines = RouterLines()
    for _ in range(100):
        lines.feed(b"x" * 65536)
    assert len(lines._rest) <= 256 << 10
    assert lines.feed(b"\n" + READY)


@pytest.mark.parametrize(
    ("code", "signal", "output", "cause"),
    [
        (1, None, "allocating 4455.34 MiB on device 0: cudaMalloc failed: out of memory", "out_of_memory"),
        (None, 6, "CUDA error: out of memory\n  cudaStreamCreateWithFlags", "out_of_memory"),
        (1, None, "failed to allocate buffer for kv cache", "out_of_memory"),
        (1, None, "failed to allocate compute pp buffers", "out_of_memory"),
        (None, 6, "cublasCreate_v2(&handle)\n the resource allocation failed", "out_of_memory"),
        (1, None, "cudaMemGetInfo failed (out of memory), returning 0/0", "out_of_memory"),
        (1, None, "error: invalid argument: --no-mmap", "bad_flag"),
        (1, None, 'error while handling argument "-fa": error: unknown value', "bad_flag"),
        (2, None, "serve: error: unrecognized arguments: --x", "bad_flag"),
        (1, None, "gguf_init_from_file: failed to open GGUF file '/n' (No such file or directory)", "missing_file"),
        (1, None, "gguf_init_from_reader: invalid magic characters: 'root', expected 'GGUF'", "bad_file"),
        (1, None, "error loading model: unknown model architecture: 'zzama'", "unsupported_architecture"),
        (127, None, "error while loading shared libraries: libcudart.so.13: cannot open shared object file: "
                    "No such file or directory", "missing_library"),
        (None, 4, "", "illegal_instruction"),
        (132, None, "", "illegal_instruction"),
        (1, None, "couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080", "port_in_use"),
        (1, None, "OSError: [Errno 98] Address already in use", "port_in_use"),
        (0, None, "starting…", "exited_before_ready"),
        (None, 9, "", "killed"),
        (None, 11, "", "unknown"),
        (3, None, "what?", "unknown"),
    ],
)  # fmt: skip
def test_causes_of_death_are_told_apart(code: int | None, signal: int | None, output: str, cause: str) -> None:
    assert classify(code, signal, output) == cause
    assert cause in CAUSE_TEXTS


def test_last_lines_are_fit_for_people() -> None:
    output = "first\n\n\x1b[31mred\x1b[0m\n" + READY.decode() + "x" * 1000 + "\nlast  \n"
    assert last_lines(output, count=3) == "red\n" + "x" * 400 + "\nlast"


def test_a_cause_is_explained_with_the_line_that_shows_it() -> None:
    output = "loading\n\x1b[31merror: invalid argument: --x\x1b[0m\nusage: …\n"
    assert explain("bad_flag", output) == "it does not know a flag of its command line: error: invalid argument: --x"
    assert explain("exited_before_ready", output) == "exited 0 before ready"
    assert explain("unknown", output) == ""
