"""How answers are written: caches, HEAD, and what every one of them carries."""

from __future__ import annotations

from typing import Any

import pytest

from edge.answers import FOR_EVER, SAFE_HEADERS, etag, finish, json_answer, options_answer, problem_answer
from edge.problems import Problem

TAG = '"0123456789abcdef0123456789abcdef"'


def _result(**changes: Any) -> dict[str, Any]:
    headers = {"Content-Type": "application/json", "ETag": TAG, "Cache-Control": FOR_EVER, "Link": "<x>"}
    return {"statusCode": 200, "headers": headers, "body": "{}", "isBase64Encoded": False, **changes}


def test_numbers_are_written_as_they_were_hashed() -> None:
    """Text outside ASCII and the digits of a float stay as they are."""
    answer = json_answer(200, {"text": "é", "number": 0.30000000000000004, "whole": 1.0})
    assert answer.body == '{"text": "é", "number": 0.30000000000000004, "whole": 1.0}'
    assert answer.headers["Cache-Control"] == "no-store"


def test_what_is_not_finite_is_not_written() -> None:
    """A NaN never becomes null on its way out."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_answer(200, {"number": float("nan")})


def test_problem_has_its_own_type_and_headers() -> None:
    """A problem document keeps the headers that came with it."""
    answer = problem_answer(Problem(429, "Too much.", {"Retry-After": "7"}))
    assert (answer.status_code, answer.content_type) == (429, "application/problem+json")
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Retry-After"] == "7"


def test_preflight_names_methods_and_headers() -> None:
    """A browser reads there what it may send."""
    headers = options_answer("POST, OPTIONS").headers
    assert headers["Access-Control-Allow-Methods"] == "POST, OPTIONS"
    assert headers["Access-Control-Allow-Headers"] == "Content-Type, Idempotency-Key, If-None-Match, Prefer"


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        (TAG, 304),
        (f"W/{TAG}", 304),
        (f'"other", {TAG}', 304),
        ("*", 304),
        ("", 200),
        ('"other"', 200),
        (TAG.strip('"'), 200),
        (TAG[:-2] + '"', 200),
    ],
)
def test_what_the_caller_keeps_is_not_sent_again(condition: str, status: int) -> None:
    """If-None-Match is compared weakly, and only whole tags count (RFC 9110 section 13.1.2)."""
    done = finish("GET", {"if-none-match": condition}, _result())
    assert done["statusCode"] == status
    if status == 304:
        assert done["body"] == ""
        assert done["headers"] == {**SAFE_HEADERS, "ETag": TAG, "Cache-Control": FOR_EVER, "Link": "<x>"}
    else:
        assert done["body"] == "{}"


def test_a_page_that_is_not_sent_again_keeps_its_policy() -> None:
    """A browser takes a 304's policy for the page's, which must not be the one for answers that are no page."""
    result = _result()
    result["headers"]["Content-Security-Policy"] = "default-src 'none'; script-src 'sha256-x'"
    kept = finish("GET", {"if-none-match": TAG}, result)
    assert kept["statusCode"] == 304
    assert kept["headers"]["Content-Security-Policy"] == "default-src 'none'; script-src 'sha256-x'"


@pytest.mark.parametrize("status", [202, 404, 422])
def test_only_a_whole_answer_is_not_modified(status: int) -> None:
    """An error is told whatever the caller keeps."""
    assert finish("GET", {"if-none-match": "*"}, _result(statusCode=status))["statusCode"] == status


def test_answer_without_a_tag_is_sent() -> None:
    """Where nothing names a state, nothing is unchanged."""
    assert finish("GET", {"if-none-match": "*"}, _result(headers={}))["statusCode"] == 200


def test_head_has_the_headers_alone() -> None:
    """HEAD gives what GET gives, without its body."""
    head, get = finish("HEAD", {}, _result()), finish("GET", {}, _result())
    assert head == {**get, "body": ""}


def test_own_headers_outrank_the_usual() -> None:
    """A page may have another policy than data."""
    done = finish("GET", {}, _result(headers={"Content-Security-Policy": "default-src 'self'"}))
    assert done["headers"] == {**SAFE_HEADERS, "Content-Security-Policy": "default-src 'self'"}


def test_tags_differ_as_bodies_do() -> None:
    """A tag is of all bytes of a body."""
    assert etag("a") != etag("b")
    assert etag("é") == '"' + "4a99557e4033c3539de2eb65472017cad5f9557f7a0625a09f1c3f6e2ba69c4c"[:32] + '"'
