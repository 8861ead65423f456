"""A stand-in for the decode worker: a real process that speaks the pipe protocol and misbehaves on request.

The first word of the prompt says what to do with a run, the argument after ``--pair`` what to answer when
asked for a pair. SIGUSR1 lets a waiting operation go on. It imports nothing of the project, to start fast.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden" / "wire.json"
OUTPUT = "It was a secret output."
OUTPUT_SHA3_256 = "330804137deed475116693bb7a510a458bc1661985c10dd40347030f28b532ea"
MODEL = {"name": "llama3.2:1b", "family": "llama", "parameters": 1235814432, "loadable": True}

work: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
wake: queue.SimpleQueue[str] = queue.SimpleQueue()
deaf = threading.Event()


def send(event: str, **fields: object) -> None:
    """Send one event."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def listen() -> None:
    """Sort what the agent sends, and end when it goes away."""
    for line in sys.stdin.buffer:
        op = json.loads(line)
        if op["op"] == "cancel":
            wake.put("cancel")
        else:
            work.put(op)
    if not deaf.is_set():
        os._exit(0)


def pair(mode: str) -> None:
    """Answer the question for a pair."""
    if mode == "die":
        os._exit(3)
    if mode == "slow":
        wake.get()
    if mode == "deaf":
        deaf.set()
    if mode == "none":
        send("pair", found=False, reason="no two models of one family", models=[MODEL])
    elif mode == "odd":
        send("pair", found=True, reason="a pair without names")
    elif mode == "fail":
        send("failed", run_id=None, code="LOAD_FAILED", detail="the store cannot be read")
    else:
        draft = {"name": "llama3.2:1b", "path": "/models/draft", "sha256": "0" * 64}
        target = {"name": "llama3.1:8b", "path": "/models/target", "sha256": None}
        send(
            "pair",
            found=True,
            reason="one vocabulary",
            draft=draft,
            target=target,
            family="llama",
            models=[MODEL],
        )


def prove(mode: str) -> None:
    """Decode one step, or not."""
    if mode == "slow":
        wake.get()
    if mode == "fail":
        send("failed", run_id=None, code="OUT_OF_MEMORY", detail="it does not fit")
    else:
        send("proved")


def run(op: dict[str, Any]) -> None:
    """Do with a run what the first word of its prompt says."""
    run_id, prompt = op["run_id"], op["request"]["prompt"]
    word, _, rest = prompt.partition(" ")
    if word == "load":
        send("progress", run_id=run_id, phase="loading", done=0, total=50)
        if rest == "DIE":
            os._exit(3)
        send("failed", run_id=run_id, code=rest, detail="it cannot be loaded")
        return
    send("progress", run_id=run_id, phase="measuring", done=12, total=50)
    match word:
        case "wait":
            if wake.get() == "cancel":
                send("failed", run_id=run_id, code="CANCELLED", detail="the run was cancelled")
                return
        case "hang":
            threading.Event().wait()
        case "deaf":
            deaf.set()
            threading.Event().wait()
        case "die":
            os._exit(3)
        case "orphan":
            # It inherits our pipes, and would hold them open for a long time.
            child = subprocess.Popen(["sleep", "600"])  # noqa: S607
            send("progress", run_id=run_id, phase="measuring", done=child.pid, total=10**9)
            os._exit(3)
        case "flood":
            sys.stdout.write("x" * (3 * 1024 * 1024))
            sys.stdout.flush()
        case "garbage":
            print("ggml: all is well", flush=True)
        case "stranger":
            send("failed", run_id="another", code="INTERNAL", detail="not yours")
        case "fail":
            send("failed", run_id=run_id, code=rest, detail="it failed; try something else")
            return
        case "chatty":
            for done in range(2000):
                send("progress", run_id=run_id, phase="measuring", done=done, total=2000)
        case "shout":
            for text in (prompt, "all is well", "x" * (3 * 1024 * 1024), "still well"):
                print(text, file=sys.stderr, flush=True)
        case "nonsense":
            send("result", run_id=run_id, measurement={}, energy={}, output="", output_sha3_256="0" * 64)
            return
    result = json.loads(GOLDEN.read_text())["agent"][3]
    send(
        "result",
        run_id=run_id,
        measurement=result["measurement"],
        energy=result["energy"],
        output="\0" * 300_000 if word == "long" else OUTPUT,
        output_sha3_256=OUTPUT_SHA3_256,
    )


def main() -> None:
    """Carry out operations until the agent goes away."""
    mode = sys.argv[sys.argv.index("--pair") + 1] if "--pair" in sys.argv else "found"
    signal.signal(signal.SIGUSR1, lambda *_: wake.put("go"))
    threading.Thread(target=listen, daemon=True).start()
    while True:
        op = work.get()
        if op["op"] == "pair":
            pair(mode)
        elif op["op"] == "prove":
            prove(sys.argv[sys.argv.index("--prove") + 1] if "--prove" in sys.argv else "")
        else:
            run(op)


if __name__ == "__main__":
    main()
