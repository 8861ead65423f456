"""`python -m bench.memory DRAFT TARGET K THREADS COUNT`: decodes a prompt from standard input, prints the peak memory.

In a process of its own, so that nothing else the benchmarks have loaded is counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.models import BenchPair
from bench.ours import Ours
from bench.peer import peak_memory_mb

TIMEOUT_S = 600


def ours_peak_mb(pair: BenchPair, k: int, threads: int, count: int) -> float:
    """Returns the largest resident set of a process that decodes the pair's first prompt with our loop, in MB."""
    command = [sys.executable, "-m", "bench.memory", str(pair.draft), str(pair.target)]
    command += [str(number) for number in (k, threads, count)]
    done = subprocess.run(
        command, input=pair.prompts[0][1], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    return float(done.stdout.split()[-1])


def main() -> None:
    """Decodes and prints."""
    draft, target, k, threads, count = sys.argv[1:]
    text = sys.stdin.read()
    pair = BenchPair("pair", Path(draft), Path(target), (("", text),))
    ours = Ours(pair, int(threads))
    ours.read(text)
    ours.speculative(int(k), int(count))
    print(peak_memory_mb(os.getpid()))


if __name__ == "__main__":
    main()
