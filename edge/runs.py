"""Runs: submit one to the tower, ask after it, cancel it.

The edge keeps nothing between invocations: a run id carries all that is needed to recognise it and to
check the tower's answer (`shared.runid`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edge.conversation import Running, converse
from edge.deadline import Budget, Deadline
from edge.faults import FaultKind, TowerFault
from edge.issuer import Issuer
from edge.limits import Reservation
from edge.parts import receipt_link
from edge.payloads import measured_payload, roadmap_payload
from edge.problems import Problem
from edge.quota import SPENT, Quota
from edge.reasons import failure_reason, without_prompt
from edge.reply import attestation, contradictions
from edge.runbooks import runbook
from edge.settings import EdgeSettings
from edge.tower import Tower
from shared import labels
from shared.keys import TrustedKey
from shared.labels import BASE_PATH
from shared.runid import RunIdError, RunKeys, bound_request, prompt_commitment
from shared.schemas import RunRequest
from shared.wire import (
    CancelFrame,
    ErrorCode,
    FailedFrame,
    ResultFrame,
    RunFrame,
    StatusFrame,
)

if TYPE_CHECKING:
    from edge.session import TowerSession

logger = logging.getLogger(__name__)

ACCEPT_TIMEOUT_S = 10.0
# What a tower gets beyond the caller's wait to say that it has taken a run; it says so at once or not at all.
ACCEPT_GRACE_S = 1.5
STATUS_TIMEOUT_S = 5.0
RETRY_AFTER_S = 2
# Words for progress that this project's agents use.
PHASES = ("queued", "starting", "loading", "calibrating", "prefill", "measuring", "timing", "alpha")
UNCHECKED_OUTPUT = (
    "the text has bytes that are no UTF-8, so it cannot be checked against its digest, and is left out"
)


@dataclass(frozen=True)
class Answer:
    """An HTTP answer whose body is a receipt, perhaps with more beside it."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Run:
    """One run as the edge sees it: what the tower must echo, what receipts say of it, when the answer must be there.

    ``k`` and ``prompt`` are those of the request, which only its own POST knows.
    """

    run_id: str
    nonce: str
    known: dict[str, Any]
    answer_by: Deadline
    k: int | None = None
    prompt: str | None = None

    @property
    def location(self) -> str:
        """Where to ask after the run."""
        return f"{BASE_PATH}/runs/{self.run_id}"


