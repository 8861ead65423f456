"""The command `python -m agent`."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Hashable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

from websockets.frames import CloseCode

from agent import logs
from agent.attest import PUBLIC, Attester, open_attester
from agent.capability import CapabilityWatch
from agent.changes import version
from agent.errors import AgentError
from agent.http_endpoints import Endpoints
from agent.metrics import Metrics
from agent.notify import Notifier
from agent.ollama.store import snapshot
from agent.pairs import EMBEDDED
from agent.runs import RunManager
from agent.server import AgentServer, Traffic
from agent.settings import AgentSettings, is_loopback, load_settings
from agent.store import Store
from agent.supervisor import Supervisor
from agent.tls import Certificate
from agent.tokens import TokenStore, fingerprint, open_tokens
from shared.settings import SettingsError

FIRST_LOOK_S = 10.0
"""How long the start may wait for the first answer about the pair, so that the first probe finds one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """What an agent is made of."""

    supervisor: Supervisor
    runs: RunManager
    capability: CapabilityWatch
    server: AgentServer


def assemble(settings: AgentSettings, store: Store, attester: Attester, tokens: TokenStore | None) -> Parts:
    """Return the parts of an agent, none of them at work yet."""
    worker = partial(
        Supervisor, settings.worker_command(), hang_s=settings.hang_s, cancel_grace_s=settings.cancel_grace_s
    )
    supervisor = worker(idle_s=settings.idle_s)
    runs = RunManager(
        store,
        supervisor,
        queue_limit=settings.queue_limit,
        max_deadline_s=settings.max_deadline_s,
        expiry_s=settings.expiry_s,
        attester=attester,
    )
    capability = CapabilityWatch(
        supervisor, runs, scout=worker(), picture=partial(models_at_hand, settings), look_s=settings.look_s
    )
    traffic = Traffic()
    metrics = Metrics(runs, supervisor, traffic)
    runs.on_end = metrics.observe
    server = AgentServer(
        runs,
        capability,
        tokens=tokens,
        traffic=traffic,
        endpoints=Endpoints(capability, supervisor, metrics, tokens),
        max_connections=settings.max_connections,
        keepalive_s=settings.keepalive_s,
    )
    return Parts(supervisor, runs, capability, server)


async def run_agent(
    settings: AgentSettings,
    store: Store,
    attester: Attester,
    tokens: TokenStore | None,
    certificate: Certificate | None,
) -> None:
    """Serve until SIGTERM or SIGINT, then stop tidily.

    Raises:
        AgentError: The port cannot be opened.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    notifier = Notifier(os.environ)
    parts = assemble(settings, store, attester, tokens)
    try:
        context = certificate.context if certificate else None
        server = await parts.server.listen(settings.host, settings.port, context)
    except OSError as exc:
        cause = f"cannot listen on {settings.host}:{settings.port} ({exc.strerror})"
        raise AgentError(cause, "choose another --host or --port") from exc
    parts.runs.start()
    parts.capability.start()
    telling = None
    try:
        stopped = asyncio.create_task(stop.wait())
        first_look = asyncio.create_task(parts.capability.frame(FIRST_LOOK_S))
        await asyncio.wait({stopped, first_look}, return_when=asyncio.FIRST_COMPLETED)
        public = str(settings.state / PUBLIC)
        log.info("results are signed", extra={"data": {"keyid": attester.key.keyid, "public_key": public}})
        shown = [fingerprint(token) for token in tokens.tokens] if tokens else []
        log.info("clients present a token", extra={"data": {"tokens": shown}})
        if certificate is None and not is_loopback(settings.host):
            log.warning("tokens and prompts travel unencrypted beyond this machine; see --tls-cert")
        host, port = server.sockets[0].getsockname()[:2]
        url = f"{'wss' if certificate else 'ws'}://{f'[{host}]' if ':' in host else host}:{port}/specdec"
        print(f"agent listening on {url}", flush=True)
        notifier.send("READY=1")

        async def status() -> str:
            return f"{url}: {(await parts.capability.frame(0.0)).same_family_pair.reason}"

        def healthy() -> bool:
            return all(part.alive for part in (parts.supervisor, parts.capability, parts.runs))

        telling = asyncio.create_task(notifier.keep_telling(healthy, status))
        await stopped
        log.info("stopping")
        notifier.send("STOPPING=1")
    finally:
        # No new connections; those there are may still see their run end within the grace.
        server.close(close_connections=False)
        await parts.runs.close(settings.shutdown_grace_s)
        await parts.capability.close()
        await parts.supervisor.close()
        await asyncio.gather(*(client.close(CloseCode.GOING_AWAY) for client in server.connections))
        await server.wait_closed()
        if telling is not None:
            telling.cancel()
            with suppress(asyncio.CancelledError):
                await telling


def models_at_hand(settings: AgentSettings) -> Hashable:
    """Return something that changes when the models do among which a pair is looked for."""
    named = [EMBEDDED] if settings.embedded else [settings.draft, settings.target]
    files = [path for path in named if path is not None]
    if not files:
        return snapshot(settings.ollama_models)
    return tuple(version(path) for path in files)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent or a command and return its exit status: 2 for a wrong setting, 1 if it cannot start."""
    argv = sys.argv[1:] if argv is None else argv
    match argv:
        case ["token", *rest]:
            from agent.token_command import main as command
        case ["install", *rest]:
            from agent.install import install as command
        case ["uninstall", *rest]:
            from agent.install import uninstall as command
        case ["selfcheck", *rest]:
            from agent.selfcheck import main as command
        case _:
            return _serve(argv)
    return command(rest)


def _serve(argv: Sequence[str]) -> int:
    try:
        settings = load_settings(argv, os.environ)
        tokens = open_tokens(settings, os.environ)
        certificate = None
        if settings.tls_cert is not None and settings.tls_key is not None:
            certificate = Certificate(settings.tls_cert, settings.tls_key)
    except SettingsError as exc:
        print(f"agent: {exc}", file=sys.stderr)
        return 2
    logs.configure()
    try:
        with closing(Store(settings.state)) as store:
            attester = open_attester(settings.state)
            asyncio.run(run_agent(settings, store, attester, tokens, certificate))
    except AgentError as exc:
        print(f"agent: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
