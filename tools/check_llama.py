"""Decodes a few tokens with the embedded pair: exit code 0 if this build of llama.cpp runs on this processor.

A wheel that was cached on another machine may hold instructions that this one does not have; such a process dies from
SIGILL at its first decode, which is why the set-up tries one in a process of its own.
"""

from __future__ import annotations

import sys

from agent.llama import Context, Weights, system_info
from agent.pairs import EMBEDDED


def main() -> int:
    """Decodes and says what was found."""
    system = system_info()
    for name in ("draft", "target"):
        weights = Weights(EMBEDDED / f"{name}.gguf", name)
        context = Context(weights, capacity=64, threads=1)
        context.forward(weights.prompt_tokens("In the beginning", chat=False), 1)
        context.close()
        weights.close()
    print(f"llama.cpp runs here: {system}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
