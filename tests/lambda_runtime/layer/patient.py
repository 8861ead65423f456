"""The edge as it is, but that AWS may be as slow as the machine that plays it."""

from __future__ import annotations

from edge import app, aws

aws.TIMEOUT_S = 20.0

lambda_handler = app.lambda_handler
