"""What the client asks and when it asks again, with no connection at all: the steps are answered by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from shared import labels
from shared.client_protocol import FIRST_RETRY_S, TRIES, ServiceProtocol
from shared.client_steps import Answer, ClientError, Pause, Request, Step, Steps
from shared.curve import accounting_modeled, expected_speedup
from tests.shared.build import PROMPT, measured_payload, receipt, roadmap_payload

MEASURED = measured_payload()
RUN_ID = MEASURED["run_id"]
BROKEN = ClientError("UNREACHABLE", "no connection")
Outcome = Answer | ClientError


def answer(status: int, body: Any = None, **headers: str) -> Answer:
    """An answer with a body, and headers whose names are written with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, named, body or {}, sound=body is not None)


def service(timeout: float = 60.0) -> ServiceProtocol:
    """The questions of a service that nobody will connect to."""
    return ServiceProtocol("https://specdec.example", timeout)


def run(key: str | None = None, patient: bool = False, timeout: float = 60.0) -> Steps[Any]:
    """The steps of a run."""
    options: dict[str, Any] = {"wait": None, "follow": True, "idempotency_key": key, "on_progress": None}
    return service(timeout).run(PROMPT, {}, patient=patient, **options)


def steps(talk: Steps[Any], *outcomes: Outcome) -> tuple[list[Step], Any]:
    """Answer the requests of a conversation in turn; its steps, and its result, error or None while it goes on."""
    left, taken = list(outcomes), []
    try:
        step = next(talk)
        while True:
            taken.append(step)
            if isinstance(step, Pause):
                step = next(talk)
            elif not left:
                return taken, None
            else:
                step = talk.send(left.pop(0))
    except StopIteration as end:
        return taken, end.value
    except ClientError as error:
        return taken, error


def pauses(taken: list[Step]) -> list[float]:
    """The pauses among the steps."""
    return [step.seconds for step in taken if isinstance(step, Pause)]


PASSING = [answer(status, {"detail": "not now"}) for status in (429, 502, 503, 504)]
OTHER = [
    answer(500, {"detail": "a fault"}),
    answer(404, {"detail": "not here"}),
    answer(200),  # no JSON object
    ClientError("TIMEOUT", "too late"),
    ClientError("BAD_ANSWER", "too large"),
]


@pytest.mark.parametrize("outcome", [*PASSING, answer(503), BROKEN], ids=str)
def test_untold_failures_are_tried_a_few_times(outcome: Outcome) -> None:
    """What fails in passing and does not say for how long is tried three times, after growing pauses."""
    for talk in (service().health(), service().cancel(RUN_ID), run(key="mine")):
        taken, result = steps(talk, *[outcome] * 9)
        assert pauses(taken) == [FIRST_RETRY_S, 2 * FIRST_RETRY_S]
        assert len(taken) - len(pauses(taken)) == TRIES
        assert isinstance(result, ClientError)


@pytest.mark.parametrize("outcome", OTHER, ids=str)
def test_lasting_failures_are_not_tried_again(outcome: Outcome) -> None:
    """What would go the same way again ends the call."""
    for talk in (service().health(), run(key="mine")):
        taken, result = steps(talk, outcome)
        assert (len(taken), type(result)) == (1, ClientError)


@pytest.mark.parametrize("outcome", [*PASSING, BROKEN], ids=str)
def test_an_unkeyed_run_is_sent_once(outcome: Outcome) -> None:
    """A POST without a key is never sent twice, as it might have arrived."""
    taken, result = steps(run(), outcome)
    assert (len(taken), type(result)) == (1, ClientError)


def test_told_failures_are_waited_out() -> None:
    """A failure that says when to come back is asked again as often as it says so, after just these pauses."""
    told = [answer(503, {"detail": "busy"}, Retry_After=text) for text in ("3", "0", "1.5", "2", "2")]
    taken, result = steps(service().health(), *told, answer(200, {"status": "LIVE"}))
    assert pauses(taken) == [3.0, 0.05, 1.5, 2.0, 2.0]
    assert result == {"status": "LIVE"}


def test_nothing_is_waited_for_beyond_the_timeout() -> None:
    """A pause that would end after the timeout ends the call instead."""
    taken, result = steps(service(5).health(), answer(503, {"detail": "busy"}, Retry_After="6"))
    assert (pauses(taken), str(result)) == ([], "the service answered 503: busy")
    taken, result = steps(service(FIRST_RETRY_S / 2).health(), BROKEN)
    assert (pauses(taken), result) == ([], BROKEN)


