"""Bodies of `POST /run` that are no JSON object with one meaning, or hold what no run can have."""

from __future__ import annotations

import base64
import gzip
import json

from tests.edge.hostile.entry import GOOD, MARK, Hostile, changed, post


def _field(text: str) -> str:
    """A body with the prompt and one thing more."""
    return f'{{"prompt": "{MARK}", {text}}}'


def _base64(text: str) -> dict[str, object]:
    """The event of a body that says it is Base64."""
    return changed(post(GOOD), body=text, isBase64Encoded=True)


ENCODED = base64.b64encode(GOOD.encode()).decode()

BODIES = [
    # Not JSON, or not one JSON value.
    Hostile("no body", "a run of nothing", 400, post(None), "The body is empty"),
    Hostile("empty body", "a run of nothing", 400, post(""), "The body is empty"),
    Hostile("blank body", "white space alone is no value", 400, post(" \r\n\t "), "The body is empty"),
    Hostile("bare prompt", "text where JSON belongs", 400, post(MARK), "not JSON"),
    Hostile("JSON string", "a value, no object", 422, post(f'"{MARK}"'), "must be a JSON object"),
    Hostile("JSON null", "a value, no object", 422, post("null"), "must be a JSON object"),
    Hostile("JSON number", "a value, no object", 422, post("1"), "must be a JSON object"),
    Hostile(
        "list of good bodies", "many runs in one", 422, post(f"[{GOOD},{GOOD}]"), "must be a JSON object"
    ),
    Hostile(
        "two objects", "the second one smuggled behind the first", 400, post(f'{{"k":1}}{GOOD}'), "not JSON"
    ),
    Hostile("JSON lines", "a stream where one value belongs", 400, post(f"{GOOD}\n{GOOD}"), "not JSON"),
    Hostile("cut short", "half a body", 400, post(GOOD[:-1]), "not JSON"),
    Hostile("cut in an escape", "half an escape", 400, post(f'{{"prompt": "{MARK}\\u00'), "not JSON"),
    Hostile(
        "single quotes", "Python's literals, not JSON's", 400, post(f"{{'prompt': '{MARK}'}}"), "not JSON"
    ),
    Hostile("bare key", "JavaScript's objects, not JSON's", 400, post(f'{{prompt: "{MARK}"}}'), "not JSON"),
    Hostile("trailing comma", "what some readers forgive", 400, post(f'{{"prompt": "{MARK}",}}'), "not JSON"),
    Hostile(
        "comment", "what some readers skip, others do not", 400, post(f'{{/* {MARK} */ "k": 1}}'), "not JSON"
    ),
    Hostile(
        "raw newline in a string",
        "fakes a line in a log",
        400,
        post(f'{{"prompt": "{MARK}\nx"}}'),
        "not JSON",
    ),
    Hostile("raw NUL in a string", "ends strings in C", 400, post(f'{{"prompt": "{MARK}\0x"}}'), "not JSON"),
    Hostile("byte order mark", "some readers skip it", 400, post(f"\ufeff{GOOD}"), "not JSON"),
    Hostile(
        "behind a guard", "the prefix of JSON for old browsers", 400, post(f")]}}',\n{GOOD}"), "not JSON"
    ),
    Hostile(
        "XML",
        "external entities",
        400,
        post(f'<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><r>{MARK}&x;</r>'),
        "not JSON",
    ),
    Hostile("YAML alias", "billion laughs", 400, post(f"a: &a [{MARK}]\nb: [*a, *a, *a, *a]"), "not JSON"),
    Hostile(
        "pickle",
        "code for a careless reader",
        400,
        post(b"cos\nsystem\n(S'" + MARK.encode() + b"'\ntR."),
        "not JSON",
    ),
    Hostile("form", "a browser's form under JSON's type", 400, post(f"prompt={MARK}&k=4"), "not JSON"),
    Hostile("JSON as a form field", "a form that is nearly JSON", 400, post(f"{GOOD}="), "not JSON"),
    # Bytes that are no text.
    Hostile("UTF-16", "another reading of the same bytes", 400, post(GOOD.encode("utf-16")), "not UTF-8"),
    Hostile(
        "UTF-32 without a mark",
        "another reading of the same bytes",
        400,
        post(GOOD.encode("utf-32-le")),
        "not JSON",
    ),
    Hostile("UTF-7", "hides quotes from filters", 400, post("+AHsAIgBwAHIAbwBtAHAAdA-"), "not JSON"),
    Hostile(
        "overlong quote",
        "a quote in two bytes",
        400,
        post(b'{"prompt": \xc0\xa2' + MARK.encode() + b'"}'),
        "not UTF-8",
    ),
    Hostile(
        "surrogate in bytes",
        "CESU-8 is not UTF-8",
        400,
        post(b'{"prompt": "' + MARK.encode() + b'\xed\xa0\x80"}'),
        "not UTF-8",
    ),
    Hostile(
        "half a character",
        "the last byte is missing",
        400,
        post(b'{"prompt": "' + MARK.encode() + b'\xf0\x9f\x98"}'),
        "not UTF-8",
    ),
    Hostile(
        "beyond Unicode",
        "code point 110000",
        400,
        post(b'{"prompt": "' + MARK.encode() + b'\xf4\x90\x80\x80"}'),
        "not UTF-8",
    ),
    Hostile("gzip", "a bomb may be inside", 400, post(gzip.compress(GOOD.encode(), mtime=0)), "not UTF-8"),
    Hostile("one bad byte", "no text at all", 400, post(b"\xff"), "not UTF-8"),
    Hostile(
        "lone surrogate, escaped",
        "text that no UTF-8 can hold",
        400,
        post(f'{{"prompt": "{MARK}\\ud800"}}'),
        "surrogate",
    ),
    Hostile(
        "surrogates the wrong way round",
        "a pair that is none",
        400,
        post(f'{{"prompt": "{MARK}\\udc00\\ud800"}}'),
        "surrogate",
    ),
    Hostile(
        "lone surrogate in a key",
        "a name that no UTF-8 can hold",
        400,
        post(_field('"\\udfff": 1')),
        "surrogate",
    ),
    Hostile(
        "lone surrogate as itself",
        "an invoker's JSON may hold one",
        400,
        post(f'{{"prompt": "{MARK}\ud800"}}'),
        "could not be decoded",
    ),
    # Base64.
    Hostile("Base64 of nothing", "empty behind a coat", 400, _base64(""), "The body is empty"),
    Hostile(
        "Base64 with junk in it",
        "lax readers skip junk",
        400,
        _base64(f"{ENCODED[:8]}\n{ENCODED[8:]}"),
        "could not be decoded",
    ),
    Hostile("Base64 of the URL alphabet", "another alphabet", 400, _base64("_-_-"), "could not be decoded"),
    Hostile(
        "Base64 without padding",
        "lax readers add it",
        400,
        _base64(ENCODED.rstrip("=") + "A" * (5 - len(ENCODED.rstrip("=")) % 4)),
        "could not be decoded",
    ),
    Hostile(
        "Base64 padded in the middle",
        "lax readers stop there",
        400,
        _base64("eyJr=IjoxfQ=="),
        "could not be decoded",
    ),
    Hostile("Base64 that is JSON", "says Base64, is not", 400, _base64(GOOD), "could not be decoded"),
    Hostile(
        "Base64 not in ASCII", "digits of another script", 400, _base64("ｅｙＪｒ"), "could not be decoded"
    ),
    Hostile(
        "Base64 of Base64",
        "one coat too many",
        400,
        _base64(base64.b64encode(ENCODED.encode()).decode()),
        "not JSON",
    ),
    Hostile(
        "Base64 with a data URL's head",
        "half a URL",
        400,
        _base64(f"data:application/json;base64,{ENCODED}"),
        "could not be decoded",
    ),
    # Deep and large.
    Hostile("100,000 brackets", "recursion", 400, post("[" * 100_000), "nested deeper than 32"),
    Hostile("20,000 objects", "recursion", 400, post('{"a":' * 20_000), "nested deeper than 32"),
    Hostile(
        "prompt 33 deep",
        "one level too deep",
        400,
        post('{"prompt": ' + "[" * 32 + f'"{MARK}"' + "]" * 32 + "}"),
        "nested deeper than 32",
    ),
    Hostile(
        "brackets in a string",
        "deep only for those who count badly",
        200,
        post(f'{{"prompt": "{MARK}{"[" * 1000}"}}'),
        runs=1,
    ),
    Hostile(
        "escaped quote before brackets",
        "a string that seems to end",
        200,
        post(f'{{"prompt": "{MARK}\\"{"{" * 1000}"}}'),
        runs=1,
    ),
    Hostile(
        "129 KiB", "just over the limit", 413, post(f'{{"prompt": "{MARK * 5160}"}}'), "limit is 128 KiB"
    ),
    Hostile(
        "129 KiB in Base64",
        "just over the limit, in a coat",
        413,
        post(f'{{"prompt": "{MARK * 5160}"}}'.encode()),
        "limit is 128 KiB",
    ),
    Hostile(
        "129 KiB of blanks before a good body",
        "large though it says little",
        413,
        post(" " * 132_096 + GOOD),
        "limit is 128 KiB",
    ),
    Hostile("5 MB", "as much as a function takes", 413, post(MARK * 200_000), "limit is 128 KiB"),
    Hostile(
        "128 KiB of escapes",
        "six bytes a letter: large on the wire, a small prompt",
        422,
        post('{"prompt": "' + "\\u0041" * 20_000 + f'{MARK}"}}'),
        "1 to 16384 UTF-8 bytes",
    ),
    Hostile(
        "8,000 keys",
        "a dictionary that takes long to check",
        422,
        post("{" + ",".join(f'"a{i}": {i}' for i in range(8_000)) + "}"),
        "prompt is required",
    ),
    Hostile(
        "hash collisions of integers",
        "keys that fall into one bucket",
        422,
        post(json.dumps({"prompt": MARK, **{str(i << 61): 1 for i in range(2_000)}})),
        "is not a known field",
    ),
    # Keys.
    Hostile(
        "prompt twice",
        "which of the two counts?",
        400,
        post(_field('"prompt": "harmless"')),
        "names a key twice",
    ),
    Hostile(
        "prompt twice, once escaped",
        "the same name in other letters",
        400,
        post(_field('"pr\\u006fmpt": "harmless"')),
        "names a key twice",
    ),
    Hostile("k twice", "which of the two counts?", 400, post(_field('"k": 4, "k": 16')), "names a key twice"),
    Hostile(
        "key twice, deep inside",
        "a duplicate out of sight",
        400,
        post(_field('"x": [{"a": 1, "a": 2}]')),
        "names a key twice",
    ),
    Hostile(
        "Prompt", "another case is another name", 422, post(f'{{"Prompt": "{MARK}"}}'), "prompt is required"
    ),
    Hostile(
        "prompt with a blank", "trimmed by some", 422, post(f'{{"prompt ": "{MARK}"}}'), "prompt is required"
    ),
    Hostile(
        "prompt in full width",
        "the same under NFKC",
        422,
        post(f'{{"ｐｒｏｍｐｔ": "{MARK}"}}'),
        "prompt is required",
    ),
    Hostile(
        "prompt with a NUL",
        "the same for C",
        422,
        post(f'{{"prompt\\u0000": "{MARK}"}}'),
        "prompt is required",
    ),
    Hostile(
        "prompt as a key",
        "errors that name keys would tell it",
        422,
        post(_field(f'"{MARK}": 1')),
        "is not a known field",
    ),
    Hostile(
        "key of a megabyte's tenth",
        "errors that name keys would repeat it",
        422,
        post(_field(f'"{MARK * 3800}": 1')),
        "is not a known field",
    ),
    Hostile("empty key", "no name at all", 422, post(_field('"": 1')), "is not a known field"),
    Hostile(
        "__proto__",
        "pollutes prototypes in JavaScript",
        422,
        post(_field('"__proto__": {"include_output": true}')),
        "is not a known field",
    ),
    Hostile(
        "__class__",
        "reaches into Python",
        422,
        post(_field('"__class__": "RunRequest"')),
        "is not a known field",
    ),
    Hostile(
        "model_config",
        "reaches into pydantic",
        422,
        post(_field('"model_config": {"extra": "allow"}')),
        "is not a known field",
    ),
    Hostile("run_id", "names the run itself", 422, post(_field('"run_id": "x"')), "is not a known field"),
    Hostile("nonce", "chooses the nonce itself", 422, post(_field('"nonce": "00"')), "is not a known field"),
    Hostile(
        "prompt_salt",
        "chooses the salt itself",
        422,
        post(_field('"prompt_salt": "00"')),
        "is not a known field",
    ),
    Hostile(
        "prompt_commitment",
        "claims another prompt",
        422,
        post(_field('"prompt_commitment": "00"')),
        "is not a known field",
    ),
    Hostile(
        "deadline_s",
        "takes the GPU for a day",
        422,
        post(_field('"deadline_s": 86400')),
        "is not a known field",
    ),
    Hostile(
        "draft_model",
        "names a file to load",
        422,
        post(_field('"draft_model": "/etc/passwd"')),
        "is not a known field",
    ),
    Hostile(
        "type of a frame",
        "a frame of the tower's protocol",
        422,
        post(_field('"type": "cancel"')),
        "is not a known field",
    ),
    Hostile(
        "nested request",
        "a request inside the request",
        422,
        post(f'{{"request": {GOOD}}}'),
        "prompt is required",
    ),
]
