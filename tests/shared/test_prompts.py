"""Sets of prompts: our own, and files good and bad."""

from __future__ import annotations

import ast
import json
from collections import Counter
from typing import Any

import pytest

from shared.prompts import Prompt, PromptsError, own, parse, plan
from shared.schemas import MAX_PROMPT_BYTES

SECRET = "nobody may read this"


def test_our_own() -> None:
    """Our own set holds six prompts each of prose and code, all different, each of one to three lines."""
    prompts = own()
    assert Counter(prompt.domain for prompt in prompts) == {"prose": 6, "code": 6}
    assert len({prompt.text for prompt in prompts}) == 12
    assert all(1 <= len(prompt.text.splitlines()) <= 3 for prompt in prompts)
    assert all(prompt.text.isascii() and prompt.text == prompt.text.strip() for prompt in prompts)


def test_our_code_is_python() -> None:
    """Each code prompt is the beginning of a Python program."""
    for prompt in own():
        if prompt.domain == "code":
            endings = ["", *(f"\n{' ' * depth}pass" for depth in (4, 8, 12))]
            assert any(parses(prompt.text + ending) for ending in endings), prompt.index


def parses(text: str) -> bool:
    """Whether the text is Python."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


ENTRIES = [
    {"domain": "prose", "prompt": "one"},
    {"domain": "prose", "prompt": "two\u2028lines"},
    {"domain": "sql_2", "prompt": "select", "name": "further fields are ignored"},
]


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(ENTRIES),
        "\n " + json.dumps(ENTRIES, indent=2, ensure_ascii=False),
        "\n".join(map(json.dumps, ENTRIES)),
        "\r\n\r\n".join(json.dumps(entry, ensure_ascii=False) for entry in ENTRIES) + "\r\n",
    ],
    ids=["list", "indented", "lines", "spaced lines"],
)
def test_files(data: str) -> None:
    """A JSON list and JSON lines give the same prompts, numbered by domain, the first of each domain first."""
    assert parse(data.encode()) == [
        Prompt("prose", 1, "one"),
        Prompt("sql_2", 1, "select"),
        Prompt("prose", 2, "two\u2028lines"),
    ]


def entry(**change: Any) -> bytes:
    """One line with a secret prompt."""
    return json.dumps({"domain": "prose", "prompt": SECRET, **change}).encode()


NAME = "domain must be a name of 1 to 32 characters out of a-z, 0-9, _ and -, and not all"
SIZE = f"prompt must be a string of 1 to {MAX_PROMPT_BYTES} UTF-8 bytes without NUL or lone surrogates"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "there is no prompt in it"),
        (b"[]", "there is no prompt in it"),
        (b"[" + entry(), "the list: the text is not JSON"),
        (b"[" + entry() + b", 5]", "entry 2: the value must be a JSON object"),
        (entry() + b"\n\n{" + entry(), "line 3: the text is not JSON"),
        (SECRET.encode(), "line 1: the text is not JSON"),
        (b"\xff" + SECRET.encode(), "line 1: the text is not UTF-8"),
        (json.dumps(SECRET).encode(), "line 1: the value must be a JSON object"),
        (b'{"domain": "prose"}', "line 1: prompt is required"),
        (json.dumps({"prompt": SECRET}).encode(), "line 1: domain is required"),
        (entry(domain="all"), f"line 1: {NAME}"),
        (entry(domain="../prose"), f"line 1: {NAME}"),
        (entry(domain="prose\n"), f"line 1: {NAME}"),
        (entry(domain=""), f"line 1: {NAME}"),
        (entry(domain=[SECRET]), f"line 1: {NAME}"),
        (entry(prompt=""), f"line 1: {SIZE}"),
        (entry(prompt=[SECRET]), "line 1: prompt must be a string"),
        (entry(prompt=SECRET + "\0"), f"line 1: {SIZE}"),
        (entry(prompt=SECRET + "\u00fc" * MAX_PROMPT_BYTES), f"line 1: {SIZE}"),
        (entry()[:-1] + b', "prompt": "twice"}', "line 1: an object names a key twice"),
    ],
    ids=lambda part: ascii(part)[:48],
)
def test_bad_files(data: bytes, sentence: str) -> None:
    """What is wrong is said in one sentence that says where and repeats nothing of the file."""
    with pytest.raises(PromptsError) as error:
        parse(data)
    assert str(error.value) == sentence


def test_plan() -> None:
    """All ks of a prompt come together, and every other prompt of a domain goes through them backwards."""
    one, other, two = Prompt("prose", 1, "a"), Prompt("code", 1, "b"), Prompt("prose", 2, "c")
    assert plan([one, other, two], [1, 2, "auto"]) == [
        *((one, k) for k in (1, 2, "auto")),
        *((other, k) for k in (1, 2, "auto")),
        *((two, k) for k in ("auto", 2, 1)),
    ]