def test_the_deadline_is_one_for_the_whole_call() -> None:
    """All requests of a call share its deadline, polls and repeats too."""
    running = receipt(roadmap_payload(run_id=RUN_ID, roadmap={"reason": "running"}))
    pending = answer(202, running, Location=f"{labels.BASE_PATH}/runs/{RUN_ID}", Retry_After="1")
    before = time.monotonic()
    taken, result = steps(run(key="mine"), answer(502), pending, answer(503), BROKEN, pending)
    requests = [step for step in taken if isinstance(step, Request)]
    assert result is None and [request.method for request in requests] == ["POST"] * 2 + ["GET"] * 4
    deadlines = {request.deadline for request in requests}
    assert len(deadlines) == 1 and before + 60 <= deadlines.pop() <= time.monotonic() + 60


def test_a_gap_while_a_run_goes_on() -> None:
    """A connection that is lost for a while costs no run: it is asked after until the timeout."""
    running = receipt(roadmap_payload(run_id=RUN_ID, roadmap={"reason": "running"}))
    pending = answer(202, running, Location=f"{labels.BASE_PATH}/runs/{RUN_ID}", Retry_After="1")
    taken, result = steps(run(), pending, *[BROKEN] * (3 * TRIES), answer(200, receipt(MEASURED)))
    assert result.measured and len(taken) > 3 * TRIES
    _, result = steps(run(timeout=0.5), pending, *[BROKEN] * 99)
    assert (result.code, result.remedy) == ("TIMEOUT", f"it goes on: run {RUN_ID}")


def curve(keys: list[str]) -> dict[str, Any]:
    """A curve's receipt whose alphas are these, in this order."""
    block = accounting_modeled(4, 0.2)
    values = {
        key: round(expected_speedup(float(key), 4, 0.2), 4) if key[0].isdigit() else 9.9 for key in keys
    }
    payload = {"schema": labels.PAYLOAD_SCHEMA, "label": labels.CURVE_LABEL, "measured": labels.UNAVAILABLE}
    del block["expected_tokens_per_step_at_alpha"], block["cost_ratio"]
    return receipt({**payload, "accounting_modeled": {**block, "expected_speedup_at_alpha": values}})


def test_alphas_in_another_order() -> None:
    """A curve is the same in whatever order its alphas are asked for; one of other alphas is refused."""
    told = answer(200, curve(["0.5", "0.7", "0.9"]))
    for alphas in ([0.9, 0.7, 0.5], [0.7, 0.5, 0.9, 0.7]):
        _, result = steps(service().curve({"alpha": alphas}), told)
        assert result["payload"]["label"] == labels.CURVE_LABEL
    _, result = steps(service().curve({"alpha": [0.5, 0.7]}), told)
    assert str(result) == "the service answered for another alpha"


def test_a_curve_that_cannot_be_read() -> None:
    """Names that are no alphas end in a sentence, although nothing else is wrong with the receipt."""
    _, result = steps(service().curve({}), answer(200, curve(["0.5", "x 9.9 (MEASURED)"])))
    assert isinstance(result, ClientError) and result.code in ("BAD_ANSWER", "BAD_RECEIPT")


def test_a_date_to_come_back_at() -> None:
    """Retry-After may be a date, as proxies send it; one in the past means: now."""
    for seconds, low, high in ((30, 28.0, 30.0), (-30, 0.05, 0.05)):
        when = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
        taken, _ = steps(service().health(), answer(503, {}, Retry_After=when))
        assert low <= pauses(taken)[0] <= high


def test_the_same_run_under_the_same_key() -> None:
    """A repeated POST is the same request, so that the service can tell that it is."""
    taken, _ = steps(run(key="mine"), BROKEN, answer(503))
    requests = [step for step in taken if isinstance(step, Request)]
    assert len(requests) == 3 and requests[0] is requests[1] is requests[2]
    assert requests[0].headers == {"Idempotency-Key": "mine"}


def test_a_result_is_verified() -> None:
    """What comes back from the core is a receipt that verifies; one that does not is an error."""
    good = receipt(MEASURED)
    taken, result = steps(run(), answer(200, good))
    assert result == good and result.measured
    _, result = steps(run(), answer(200, {**good, "payload_sha3_256": "0" * 64}))
    assert isinstance(result, ClientError) and result.code == "BAD_RECEIPT"


def test_interim_receipts_are_verified() -> None:
    """What is told on the way to the result must verify, too."""
    running = receipt(roadmap_payload(run_id=RUN_ID, roadmap={"reason": "running"}))
    place = f"{labels.BASE_PATH}/runs/{RUN_ID}"
    altered = {**running, "payload": {**running["payload"], "progress": {"phase": "made up"}}}
    _, result = steps(run(), answer(202, running, Location=place), answer(202, altered, Location=place))
    assert isinstance(result, ClientError) and result.code == "BAD_RECEIPT"
