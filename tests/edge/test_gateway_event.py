"""Events as API Gateway makes them, answers as it takes them."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from edge.gateway_event import build_event, header_bytes, http_answer, is_ambiguous


def _scope(**changes: Any) -> dict[str, Any]:
    return {
        "method": "GET",
        "http_version": "1.1",
        "path": "/api/a11oy/v1/specdec/curve",
        "raw_path": b"/api/a11oy/v1/specdec/curve",
        "query_string": b"",
        "headers": [(b"host", b"localhost:8080")],
        "client": ("192.0.2.7", 5000),
        **changes,
    }


def test_headers_are_lower_case_and_joined_and_cookies_apart() -> None:
    """Names are lower case, repeats are joined with commas, cookies are a list of their own."""
    event = build_event(
        _scope(
            headers=[
                (b"Host", b"a"),
                (b"X-Thing", b"1"),
                (b"x-thing", b"2"),
                (b"Cookie", b"a=1; b=2"),
                (b"cookie", b"c=3"),
            ]
        ),
        b"",
    )
    assert event["headers"] == {"host": "a", "x-thing": "1,2"}
    assert event["cookies"] == ["a=1", "b=2", "c=3"]


def test_query_is_kept_raw_and_joined() -> None:
    """RawQueryString is what was sent; queryStringParameters joins repeats with commas."""
    event = build_event(_scope(query_string=b"alpha=0.5&alpha=0.7&k=4&x=a%20b"), b"")
    assert event["rawQueryString"] == "alpha=0.5&alpha=0.7&k=4&x=a%20b"
    assert event["queryStringParameters"] == {"alpha": "0.5,0.7", "k": "4", "x": "a b"}


def test_absent_parts_are_absent() -> None:
    """Without query, cookies or body the event has no such keys."""
    event = build_event(_scope(), b"")
    assert not {"queryStringParameters", "cookies", "body"} & set(event)
    assert event["isBase64Encoded"] is False
    assert event["version"] == "2.0"


def test_request_context_tells_who_and_when() -> None:
    """Method, path, source address and a time in milliseconds are there."""
    context = build_event(_scope(method="POST"), b"")["requestContext"]
    assert context["http"] == {
        "method": "POST",
        "path": "/api/a11oy/v1/specdec/curve",
        "protocol": "HTTP/1.1",
        "sourceIp": "192.0.2.7",
        "userAgent": "",
    }
    assert context["stage"] == "$default"
    assert context["timeEpoch"] > 1_700_000_000_000


@pytest.mark.parametrize(
    ("content_type", "body", "encoded"),
    [
        (b"application/json", b'{"a": "\xc3\xa9"}', False),
        (b"application/json; charset=utf-8", b"{}", False),
        (b"text/plain", b"hello", False),
        (b"application/json", b"\xff\xfe", True),
        (b"application/octet-stream", b"hello", True),
        (b"", b"hello", True),
    ],
)
def test_what_is_not_text_is_base64(content_type: bytes, body: bytes, encoded: bool) -> None:
    """Text types travel as text if they are UTF-8, everything else in Base64."""
    event = build_event(_scope(headers=[(b"content-type", content_type)]), body)
    assert event["isBase64Encoded"] is encoded
    assert (base64.b64decode(event["body"]) if encoded else event["body"].encode()) == body


def test_header_size_counts_line_and_headers() -> None:
    """The limit is on the request line and all headers together."""
    plain = header_bytes(_scope())
    assert header_bytes(_scope(query_string=b"x" * 10)) == plain + 10
    assert header_bytes(_scope(headers=[(b"host", b"localhost:8080"), (b"a", b"bc")])) == plain + 7


def test_answer_is_taken_apart() -> None:
    """Headers, cookies and a Base64 body become HTTP."""
    status, headers, body = http_answer(
        {
            "statusCode": 202,
            "headers": {"Location": "/x"},
            "cookies": ["a=1", "b=2"],
            "body": base64.b64encode(b"\x00\xff").decode(),
            "isBase64Encoded": True,
        }
    )
    assert (status, body) == (202, b"\x00\xff")
    assert headers == [(b"location", b"/x"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]


def test_answer_in_another_format_is_an_error() -> None:
    """What is not payload format 2.0 is not guessed at."""
    with pytest.raises(KeyError):
        http_answer({"message": "hello"})


@pytest.mark.parametrize(
    ("version", "names", "ambiguous"),
    [
        ("1.1", [], False),
        ("1.1", [b"content-length"], False),
        ("1.1", [b"transfer-encoding"], False),
        ("1.1", [b"Transfer-Encoding", b"content-length"], True),
        ("1.0", [b"content-length"], False),
        ("1.0", [b"transfer-encoding"], True),
        ("2.0", [], True),
        ("0.9", [], True),
    ],
)
def test_request_that_a_proxy_may_cut_elsewhere_is_known(
    version: str, names: list[bytes], ambiguous: bool
) -> None:
    """A length beside chunks, chunks in HTTP/1.0 and other versions are not to be trusted."""
    scope = _scope(http_version=version, headers=[(name, b"x") for name in names])
    assert is_ambiguous(scope) is ambiguous


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        ("/x", "/x", "localhost:8080"),
        ("http://edge.example:81/x", "/x", "edge.example:81"),
        ("HTTPS://edge.example", "/", "edge.example"),
        ("ftp://edge.example/x", "ftp://edge.example/x", "localhost:8080"),
    ],
)
def test_absolute_target_is_its_path(target: str, path: str, host: str) -> None:
    """Every server takes the form that proxies are sent; its host outranks the header."""
    event = build_event(_scope(path=target), b"")
    assert (event["rawPath"], event["headers"]["host"]) == (path, host)
