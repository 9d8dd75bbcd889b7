from __future__ import annotations

import sys

import pytest

from swapd.core.endpoint import Upstream
from swapd.core.spec import BinarySpec, LaunchSpec
from swapd.llama.command import build, child_env, expand, server_argv, stop_argv, wants_socket
from swapd.llama.probe import BinaryReport, embedded_command

SOCKET, PORT = Upstream(path="/run/1.sock"), Upstream(host="127.0.0.1", port=4711)
FULL = BinaryReport("/b/llama-server", unix_socket=True, fit=True, router=True)
BARE = BinaryReport("/b/llama-server")


def spec(**fields: object) -> LaunchSpec:
    return LaunchSpec("org/m:1", **{"gguf": "/m.gguf", "binary": BinarySpec("b", "/b/llama-server"), **fields})  # type: ignore[arg-type]


def argv(*, report: BinaryReport = FULL, upstream: Upstream = SOCKET, **fields: object) -> str:
    return " ".join(server_argv(spec(**fields), report, upstream, 8192)[1:])


@pytest.mark.parametrize(
    ("args", "tail"),
    [
        ("", "--fit off -ngl 999 -c 8192"),
        ("-c 4096", "--fit off -ngl 999"),
        ("--ctx-size 4096 -ngl 10", "--fit off"),
        ("-fit on", "-ngl 999 -c 8192"),
        ("--n-gpu-layers 3 --fit off -c 1", ""),
    ],
)
def test_defaults_are_added_unless_args_say_otherwise(args: str, tail: str) -> None:
    line = argv(args=tuple(args.split()))
    expected = f"{args} -m /m.gguf --host /run/1.sock --alias org/m:1 {tail}"
    assert line == expected.strip()


def test_configured_ctx_comes_last_and_wins() -> None:
    assert argv(args=("-c", "1"), ctx_tokens=4096).endswith("-ngl 999 -c 4096")


def test_what_a_build_lacks_is_not_used() -> None:
    line = argv(report=BARE, upstream=PORT)
    assert line == "-m /m.gguf --host 127.0.0.1 --port 4711 --alias org/m:1 -ngl 999 -c 8192"
    assert not wants_socket(spec(), BARE) and wants_socket(spec(), FULL)


def test_binarys_args_come_before_the_models() -> None:
    assert argv(binary=BinarySpec("b", "x", args=("--jinja",)), args=("-v",)).startswith("--jinja -v -m")


def test_no_path_means_the_embedded_engine() -> None:
    words = server_argv(spec(), BinaryReport("", unix_socket=True), SOCKET, 0)
    assert words[: len(embedded_command())] == embedded_command() and words[0] == sys.executable
    assert words[-2:] == ["-c", "32768"]


def env(inherited: dict[str, str], gpus: tuple[str, ...] | None = None, **fields: object) -> dict[str, str]:
    return child_env(spec(**fields), inherited, gpus)


@pytest.mark.parametrize(
    "name",
    ["LLAMA_ARG_HOST", "LLAMA_API_KEY", "SWAPD_SERVER__LISTEN", "SWAPD_NONCE", "CUDA_VISIBLE_DEVICES",
     "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH", "NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_USEC",
     "SECRET"],
)  # fmt: skip
def test_variables_that_would_leak_are_not_inherited(name: str) -> None:
    found = env({name: "x", "HOME": "/h"}, scrub_env=frozenset(["SECRET"]))
    assert found.get(name) != "x" and found["HOME"] == "/h"


def test_hidden_gpus_are_set_and_empty_for_every_backend() -> None:
    found = env({}, ())
    names = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GGML_VK_VISIBLE_DEVICES"]
    assert [found[name] for name in names] == [""] * 4


def test_chosen_gpus_keep_their_order_and_numbering_is_by_bus() -> None:
    found = env({}, ("GPU-2", "GPU-1"))
    assert found == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "GPU-2,GPU-1"}
    assert env({}, None) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_the_models_env_is_laid_over_the_binarys_and_the_library_path_replaces() -> None:
    binary = BinarySpec("b", "x", library_path=("/l1", "/l2"), env={"A": "1", "B": "1"})
    found = env({"LD_LIBRARY_PATH": "/old"}, binary=binary, env={"B": "2"})
    assert (found["A"], found["B"], found["LD_LIBRARY_PATH"]) == ("1", "2", "/l1:/l2")


def test_reserved_names_are_expanded_at_start() -> None:
    cmd = ("vllm", "--port", "${PORT}", "--name=${MODEL_ID}", "$${x}", "${OTHER}")
    command = build(spec(gguf="", binary=None, cmd=cmd, env={"P": "${PORT}"}), None, PORT, inherited={}, gpus=None)
    assert command.argv == ("vllm", "--port", "4711", "--name=org/m:1", "$${x}", "${OTHER}")
    assert command.env["P"] == "4711" and not command.speaks_router
    assert stop_argv(spec(stop_cmd=("docker", "stop", "${PID}")), 9, PORT) == ("docker", "stop", "9")


def test_router_variable_is_set_where_it_is_spoken() -> None:
    assert "LLAMA_SERVER_ROUTER_PORT" in build(spec(), FULL, SOCKET, inherited={}, gpus=()).env
    assert "LLAMA_SERVER_ROUTER_PORT" not in build(spec(), BARE, PORT, inherited={}, gpus=()).env


def test_a_command_gets_a_socket_if_it_asks_for_one() -> None:
    assert wants_socket(spec(gguf="", cmd=("x", "${SOCKET}")), None)
    assert not wants_socket(spec(gguf="", cmd=("x", "${PORT}")), None)


def test_an_unknown_place_stays_as_written() -> None:
    assert expand("${PID} ${PORT}", {"PORT": "1"}) == "${PID} 1"
