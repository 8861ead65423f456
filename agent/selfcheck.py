"""`python -m agent selfcheck`: what this tower can and cannot measure, and why.

It asks the same code that serves runs: a decode worker looks for the pair and then makes one real run of a few steps,
so what is printed is what a receipt from here would say.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from agent import __version__
from agent.energy import PER_RUN, probe, refresh_period
from agent.envfile import parse
from agent.errors import AgentError
from agent.pipe import PairEvent, ResultEvent
from agent.settings import AgentSettings, load_settings
from agent.supervisor import Supervisor
from agent.threads import in_thread
from shared import labels
from shared.models import one_line
from shared.schemas import RunRequest
from shared.settings import SettingsError

PROMPT = "The quick brown fox jumps over the lazy dog, and"
STEPS = 16
DEADLINE_S = 300.0
DRIVER_S = 20.0
"""A driver that takes longer to tell of its GPUs does not answer."""

WIDTH = 22

_MARKS = {True: "yes", False: "no", None: "-"}


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it can be used (None: neither), and in words what was found."""

    what: str
    usable: bool | None
    found: str


def main(argv: Sequence[str]) -> int:
    """Prints the findings; returns 0 whatever they are, 2 for a wrong setting."""
    parser = argparse.ArgumentParser(
        prog="python -m agent selfcheck",
        description="Tells what this tower can and cannot measure, and why. Takes the agent's own flags and settings.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--settings",
        type=Path,
        metavar="FILE",
        help="a file of settings, such as the service's /etc/specdec/agent.env",
    )
    own, rest = parser.parse_known_args(argv)
    try:
        service = parse(own.settings.read_text("utf-8")) if own.settings else {}
        settings = load_settings(rest, {**service, **os.environ})
    except SettingsError as exc:
        print(f"agent selfcheck: {exc}", file=sys.stderr)
        return 2
    except (OSError, UnicodeError) as exc:
        print(f"agent selfcheck: the settings cannot be read ({type(exc).__name__})", file=sys.stderr)
        return 2
    asyncio.run(_tell(settings, as_json=own.json))
    return 0


async def _tell(settings: AgentSettings, *, as_json: bool) -> None:
    """Prints each finding as it comes, or all of them as JSON."""
    findings = []
    async for finding in look(settings):
        findings.append(asdict(finding))
        if not as_json:
            print(
                f"{finding.what:<{WIDTH}}  {_MARKS[finding.usable]:<3}  {one_line(finding.found)}", flush=True
            )
    if as_json:
        print(json.dumps(findings, indent=1, ensure_ascii=False))


async def look(settings: AgentSettings) -> AsyncIterator[Finding]:
    """Yields everything that is found here."""
    for finding in _machine(settings):
        yield finding
    # In a thread that nobody waits for: a driver that does not answer keeps whoever asks it.
    asked = in_thread(lambda: tuple(_gpus(settings)))
    try:
        async with asyncio.timeout(DRIVER_S):
            gpus = await asked
    except TimeoutError:
        yield Finding("GPU", False, "the driver does not answer, so that nothing is decoded here")
        return
    for finding in (*gpus, *_ollama(settings)):
        yield finding
    supervisor = Supervisor(
        settings.worker_command(), hang_s=settings.hang_s, cancel_grace_s=settings.cancel_grace_s
    )
    try:
        pair = await supervisor.pair()
        for finding in (*_pair(pair), *_shown(settings, pair)):
            yield finding
        if pair.found:
            for finding in _run(await _decode(supervisor)):
                yield finding
    except AgentError as exc:
        yield Finding("decode", False, str(exc))
    finally:
        await supervisor.close()


async def _decode(supervisor: Supervisor) -> ResultEvent:
    request = RunRequest(prompt=PROMPT, n=STEPS, ignore_eos=True).model_dump()
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    return await supervisor.run("selfcheck", request, deadline=deadline, on_progress=lambda _: None)


