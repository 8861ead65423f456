"""The command `python -m agent`."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing

from websockets.frames import CloseCode

from agent import logs
from agent.attest import PUBLIC, Attester, open_attester
from agent.capability import CapabilityWatch
from agent.errors import AgentError
from agent.runs import RunManager
from agent.server import AgentServer
from agent.settings import AgentSettings, load_settings
from agent.store import Store
from agent.supervisor import Supervisor
from shared.settings import SettingsError

FIRST_LOOK_S = 10.0
"""How long the start may wait for the first answer about the pair, so that the first probe finds one."""

log = logging.getLogger(__name__)


async def run_agent(settings: AgentSettings, store: Store, attester: Attester) -> None:
    """Serve until SIGTERM or SIGINT, then stop tidily.

    Raises:
        AgentError: The port cannot be opened.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    supervisor = Supervisor(
        settings.worker_command(), hang_s=settings.hang_s, cancel_grace_s=settings.cancel_grace_s
    )
    runs = RunManager(
        store,
        supervisor,
        queue_limit=settings.queue_limit,
        max_deadline_s=settings.max_deadline_s,
        expiry_s=settings.expiry_s,
        attester=attester,
    )
    capability = CapabilityWatch(supervisor, runs)
    token = settings.tower_token
    agent = AgentServer(
        runs,
        capability,
        token=token.get_secret_value() if token else None,
        max_connections=settings.max_connections,
    )
    try:
        server = await agent.listen(settings.host, settings.port)
    except OSError as exc:
        cause = f"cannot listen on {settings.host}:{settings.port} ({exc.strerror})"
        raise AgentError(cause, "choose another --host or --port") from exc
    runs.start()
    try:
        stopped = asyncio.create_task(stop.wait())
        first_look = asyncio.create_task(capability.frame(FIRST_LOOK_S))
        await asyncio.wait({stopped, first_look}, return_when=asyncio.FIRST_COMPLETED)
        host, port = server.sockets[0].getsockname()[:2]
        public = str(settings.state / PUBLIC)
        log.info("results are signed", extra={"data": {"keyid": attester.key.keyid, "public_key": public}})
        print(f"agent listening on ws://{f'[{host}]' if ':' in host else host}:{port}/specdec", flush=True)
        await stopped
        log.info("stopping")
    finally:
        # No new connections; those there are may still see their run end within the grace.
        server.close(close_connections=False)
        await runs.close(settings.shutdown_grace_s)
        await capability.close()
        await supervisor.close()
        await asyncio.gather(*(client.close(CloseCode.GOING_AWAY) for client in server.connections))
        await server.wait_closed()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent and return its exit status: 2 for a wrong setting, 1 if it cannot start."""
    try:
        settings = load_settings(sys.argv[1:] if argv is None else argv, os.environ)
    except SettingsError as exc:
        print(f"agent: {exc}", file=sys.stderr)
        return 2
    logs.configure()
    try:
        with closing(Store(settings.state)) as store:
            attester = open_attester(settings.state)
            asyncio.run(run_agent(settings, store, attester))
    except AgentError as exc:
        print(f"agent: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
