"""The edge as it is, but that AWS may be as slow as the machine that plays it."""

from __future__ import annotations

from edge import app, aws

# What calls are reckoned to take stays as it is, or there would be time for none.
_RECKONED = {attempts: aws.longest(attempts) for attempts in (1, aws.ATTEMPTS)}


def _longest(attempts: int) -> float:
    return _RECKONED[attempts]


aws.longest = _longest
aws.TIMEOUT_S = 20.0

lambda_handler = app.lambda_handler
