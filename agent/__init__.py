"""The tower agent: takes runs over a websocket, one decode at a time in a child process."""

__version__ = "0.1.0"