class Runs:
    """The run routes, apart from HTTP."""

    def __init__(
        self,
        settings: EdgeSettings,
        keys: RunKeys | None,
        tower: Tower,
        issuer: Issuer,
        tower_keys: Sequence[TrustedKey] | None,
        quota: Quota,
    ) -> None:
        """Put the parts together.

        Args:
            settings: The edge's settings.
            keys: Derive run ids; None when no run secret is configured.
            tower: The way to the tower.
            issuer: Makes receipts.
            tower_keys: The tower's pinned keys; None when none is pinned.
            quota: Counts callers' runs and the day's GPU time.
        """
        self._quota = quota
        self._issuer = issuer
        self._tower_keys = tower_keys
        self._settings = settings
        self._keys = keys
        self._tower = tower

    def submit(
        self,
        request: RunRequest,
        *,
        client: str,
        idempotency_key: str | None,
        wait_s: float,
        budget: Budget,
    ) -> Answer:
        """Send a run to the tower and wait for its result.

        Args:
            request: The checked request.
            client: Whose Idempotency-Key it is.
            idempotency_key: The caller's key, if it sent one.
            wait_s: How long to wait for the result; 0 returns as soon as the tower has taken the run.
            budget: The time of this invocation.

        Raises:
            Problem: If the caller has started too many runs, or the tower found the request itself at fault.
        """
        if self._keys is None:
            return self._roadmap(
                "NOT_CONFIGURED",
                "this edge has no run secret, so it starts no run",
                k=_number(request.k),
                answer_by=budget.answer_by,
            )
        keys = self._keys
        self._quota.admit(client, keys, budget.wait_until)
        fields = request.model_dump(mode="json")
        id_bytes = keys.id_for(client, idempotency_key) if idempotency_key else keys.new_id()
        run_id = keys.run_id(id_bytes, fields)
        salt = keys.salt(id_bytes)
        commitment = prompt_commitment(salt, request.prompt)
        bound = bound_request(fields, commitment)
        run = _Run(
            run_id=run_id,
            nonce=keys.nonce(run_id),
            k=_number(request.k),
            known={"run_id": run_id, "request": bound, "prompt_commitment": commitment},
            answer_by=budget.answer_by,
            prompt=request.prompt,
        )
        frame = RunFrame(
            run_id=run_id,
            nonce=run.nonce,
            request=request,
            deadline_s=self._settings.run_deadline_s,
            prompt_commitment=commitment,
        )
        accept_s = min(wait_s + ACCEPT_GRACE_S, ACCEPT_TIMEOUT_S)
        answer = self._talk(run, frame, budget.wait_until, accept_s=accept_s, wait_s=wait_s)
        # Only here: run ids are public, and whoever has the salt can test guesses of the prompt.
        answer.body["prompt_salt"] = salt.hex()
        return answer

    def status(self, run_id: str, budget: Budget) -> Answer:
        """Ask after a run.

        Raises:
            Problem: 404 for an id that is not ours, 410 for a run the tower lost, 503 without a tower.
        """
        return self._ask(StatusFrame, run_id, budget, wait_s=0.0)

    def cancel(self, run_id: str, budget: Budget) -> Answer:
        """Cancel a run; one that has finished stays finished, and its receipt is the answer.

        A run whose end is slow to come gives 202; the tower ends it all the same.

        Raises:
            Problem: As `status` does.
        """
        return self._ask(CancelFrame, run_id, budget, wait_s=STATUS_TIMEOUT_S)

    def _ask(
        self, ask: type[StatusFrame | CancelFrame], run_id: str, budget: Budget, *, wait_s: float
    ) -> Answer:
        if self._keys is None:
            raise Problem(503, "This edge has no run secret, so it cannot recognise run ids.")
        try:
            self._keys.parse(run_id)
        except RunIdError:
            raise Problem(404, "This is not a run id of this service.") from None
        run = _Run(run_id, self._keys.nonce(run_id), {"run_id": run_id}, budget.answer_by)
        frame = ask(run_id=run_id)
        return self._talk(run, frame, budget.wait_until, accept_s=STATUS_TIMEOUT_S, wait_s=wait_s)

    def _talk(
        self,
        run: _Run,
        frame: RunFrame | StatusFrame | CancelFrame,
        wait_until: Deadline,
        *,
        accept_s: float,
        wait_s: float,
    ) -> Answer:
        """Send one frame and turn what follows into an answer.

        Args:
            run: The run.
            frame: What to send.
            wait_until: When all waiting must end.
            accept_s: How long to wait for a connection, and then for the tower's first word.
            wait_s: How long to wait, from now, for the run's end.
        """
        submitting = isinstance(frame, RunFrame)
        finish_by = wait_until.sooner(wait_s)
        reservation = Reservation()
        outcome: ResultFrame | FailedFrame | Running | None = None
        sent = False
        try:
            with self._tower.session(wait_until.sooner(accept_s), within=wait_until) as session:
                if submitting:
                    # Only now, so that a tower that is down costs nobody anything.
                    reservation = self._quota.reserve(run.run_id, wait_until)
                    if reservation.wait_s and self._reclaim(session, reservation, wait_until):
                        reservation = self._quota.reserve(run.run_id, wait_until)
                if not reservation.wait_s:
                    session.send(frame)
                    sent = True
                    repeated = submitting and self._quota.counts_time and not reservation.new
                    outcome = converse(
                        session, frame, wait_until.sooner(accept_s), finish_by, repeated=repeated
                    )
        except TowerFault as fault:
            if reservation.new and not sent:
                self._quota.release(run.run_id, run.answer_by)
            return self._at_fault(run, fault, submitting=submitting, sent=sent)
        if outcome is None:
            return self._roadmap("BUDGET_SPENT", SPENT, run=run, headers=_retry_after(reservation.wait_s))
        if isinstance(outcome, Running):
            return self._running(run, outcome)
        try:
            if isinstance(outcome, FailedFrame):
                return self._failed(run, outcome, submitting)
            return self._finished(run, outcome)
        finally:
            # Last: what time is left belongs to the receipt first.
            self._quota.ended(run.run_id, outcome, reservation if submitting else None, run.answer_by)

    def _reclaim(self, session: TowerSession, refused: Reservation, by: Deadline) -> bool:
        if not refused.open:
            return False
        from edge.reclaim import reclaim

        return reclaim(session, self._quota, refused.open, by)

    def _at_fault(self, run: _Run, fault: TowerFault, *, submitting: bool, sent: bool) -> Answer:
        logger.warning("tower fault: %s", fault.kind)
        reason = fault.reason
        if fault.kind is FaultKind.GARBLED:
            # It may name a field that the tower made up.
            reason = without_prompt(reason, run.prompt, instead="the tower broke the protocol")
        if not submitting and fault.kind is not FaultKind.GARBLED:
            detail = f"The run cannot be looked up now: {fault.reason}."
            raise Problem(503, detail, {"Retry-After": str(RETRY_AFTER_S)})
        # Once sent, the run may have been taken, whatever became of the answer.
        first = [f"GET {run.location}: the tower may be running it"] if submitting and sent else []
        return self._roadmap(fault.kind, reason, run=run, first_steps=first)

    def _running(self, run: _Run, running: Running) -> Answer:
        phase = running.progress["phase"]
        if phase not in PHASES:  # an agent's own word for it might be the prompt
            phase = without_prompt(phase, run.prompt, instead="running")
        answer = self._roadmap(
            "RUNNING",
            "running",
            run=run,
            k=running.k,
            extra={"progress": {**running.progress, "phase": phase}},
            first_steps=[f"GET {run.location} until it answers 200"],
            final=False,
        )
        return Answer(202, answer.body, {"Location": run.location, "Retry-After": str(RETRY_AFTER_S)})

    def _failed(self, run: _Run, failed: FailedFrame, submitting: bool) -> Answer:
        code = ErrorCode(failed.code)
        reason = failure_reason(code, failed.detail, run.prompt)
        logger.warning("run failed: %s", code)
        if submitting and code is ErrorCode.CONFLICT:
            raise Problem(422, "This Idempotency-Key was used with another body; use a new key.")
        if submitting and code is ErrorCode.BAD_REQUEST:
            raise Problem(422, f"{reason[:1].upper()}{reason[1:]}.")
        if not submitting and code in (ErrorCode.NOT_FOUND, ErrorCode.EXPIRED):
            raise Problem(
                410,
                "This run is lost or has expired; a receipt that was stored is still under its digest.",
            )
        headers = {} if failed.retry_after is None else _retry_after(failed.retry_after)
        return self._roadmap(code, reason, run=run, headers=headers)

    def _finished(self, run: _Run, result: ResultFrame) -> Answer:
        reasons = contradictions(result, run.run_id, run.nonce, run.prompt)
        if reasons:
            logger.warning("reply refused: %d checks failed", len(reasons))
            return self._roadmap(
                "REPLY_REFUSED", "the tower's reply failed these checks: " + "; ".join(reasons), run=run
            )
        word, why = attestation(result, self._tower_keys)
        tower: dict[str, Any] = {"id": self._settings.tower_host, "attested": word}
        if word == labels.FAILED:
            logger.warning("reply refused: the attestation failed")
            return self._roadmap("ATTESTATION_FAILED", why, run=run, extra={"tower": tower})
        if result.attestation is not None:
            keyid = result.attestation.signatures[0].keyid
            tower |= {"keyid": keyid, "attestation": result.attestation.model_dump(mode="json")}
        payload = measured_payload(result, cost_ratio=self._settings.cost_ratio, tower=tower)
        receipt, stored = self._issuer.measured(payload, run.answer_by)
        answer = Answer(200, dict(receipt), {"Link": receipt_link(receipt)} if stored else {})
        if result.request["include_output"] and result.output is not None:
            if "\ufffd" in result.output:
                answer.body["output_note"] = UNCHECKED_OUTPUT
            else:
                answer.body["output"] = result.output
        return answer

    def _roadmap(
        self,
        code: str,
        reason: str,
        *,
        run: _Run | None = None,
        k: int | None = None,
        extra: dict[str, Any] | None = None,
        first_steps: list[str] | None = None,
        headers: dict[str, str] | None = None,
        final: bool = True,
        answer_by: Deadline | None = None,
    ) -> Answer:
        payload = roadmap_payload(
            code=str(code),
            reason=reason,
            runbook=(first_steps or []) + runbook(code),
            k=(run.k if run else None) or k or self._settings.k,
            cost_ratio=self._settings.cost_ratio,
            run={**(run.known if run else {}), **(extra or {})},
        )
        if not final:
            return Answer(200, self._issuer.interim(payload))
        by = run.answer_by if run else answer_by or Deadline.after(0)
        return Answer(200, dict(self._issuer.roadmap(payload, by)), headers or {})


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def _number(k: int | str) -> int | None:
    """The draft length of a request's modeled curve; None, the configured one, where the tower is to choose."""
    return k if isinstance(k, int) else None
