"""Bytes on the local edge's socket: requests that two readers would cut at different places, and half ones.

Behind a proxy that reads them otherwise, each second request hidden in these would be somebody else's answer.
"""

from __future__ import annotations

from shared.labels import BASE_PATH
from tests.edge.hostile.entry import GOOD, MARK, Wire

HOST = "Host: edge.example\r\n"
BODY = GOOD.encode()
LENGTH = f"Content-Length: {len(BODY)}\r\n"
RUN = f"POST {BASE_PATH}/run HTTP/1.1\r\n{HOST}Content-Type: application/json\r\n"
HIDDEN = f"{RUN}{LENGTH}\r\n{GOOD}"
"""A whole run, to be hidden in another request's body."""

CHUNKED = "Transfer-Encoding: chunked\r\n"
CHUNKS = f"{len(BODY):x}\r\n{GOOD}\r\n0\r\n\r\n"
TAG = MARK.replace(" ", "-")


def _run(*lines: str, body: str = GOOD) -> bytes:
    """A run under header lines of one's own."""
    return (RUN + "".join(f"{line}\r\n" for line in lines) + "\r\n" + body).encode("latin-1")


def _get(*lines: str, path: str = "/health") -> bytes:
    """A GET under header lines of one's own."""
    head = f"GET {BASE_PATH}{path} HTTP/1.1\r\n{HOST}"
    return (head + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode("latin-1")


def _target(target: str, *lines: str) -> bytes:
    """A GET of a target as it stands."""
    return (f"GET {target} HTTP/1.1\r\n{HOST}" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode(
        "latin-1"
    )


SIZE = f"Content-Length: {len(BODY)}"

WIRE = [
    # The control, and what is unusual but right.
    Wire(
        "a good run",
        "the control: what is hidden below would be carried out like this",
        _run(SIZE),
        (200,),
        stays=True,
        runs=1,
    ),
    Wire(
        "a good run in chunks",
        "the control of chunks",
        _run(CHUNKED.strip(), body=CHUNKS),
        (200,),
        stays=True,
        runs=1,
    ),
    Wire(
        "chunks of one byte",
        "many small reads",
        _run(CHUNKED.strip(), body="".join(f"1\r\n{letter}\r\n" for letter in GOOD) + "0\r\n\r\n"),
        (200,),
        stays=True,
        runs=1,
    ),
    Wire(
        "two requests at once",
        "a pipeline: both are answered, in order",
        _get() + _get(path="/keys"),
        (200, 200),
        stays=True,
        says='"keys"',
    ),
    Wire(
        "thirty requests at once",
        "a pipeline as long as somebody likes",
        _get(path="/nothing") * 30,
        (404,) * 30,
        stays=True,
    ),
    Wire(
        "a run, then health, at once",
        "a pipeline with a body in it",
        _run(SIZE) + _get(),
        (200, 200),
        stays=True,
        says='"LIVE"',
        runs=1,
    ),
    Wire("blank lines before", "left over from an old client's body", b"\r\n\r\n" + _get(), (400,)),
    # Two readings of one length.
    Wire(
        "length and chunks",
        "CL.TE: the front reads the length, the back the chunks",
        _run(f"Content-Length: {len(HIDDEN) + 5}", CHUNKED.strip(), body=f"0\r\n\r\n{HIDDEN}"),
        (400,),
    ),
    Wire(
        "chunks and length",
        "TE.CL: the front reads the chunks, the back the length",
        _run(CHUNKED.strip(), "Content-Length: 4", body=f"{len(HIDDEN):x}\r\n{HIDDEN}\r\n0\r\n\r\n"),
        (400,),
    ),
    Wire(
        "chunked twice",
        "TE.TE: one of the two is overlooked",
        _run(CHUNKED.strip(), CHUNKED.strip(), body=f"0\r\n\r\n{HIDDEN}"),
        (400,),
    ),
    Wire(
        "chunked and identity",
        "TE.TE: one of the two is overlooked",
        _run("Transfer-Encoding: chunked, identity", body=f"0\r\n\r\n{HIDDEN}"),
        (400,),
    ),
    Wire(
        "gzip, chunked",
        "a coding that nobody here reads",
        _run("Transfer-Encoding: gzip, chunked", body=CHUNKS),
        (400,),
    ),
    Wire("xchunked", "looks like chunked to a search", _run("Transfer-Encoding: xchunked", SIZE), (400,)),
    Wire(
        "chunked behind a tab",
        "white space that some trim",
        _run("Transfer-Encoding:\tchunked", "Content-Length: 5", body=f"0\r\n\r\n{HIDDEN}"),
        (400,),
    ),
    Wire(
        "chunked behind a vertical tab",
        "white space that some trim",
        _run("Transfer-Encoding:\x0bchunked", "Content-Length: 5", body=f"0\r\n\r\n{HIDDEN}"),
        (400,),
    ),
    Wire(
        "a blank before the colon",
        "the name with a blank is another name, to some",
        _run("Transfer-Encoding : chunked", "Content-Length: 5", body=f"0\r\n\r\n{HIDDEN}"),
        (400,),
    ),
    Wire(
        "chunked on a second line",
        "obs-fold: a value that goes on",
        _run("X: y", " Transfer-Encoding: chunked", SIZE),
        (200,),
        stays=True,
        runs=1,
    ),
    Wire(
        "folded value of chunked",
        "obs-fold: a value that begins late",
        _run("Transfer-Encoding:", "\tchunked", "Content-Length: 5", body=f"0\r\n\r\n{HIDDEN}"),
        (400,),
    ),
    Wire(
        "folded first line",
        "obs-fold before any header",
        f"GET {BASE_PATH}/health HTTP/1.1\r\n X: y\r\n{HOST}\r\n".encode(),
        (400,),
    ),
    Wire(
        "chunked in HTTP/1.0",
        "a version that has no chunks",
        _run(CHUNKED.strip(), body=CHUNKS).replace(b"HTTP/1.1", b"HTTP/1.0"),
        (400,),
    ),
    Wire(
        "two lengths",
        "which of the two counts?",
        _run("Content-Length: 2", SIZE, body=f"{{}}{HIDDEN}"),
        (400,),
    ),
    Wire(
        "two equal lengths", "may be taken as one, or refused", _run(SIZE, SIZE), (200,), stays=True, runs=1
    ),
    Wire(
        "two lengths on one line", "which of the two counts?", _run(f"Content-Length: 2, {len(BODY)}"), (400,)
    ),
    Wire("length below zero", "wraps to very much", _run("Content-Length: -1"), (400,)),
    Wire("length with a plus", "a number to Python's int", _run(f"Content-Length: +{len(BODY)}"), (400,)),
    Wire("length with an underscore", "a number to Python's int", _run("Content-Length: 4_0"), (400,)),
    Wire("length in hexadecimal", "a number to C", _run("Content-Length: 0x28"), (400,)),
    Wire("length 40.0", "a number to JavaScript", _run("Content-Length: 40.0"), (400,)),
    Wire("length in superscript", "a digit to isdigit", _run("Content-Length: \xb2"), (400,)),
    Wire("length of nothing", "no number", _run("Content-Length:"), (400,)),
    Wire("length of 40 digits", "beyond all memory", _run("Content-Length: " + "9" * 40), (400,)),
    Wire(
        "length of 5,000 digits", "beyond what Python reads", _run("Content-Length: " + "9" * 5_000), (400,)
    ),
    Wire(
        "length too small",
        "the rest of the body is a request",
        _run("Content-Length: 2", body=f"{{}}{_get().decode()}"),
        (422, 200),
        stays=True,
        says='"LIVE"',
    ),
    Wire(
        "length 0 with a hidden run",
        "the body is a request",
        _run("Content-Length: 0", body=HIDDEN),
        (400, 200),
        stays=True,
        runs=1,
    ),
    Wire(
        "GET with a run for a body",
        "bodies of GET are skipped, not read as requests",
        _get(f"Content-Length: {len(HIDDEN)}") + HIDDEN.encode(),
        (200,),
        stays=True,
    ),
    Wire(
        "no length",
        "a body that nobody announced is the next request, and none",
        _run(body="{}\r\n\r\n"),
        (400, 400),
    ),
    # Chunks.
    Wire(
        "chunk of 21 digits",
        "wraps to little",
        _run(CHUNKED.strip(), body="100000000000000000002\r\n{}\r\n0\r\n\r\n"),
        (400,),
    ),
    Wire(
        "chunk of 2^64 + 2 bytes",
        "two bytes, where it wraps: here it is never whole",
        _run(CHUNKED.strip(), body=f"10000000000000028\r\n{GOOD}\r\n0\r\n\r\n"),
        (),
        leaves=True,
    ),
    Wire(
        "chunk of 300 zeros",
        "a long way to say two",
        _run(CHUNKED.strip(), body="0" * 300 + "2\r\n{}\r\n0\r\n\r\n"),
        (400,),
    ),
    Wire(
        "chunk below zero", "wraps to very much", _run(CHUNKED.strip(), body="-2\r\n{}\r\n0\r\n\r\n"), (400,)
    ),
    Wire("chunk with 0x", "a number to C", _run(CHUNKED.strip(), body="0x2\r\n{}\r\n0\r\n\r\n"), (400,)),
    Wire(
        "chunk with a blank before",
        "white space that some trim",
        _run(CHUNKED.strip(), body=" 2\r\n{}\r\n0\r\n\r\n"),
        (400,),
    ),
    Wire(
        "chunk that is longer than it says",
        "two bytes more, where a line's end belongs",
        _run(CHUNKED.strip(), body="2\r\n{}{}\r\n0\r\n\r\n"),
        (400,),
    ),
    Wire(
        "chunks with bare line feeds",
        "lines that some end so: here they never end",
        _run(CHUNKED.strip(), body=CHUNKS.replace("\r\n", "\n")),
        (),
        leaves=True,
    ),
    Wire(
        "chunk extension",
        "words that nobody reads",
        _run(CHUNKED.strip(), body=f'{len(BODY):x};name="{TAG}"\r\n{GOOD}\r\n0\r\n\r\n'),
        (200,),
        stays=True,
        runs=1,
    ),
    Wire(
        "chunk extension of 1 MB",
        "words without end",
        _run(CHUNKED.strip(), body=f"2;{TAG * 40_000}"),
        (),
        leaves=True,
    ),
    Wire(
        "chunk extension with a line feed",
        "a line's end to some, hiding a chunk",
        _run(CHUNKED.strip(), body=f"2;\n0\r\n\r\n{HIDDEN}"),
        (400,),
    ),
    Wire(
        "chunk of prompt",
        "an error that repeats the line would tell it",
        _run(CHUNKED.strip(), body=f"{MARK}\r\n"),
        (400,),
    ),
    Wire(
        "trailers",
        "headers behind the body that change its reading",
        _run(CHUNKED.strip(), body=f"2\r\n{{}}\r\n0\r\nContent-Type: text/plain\r\nX: {MARK}\r\n\r\n"),
        (422,),
        stays=True,
    ),
    Wire(
        "trailer that is no header",
        "a line that nobody can read",
        _run(CHUNKED.strip(), body=f"2\r\n{{}}\r\n0\r\n{MARK}\r\n\r\n"),
        (400,),
    ),
    # Lines and characters.
    Wire(
        "bare line feeds",
        "lines that some end so: one request, or none",
        _get().replace(b"\r\n", b"\n"),
        (200,),
        stays=True,
    ),
    Wire(
        "bare carriage return in a value", "a line's end to some", _get(f"X: y\rHost: {TAG}.example"), (400,)
    ),
    Wire("NUL in a value", "ends the value in C", _get(f"X: {MARK}\0y"), (400,)),
    Wire("NUL in a name", "ends the name in C", _get(f"X\0Y: {MARK}"), (400,)),
    Wire("NUL in the target", "ends the path in C", _target(f"{BASE_PATH}/health\0.html"), (400,)),
    Wire(
        "control character in a value",
        "paints in a terminal, where it is shown",
        _get(f"X: \x1b[31m{MARK}"),
        (200,),
        stays=True,
    ),
    Wire("bytes beyond ASCII in a value", "old texts; harmless", _get("X: \xe9\xff"), (200,), stays=True),
    Wire("name with a blank", "two names, or one", _get(f"X Y: {MARK}"), (400,)),
    Wire("line without a colon", "no header", _get(MARK), (400,)),
    Wire("empty name", "no header", _get(f": {MARK}"), (400,)),
    Wire("name in brackets", "no token", _get(f"(X): {MARK}"), (400,)),
    Wire(
        "a blank in the target", "the rest is the version, to some", _target(f"{BASE_PATH}/health x"), (400,)
    ),
    Wire(
        "bytes beyond ASCII in the target",
        "a path in an old encoding",
        _target(f"{BASE_PATH}/h\xe9alth"),
        (400,),
    ),
    Wire(
        "two blanks in the first line",
        "an empty target, to some",
        f"GET  {BASE_PATH}/health HTTP/1.1\r\n{HOST}\r\n".encode(),
        (400,),
    ),
    Wire(
        "tabs in the first line",
        "blanks to some",
        f"GET\t{BASE_PATH}/health\tHTTP/1.1\r\n{HOST}\r\n".encode(),
        (400,),
    ),
    Wire("first line of 1 MB", "a line without end", _target("/" + "a" * 1_000_000), (), leaves=True),
    Wire(
        "first line of 20 KB",
        "more than the gateway takes",
        _target(f"{BASE_PATH}/curve?k={'4' * 20_000}"),
        (431,),
        stays=True,
    ),
    Wire("headers of 20 KB", "more than the gateway takes", _get("X: " + "y" * 20_000), (431,), stays=True),
    Wire(
        "a thousand headers",
        "more than the gateway takes",
        _get(*(f"X-{i}: {MARK}" for i in range(1_000))),
        (431,),
        stays=True,
    ),
    Wire(
        "headers of 1 MB",
        "a head without end",
        _get(*(f"X-{i}: {MARK}" for i in range(30_000))),
        (),
        leaves=True,
    ),
    # Versions, methods, other protocols.
    Wire("HTTP/0.9", "a request of one line", f"GET {BASE_PATH}/health\r\n\r\n".encode(), (400,)),
    Wire(
        "HTTP/1.0 without a host",
        "a request of 1996",
        f"GET {BASE_PATH}/health HTTP/1.0\r\n\r\n".encode(),
        (200,),
    ),
    Wire(
        "HTTP/1.0 that stays",
        "a connection that 1.0 would close",
        f"GET {BASE_PATH}/health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode(),
        (200,),
    ),
    Wire(
        "HTTP/2 without asking",
        "the preface of another protocol",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0",
        (400,),
    ),
    Wire(
        "HTTP/9.9",
        "a version that is not there",
        f"GET {BASE_PATH}/health HTTP/9.9\r\n{HOST}\r\n".encode(),
        (400,),
    ),
    Wire(
        "HTTP/1.11",
        "a version of two digits",
        f"GET {BASE_PATH}/health HTTP/1.11\r\n{HOST}\r\n".encode(),
        (400,),
    ),
    Wire(
        "http in small letters",
        "names have a case",
        f"GET {BASE_PATH}/health http/1.1\r\n{HOST}\r\n".encode(),
        (400,),
    ),
    Wire(
        "TLS",
        "a handshake on a port without TLS",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + MARK.encode() + b"\r\n\r\n",
        (400,),
    ),
    Wire("SSH", "another protocol", f"SSH-2.0-{TAG}\r\n\r\n".encode(), (400,)),
    Wire(
        "an answer",
        "an answer where a request belongs",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        (400,),
    ),
    Wire(
        "upgrade to a websocket",
        "another protocol on this connection",
        _get(
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
        (200,),
        stays=True,
        says='"LIVE"',
    ),
    Wire(
        "upgrade to h2c",
        "past a proxy's rules, in HTTP/2",
        _get("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
        (200,),
        stays=True,
        says='"LIVE"',
    ),
    Wire(
        "upgrade to the prompt",
        "a warning that names it would tell it",
        _get("Connection: Upgrade", f"Upgrade: {TAG}"),
        (200,),
        stays=True,
    ),
    Wire(
        "CONNECT",
        "a tunnel to somebody else",
        b"CONNECT 169.254.169.254:80 HTTP/1.1\r\nHost: 169.254.169.254:80\r\n\r\n",
        (404,),
        stays=True,
    ),
    Wire(
        "TRACE",
        "shows headers that a proxy added",
        f"TRACE {BASE_PATH}/health HTTP/1.1\r\n{HOST}X: {MARK}\r\n\r\n".encode(),
        (405,),
        stays=True,
        says="allow: GET, HEAD, OPTIONS",
    ),
    Wire(
        "OPTIONS of everything", "the star", f"OPTIONS * HTTP/1.1\r\n{HOST}\r\n".encode(), (404,), stays=True
    ),
    Wire(
        "method of 9,000 letters",
        "a word without end",
        f"{'A' * 9_000} {BASE_PATH}/health HTTP/1.1\r\n{HOST}\r\n".encode(),
        (405,),
        stays=True,
    ),
    Wire("get in small letters", "methods have a case", _get().replace(b"GET", b"get"), (405,), stays=True),
    Wire("method in brackets", "no token", _get().replace(b"GET", b"(GET)"), (400,)),
    Wire(
        "HEAD of a run",
        "a body that must not be there would be the next answer",
        _run(SIZE).replace(b"POST", b"HEAD"),
        (405,),
        stays=True,
    ),
    # Hosts and targets.
    Wire("no host", "whose request is it?", f"GET {BASE_PATH}/health HTTP/1.1\r\n\r\n".encode(), (400,)),
    Wire("two hosts", "which of the two counts?", _get(f"Host: {TAG}.example"), (400,)),
    Wire(
        "host that is a script",
        "a page that shows it",
        f"GET {BASE_PATH}/health HTTP/1.1\r\nHost: <script>{TAG}</script>\r\n\r\n".encode(),
        (200,),
        stays=True,
    ),
    Wire(
        "host of somebody else",
        "links to another site",
        f"GET {BASE_PATH}/curve HTTP/1.1\r\nHost: {TAG}.example@evil.example:99999\r\n\r\n".encode(),
        (200,),
        stays=True,
    ),
    Wire(
        "absolute target",
        "a proxy's form, which every server must take",
        _target(f"http://edge.example{BASE_PATH}/health"),
        (200,),
        stays=True,
        says='"LIVE"',
    ),
    Wire(
        "absolute target of somebody else",
        "a proxy for the world: nothing is fetched",
        _target("http://169.254.169.254/latest/meta-data/"),
        (404,),
        stays=True,
    ),
    Wire("absolute target without a path", "the root", _target("http://edge.example"), (404,), stays=True),
    Wire("file target", "a file of the machine", _target("file:///etc/passwd"), (404,), stays=True),
    Wire(
        "target without a slash",
        "a name beside the root",
        _target(f"{BASE_PATH[1:]}/health"),
        (404,),
        stays=True,
    ),
    Wire("target that is a query", "no path at all", _target("?k=4"), (404,), stays=True),
    Wire(
        "dot segments",
        "out of one route into another",
        _target(f"{BASE_PATH}/curve/../health"),
        (404,),
        stays=True,
    ),
    Wire(
        "dot segments, encoded",
        "the same after decoding",
        _target(f"{BASE_PATH}/curve/%2e%2e/health"),
        (404,),
        stays=True,
    ),
    Wire(
        "dot segments, twice encoded",
        "the same after decoding twice",
        _target(f"{BASE_PATH}/curve/%252e%252e/health"),
        (404,),
        stays=True,
    ),
    Wire(
        "letters encoded",
        "the same path by another spelling",
        _target(f"{BASE_PATH}/%68ealth"),
        (200,),
        stays=True,
        says='"LIVE"',
    ),
    Wire(
        "overlong dot and slash",
        "what filters do not see",
        _target(f"{BASE_PATH}/receipts/%c0%ae%c0%ae%c0%afetc"),
        (404,),
        stays=True,
    ),
    Wire("NUL, encoded", "ends the path in C", _target(f"{BASE_PATH}/health%00.html"), (404,), stays=True),
    Wire(
        "line feed, encoded",
        "a dollar sign matches before it",
        _target(f"{BASE_PATH}/health%0a"),
        (404,),
        stays=True,
    ),
    Wire(
        "header, encoded, in a run's id",
        "a line of the answer's Location",
        _target(f"{BASE_PATH}/runs/x%0d%0aSet-Cookie:%20a=b"),
        (404,),
        stays=True,
    ),
    Wire(
        "header, encoded, in a digest",
        "a line of the answer's Link",
        _target(f"{BASE_PATH}/receipts/{'a' * 64}%0d%0aSet-Cookie:%20a=b"),
        (404,),
        stays=True,
    ),
    Wire(
        "surrogate, encoded",
        "no UTF-8 can hold it",
        _target(f"{BASE_PATH}/runs/%ed%a0%80"),
        (404,),
        stays=True,
    ),
    Wire("half an escape", "a percent sign at the end", _target(f"{BASE_PATH}/health%"), (404,), stays=True),
    Wire(
        "Unicode digits in the query",
        "numbers to Python's int",
        _target(f"{BASE_PATH}/curve?k=%D9%A4"),
        (422,),
        stays=True,
    ),
    Wire(
        "hash in the target",
        "a part that browsers keep for themselves",
        _target(f"{BASE_PATH}/health#{TAG}"),
        (404,),
        stays=True,
    ),
    Wire(
        "the prompt in the target",
        "a log of targets would tell it",
        _target(f"{BASE_PATH}/{TAG}?prompt={TAG}"),
        (404,),
        stays=True,
    ),
    # Headers that ask for something.
    Wire(
        "Expect: 100-continue",
        "asks before it sends",
        _run(SIZE, "Expect: 100-continue"),
        (200,),
        stays=True,
        runs=1,
    ),
    Wire(
        "Expect: something else",
        "asks for what nobody knows",
        _run(SIZE, f"Expect: {TAG}"),
        (200,),
        stays=True,
        runs=1,
    ),
    Wire(
        "Connection that names a header",
        "a proxy would drop the length",
        _run(SIZE, "Connection: Content-Length"),
        (200,),
        stays=True,
        runs=1,
    ),
    Wire(
        "key with a folded line",
        "two lines, one key",
        _run(SIZE, "Idempotency-Key: a", " b"),
        (200,),
        stays=True,
        runs=1,
    ),
    Wire(
        "two keys",
        "joined by a comma, one key",
        _run(SIZE, "Idempotency-Key: a", "Idempotency-Key: b"),
        (200,),
        stays=True,
        runs=1,
    ),
    Wire("two types", "which of the two counts?", _run(SIZE, "Content-Type: text/plain"), (415,), stays=True),
    Wire(
        "address of somebody else",
        "somebody else's bucket and keys; see the test of callers",
        _get(f"X-Forwarded-For: {TAG}", "Forwarded: for=192.0.2.1", "X-Forwarded-Proto: https"),
        (200,),
        stays=True,
    ),
    Wire(
        "ranges by the thousand",
        "many parts of one body",
        _get("Range: bytes=" + "0-0," * 2_000),
        (200,),
        stays=True,
    ),
    Wire(
        "compression asked for",
        "secrets that are guessed by the answer's size",
        _get("Accept-Encoding: gzip, br"),
        (200,),
        stays=True,
        says='"LIVE"',
    ),
    # Halves.
    Wire("nothing", "a scan of ports", b"", (), leaves=True),
    Wire("half a first line", "a client that left", f"POST {BASE_PATH}/ru".encode(), (), leaves=True),
    Wire("half a head", "a client that left", RUN.encode(), (), leaves=True),
    Wire(
        "half a body",
        "half a request is not to be carried out, though it reads like a whole one",
        _run(f"Content-Length: {len(BODY) + 1}"),
        (),
        leaves=True,
    ),
    Wire(
        "half the chunks", "the last one is missing", _run(CHUNKED.strip(), body=CHUNKS[:-5]), (), leaves=True
    ),
    Wire(
        "a body that was to be asked for",
        "waits for the edge, and leaves",
        _run(SIZE, "Expect: 100-continue", body=""),
        (),
        leaves=True,
    ),
    Wire("a health that nobody reads", "an answer to nobody", _get(), (), leaves=True),
]
