"""Paths and methods that try to be others. API Gateway decodes a path once, so these are what the handler sees."""

from __future__ import annotations

from shared.labels import BASE_PATH
from tests.edge.hostile.entry import GOOD, JSON, MARK, Hostile, asked, get, post, whole
from tests.edge.support import make_event

NOTHING = "There is nothing here"
DIGEST = "0123456789abcdef" * 4

PATHS = [
    Hostile("dot segments", "out of one route into another", 404, get("/curve/../health"), NOTHING),
    Hostile("one dot", "the same place by another name", 404, get("/./health"), NOTHING),
    Hostile("dot at the end", "the same place by another name", 404, get("/health/."), NOTHING),
    Hostile(
        "dots out of the base", "a file of the machine", 404, get("/../../../../../../etc/passwd"), NOTHING
    ),
    Hostile(
        "dots behind receipts", "a file beside the receipts", 404, get("/receipts/../../etc/passwd"), NOTHING
    ),
    Hostile("dots as a digest", "a file beside the receipts", 404, get("/receipts/.."), "64 hex digits"),
    Hostile(
        "dots as a digest, with payload",
        "the folder's own payload",
        404,
        get("/receipts/../payload"),
        "64 hex digits",
    ),
    Hostile("backslashes", "dot segments on Windows", 404, get("/receipts/..\\..\\etc\\passwd"), NOTHING),
    Hostile(
        "dots still encoded",
        "decoded a second time by somebody",
        404,
        get("/receipts/%2e%2e%2f%2e%2e%2fetc%2fpasswd"),
        "64 hex digits",
    ),
    Hostile(
        "dots twice encoded",
        "decoded a third time by somebody",
        404,
        get("/receipts/%252e%252e%252fetc"),
        "64 hex digits",
    ),
    Hostile("slash still encoded", "one segment or two", 404, whole(f"{BASE_PATH}%2fhealth"), NOTHING),
    Hostile(
        "overlong dot and slash",
        "what is left of them after decoding",
        404,
        get("/receipts/\ufffd\ufffd\ufffd\ufffd/payload"),
        NOTHING,
    ),
    Hostile(
        "IIS's dots",
        "u-escapes that some servers know",
        404,
        get("/receipts/%u002e%u002e%u2215etc"),
        "64 hex digits",
    ),
    Hostile("two slashes before", "an empty segment", 404, whole(f"/{BASE_PATH}/health"), NOTHING),
    Hostile("two slashes between", "an empty segment", 404, get("//health"), NOTHING),
    Hostile(
        "slashes behind", "trailing slashes mean nothing here", 200, get("/health///"), '"status": "LIVE"'
    ),
    Hostile("slashes by the thousand", "slow to trim", 200, get("/health" + "/" * 9_000), '"status": "LIVE"'),
    Hostile("capitals", "the same place on some systems", 404, get("/HEALTH"), NOTHING),
    Hostile(
        "base in capitals",
        "the same place on some systems",
        404,
        whole(BASE_PATH.upper() + "/health"),
        NOTHING,
    ),
    Hostile(
        "base with a tail",
        "begins like the base, and is not",
        404,
        whole(f"{BASE_PATH}.evil.example/health"),
        NOTHING,
    ),
    Hostile(
        "base with a letter more", "begins like the base, and is not", 404, whole(f"{BASE_PATH}x"), NOTHING
    ),
    Hostile(
        "base behind a user", "a URL's credentials", 404, whole(f"/user:pass@host{BASE_PATH}/health"), NOTHING
    ),
    Hostile(
        "absolute",
        "a whole URL where a path belongs",
        404,
        whole(f"http://evil.example{BASE_PATH}/health"),
        NOTHING,
    ),
    Hostile("star", "the target of OPTIONS alone", 404, whole("*"), NOTHING),
    Hostile("nothing", "no path at all", 404, whole(""), NOTHING),
    Hostile("path parameters", "dropped by some servers", 404, get("/health;jsessionid=1"), NOTHING),
    Hostile("question mark in the path", "a query that was encoded", 404, get("/health?k=4"), NOTHING),
    Hostile("hash in the path", "a fragment that was encoded", 404, get("/health#x"), NOTHING),
    Hostile("another suffix", "another format of the same", 404, get("/health.json"), NOTHING),
    Hostile("NUL behind", "ends the path in C", 404, get("/health\0"), NOTHING),
    Hostile("NUL and a suffix", "ends the path in C", 404, get("/keys\0.html"), NOTHING),
    Hostile("newline behind", "a dollar sign matches before it", 404, get("/health\n"), NOTHING),
    Hostile("newline behind the curve", "a dollar sign matches before it", 404, get("/curve\n"), NOTHING),
    Hostile(
        "carriage return and newline",
        "a header in the log or answer",
        404,
        get("/health\r\nSet-Cookie: a=b"),
        NOTHING,
    ),
    Hostile("blank behind", "trimmed by some", 404, get("/health "), NOTHING),
    Hostile("tab behind", "trimmed by some", 404, get("/health\t"), NOTHING),
    Hostile("a letter from another script", "looks the same", 404, get("/he\u0430lth"), NOTHING),
    Hostile("zero width", "looks the same", 404, get("/health\u200b"), NOTHING),
    Hostile("full width", "the same under NFKC", 404, get("/ｈｅａｌｔｈ"), NOTHING),
    Hostile("right to left", "reads as another path", 404, get("/\u202ehtlaeh"), NOTHING),
    Hostile("lone surrogate", "no UTF-8 can hold it", 404, get("/runs/\ud800"), NOTHING),
    Hostile(
        "100,000 letters", "longer than any gateway lets through", 404, get("/" + "a" * 100_000), NOTHING
    ),
    Hostile("5,000 segments", "slow for careless patterns", 404, get("/runs/" + "a/" * 5_000 + "x"), NOTHING),
    Hostile(
        "the prompt as a path", "errors that repeat the path would tell it", 404, get(f"/{MARK}"), NOTHING
    ),
    Hostile("our router's placeholder", "the pattern itself", 404, get("/runs/<run_id>"), "not a run id"),
    Hostile("our document's placeholder", "the pattern itself", 404, get("/runs/{run_id}"), "not a run id"),
    Hostile("a pattern's pieces", "a regular expression as a path", 404, get("/(health|keys)"), NOTHING),
    Hostile("a group's name", "a field of the route", 404, get("/receipts/(?P<digest>.*)/payload"), NOTHING),
    Hostile("git", "sources that were deployed by mistake", 404, get("/.git/config"), NOTHING),
    Hostile("environment file", "secrets that were deployed by mistake", 404, whole("/.env"), NOTHING),
    Hostile("a source of ours", "code beside the page", 404, get("/app.py"), NOTHING),
    Hostile("the page's own file", "one page, one address", 404, get("/index.html"), NOTHING),
    Hostile(
        "digest in capitals",
        "the same digest, another name of a file",
        404,
        get(f"/receipts/{DIGEST.upper()}"),
        "64 hex digits",
    ),
    Hostile(
        "digest a digit short",
        "a prefix that may match many",
        404,
        get(f"/receipts/{DIGEST[1:]}"),
        "64 hex digits",
    ),
    Hostile(
        "digest a digit long", "cut by careless readers", 404, get(f"/receipts/{DIGEST}0"), "64 hex digits"
    ),
    Hostile("digest with a star", "a pattern of files", 404, get("/receipts/" + "*" * 64), "64 hex digits"),
    Hostile(
        "digest in Arabic digits",
        "digits to Python's isdigit",
        404,
        get("/receipts/" + "٤" * 64),
        "64 hex digits",
    ),
    Hostile(
        "digest with a newline", "a dollar sign matches before it", 404, get(f"/receipts/{DIGEST}\n"), NOTHING
    ),
    Hostile("digest nobody has", "guesses", 404, get(f"/receipts/{DIGEST}"), "No receipt with this payload"),
    Hostile(
        "payload nobody has",
        "guesses",
        404,
        get(f"/receipts/{DIGEST}/payload"),
        "No receipt with this payload",
    ),
    Hostile(
        "file behind a digest",
        "a file of the store",
        404,
        get(f"/receipts/{DIGEST}.payload"),
        "64 hex digits",
    ),
]

