"""Errors of the engines.

* `agent.errors.AgentError`
    * `EngineError`: base
        * `EngineInput`: code ``BAD_REQUEST``, something the caller gave cannot be used
        * `EngineUnreachable`: the server is down, still loading or silent
        * `EngineAnswer`: the server answered something that cannot be used

Their texts name the server by scheme, host and port only, and never repeat a prompt, a key or an answer's body.
"""

from agent.errors import AgentError


class EngineError(AgentError):
    """A server that is to be measured gave no measurement."""

    default_remedy = "look at that server's log"


class EngineInput(EngineError):
    """The caller gave something that cannot be used."""

    code = "BAD_REQUEST"
    default_remedy = ""


class EngineUnreachable(EngineError):
    """The server is down, still loading or silent."""

    default_remedy = "start it, or check the URL"


class EngineAnswer(EngineError):
    """The server answered something that cannot be used."""

    default_remedy = "check that the URL is that server's and that --kind fits it"
