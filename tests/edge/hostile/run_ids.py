"""Run ids that are forged, bent or of nobody."""

from __future__ import annotations

import base64
import hashlib
import hmac

from shared.runid import RunKeys
from tests.edge.hostile.entry import FIELDS, KEYS, MARK, RUN_ID, Hostile, get
from tests.edge.support import RUN_SECRET, make_event

ID, DIGEST, MAC = RUN_ID.split(".")
OTHER = KEYS.run_id(bytes(16), {**FIELDS, "k": 16})
NOT_OURS = "not a run id of this service"
NO_PATH = "There is nothing here"


def _mac(body: str, secret: bytes, digest: str = "sha256") -> str:
    code = hmac.new(secret, body.encode(), digest).digest()[:16]
    return base64.urlsafe_b64encode(code).rstrip(b"=").decode()


def _flipped(text: str) -> str:
    """The text with its first letter exchanged."""
    return ("A" if text[0] != "A" else "B") + text[1:]


def _alias(part: str) -> str:
    """Another text of the same 16 bytes: the last letter's low bits mean nothing."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    return part[:-1] + letters[letters.index(part[-1]) + 1]


RUN_IDS = [
    Hostile(
        "ours, unknown to the tower",
        "the control: everything about it is right",
        410,
        get(f"/runs/{RUN_ID}"),
        "lost or has expired",
    ),
    Hostile(
        "ours, cancelled though unknown",
        "cancels what is not there",
        410,
        make_event("DELETE", f"/runs/{RUN_ID}"),
        "lost or has expired",
    ),
    Hostile("another ID", "somebody else's run", 404, get(f"/runs/{_flipped(ID)}.{DIGEST}.{MAC}"), NOT_OURS),
    Hostile(
        "another DIGEST",
        "another request under the same run",
        404,
        get(f"/runs/{ID}.{_flipped(DIGEST)}.{MAC}"),
        NOT_OURS,
    ),
    Hostile("another MAC", "a guess", 404, get(f"/runs/{ID}.{DIGEST}.{_flipped(MAC)}"), NOT_OURS),
    Hostile(
        "MAC of another run",
        "two ids cut and glued",
        404,
        get(f"/runs/{ID}.{DIGEST}.{OTHER.split('.')[2]}"),
        NOT_OURS,
    ),
    Hostile(
        "ID of another run",
        "two ids cut and glued",
        404,
        get(f"/runs/{OTHER.split('.')[0]}.{DIGEST}.{MAC}"),
        NOT_OURS,
    ),
    Hostile(
        "ID and DIGEST exchanged",
        "the same parts in another order",
        404,
        get(f"/runs/{DIGEST}.{ID}.{MAC}"),
        NOT_OURS,
    ),
    Hostile(
        "under an empty secret",
        "a service that forgot to set one",
        404,
        get(f"/runs/{ID}.{DIGEST}.{_mac(f'{ID}.{DIGEST}', b'')}"),
        NOT_OURS,
    ),
    Hostile(
        "under a secret that differs by a letter",
        "a close guess",
        404,
        get("/runs/" + RunKeys(RUN_SECRET[:-1].encode()).run_id(bytes(range(16)), FIELDS)),
        NOT_OURS,
    ),
    Hostile(
        "under SHA-1",
        "another hash, the right secret",
        404,
        get(f"/runs/{ID}.{DIGEST}.{_mac(f'{ID}.{DIGEST}', RUN_SECRET.encode(), 'sha1')}"),
        NOT_OURS,
    ),
    Hostile(
        "a hash without a secret",
        "no MAC at all",
        404,
        get(
            f"/runs/{ID}.{DIGEST}.{base64.urlsafe_b64encode(hashlib.sha256(f'{ID}.{DIGEST}'.encode()).digest()[:16]).rstrip(b'=').decode()}"
        ),
        NOT_OURS,
    ),
    Hostile("MAC of nothing", "zero bytes", 404, get(f"/runs/{ID}.{DIGEST}.{'A' * 22}"), NOT_OURS),
    Hostile(
        "MAC left out", "checks that look only at what is there", 404, get(f"/runs/{ID}.{DIGEST}"), NOT_OURS
    ),
    Hostile("MAC empty", "compares nothing with nothing", 404, get(f"/runs/{ID}.{DIGEST}."), NOT_OURS),
    Hostile(
        "MAC cut short", "compares only what is there", 404, get(f"/runs/{ID}.{DIGEST}.{MAC[:11]}"), NOT_OURS
    ),
    Hostile(
        "MAC with another text of its bytes",
        "an alias: two names of one run",
        404,
        get(f"/runs/{ID}.{DIGEST}.{_alias(MAC)}"),
        NOT_OURS,
    ),
    Hostile(
        "ID with another text of its bytes",
        "an alias: two names of one run",
        404,
        get(f"/runs/{_alias(ID)}.{DIGEST}.{MAC}"),
        NOT_OURS,
    ),
    Hostile("padded", "an alias: two names of one run", 404, get(f"/runs/{ID}.{DIGEST}.{MAC}=="), NOT_OURS),
    Hostile("four parts", "one more for careless splitting", 404, get(f"/runs/{RUN_ID}.{MAC}"), NOT_OURS),
    Hostile("a dot before", "an empty part", 404, get(f"/runs/.{RUN_ID}"), NOT_OURS),
    Hostile("blank before", "trimmed by some", 404, get(f"/runs/ {RUN_ID}"), NOT_OURS),
    Hostile("newline behind", "a dollar sign matches before it", 404, get(f"/runs/{RUN_ID}\n"), NO_PATH),
    Hostile(
        "newline in front of another header",
        "a header of the answer's Location",
        404,
        get(f"/runs/{RUN_ID}\r\nSet-Cookie: a=b"),
        NO_PATH,
    ),
    Hostile("NUL behind", "ends the id in C", 404, get(f"/runs/{RUN_ID}\0"), NO_PATH),
    Hostile(
        "slash behind",
        "a trailing slash means nothing here",
        410,
        get(f"/runs/{RUN_ID}/"),
        "lost or has expired",
    ),
    Hostile("more behind", "a route below the run", 404, get(f"/runs/{RUN_ID}/output"), NO_PATH),
    Hostile("lower case", "the same id on some systems", 404, get(f"/runs/{RUN_ID.lower()}"), NOT_OURS),
    Hostile("full-width dots", "dots under NFKC", 404, get(f"/runs/{ID}．{DIGEST}．{MAC}"), NO_PATH),
    Hostile(
        "dots encoded",
        "decoded a second time by somebody",
        404,
        get(f"/runs/{ID}%2E{DIGEST}%2E{MAC}"),
        NOT_OURS,
    ),
    Hostile(
        "letters beyond ASCII",
        "word characters to a pattern",
        404,
        get(f"/runs/{'é' * 22}.{'é' * 22}.{'é' * 22}"),
        NOT_OURS,
    ),
    Hostile(
        "a token of the JSON kind",
        "alg none",
        404,
        get("/runs/eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."),
        NOT_OURS,
    ),
    Hostile("9,000 letters", "as long as a gateway lets through", 404, get("/runs/" + "A" * 9_000), NOT_OURS),
    Hostile(
        "the prompt as an id", "errors that repeat the id would tell it", 404, get(f"/runs/{MARK}"), NOT_OURS
    ),
    Hostile(
        "cancelled with a forged id",
        "ends somebody else's run",
        404,
        make_event("DELETE", f"/runs/{ID}.{DIGEST}.{_flipped(MAC)}"),
        NOT_OURS,
    ),
    Hostile("a star", "all runs", 404, make_event("DELETE", "/runs/*"), NOT_OURS),
]
