"""The life of runs: a bounded queue, one decode at a time, each ID run at most once.

`RunManager` knows nothing of websockets and processes. It is asked in frames of the wire protocol and answers
with `Run` objects, which anyone may watch; it decodes through an `agent.supervisor.Decoder`.
"""

import asyncio
import json
import logging
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agent.attest import Attester
from agent.background import in_background
from agent.errors import (
    AgentError,
    Busy,
    Cancelled,
    Conflict,
    DeadlineExceeded,
    Expired,
    NotFound,
    RequestRefused,
    StoreError,
)
from agent.pipe import LOADING, ProgressEvent, ResultEvent
from agent.store import Record, State, Store
from agent.supervisor import Decoder
from shared.canonical import canonical_bytes
from shared.errors import SpecdecError
from shared.runid import bound_request, digest_text, split
from shared.schemas import Envelope, QueueState, RunRequest, explain
from shared.wire import (
    AcceptedFrame,
    ErrorCode,
    FailedFrame,
    ProgressFrame,
    ResultFrame,
    RunFrame,
    WireError,
    encode,
)

log = logging.getLogger(__name__)

Outcome = ResultFrame | FailedFrame
_OUTCOME: TypeAdapter[Outcome] = TypeAdapter(Outcome)
_SECONDS: TypeAdapter[float] = TypeAdapter(float)

STORE_AGAIN_S = 60.0
"""A store that could not be written is tried again after so long."""

FIRST_GUESS_S = 30.0
"""What a run is taken to last before any has ended."""


