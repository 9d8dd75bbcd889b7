from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swapd.errors import BadRequest
from swapd.proxy import names
from swapd.proxy.names import Asked, model_of, model_place


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        (b'{"model": "a"}', Asked("a", False)),
        (b'{"stream": true, "model": "org/m:q4 k"}', Asked("org/m:q4 k", True)),
        (b'{"messages": [{"model": "inner", "stream": true}], "model": "outer"}', Asked("outer", False)),
        (b'{"model": "\\u00e9"}', Asked("é", False)),
        (b'{"model": 3, "stream": 1}', Asked("", False)),
        (b'{"model": null}', Asked("", False)),
        (b"{}", Asked("", False)),
        (b"[]", Asked("", False)),
        (b"", Asked("", False)),
        (b" \n", Asked("", False)),
        (b'"model"', Asked("", False)),
        (b"7", Asked("", False)),
    ],
)
def test_only_a_top_level_text_is_a_model(body: bytes, asked: Asked) -> None:
    assert model_of(body) == asked


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 200_000, b'{"model": "a"} trailing'])
def test_what_is_no_json_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequest):
        model_of(body)


def read_by_python(body: bytes) -> Asked | None:
    """What the library that comes with Python makes of a body; None if it is none."""
    try:
        fields = json.loads(body.decode()) if body.strip() else {}
    except (ValueError, RecursionError):
        return None
    fields = fields if isinstance(fields, dict) else {}
    model, stream = fields.get("model", ""), fields.get("stream")
    return Asked(model if isinstance(model, str) else "", stream is True or stream == "true")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["true", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["model", "stream", "x"]), inner),
    max_leaves=8,
)


DAMAGES = st.lists(st.tuples(st.integers(0, 200), st.binary(max_size=2), st.integers(0, 2)), max_size=2)


@settings(deadline=None)
@given(VALUES, st.booleans(), DAMAGES)
def test_body_is_read_as_python_reads_it_whole_or_damaged(
    value: object, ascii_only: bool, damages: list[tuple[int, bytes, int]]
) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    for at, put, lost in damages:
        body = body[:at] + put + body[at + lost :]
    try:
        asked: Asked | None = model_of(body)
    except BadRequest:
        asked = None
    assert asked == read_by_python(body)


def test_ordinary_body_is_read_without_being_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(text: str) -> None:
        raise AssertionError("the whole body was built")

    monkeypatch.setattr(names.json, "loads", built)
    assert model_of('{"messages": [{"content": "é"}], "model": "a", "stream": true}'.encode()) == Asked("a", True)


def test_scanner_of_large_bodies_agrees_with_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    pieces: list[object] = [
        'q"uo\\te',
        "\\",
        '\\"',
        "A" * 300,
        {"model": "x", "stream": False},
        [1, ["]{"]],
        None,
        1.5e3,
        "",
    ]
    bodies = []
    for _ in range(300):
        fields: list[tuple[str, object]] = [(f"k{n}", chance.choice(pieces)) for n in range(chance.randrange(6))]
        fields += [
            ("model", chance.choice(["m", 'we"ird\\', "é", 3, None, ["l"]])),
            ("stream", chance.choice([True, False, "x"])),
        ]
        chance.shuffle(fields)
        indent = chance.choice([None, 1])
        bodies.append(json.dumps(dict(fields), indent=indent, ensure_ascii=chance.random() < 0.5).encode())
    parsed = [model_of(body) for body in bodies]
    monkeypatch.setattr(names, "PARSED_WHOLE_BYTES", 0)
    assert [model_of(body) for body in bodies] == parsed


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_scanner_survives_broken_bodies(monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    monkeypatch.setattr(names, "PARSED_WHOLE_BYTES", 0)
    model_of(b'{"model": "a\\"b", "messages": [{"x": "y"}], "stream": true}'[:cut])


def test_fields_of_a_multipart_form() -> None:
    form = (
        b'--xx\r\nContent-Disposition: form-data; name="file"; filename="name=model"\r\n\r\n\x00--x\r\n'
        b'--xx\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
        b'--xx\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n--xx--\r\n'
    )
    assert model_of(form, b'multipart/form-data; boundary="xx"') == Asked("whisper", True)
    assert model_of(form, b"multipart/form-data") == Asked("", False)
    assert model_of(form[:120], b"multipart/form-data; boundary=xx") == Asked("", False)


def test_fields_of_an_urlencoded_form() -> None:
    assert model_of(b"model=a%2Fb&stream=true", b"application/x-www-form-urlencoded") == Asked("a/b", True)


@pytest.mark.parametrize(
    ("body", "kind", "renamed"),
    [
        (b'{"x": 1.50, "model":"a" ,"y": {"model": "z"}}', b"", b'{"x": 1.50, "model":"b\\"c" ,"y": {"model": "z"}}'),
        (b'{"model": null}', b"application/json", b'{"model": "b\\"c"}'),
        (b' { "x": 1}', b"", b' { "model": "b\\"c", "x": 1}'),
        (b"{}", b"", b'{"model": "b\\"c"}'),
        (b"not json", b"", b"not json"),
        (b"[]", b"", b"[]"),
        (b"x=1&model=a&y=2", b"application/x-www-form-urlencoded", b"x=1&model=b%22c&y=2"),
        (b"x=1", b"application/x-www-form-urlencoded", b"x=1"),
        (
            b'--xx\r\nContent-Disposition: form-data; name="model"\r\n\r\na\r\n--xx--\r\n',
            b"multipart/form-data; boundary=xx",
            b'--xx\r\nContent-Disposition: form-data; name="model"\r\n\r\nb"c\r\n--xx--\r\n',
        ),
    ],
)
def test_another_name_upstream_changes_no_other_byte(body: bytes, kind: bytes, renamed: bytes) -> None:
    start, end, text = model_place(body, kind, 'b"c')
    assert body[:start] + text + body[end:] == renamed
