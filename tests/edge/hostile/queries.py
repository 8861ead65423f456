"""Queries of `GET /curve`, and of routes that take none."""

from __future__ import annotations

from tests.edge.hostile.entry import MARK, Hostile, changed, get

MALFORMED = "malformed or has too many parameters"
ALPHA = "1 to 64 numbers, each from 0 to 1"

QUERIES = [
    Hostile(
        "k of 400 digits",
        "an integer that takes long to read",
        422,
        get("/curve", "k=" + "9" * 400),
        "k must be",
    ),
    Hostile("k in Arabic digits", "an integer to Python's int", 422, get("/curve", "k=%D9%A4"), "k must be"),
    Hostile("k in full width", "an integer to Python's int", 422, get("/curve", "k=%EF%BC%94"), "k must be"),
    Hostile(
        "k in superscript",
        "a digit to isdigit, no number to int",
        422,
        get("/curve", "k=%C2%B2"),
        "k must be",
    ),
    Hostile("k with an underscore", "an integer to Python's int", 422, get("/curve", "k=1_0"), "k must be"),
    Hostile("k with a blank", "an integer to Python's int", 422, get("/curve", "k=+4"), "k must be"),
    Hostile("k with a newline", "an integer to Python's int", 422, get("/curve", "k=4%0A"), "k must be"),
    Hostile("k with a NUL", "4 in C", 422, get("/curve", "k=4%00"), "k must be"),
    Hostile("k in hexadecimal", "an integer to C", 422, get("/curve", "k=0x4"), "k must be"),
    Hostile("k twice", "which of the two counts?", 422, get("/curve", "k=4&k=64"), "k must be"),
    Hostile("k as a list", "what PHP makes lists of", 422, get("/curve", "k[]=4"), "is not a known field"),
    Hostile(
        "k twice encoded", "decoded a second time by somebody", 422, get("/curve", "k=%2534"), "k must be"
    ),
    Hostile(
        "k's name encoded",
        "the same parameter in other letters",
        422,
        get("/curve", "k=4&%6b=5"),
        "k must be",
    ),
    Hostile(
        "k that is the prompt",
        "errors that repeat values would tell it",
        422,
        get("/curve", f"k={MARK.replace(' ', '%20')}"),
        "k must be",
    ),
    Hostile(
        "the prompt as a name",
        "errors that repeat names would tell it",
        422,
        get("/curve", f"{MARK.replace(' ', '+')}=4"),
        "is not a known field",
    ),
    Hostile(
        "prompt",
        "a prompt in a query, where logs keep it",
        422,
        get("/curve", f"prompt={MARK.replace(' ', '+')}"),
        "is not a known field",
    ),
    Hostile("alpha nan", "compares with nothing", 422, get("/curve", "alpha=nan"), ALPHA),
    Hostile("alpha 1e-400", "zero after rounding", 200, get("/curve", "alpha=1e-400"), '"0.0"'),
    Hostile("alpha just above 1", "rounds to 1", 200, get("/curve", "alpha=1.00000000000000001"), '"1.0"'),
    Hostile(
        "alpha 1.0000000000000002",
        "one step of a float too large",
        422,
        get("/curve", "alpha=1.0000000000000002"),
        ALPHA,
    ),
    Hostile(
        "alpha with a comma", "how the gateway joins repeats", 422, get("/curve", "alpha=0.5,0.7"), ALPHA
    ),
    Hostile("65 alphas", "one more than allowed", 422, get("/curve", "&".join(["alpha=0.5"] * 65)), ALPHA),
    Hostile(
        "1,000 alphas", "work by the thousand", 400, get("/curve", "&".join(["alpha=0.5"] * 1_000)), MALFORMED
    ),
    Hostile("9,000 ampersands", "parameters without names", 400, get("/curve", "&" * 9_000), MALFORMED),
    Hostile("semicolons", "separators to some", 422, get("/curve", "k=4;k=5"), "k must be"),
    Hostile("bad UTF-8", "bytes that are no text", 400, get("/curve", "k=%FF"), MALFORMED),
    Hostile("overlong digit", "a 4 in two bytes", 400, get("/curve", "k=%C0%B4"), MALFORMED),
    Hostile("half an escape", "a percent sign at the end", 422, get("/curve", "k=4%"), "k must be"),
    Hostile("no equals sign", "a name alone", 400, get("/curve", "k"), MALFORMED),
    Hostile("a second question mark", "a query in the query", 422, get("/curve", "k=4?k=5"), "k must be"),
    Hostile(
        "cost_ratio -0.0", "zero by another name", 200, get("/curve", "cost_ratio=-0.0"), '"cost_ratio": 0.0'
    ),
    Hostile(
        "verify_cost inf",
        "a division by it is zero",
        422,
        get("/curve", "verify_cost=inf"),
        "verify_cost must be",
    ),
    Hostile(
        "store of anything", "keeps what it likes", 422, get("/curve", "store=true"), "store must be 0 or 1"
    ),
    Hostile(
        "store twice",
        "which of the two counts?",
        422,
        get("/curve", "store=0&store=1"),
        "store must be 0 or 1",
    ),
    Hostile(
        "a callback", "JSON that runs in a page", 422, get("/curve", "callback=alert"), "is not a known field"
    ),
    Hostile(
        "a newline for a header",
        "splits an answer that repeats it",
        422,
        get("/curve", "k=4%0d%0aSet-Cookie:%20a=b"),
        "k must be",
    ),
    Hostile(
        "joined parameters that lie",
        "what the gateway parsed is not what was sent",
        200,
        changed(get("/curve", "k=2"), queryStringParameters={"k": MARK}),
        '"k": 2',
    ),
    Hostile(
        "a query of health",
        "what is not read does no harm",
        200,
        get("/health", f"prompt={MARK.replace(' ', '+')}&%FF"),
        '"status": "LIVE"',
    ),
]
