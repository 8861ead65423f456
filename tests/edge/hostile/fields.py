"""Values that no field of `POST /run` can have: huge, odd, of another kind."""

from __future__ import annotations

from tests.edge.hostile.entry import MARK, Hostile, post


def _with(text: str) -> dict[str, object]:
    return post(f'{{"prompt": "{MARK}", {text}}}')


FIELDS = [
    Hostile(
        "k of 10^400", "an integer that takes long to read", 400, _with(f'"k": 1{"0" * 400}'), "beyond 2^53"
    ),
    Hostile(
        "seed of 4,301 digits", "beyond what Python reads", 400, _with(f'"seed": {"9" * 4301}'), "beyond 2^53"
    ),
    Hostile(
        "seed of 100,000 digits",
        "quadratic time in careless readers",
        400,
        _with(f'"seed": {"9" * 100_000}'),
        "beyond 2^53",
    ),
    Hostile(
        "seed 2^53",
        "the first integer that JavaScript confuses",
        400,
        _with('"seed": 9007199254740992'),
        "beyond 2^53",
    ),
    Hostile("seed 2^64 - 1", "wraps to -1", 400, _with('"seed": 18446744073709551615'), "beyond 2^53"),
    Hostile("seed 2^31", "wraps in a C int, and is right here", 200, _with('"seed": 2147483648'), runs=1),
    Hostile("seed -1", "random for llama.cpp", 422, _with('"seed": -1'), "seed must be"),
    Hostile("seed -0", "zero by another name", 200, _with('"seed": -0'), runs=1),
    Hostile("seed 1.0", "an integer to JavaScript", 422, _with('"seed": 1.0'), "seed must be"),
    Hostile("seed 1e3", "an integer to JavaScript", 422, _with('"seed": 1e3'), "seed must be"),
    Hostile("seed 01", "octal to some", 400, _with('"seed": 01'), "not JSON"),
    Hostile("seed 0x10", "hexadecimal to some", 400, _with('"seed": 0x10'), "not JSON"),
    Hostile("seed +1", "a sign that JSON does not know", 400, _with('"seed": +1'), "not JSON"),
    Hostile("seed in Arabic digits", "an integer to Python's int", 400, _with('"seed": ٤'), "not JSON"),
    Hostile("k in Arabic digits, quoted", "an integer to Python's int", 422, _with('"k": "٤"'), "k must be"),
    Hostile("k in full width, quoted", "an integer to Python's int", 422, _with('"k": "４"'), "k must be"),
    Hostile("k 0", "a run without drafts", 422, _with('"k": 0'), "k must be"),
    Hostile("k 17", "one more than the tower drafts", 422, _with('"k": 17'), "k must be"),
    Hostile("k -2^53 + 1", "as small as JSON gets here", 422, _with('"k": -9007199254740991'), "k must be"),
    Hostile("k true", "1 to Python", 422, _with('"k": true'), "k must be"),
    Hostile("k null", "None where a default stands", 422, _with('"k": null'), "k must be"),
    Hostile("k AUTO", "another case is another word", 422, _with('"k": "AUTO"'), "k must be"),
    Hostile("k of lists", "a list where a number belongs", 422, _with('"k": [[[[4]]]]'), "k must be"),
    Hostile(
        "k that is the prompt",
        "errors that repeat values would tell it",
        422,
        _with(f'"k": "{MARK}"'),
        "k must be",
    ),
    Hostile(
        "k that is an object with the prompt",
        "errors that show where would tell it",
        422,
        _with(f'"k": {{"{MARK}": "{MARK}"}}'),
        "k must be",
    ),
    Hostile("n 0", "a run of no steps", 422, _with('"n": 0'), "n must be"),
    Hostile("n 501", "one step too many", 422, _with('"n": 501'), "n must be"),
    Hostile("n 2^53 - 1", "a run that never ends", 422, _with('"n": 9007199254740991'), "n must be"),
    Hostile("temperature NaN", "compares with nothing", 400, _with('"temperature": NaN'), "NaN and Infinity"),
    Hostile(
        "temperature -Infinity",
        "what json.dumps would write",
        400,
        _with('"temperature": -Infinity'),
        "NaN and Infinity",
    ),
    Hostile("temperature 1e999", "infinity in disguise", 400, _with('"temperature": 1e999'), "not finite"),
    Hostile(
        "temperature of 5,000 digits",
        "a float that takes long to read",
        422,
        _with(f'"temperature": 3.{"3" * 5000}'),
        "temperature must be",
    ),
    Hostile(
        "temperature 5e-324",
        "the smallest float: a division by it overflows",
        200,
        _with('"temperature": 5e-324'),
        runs=1,
    ),
    Hostile(
        "temperature -0.0",
        "zero by another name, and another digest",
        200,
        _with('"temperature": -0.0'),
        runs=1,
    ),
    Hostile(
        "temperature 2.0000000000000004",
        "one step of a float too hot",
        422,
        _with('"temperature": 2.0000000000000004'),
        "temperature must be",
    ),
    Hostile('temperature "0"', "a number as text", 422, _with('"temperature": "0"'), "temperature must be"),
    Hostile("top_p 0", "keeps no token at all", 422, _with('"top_p": 0'), "top_p must be"),
    Hostile("top_p 1e-400", "zero after rounding", 422, _with('"top_p": 1e-400'), "top_p must be"),
    Hostile("top_k 1001", "one too many", 422, _with('"top_k": 1001'), "top_k must be"),
    Hostile("top_k -1", "all of them to some samplers", 422, _with('"top_k": -1'), "top_k must be"),
    Hostile('chat "false"', "true to Python", 422, _with('"chat": "false"'), "chat must be"),
    Hostile("include_output 1", "true to C", 422, _with('"include_output": 1'), "include_output must be"),
    Hostile(
        "ignore_eos []",
        "false to Python, true to JavaScript",
        422,
        _with('"ignore_eos": []'),
        "ignore_eos must be",
    ),
    Hostile("prompt null", "no prompt", 422, post('{"prompt": null}'), "prompt must be"),
    Hostile("prompt 5", "no text", 422, post('{"prompt": 5}'), "prompt must be"),
    Hostile(
        "prompt as messages",
        "another API's prompt",
        422,
        post(f'{{"prompt": [{{"role": "system", "content": "{MARK}"}}]}}'),
        "prompt must be",
    ),
    Hostile("prompt empty", "nothing to go on from", 422, post('{"prompt": ""}'), "prompt must be"),
    Hostile(
        "prompt with NUL",
        "ends strings in C",
        422,
        post(f'{{"prompt": "{MARK}\\u0000; rm -rf /"}}'),
        "prompt must be",
    ),
]
