"""The reference of the settings, from the models that read them."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

import agent.__main__
import edge.__main__
from agent.settings import PREFIX, AgentSettings
from edge.settings import EdgeSettings
from tools.docs_cli import parser_of
from tools.docs_text import NOTE, code, kind, table

SHORT: Final = (
    *(
        "device",
        "gpu",
        "pin_draft",
        "pin_target",
        "forbid",
        "ollama_url",
        "ollama_unload",
        "foreign",
        "idle_s",
    ),
    *("queue_limit", "max_connections", "expiry_s", "context", "threads"),
)
"""Settings of the agent that a tower's operator is most likely to change."""

_HEAD: Final = """# Settings

Both programs read environment variables that begin with `SPECDEC_`. A variable that is not set, or empty, leaves the
default; one that names no setting is left alone; a wrong value stops the start with one line that names it and does not
repeat it (exit code 2). Flags outrank variables. Where there is no default, – stands.

"""
_EDGE: Final = """## The edge

For `python -m edge` and for the function on AWS, where `template.yaml` fills them in from the stack's parameters
([Deploying the edge to AWS](../deploy.md)).

"""
_AGENT: Final = """## The agent

For `python -m agent`. The service reads them from `/etc/specdec/agent.env`: change it, then
`python -m agent install` and a restart.

"""
_CLIENT: Final = """## The client

`SPECDEC_URL` is the address of the service that `specdec` asks when `--url` is not given. `python -m agent.engines`
takes the API keys of the two servers from `SPECDEC_SPECULATIVE_API_KEY` and `SPECDEC_PLAIN_API_KEY`.
"""


def page() -> str:
    """Returns the page."""
    agent_flags = _flags(agent.__main__.main)
    edge_flags = {"tower_token": "--token-file"} | _flags(edge.__main__.main)
    return "".join(
        [
            *(NOTE, _HEAD),
            *(_EDGE, _table(EdgeSettings, edge_flags), "\n"),
            *(_AGENT, _table(AgentSettings, agent_flags), "\n"),
            _CLIENT,
        ]
    )


def agent_summary() -> str:
    """Returns the short table of the agent's settings."""
    properties = AgentSettings.model_json_schema()["properties"]
    rows = [
        (f"`{each.upper()}`", _default(properties[each]), str(properties[each]["description"]))
        for each in SHORT
    ]
    return table(("setting", "default", "says"), rows)


def _flags(main: Any) -> dict[str, str]:
    """Returns a program's flags by the settings that they may be of."""
    return {
        action.dest: action.option_strings[-1]
        for action in parser_of(main, [])._actions
        if action.option_strings
    }


def _table(model: type[BaseModel], flags: dict[str, str]) -> str:
    properties = model.model_json_schema()["properties"]
    rows = [
        (
            f"`{PREFIX}{each.upper()}`" + (f", `{flags[each]}`" if each in flags else ""),
            _allowed(schema),
            _default(schema),
            str(schema["description"]),
        )
        for each, schema in properties.items()
    ]
    return table(("variable, flag", "may be", "default", "says"), rows)


def _allowed(schema: dict[str, Any]) -> str:
    """Returns what a variable may hold; that it need not be there, the default tells."""
    plain = {name: value for name, value in schema.items() if name != "description"}
    if "anyOf" in plain:
        plain["anyOf"] = [each for each in plain["anyOf"] if each != {"type": "null"}]
    if plain.get("type") == "array":
        return "names, with commas"
    return kind(plain, quotes=False).replace("string", "text", 1)


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default")
    return "" if value is None or value == [] else code(value, quotes=False)
