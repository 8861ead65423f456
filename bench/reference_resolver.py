"""What the edge is compared with: the least that one would deploy with the same tools.

A powertools resolver with validation, one typed route, and settings read from the environment by a pydantic model.
"""

from __future__ import annotations

import os
from typing import Annotated, Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import BaseModel, ConfigDict, Field


class Settings(BaseModel):
    """What an instance needs to know."""

    model_config = ConfigDict(frozen=True)

    greeting: str = Field(default="hello", min_length=1)
    times: int = Field(default=4, ge=1, le=16)


class Hello(BaseModel):
    """What the route answers."""

    message: str
    times: int


settings = Settings.model_validate(
    {name: os.environ[name.upper()] for name in Settings.model_fields if name.upper() in os.environ}
)
app = APIGatewayHttpResolver(enable_validation=True)


@app.get("/hello")
def hello(name: Annotated[str, Query(max_length=64)] = "world") -> Hello:
    """Greets."""
    return Hello(message=f"{settings.greeting} {name}", times=settings.times)


def lambda_handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Answers one event."""
    return app.resolve(event, context)