def _machine(settings: AgentSettings) -> Iterator[Finding]:
    python = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("agent", None, f"{__version__}, {python}, {len(os.sched_getaffinity(0))} processors")
    try:
        yield Finding("llama.cpp", True, f"llama-cpp-python {version('llama-cpp-python')}")
    except PackageNotFoundError:
        yield Finding("llama.cpp", False, "llama-cpp-python is not installed")
    state = settings.state
    # Not Path.exists, which raises where a directory above is closed to us.
    nearest = next((path for path in (state, *state.parents) if os.path.exists(path)), state)  # noqa: PTH110
    writable = os.access(nearest, os.W_OK | os.X_OK)
    yield Finding("state", writable, f"{state} {'can' if writable else 'cannot'} be written")


def _gpus(settings: AgentSettings) -> Iterator[Finding]:
    from agent.gpu import find_gpu

    found = find_gpu(settings.gpu)
    if found.gpu is None:
        yield Finding("GPU", False, found.reason)
        return
    yield Finding("GPU", True, found.gpu.describe())
    told = probe(found.gpu)
    period = refresh_period(found.gpu)
    refreshes = f", refreshed every {1000 * period:.0f} ms" if period else ""
    yield Finding("energy meter", told["code"] == PER_RUN, f"{told['reason']}{refreshes}")


def _ollama(settings: AgentSettings) -> Iterator[Finding]:
    from agent.ollama.api import Ollama
    from agent.ollama.store import find_store

    root = find_store(settings.ollama_models)
    yield Finding("ollama store", root is not None, str(root) if root else "none is at the usual places")
    if settings.ollama_url:
        with Ollama(settings.ollama_url) as ollama:
            answer = ollama.version()
        found = f"version {answer.version}" if answer.version else f"{answer.reason} (it is not needed)"
        yield Finding("ollama server", True if answer.version else None, found)


def _pair(event: PairEvent) -> Iterator[Finding]:
    device = event.device or {}
    yield Finding(
        "decodes on",
        device.get("kind") is not None,
        f"{device.get('kind') or 'nothing'}: {device.get('reason')}",
    )
    for model in event.models:
        usable = bool(model.get("loadable"))
        facts = f"{model.get('family') or 'unknown family'}"
        yield Finding(f"model {model['name']}", usable, facts if usable else str(model.get("reason")))
    if event.found and event.draft and event.target:
        yield Finding("pair", True, f"{event.draft.name} drafts for {event.target.name}: {event.reason}")
    else:
        yield Finding("pair", False, event.reason)


def _shown(settings: AgentSettings, event: PairEvent) -> Iterator[Finding]:
    """Yields what Ollama's server says of the pair's models, if they are its and it answers."""
    from agent.ollama.api import Ollama

    if not settings.ollama_url or not (event.ollama or {}).get("version"):
        return
    with Ollama(settings.ollama_url) as ollama:
        for file in (event.draft, event.target):
            if file is not None and (told := ollama.show(file.name)).reason is None:
                facts = (told.family, told.parameter_size, told.quantization)
                yield Finding("ollama says", None, f"{file.name}: {', '.join(filter(None, facts))}")


def _run(event: ResultEvent) -> Iterator[Finding]:
    m: dict[str, Any] = event.measurement
    yield Finding(
        "decode", True, f"{m['n']} steps, {m['emitted']} tokens, acceptance {_figure(m['accepted_rate'])}"
    )
    speedup = m["speedup"]
    if isinstance(speedup, str):
        yield Finding("time", False, "a few steps here were too few or too slow to time")
    else:
        low, high = speedup["ci95"]
        yield Finding(
            "time", True, f"{labels.MEASURED}: speed-up {speedup['median']:.2f} [{low:.2f}, {high:.2f}]"
        )
    yield Finding("output", m["quality"]["label"] == labels.LOSSLESS, m["quality"]["label"])
    verdict = m["verdict"]
    yield Finding("verdict", verdict["valid"], "valid" if verdict["valid"] else "; ".join(verdict["reasons"]))
    energy = event.energy
    if energy["label"] == labels.MEASURED:
        joules = energy["joules_per_token"]
        ours, alone = _figure(joules["speculative"]), _figure(joules["target_only"])
        yield Finding("energy", True, f"{labels.MEASURED}: {ours} J a token, {alone} by the target alone")
    else:
        yield Finding("energy", False, f"{labels.UNAVAILABLE} ({energy['code']}): {energy.get('reason')}")


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3g}"