@dataclass(eq=False)
class Run:
    """One run: waiting, being decoded, or over.

    Attributes:
        run_id: The whole id, as the client gave it.
        key: The ID part, by which runs are told apart.
        nonce: Echoed in the result.
        bound: The request with its prompt's commitment in place of the prompt.
        request: The request with its prompt; None as soon as the run is over.
        deadline: When it must be over, on the event loop's clock.
        state: Where it is in its life.
        progress: The last sign of progress.
        outcome: Its last frame, once it is over.
        ended: Set once it is over.
    """

    run_id: str
    key: str
    nonce: str
    bound: dict[str, Any]
    request: RunRequest | None = None
    deadline: float = 0.0
    state: State = State.QUEUED
    progress: ProgressFrame | None = None
    outcome: Outcome | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def ends_within(self, seconds: float) -> bool:
        """Wait for the run to be over, but not longer than that; return whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        return self.ended.is_set()

    @property
    def k(self) -> int | None:
        """The draft length asked for, None if the agent is to choose it."""
        k = self.bound["k"]
        return k if isinstance(k, int) else None

    def report(self, phase: str, done: int, total: int) -> None:
        """Take a sign of progress."""
        self.progress = ProgressFrame(run_id=self.run_id, phase=phase, done=done, total=total, k=self.k)


class RunManager:
    """Takes runs, queues them, has them decoded, and remembers how they ended."""

    def __init__(
        self,
        store: Store,
        decoder: Decoder,
        *,
        queue_limit: int = 4,
        max_deadline_s: float = 600.0,
        expiry_s: float = 3600.0,
        attester: Attester | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; runs are decoded between `start` and `close`.

        Attributes:
            store_trouble: Why the last run could not be remembered, so that it was refused; empty if it could.
            outcomes: How many runs have ended, by code; OK is a result.
            on_end: Told the code and the seconds of decoding of each run that was begun and is over.

        Args:
            store: Where runs are remembered; what an earlier agent left undone in it is marked lost here.
            decoder: What decodes.
            queue_limit: How many runs may wait while one is decoded.
            max_deadline_s: No run gets more time than this, waiting included.
            expiry_s: How long the outcome of a run is kept.
            attester: Signs results; without it they are not signed.
            clock: Tells the wall-clock time, in Unix seconds.
        """
        self._store = store
        self._decoder = decoder
        self._queue_limit = queue_limit
        self._max_deadline_s = max_deadline_s
        self._expiry_s = expiry_s
        self._attester = attester
        self._clock = clock
        self._live: dict[str, Run] = {}
        self._waiting: deque[Run] = deque()
        self._running: Run | None = None
        self._started_at = 0.0
        self._durations: deque[float] = deque(maxlen=16)
        self.outcomes: Counter[str] = Counter()
        self.store_trouble = ""
        self._store_tried_at = 0.0
        self.on_end: Callable[[str, float], None] = lambda code, seconds: None
        self._kept: dict[str, Run] = {}
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        now = clock()
        lost = store.mark_lost(now, now + expiry_s)
        store.purge(now)
        if lost:
            log.warning("runs lost with the agent before", extra={"data": {"count": lost}})

    def start(self) -> None:
        """Begin to decode what is queued."""
        self._task = in_background(self._work(), "the queue of runs")

    async def close(self, grace_s: float) -> None:
        """Take no more runs, give the one being decoded a moment to end, then stop it.

        Runs that have not ended stay in the store as they are, and the next agent finds them lost.
        """
        self._closing = True
        if self._running is not None:
            await self._running.ends_within(grace_s)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    @property
    def alive(self) -> bool:
        """Whether runs are taken from the queue, if that was begun."""
        return self._task is None or not self._task.done()

    @property
    def decoding(self) -> bool:
        """Whether a run is being decoded whose pair is in memory."""
        progress = self._running.progress if self._running else None
        return progress is not None and progress.phase not in ("queued", "starting", LOADING)

    def queue(self) -> QueueState:
        """Return how busy the agent is."""
        return QueueState(
            running=self._running is not None, waiting=len(self._waiting), limit=self._queue_limit
        )

    def submit(self, frame: RunFrame) -> Run:
        """Queue a run, or find the one that has this ID already: no ID is ever run twice.

        Raises:
            RequestRefused: The run id is not bound to this request.
            Conflict: The ID names another request.
            Expired: The ID named a run that is no longer kept.
            Busy: The queue is full.
            StoreError: The run cannot be remembered, so it is not run.
        """
        key, digest = split(frame.run_id)
        bound = bound_request(frame.request.model_dump(), frame.prompt_commitment)
        if digest != digest_text(bound):
            raise RequestRefused(
                "the run id was made for another request", "make the run id from this request"
            )
        known = self._lookup(frame.run_id)
        if known is not None:
            if known.nonce != frame.nonce:
                raise Conflict("the run has another nonce")
            return known
        if self._closing:
            raise Busy("the agent is shutting down", retry_after=FIRST_GUESS_S)
        if len(self._live) > self._queue_limit:
            raise Busy(f"{len(self._waiting)} runs are waiting", retry_after=self._retry_after())
        now = self._clock()
        self._put(
            Record(
                id=key,
                digest=digest,
                run_id=frame.run_id,
                nonce=frame.nonce,
                request=canonical_bytes(bound).decode(),
                state=State.QUEUED,
                created_at=now,
            )
        )
        loop = asyncio.get_running_loop()
        run = Run(
            run_id=frame.run_id,
            key=key,
            nonce=frame.nonce,
            bound=bound,
            request=frame.request,
            deadline=loop.time() + min(frame.deadline_s, self._max_deadline_s),
        )
        run.report("queued", 0, frame.request.n)
        self._live[key] = run
        self._waiting.append(run)
        self._wake.set()
        loop.call_at(run.deadline, self._give_up_waiting, run)
        log.info("run queued", extra={"data": {"run_id": run.run_id, "position": self.position(run)}})
        return run

    def _put(self, record: Record) -> None:
        try:
            self._store.purge(record.created_at)
            self._store.add(record)
        except StoreError as exc:
            self.store_trouble = exc.cause
            self._store_tried_at = asyncio.get_running_loop().time()
            raise
        self.store_trouble = ""

    def remembers(self) -> bool:
        """Whether runs can be remembered; after trouble that is tried again now and then, and not by a run alone."""
        now = asyncio.get_running_loop().time()
        if self.store_trouble and now - self._store_tried_at >= STORE_AGAIN_S:
            self._store_tried_at = now
            with suppress(StoreError):
                self._store.check()
                self.store_trouble = ""
        return not self.store_trouble

    def find(self, run_id: str) -> Run:
        """Return a run by its id.

        Raises:
            NotFound: There never was one, or so long ago that it is forgotten.
            Conflict: The ID names another request.
            Expired: There was one.
        """
        run = self._lookup(run_id)
        if run is None:
            raise NotFound("no run has this id")
        return run

    def cancel(self, run_id: str) -> Run:
        """Make a run end soon; one that is over stays as it is. Raises as `find` does."""
        run = self.find(run_id)
        if run in self._waiting:
            self._end(run, failed(run.run_id, Cancelled("the run was cancelled while it waited"), busy_s=0.0))
        elif run is self._running:
            self._decoder.cancel(run.run_id)
        return run

    def position(self, run: Run) -> int:
        """Return how many runs are ahead of this one."""
        if run not in self._waiting:
            return 0
        return self._waiting.index(run) + (self._running is not None)

    def accepted(self, run: Run) -> AcceptedFrame:
        """Return the frame that says that a run has been taken."""
        return AcceptedFrame(run_id=run.run_id, position=self.position(run), k=run.k)

    def report(self, run: Run) -> AcceptedFrame | ProgressFrame | Outcome:
        """Return the frame that says how a run is doing."""
        if run.outcome is not None:
            return run.outcome
        if run.progress is not None and run.state is not State.QUEUED:
            return run.progress
        return self.accepted(run)

    def _lookup(self, run_id: str) -> Run | None:
        key, _ = split(run_id)
        run = self._live.get(key) or self._kept.get(key)
        if run is not None:
            if run.run_id != run_id:
                raise Conflict("the ID names another request")
            return run
        record = self._store.get(key)
        if record is None:
            return None
        if record.run_id != run_id:
            raise Conflict("the ID names another request")
        return self._restore(record)

    def _restore(self, record: Record) -> Run:
        """Return a run that is over as it was."""
        if record.state is State.LOST:
            raise Expired("the agent restarted before the run had ended, and the run is lost")
        # Without a frame it has been purged, or the store did not take its end and memory kept that long enough.
        if record.frame is None or record.expires_at is None:
            raise Expired("the run has expired")
        if record.state is State.EXPIRED:
            raise Expired("the run has expired", busy_s=_SECONDS.validate_json(record.frame))
        outcome = _OUTCOME.validate_json(record.frame)
        if record.expires_at <= self._clock():
            raise Expired("the run has expired", busy_s=outcome.busy_s)
        run = Run(
            run_id=record.run_id,
            key=record.id,
            nonce=record.nonce,
            bound=json.loads(record.request),
            state=record.state,
            outcome=outcome,
        )
        run.ended.set()
        return run

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting and not self._closing:
                await self._decode(self._waiting.popleft())

    async def _decode(self, run: Run) -> None:
        assert run.request is not None  # noqa: S101 - for the type checker: it has not ended
        loop = asyncio.get_running_loop()
        self._running = run
        self._started_at = loop.time()
        run.state = State.RUNNING
        run.report("starting", 0, run.request.n)
        log.info("run started", extra={"data": {"run_id": run.run_id}})

        def on_progress(event: ProgressEvent) -> None:
            run.report(event.phase, event.done, event.total)

        outcome: Outcome
        try:
            self._store.start(run.key)
            event = await self._decoder.run(
                run.run_id, run.request.model_dump(), deadline=run.deadline, on_progress=on_progress
            )
            busy_s = loop.time() - self._started_at
            outcome = _result(run, event, busy_s, self._clock(), self._attester)
        except AgentError as exc:
            outcome = failed(run.run_id, exc, loop.time() - self._started_at)
        except Exception:
            log.exception("unexpected error", extra={"data": {"run_id": run.run_id}})
            error = AgentError("the agent failed while the run was decoded")
            outcome = failed(run.run_id, error, loop.time() - self._started_at)
        seconds = loop.time() - self._started_at
        self._durations.append(seconds)
        self._end(run, outcome)
        self.on_end(_code(outcome), seconds)

    def _end(self, run: Run, outcome: Outcome) -> None:
        """Remember how a run ended, then tell whoever watches it."""
        run.state = State.FINISHED if isinstance(outcome, ResultFrame) else State.FAILED
        run.request = None
        now = self._clock()
        stored, in_memory = outcome, False
        if isinstance(outcome, ResultFrame) and outcome.output is not None:
            stored, in_memory = outcome.model_copy(update={"output": None}), True
        try:
            self._store.finish(run.key, run.state, encode(stored), now, now + self._expiry_s)
        except SpecdecError as exc:
            log.error("outcome not stored", extra={"data": {"run_id": run.run_id, "cause": exc.cause}})
            in_memory = True
        if in_memory:
            self._kept[run.key] = run
            asyncio.get_running_loop().call_later(self._expiry_s, self._kept.pop, run.key, None)
        if run is self._running:
            self._running = None
        elif run in self._waiting:
            self._waiting.remove(run)
        self._live.pop(run.key, None)
        run.outcome = outcome
        run.ended.set()
        self.outcomes[_code(outcome)] += 1
        log.info("run ended", extra={"data": {"run_id": run.run_id, "code": _code(outcome)}})

    def _give_up_waiting(self, run: Run) -> None:
        if run in self._waiting:
            late = DeadlineExceeded("the deadline passed while the run waited")
            self._end(run, failed(run.run_id, late, busy_s=0.0))

    def _retry_after(self) -> float:
        """Return in how many seconds a place in the queue can be expected."""
        usual = statistics.median(self._durations) if self._durations else FIRST_GUESS_S
        gone = asyncio.get_running_loop().time() - self._started_at if self._running is not None else 0.0
        return round(max(1.0, usual - gone), 1)


