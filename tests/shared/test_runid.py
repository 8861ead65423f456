"""Run ids against golden vectors, and against every altered character."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.runid import (
    ParsedRunId,
    RunIdError,
    RunKeys,
    bound_request,
    digest_text,
    prompt_commitment,
    request_digest,
    split,
)
from tests.shared.build import golden

GOLDEN: dict[str, Any] = golden("wire")["run_id"]
KEYS = RunKeys(GOLDEN["run_secret"].encode())
ID = bytes.fromhex(GOLDEN["id_bytes_hex"])
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.=+/ \n"


def test_golden_vector() -> None:
    """Salt, commitment, bound request, digest, run id and nonce are the golden ones."""
    salt = KEYS.salt(ID)
    commitment = prompt_commitment(salt, GOLDEN["request"]["prompt"])
    bound = bound_request(GOLDEN["request"], commitment)
    assert salt.hex() == GOLDEN["salt_hex"]
    assert commitment == GOLDEN["prompt_commitment"]
    assert bound == GOLDEN["bound_request"]
    assert request_digest(bound).hex() == GOLDEN["request_digest_hex"]
    assert digest_text(bound) == GOLDEN["run_id"].split(".")[1]
    assert KEYS.run_id(ID, GOLDEN["request"]) == GOLDEN["run_id"]
    assert KEYS.nonce(GOLDEN["run_id"]) == GOLDEN["nonce"]


def test_parse() -> None:
    """A run id of ours gives back its id and the first half of the request's digest."""
    digest = bytes.fromhex(GOLDEN["request_digest_hex"])[:16]
    assert KEYS.parse(GOLDEN["run_id"]) == ParsedRunId(ID, digest)
    assert split(GOLDEN["run_id"]) == ("AAECAwQFBgcICQoLDA0ODw", "B_Vx99ym7EBC0RdGLOnSpw")


def test_the_request_is_left_alone() -> None:
    """Binding a request does not take the prompt out of the caller's own."""
    request = dict(GOLDEN["request"])
    bound_request(request, "0" * 64)
    assert request == GOLDEN["request"]


def test_any_altered_character_is_refused() -> None:
    """A run id with any one character replaced is not ours, nor is another spelling of it."""
    run_id = GOLDEN["run_id"]
    assert len(run_id) == 68
    for position in range(68):
        for character in set(ALPHABET) - {run_id[position]}:
            with pytest.raises(RunIdError):
                KEYS.parse(run_id[:position] + character + run_id[position + 1 :])


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a.b.c",
        GOLDEN["run_id"] + "\n",
        " " + GOLDEN["run_id"],
        GOLDEN["run_id"] + ".A",
        "é" * 68,
        "\ud800",
    ],
    ids=ascii,
)
def test_malformed(text: str) -> None:
    """Text of another form is refused with and without the secret."""
    for read in (split, KEYS.parse):
        with pytest.raises(RunIdError) as refused:
            read(text)
        assert refused.value.code == "NOT_FOUND"


@given(st.text())
def test_any_text_is_refused(text: str) -> None:
    """No text that we did not make is accepted, and none raises anything else."""
    with pytest.raises(RunIdError):
        KEYS.parse(text)


def test_another_secret() -> None:
    """A run id made under another secret is not ours."""
    with pytest.raises(RunIdError, match="not one of ours"):
        RunKeys(b"another secret of ours").parse(GOLDEN["run_id"])


def test_short_secret() -> None:
    """A secret that could be guessed is refused; 16 bytes are the least."""
    RunKeys(bytes(16))
    with pytest.raises(RunIdError, match="too short; use at least 16 bytes"):
        RunKeys(bytes(15))


def test_ids() -> None:
    """New ids differ; ids for one scope and key are the same, and no other scope and key share them."""
    assert KEYS.new_id() != KEYS.new_id() and len(KEYS.new_id()) == 16
    assert KEYS.id_for("a", "bc") == KEYS.id_for("a", "bc") and len(KEYS.id_for("a", "bc")) == 16
    ids = {KEYS.id_for(*pair) for pair in [("a", "bc"), ("ab", "c"), ("", "abc"), ("a:b", "c"), ("a", "b:c")]}
    assert len(ids) == 5


def test_every_field_is_bound() -> None:
    """Changing any field of a request, the prompt included, changes the run id."""
    request = GOLDEN["request"]
    others = {"prompt": "x", "k": 5, "n": 51, "temperature": 0.5, "top_p": 0.5, "top_k": 1, "seed": 1}
    others |= {"chat": True, "ignore_eos": True, "include_output": True}
    assert others.keys() == request.keys()
    ids = {KEYS.run_id(ID, {**request, name: value}) for name, value in others.items()}
    assert len(ids | {GOLDEN["run_id"]}) == len(others) + 1
