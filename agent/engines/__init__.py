"""Engines: servers measured from outside, as a cross-check of our own loop and for pairs too large for it.

`engine` says what an engine is, `llama_server` and `prometheus` are two, `compare` sets one against the other, and
`judge` says what came of it. `python -m agent.engines` does all that.
"""