METHODS = [
    Hostile(
        "TRACE",
        "shows headers that a proxy added",
        405,
        make_event("TRACE", "/health"),
        "takes GET",
        "Allow: GET, HEAD, OPTIONS",
    ),
    Hostile(
        "CONNECT",
        "a tunnel into the network",
        405,
        make_event("CONNECT", "/health"),
        "takes GET",
        "Allow: GET, HEAD, OPTIONS",
    ),
    Hostile(
        "TRACK",
        "TRACE by another name",
        405,
        make_event("TRACK", "/run"),
        "takes POST",
        "Allow: POST, OPTIONS",
    ),
    Hostile("PROPFIND", "lists folders in WebDAV", 405, make_event("PROPFIND", "/receipts/x"), "takes GET"),
    Hostile("PURGE", "empties a cache", 405, make_event("PURGE", "/curve"), "takes GET"),
    Hostile(
        "PUT over a receipt",
        "another receipt under its digest",
        405,
        make_event("PUT", f"/receipts/{DIGEST}", body=GOOD),
        "takes GET",
    ),
    Hostile(
        "DELETE of a receipt",
        "no receipt is ever deleted",
        405,
        make_event("DELETE", f"/receipts/{DIGEST}"),
        "takes GET",
    ),
    Hostile(
        "PATCH of keys", "another key to trust", 405, make_event("PATCH", "/keys", body=GOOD), "takes GET"
    ),
    Hostile("POST to keys", "another key to trust", 405, make_event("POST", "/keys", body=GOOD), "takes GET"),
    Hostile(
        "GET of a run with a body",
        "a run that looks like reading",
        405,
        make_event("GET", "/run", body=GOOD, headers=JSON),
        "takes POST",
        "Allow: POST, OPTIONS",
    ),
    Hostile(
        "HEAD of a run",
        "a run without an answer",
        405,
        make_event("HEAD", "/run", body=GOOD, headers=JSON),
        "",
        "Allow: POST, OPTIONS",
    ),
    Hostile("get, in small letters", "methods have a case", 405, make_event("get", "/health"), "takes GET"),
    Hostile(
        "post, in small letters", "methods have a case", 405, asked(post(GOOD), method="post"), "takes POST"
    ),
    Hostile("POST with a blank", "trimmed by some", 405, asked(post(GOOD), method="POST "), "takes POST"),
    Hostile(
        "GET with a newline",
        "a header in the log",
        405,
        make_event("GET\r\nX-Admin: 1", "/health"),
        "takes GET",
    ),
    Hostile("no method", "nothing where a word belongs", 405, make_event("", "/health"), "takes GET"),
    Hostile(
        "method of 5,000 letters",
        "fills a metric's dimension",
        405,
        make_event("A" * 5_000, "/health"),
        "takes GET",
    ),
    Hostile(
        "the prompt as a method",
        "a log of methods would tell it",
        405,
        make_event(MARK, "/health"),
        "takes GET",
    ),
    Hostile(
        "a name of Python's", "looked up on an object", 405, make_event("__class__", "/health"), "takes GET"
    ),
    Hostile(
        "method in a header",
        "DELETE, where only POST is let through",
        405,
        make_event("POST", "/runs/x", headers={"x-http-method-override": "DELETE"}),
        "takes GET, DELETE",
    ),
    Hostile(
        "method in a query",
        "DELETE, where only GET is let through",
        404,
        get("/runs/x", "_method=DELETE"),
        "not a run id",
    ),
    Hostile(
        "TRACE of nothing", "an unknown path stays unknown", 404, make_event("TRACE", "/nothing"), NOTHING
    ),
    Hostile(
        "OPTIONS of nothing", "an unknown path stays unknown", 404, make_event("OPTIONS", "/nothing"), NOTHING
    ),
    Hostile(
        "OPTIONS from another site",
        "asks for credentials",
        204,
        make_event(
            "OPTIONS",
            "/run",
            headers={
                "origin": "https://evil.example",
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization, cookie",
            },
        ),
        "",
        "Access-Control-Allow-Origin: *",
    ),
]
