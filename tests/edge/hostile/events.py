"""Events that API Gateway never sends, and a direct invoker can."""

from __future__ import annotations

import math
from typing import Any

from tests.edge.hostile.entry import GOOD, JSON, MARK, Hostile, asked, changed, get, post, whole, without

NOT_OURS = "payload format 2.0"


def _context(**fields: Any) -> dict[str, Any]:
    """An event whose requestContext has fields of its own."""
    event = get("/health")
    return {**event, "requestContext": {**event["requestContext"], **fields}}


EVENTS = [
    Hostile("nothing in it", "an empty test event", 400, {}, NOT_OURS),
    Hostile("null", "no event", 400, None, NOT_OURS),
    Hostile("a list", "an event of another shape", 400, [get("/health")], NOT_OURS),
    Hostile("a text", "an event of another shape", 400, MARK, NOT_OURS),
    Hostile("a number", "an event of another shape", 400, 5, NOT_OURS),
    Hostile(
        "the console's test event",
        "what the console offers first",
        400,
        {"key1": MARK, "key2": "value2"},
        NOT_OURS,
    ),
    Hostile(
        "format 1.0",
        "a REST API's event",
        400,
        {
            "version": "1.0",
            "httpMethod": "POST",
            "path": "/api/a11oy/v1/specdec/run",
            "headers": JSON,
            "body": GOOD,
            "requestContext": {"stage": "live", "identity": {"sourceIp": "192.0.2.1"}},
        },
        NOT_OURS,
    ),
    Hostile(
        "a load balancer's",
        "another service's event",
        400,
        {"requestContext": {"elb": {}}, "httpMethod": "POST", "path": "/", "body": GOOD},
        NOT_OURS,
    ),
    Hostile(
        "a queue's records",
        "another service's event",
        400,
        {"Records": [{"eventSource": "aws:sqs", "body": GOOD}]},
        NOT_OURS,
    ),
    Hostile(
        "a schedule",
        "another service's event",
        400,
        {"source": "aws.events", "detail-type": "Scheduled Event", "detail": {"prompt": MARK}},
        NOT_OURS,
    ),
    Hostile(
        "a websocket API's",
        "another service's event",
        400,
        {
            "requestContext": {"routeKey": "$connect", "connectionId": "x", "stage": "live"},
            "isBase64Encoded": False,
        },
        NOT_OURS,
    ),
    Hostile(
        "without requestContext", "nobody asks", 400, without(get("/health"), "requestContext"), NOT_OURS
    ),
    Hostile(
        "requestContext null", "nobody asks", 400, changed(get("/health"), requestContext=None), NOT_OURS
    ),
    Hostile(
        "requestContext a text", "nobody asks", 400, changed(get("/health"), requestContext=MARK), NOT_OURS
    ),
    Hostile(
        "without http",
        "no method",
        400,
        changed(get("/health"), requestContext={"stage": "$default"}),
        NOT_OURS,
    ),
    Hostile("http null", "no method", 400, _context(http=None), NOT_OURS),
    Hostile(
        "without a method", "no method", 400, _context(http={"path": "/", "sourceIp": "192.0.2.1"}), NOT_OURS
    ),
    Hostile("method null", "no method", 400, asked(get("/health"), method=None), NOT_OURS),
    Hostile("method a number", "no word", 400, asked(get("/health"), method=5), NOT_OURS),
    Hostile(
        "method a list", "cannot be looked up in a set", 400, asked(get("/health"), method=["GET"]), NOT_OURS
    ),
    Hostile(
        "method an object",
        "cannot be looked up in a set",
        400,
        asked(get("/health"), method={"GET": MARK}),
        NOT_OURS,
    ),
    Hostile("without a path", "nowhere", 400, without(get("/health"), "rawPath"), NOT_OURS),
    Hostile("path null", "nowhere", 400, changed(get("/health"), rawPath=None), NOT_OURS),
    Hostile("path a number", "nowhere", 400, changed(get("/health"), rawPath=5), NOT_OURS),
    Hostile("path a list", "nowhere", 400, changed(get("/health"), rawPath=["/health"]), NOT_OURS),
    Hostile(
        "without headers",
        "a request of the oldest kind",
        200,
        without(get("/health"), "headers"),
        '"status": "LIVE"',
    ),
    Hostile(
        "headers null",
        "a request of the oldest kind",
        200,
        changed(get("/health"), headers=None),
        '"status": "LIVE"',
    ),
    Hostile(
        "run without headers",
        "a run that says nothing of itself",
        415,
        without(post(GOOD), "headers"),
        "application/json",
    ),
    Hostile(
        "headers a list",
        "pairs, as other formats have them",
        400,
        changed(get("/health"), headers=[["a", MARK]]),
        NOT_OURS,
    ),
    Hostile(
        "headers a text",
        "a head that nobody parsed",
        400,
        changed(get("/health"), headers=f"a: {MARK}"),
        NOT_OURS,
    ),
    Hostile(
        "header null",
        "a value that is none",
        415,
        post(GOOD) | {"headers": {"content-type": None}},
        "application/json",
    ),
    Hostile(
        "header a list",
        "values, as other formats have them",
        415,
        post(GOOD) | {"headers": {"content-type": ["application/json"]}},
        "application/json",
    ),
    Hostile(
        "header's name null",
        "a name that is none",
        200,
        changed(get("/health"), headers={None: MARK}),
        '"status": "LIVE"',
    ),
    Hostile("body null", "no body, said aloud", 400, changed(post(GOOD), body=None), "The body is empty"),
    Hostile(
        "body an object",
        "a body that somebody has parsed",
        400,
        changed(post(GOOD), body={"prompt": MARK}),
        NOT_OURS,
    ),
    Hostile("body a number", "a body that somebody has parsed", 400, changed(post(GOOD), body=5), NOT_OURS),
    Hostile(
        "body a list of texts", "has a length, is no text", 400, changed(post(GOOD), body=[GOOD]), NOT_OURS
    ),
    Hostile("body false", "no text, and no body either", 400, changed(post(GOOD), body=False), NOT_OURS),
    Hostile(
        "isBase64Encoded a text",
        "true to Python, whatever it says",
        400,
        changed(post(GOOD), isBase64Encoded="false"),
        "could not be decoded",
    ),
    Hostile(
        "isBase64Encoded null", "neither yes nor no", 200, changed(post(GOOD), isBase64Encoded=None), runs=1
    ),
    Hostile(
        "without isBase64Encoded", "neither yes nor no", 200, without(post(GOOD), "isBase64Encoded"), runs=1
    ),
    Hostile(
        "Base64 of a body beyond ASCII",
        "says Base64, is a prompt",
        400,
        changed(post(GOOD), body=f"{MARK} é", isBase64Encoded=True),
        "could not be decoded",
    ),
    Hostile("query null", "no query, said aloud", 200, changed(get("/curve"), rawQueryString=None), '"k": 4'),
    Hostile("without a query", "no query", 200, without(get("/curve"), "rawQueryString"), '"k": 4'),
    Hostile("query a number", "no text", 400, changed(get("/curve"), rawQueryString=4), NOT_OURS),
    Hostile(
        "query an object",
        "a query that somebody has parsed",
        400,
        changed(get("/curve"), rawQueryString={"k": MARK}),
        NOT_OURS,
    ),
    Hostile(
        "query with a lone surrogate", "no UTF-8 can hold it", 422, get("/curve", "k=\ud800"), "k must be"
    ),
    Hostile(
        "cookies a number",
        "nothing that can be joined",
        200,
        changed(get("/health"), cookies=5),
        '"status": "LIVE"',
    ),
    Hostile(
        "pathParameters that lie",
        "what the gateway matched is not the path",
        404,
        changed(get("/runs/x"), pathParameters={"run_id": MARK}),
        "not a run id",
    ),
    Hostile("stage null", "no stage", 200, _context(stage=None), '"status": "LIVE"'),
    Hostile("stage a number", "no word", 200, _context(stage=5), '"status": "LIVE"'),
    Hostile(
        "stage that is the base",
        "cuts the path where it likes",
        404,
        {**_context(stage="api/a11oy"), "rawPath": "/api/a11oy/v1/specdec/health"},
        "There is nothing here",
    ),
    Hostile(
        "stage twice in the path",
        "is cut once",
        404,
        {
            **whole("/live/live/api/a11oy/v1/specdec/health"),
            "requestContext": {**whole("")["requestContext"], "stage": "live"},
        },
        "There is nothing here",
    ),
    Hostile(
        "caller null",
        "nobody's Idempotency-Key",
        200,
        asked(post(GOOD, {"idempotency-key": "nobody"}), sourceIp=None),
        runs=1,
    ),
    Hostile(
        "caller a number",
        "no address",
        400,
        asked(post(GOOD, {"idempotency-key": "nobody"}), sourceIp=3232235777),
        NOT_OURS,
    ),
    Hostile(
        "caller an object",
        "no address",
        400,
        asked(post(GOOD, {"idempotency-key": "nobody"}), sourceIp={"a": MARK}),
        NOT_OURS,
    ),
    Hostile(
        "caller not a number",
        "no JSON either",
        400,
        asked(post(GOOD, {"idempotency-key": "nobody"}), sourceIp=math.nan),
        NOT_OURS,
    ),
    Hostile(
        "caller with a lone surrogate",
        "no UTF-8 can hold it",
        400,
        asked(post(GOOD, {"idempotency-key": "nobody"}), sourceIp="\ud800"),
        NOT_OURS,
    ),
    Hostile(
        "caller of 100,000 letters", "fills a table", 200, asked(post(GOOD), sourceIp=MARK * 4_000), runs=1
    ),
    Hostile(
        "requestId the prompt",
        "a log of ids would tell it",
        200,
        _context(requestId=MARK),
        '"status": "LIVE"',
    ),
    Hostile(
        "requestId with a newline",
        "a header to the tower, a line in the log",
        200,
        _context(requestId="a\r\nX-Admin: 1"),
        '"status": "LIVE"',
    ),
    Hostile("requestId an object", "no word", 200, _context(requestId={"a": MARK}), '"status": "LIVE"'),
    Hostile(
        "authorizer that says admin",
        "claims that nobody checked",
        404,
        {
            **get("/admin"),
            "requestContext": {
                **_context()["requestContext"],
                "authorizer": {"jwt": {"claims": {"sub": MARK}}},
            },
        },
        "There is nothing here",
    ),
    Hostile(
        "version 1.0 in a 2.0 event",
        "which of the two is it?",
        200,
        changed(get("/health"), version="1.0"),
        '"status": "LIVE"',
    ),
    Hostile(
        "fields of one's own",
        "what is not read does no harm",
        200,
        changed(get("/health"), prompt=MARK, debug=True, powertools={"debug": True}),
        '"status": "LIVE"',
    ),
]
