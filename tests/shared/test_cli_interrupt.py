"""Ctrl-C during `specdec run`: the run is cancelled at the service, whatever was known of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shared import labels
from shared.cli import main
from shared.client_protocol import TRIES
from tests.shared.build import PROMPT, measured_payload, receipt, roadmap_payload
from tests.shared.service import Answer, serve

MEASURED = measured_payload()
RUN_ID = MEASURED["run_id"]
PLACE = f"{labels.BASE_PATH}/runs/{RUN_ID}"
Capture = pytest.CaptureFixture[str]


def roadmap(code: str, **more: Any) -> dict[str, Any]:
    """A receipt of the run without a measurement."""
    return receipt(roadmap_payload(roadmap={"reason": code.lower(), "code": code}, **more))


def interrupt() -> None:
    """Ctrl-C for the thread that runs the command."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def pending() -> Answer:
    """The service has the run."""
    return Answer(202, roadmap("RUNNING", run_id=RUN_ID), {"Location": PLACE, "Retry-After": "0"})


def after_ctrl_c(answer: Answer) -> Answer:
    """The answer, which comes only when Ctrl-C has been pressed."""
    answer.before = interrupt
    return answer


CANCELLED = roadmap("CANCELLED", run_id=RUN_ID)


@pytest.fixture(autouse=True)
def heed_ctrl_c() -> Iterator[None]:
    """Heeds SIGINT as at a terminal: a program started in the background is given it to ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(capsys: Capture, *answers: Answer) -> tuple[str, list[tuple[str, str, Any, dict[str, str]]]]:
    """Run the command against these answers until Ctrl-C ends it; what it said, and what it asked."""
    with serve(*answers) as service:
        assert main(["run", PROMPT, "--k", "4", "--url", service.url]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    start = "specdec: interrupted: "
    assert captured.err.startswith(start) and captured.err.count("\n") == 1
    return captured.err.removeprefix(start).rstrip("\n"), service.requests


def test_a_known_run(capsys: Capture) -> None:
    """Once the service has named the run, Ctrl-C cancels it by its id, and one line says so."""
    said, requests = interrupted(capsys, pending(), after_ctrl_c(pending()), Answer(200, CANCELLED))
    assert said == f"run {RUN_ID} is cancelled on the tower"
    assert [request[:2] for request in requests] == [
        ("POST", f"{labels.BASE_PATH}/run"),
        ("GET", PLACE),
        ("DELETE", PLACE),
    ]


def test_a_run_that_is_not_known_yet(capsys: Capture) -> None:
    """Before the first answer, the same question under the same key makes the service name the run to cancel."""
    said, requests = interrupted(capsys, after_ctrl_c(pending()), pending(), Answer(200, CANCELLED))
    assert said == f"run {RUN_ID} is cancelled on the tower"
    assert [request[0] for request in requests] == ["POST", "POST", "DELETE"]
    first, second = requests[:2]
    assert first[3]["idempotency-key"] == second[3]["idempotency-key"]
    assert first[2] == second[2] == {"prompt": PROMPT, "k": 4}


def test_a_run_that_ends_slowly(capsys: Capture) -> None:
    """A run whose end takes longer than the service waits for it counts as cancelled: the tower ends it."""
    said, _ = interrupted(capsys, pending(), after_ctrl_c(pending()), pending())
    assert said == f"run {RUN_ID} is cancelled on the tower"


def test_a_run_that_has_ended(capsys: Capture) -> None:
    """A run that was over before it could be cancelled is said to be."""
    said, _ = interrupted(capsys, pending(), after_ctrl_c(pending()), Answer(200, receipt(MEASURED)))
    assert said == f"run {RUN_ID} had already ended"


def test_a_run_of_which_nothing_is_known(capsys: Capture) -> None:
    """An answer that says neither is not taken for an end."""
    odd = Answer(200, roadmap("REPLY_REFUSED", run_id=RUN_ID))
    said, _ = interrupted(capsys, pending(), after_ctrl_c(pending()), odd)
    assert said == f"whether run {RUN_ID} has ended is not known"


def test_a_run_that_was_never_started(capsys: Capture) -> None:
    """A service that names no run has started none."""
    said, _ = interrupted(capsys, after_ctrl_c(pending()), Answer(200, roadmap("NOT_CONFIGURED")))
    assert said == "no run was started"


def test_a_run_that_the_tower_does_not_have(capsys: Capture) -> None:
    """A run that was refused, for want of room for instance, is not on the tower."""
    refused = Answer(200, roadmap("BUSY", run_id=RUN_ID))
    said, _ = interrupted(capsys, after_ctrl_c(pending()), refused, Answer(410, {"detail": "lost"}))
    assert said == "no run is left on the tower"


def test_a_run_that_cannot_be_cancelled(capsys: Capture) -> None:
    """A service that fails meanwhile is quoted: the run may go on."""
    failing = [Answer(503, {"detail": "no tower"})] * TRIES
    said, _ = interrupted(capsys, pending(), after_ctrl_c(pending()), *failing)
    assert said == "the run could not be cancelled: the service answered 503: no tower"


def test_ctrl_c_again(capsys: Capture) -> None:
    """A second Ctrl-C, while the first is being carried out, ends the command without its answer."""
    cancelling = after_ctrl_c(Answer(200, CANCELLED))
    said, requests = interrupted(capsys, pending(), after_ctrl_c(pending()), cancelling)
    assert said == "left at once; the run may go on on the tower"
    assert [request[0] for request in requests] == ["POST", "GET", "DELETE"]


def test_each_run_has_a_key_of_its_own(capsys: Capture) -> None:
    """Two runs of one prompt are two runs: their keys differ, so that the second is not answered with the first."""
    done = Answer(200, receipt(MEASURED))
    with serve(done, done) as service:
        for _ in range(2):
            assert main(["run", PROMPT, "--url", service.url]) == 0
    first, second = (request[3]["idempotency-key"] for request in service.requests)
    assert first != second