def _code(outcome: Outcome) -> str:
    return "OK" if isinstance(outcome, ResultFrame) else str(outcome.code)


def failed(run_id: str | None, error: SpecdecError, busy_s: float | None = None) -> FailedFrame:
    """Return the frame that tells of an error, and of a run that is over for how many seconds that held the worker."""
    if isinstance(error, Expired):
        busy_s = error.busy_s
    code = ErrorCode(error.code) if error.code in set(ErrorCode) else ErrorCode.INTERNAL
    more: dict[str, Any] = {} if busy_s is None else {"busy_s": round(busy_s, 3)}
    if isinstance(error, Busy):
        more["retry_after"] = error.retry_after
    return FailedFrame(run_id=run_id, code=code, detail=str(error), **more)


def _result(
    run: Run, event: ResultEvent, busy_s: float, ended_at: float, attester: Attester | None
) -> ResultFrame:
    """Return the result frame of a run that ended at this Unix time, signed if there is an attester.

    Raises:
        AgentError: What the worker measured does not have the right form.
    """
    try:
        frame = ResultFrame.model_validate(
            {
                "run_id": run.run_id,
                "nonce": run.nonce,
                "measurement": event.measurement,
                "energy": event.energy,
                "output_sha3_256": event.output_sha3_256,
                "attestation": None,
                "output": None,
                "request": run.bound,
                "ended_at": datetime.fromtimestamp(ended_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                "busy_s": round(busy_s, 3),
            }
        )
        if attester is not None:
            envelope = attester.envelope(frame.model_dump(mode="json"))
            frame = frame.model_copy(update={"attestation": Envelope.model_validate(envelope)})
        encode(frame)
    except ValidationError as exc:
        raise AgentError(f"the decode worker's result is not valid: {explain(exc)}") from None
    except WireError as exc:
        raise AgentError(f"the decode worker's result is not valid: {exc.cause}") from None
    if not run.bound["include_output"]:
        return frame
    full = frame.model_copy(update={"output": event.output})
    try:
        encode(full)
    except WireError:
        log.warning("output left out, as it does not fit a frame", extra={"data": {"run_id": run.run_id}})
        return frame
    return full
