"""The service's file of settings: written by install, and no longer touched once somebody has edited it.

Its first line holds a digest of the others, by which an edit is known. The form is systemd's EnvironmentFile=.
"""

import hashlib
import re
from collections.abc import Mapping

_MARK = "# install wrote what follows, and leaves it alone once it is edited: "

_ADVICE = """\
# Settings of the tower agent, one SPECDEC_NAME=value a line; `python -m agent --help` lists the names.
# After a change: python -m agent install (a new host or model directory changes what the unit lets through),
# then systemctl restart specdec-agent.
"""

_PLAIN = re.compile(r"[\w./:@,+-]*", re.ASCII)
_SPECIAL = r"[\"\\$`]"


def render(settings: Mapping[str, str]) -> str:
    """Return the file for these variables."""
    body = _ADVICE + "".join(f"{name}={_quoted(value)}\n" for name, value in sorted(settings.items()))
    return f"{_MARK}{_digest(body)}\n{body}"


def edited(text: str) -> bool:
    """Whether somebody has changed the file since install wrote it, or it never did."""
    first, _, body = text.partition("\n")
    return first != f"{_MARK}{_digest(body)}"


def parse(text: str) -> dict[str, str]:
    """Return the variables that the file sets; lines that set none are passed over, as systemd does."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, is_set, value = line.strip().partition("=")
        if is_set and re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            found[name] = _unquoted(value.strip())
    return found


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(f"({_SPECIAL})", r"\\\1", value) + '"'


def _unquoted(value: str) -> str:
    match value[:1], value[1:-1], value[-1:]:
        case '"', inner, '"':
            return re.sub(rf"\\({_SPECIAL})", r"\1", inner)
        case "'", inner, "'":
            return inner
    return value


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]
