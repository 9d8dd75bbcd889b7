"""Each law is broken by the configuration that taught it, and not by the one that was found to be right."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from swapd.core.spec import RAM
from swapd.gguf.types import GgufHeader
from swapd.planner.law_facts import ModelFacts, Setup
from swapd.planner.laws import LAWS, findings
from swapd.units import GIB, MIB
from tests.unit.planner.law_models import (
    GPU_L,
    GPU_M,
    GPUS_N,
    IQ4_XS,
    Q2_K,
    big_gpu,
    broken,
    gpt_oss,
    laptop,
    model,
    of_law,
    qwen4b,
    qwen35b,
    texts,
    two_gpus,
)

DOCS = Path(__file__).parents[3] / "docs"
L = {"gpus": (GPU_L,)}
M = {"gpus": (GPU_M,)}
N = {"gpus": GPUS_N}
SHIPPED_N = "-c 131072 -ctk q8_0 -ctv q8_0 -fa on -ts 24,16 --n-cpu-moe 10 --threads 8 -ub 512 -np 1 --jinja --no-mmap"
MEASURED_N = {"GPU-n0": 9850 * MIB, "GPU-n1": 9711 * MIB, RAM: 6 * GIB}
PREFILL_M = "-c 65536 -ctk q8_0 -ctv q8_0 -fa on -np 1 --n-cpu-moe 24"
SMALL = "-c 24576 -ctk q4_0 -ctv q4_0 -fa on -np 1"
LARGE = "-c 131072 -ctk q8_0 -ctv q4_0 -fa on -np 1"
SMALL_GPU_CONTEXT = {"GPU-l": 250 * MIB}
"""What CUDA takes on host L, by the 3,564 MiB that were measured for the small model."""


def small(args: str) -> ModelFacts:
    return model(f"{SMALL} {args}", qwen4b(), "small", overhead_bytes=SMALL_GPU_CONTEXT, **L)


def large(args: str = "", **more: object) -> ModelFacts:
    return model(f"{LARGE} {args}", qwen35b(Q2_K), "large", **{**L, **more})


def with_template(text: str) -> GgufHeader:
    header = qwen35b()
    return replace(header, kv={**header.kv, "tokenizer.chat_template": text})


TOOLS = "{%- if tools %}<tools>{% endif %}"
GRAPHS = {"GGML_CUDA_DISABLE_GRAPHS": "0"}
REGISTER = {"GGML_CUDA_REGISTER_HOST": "1"}
LINK = "/srv/hf/models--a--b/blobs/0a1b"
IN_DUO = "-c 16384 -np 1 --n-cpu-moe 37"

BREAKS: list[tuple[str, Setup]] = [
    ("L1", laptop(model(IN_DUO, qwen35b(IQ4_XS), **L))),
    ("L3", laptop(model("-c 4096 -np 1 --cpu-moe", gpt_oss(), **L))),
    ("L5", laptop(model("--n-cpu-moe 37 --spec-type draft-mtp", qwen35b(), **L))),
    ("L5", laptop(model("--cpu-moe -md small.gguf"))),
    ("L6", laptop(model("--cpu-moe --mlock", qwen35b(IQ4_XS), **L))),
    ("L6", laptop(model("--cpu-moe", qwen35b(IQ4_XS), env=REGISTER, **L))),
    ("L8", laptop(small("--fit on"), large("--cpu-moe"))),
    ("L8", laptop(small("-ngl 1"), large("--cpu-moe"))),
    ("L9", laptop(model("-ngl 0", qwen35b(Q2_K), **L))),
    ("L11", laptop(model("-ctk turbo2 -ctv turbo2"))),
    ("L11", laptop(model("-ctk q4_0"))),
    ("M1", replace(big_gpu(), headroom_bytes={"GPU-m": 637 * MIB})),
    ("M4", big_gpu(model("", env=GRAPHS, **M))),
    ("M5", big_gpu(model(f"{PREFILL_M} -ub 128", qwen35b(), **M))),
    ("M6", big_gpu(model(PREFILL_M, qwen35b(), **M))),
    ("N1", two_gpus(model(SHIPPED_N.replace("-ts 24,16", ""), qwen35b(), **N))),
    ("N2", two_gpus(model("--threads 16"))),
    ("N3", two_gpus(headrooms=(388, 1024))),
    ("N5", two_gpus(model("--n-cpu-moe 10 --spec-type ngram-mod", qwen35b(), **N))),
    ("N5", two_gpus(model("--n-cpu-moe 10 --spec-default"))),
    ("N6", two_gpus(model("-ub 256", **N))),
    ("N8", two_gpus(model("", dangling_link=LINK))),
    ("N10", two_gpus(model("--no-jinja", with_template(TOOLS)))),
    ("N10", two_gpus(model("", with_template(TOOLS), jinja_default=False))),
]

KEEPS: list[tuple[str, Setup]] = [
    ("L1", laptop(model(IN_DUO, qwen35b(Q2_K), **L))),
    ("L1", laptop(model(f"{IN_DUO} --no-mmap", qwen35b(IQ4_XS), **L))),
    ("L1", laptop(small("-ngl 99"), large(gpus=()))),
    ("L3", laptop(model("-c 4096 -np 1 --n-cpu-moe 21", gpt_oss(), **L))),
    ("L3", two_gpus(model(SHIPPED_N, qwen35b(), need_bytes=MEASURED_N, **N))),
    ("L3", laptop(model("-c 4096 -np 1 --cpu-moe"))),
    ("L5", big_gpu(model("--n-cpu-moe 8 --spec-type draft-mtp", qwen35b(), **M))),
    ("L6", laptop(model("--cpu-moe --mlock", qwen35b(Q2_K), **L))),
    ("L6", laptop(model("--cpu-moe", qwen35b(IQ4_XS), **L))),
    ("L8", laptop(small("-ngl 99"), large(gpus=()))),
    ("L8", laptop(small("-ngl 99"), large("--cpu-moe"))),
    ("L8", laptop(small("-ngl 1 --embedding"), large("--cpu-moe"))),
    ("L9", laptop(model("-ngl 0", qwen35b(Q2_K), gpus=()))),
    ("L9", laptop(model("-ngl 0 --device none", qwen35b(Q2_K), **L))),
    ("L11", laptop(model("-ctk q8_0 -ctv turbo2"))),
    ("M1", big_gpu(model("", **M))),
    ("M4", big_gpu(model("", **M))),
    ("M4", big_gpu(model("", env=GRAPHS, gpus=()))),
    ("M5", big_gpu(model(f"{PREFILL_M} -ub 2048", qwen35b(), **M))),
    ("M5", big_gpu(model(f"{PREFILL_M} -ub 128 --a-forks-pool 4GiB", qwen35b(), **M))),
    ("M6", big_gpu(model(f"{PREFILL_M} --no-mmap", qwen35b(), **M))),
    ("M6", big_gpu(model("--cpu-moe", **M))),
    ("M6", laptop(model(IN_DUO, qwen35b(IQ4_XS), **L))),
    ("N1", two_gpus(model(SHIPPED_N, qwen35b(), **N))),
    ("N2", two_gpus(model("--threads 8"))),
    ("N2", replace(two_gpus(model("--threads 16")), cores=0)),
    ("N3", two_gpus(headrooms=(1024, 512))),
    ("N5", two_gpus(model("--spec-type ngram-mod", qwen35b(), **N))),
    ("N5", two_gpus(model("--n-cpu-moe 10", qwen35b(), **N))),
    ("N6", two_gpus(model("-ub 512", **N))),
    ("N6", two_gpus(model("-ub 256", gpus=()))),
    ("N8", two_gpus(model(""))),
    ("N10", two_gpus(model("--no-jinja --jinja", with_template(TOOLS), jinja_default=False))),
    ("N10", two_gpus(model("--no-jinja", with_template("{{ messages }}")))),
    ("N10", two_gpus(model("", with_template(TOOLS)))),
]


@pytest.mark.parametrize(("law", "setup"), BREAKS, ids=[law for law, _ in BREAKS])
def test_a_law_speaks_up_where_it_was_learned(law: str, setup: Setup) -> None:
    figure = next(x.figure for x in LAWS if x.id == law)
    assert [f for f in of_law(law, setup) if figure in f.text and f.remedy]


@pytest.mark.parametrize(("law", "setup"), KEEPS, ids=[law for law, _ in KEEPS])
def test_a_law_is_silent_where_it_is_kept(law: str, setup: Setup) -> None:
    assert not of_law(law, setup), texts(of_law(law, setup))


def test_every_law_has_both_tests() -> None:
    assert {x.id for x in LAWS} == {law for law, _ in BREAKS} == {law for law, _ in KEEPS}


def test_a_finding_is_one_line_with_model_figure_and_remedy() -> None:
    (found,) = of_law("N2", two_gpus(model("--threads 16", id_="coder")))
    assert str(found) == (
        "N2: models.coder: --threads 16 on 8 physical cores "
        "(on 8 cores 8 threads 57.3 tokens/s, 16 threads 39.8); --threads 8"
    )


def test_what_host_n_ships_breaks_nothing_but_its_second_gpus_headroom() -> None:
    shipped = model(SHIPPED_N, with_template(TOOLS), need_bytes=MEASURED_N, **N)
    assert broken(two_gpus(shipped)) == {"M1"}


def test_n1_finds_the_split_that_host_n_found() -> None:
    (found,) = of_law("N1", two_gpus(model(SHIPPED_N.replace("-ts 24,16", ""), qwen35b(), **N)))
    assert found.remedy == "-ts 24,16" and "GPU-n1 needs" in found.text


def test_l3_finds_the_layers_that_host_l_found() -> None:
    (found,) = of_law("L3", laptop(model("-c 4096 -np 1 --cpu-moe", gpt_oss(), **L)))
    assert found.remedy == "--n-cpu-moe 21" and "room for 3 of them" in found.text


def test_l1_counts_what_is_loaded_together() -> None:
    one = model("-c 4096 -np 1 --cpu-moe", qwen35b(Q2_K), "one", **L)
    two = model("-c 4096 -np 1", qwen4b(), "two", gpus=())
    apart = replace(laptop(one, two, available=11500 * MIB), together=())
    assert not of_law("L1", apart)
    (found,) = of_law("L1", replace(apart, together=(("one", "two"),)))
    assert found.model == "one" and "together with two" in found.text


def test_m6_leaves_the_cache_to_the_models_beside() -> None:
    one = model(IN_DUO, gpt_oss(), "one", **L)
    two = model("-c 4096 -np 1", qwen4b(), "two", gpus=())
    assert of_law("M6", laptop(one))
    assert not of_law("M6", laptop(one, two, available=11000 * MIB))


def test_m6_names_the_flag_of_the_build() -> None:
    for flag, remedy in (("--load-mode", "--load-mode none"), ("--no-mmap", "--no-mmap")):
        (found,) = of_law("M6", big_gpu(model(PREFILL_M, qwen35b(), load_mode_flag=flag, **M)))
        assert found.remedy == remedy


def test_advice_about_vram_is_withheld_beside_a_model_of_unknown_size() -> None:
    alone = model("-c 4096 -np 1 --cpu-moe", gpt_oss(), "one", **L)
    assert {"L3", "M5"} <= broken(laptop(alone))
    assert not {"L3", "M5"} & broken(laptop(alone, model("", id_="stranger")))


def test_unknown_gpus_headers_and_memory_silence_what_needs_them() -> None:
    nothing = Setup((model("--n-cpu-moe 10 -ngl 0", gpus=None), model("-ngl 0", qwen35b(), gpus=None)), (("m",),))
    assert findings(nothing) == []


def test_the_docs_list_every_law_with_its_title_and_figure() -> None:
    text = (DOCS / "laws.md").read_text(encoding="utf-8")
    rows = {row[0]: row[1:] for row in re.findall(r"^\| \*\*(\w+)\*\* \| (.+?) \| (.+?) \|", text, re.MULTILINE)}
    assert rows == {law.id: (law.title, law.figure) for law in LAWS}


def test_every_law_is_in_the_field_measurements() -> None:
    text = (DOCS / "field-measurements.md").read_text(encoding="utf-8")
    assert not [law.id for law in LAWS if f"- **{law.id}** " not in text]
