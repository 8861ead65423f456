"""A run that Ctrl-C ends on the tower, too.

Ctrl-C can come while the service has not yet said which run it is. Each run is therefore asked for under an
Idempotency-Key of its own: asked once more under that key the service names the run instead of starting another. Should
the first request arrive only after that, it finds the run cancelled: no key is run twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, Final

from shared.cli_output import note
from shared.cli_progress import Bars
from shared.client import ClientError, Progress, Receipt, Specdec

WAIT_S: Final = 0.0
"""How long the service may wait before its first answer, unless told otherwise: so the run is known at once."""
ENDED: Final = ("DEADLINE", "EXPIRED", "WORKER_DIED", "WORKER_HUNG", "OUT_OF_MEMORY", "LOAD_FAILED")
"""Codes of runs that have ended by themselves."""
CANCEL_S: Final = 15.0
"""How long cancelling may take."""


def run(
    service: Specdec,
    url: str,
    prompt: str,
    fields: Mapping[str, Any],
    bars: Bars,
    what: str,
    *,
    wait: float | None = None,
    patient: bool = False,
    leave: bool = True,
) -> Receipt:
    """Make a run of the service at this URL and show how far `what` is.

    A run whose result does not come is left to the tower, where it can be asked for by its id, or cancelled, as in a
    sweep, whose next run would wait behind it.

    Raises:
        ClientError: As `Specdec.run` does.
        KeyboardInterrupt: On Ctrl-C, once the run is cancelled and that is said; at once on a second one.
    """
    key = secrets.token_urlsafe(16)
    run_id: str | None = None

    def on_progress(progress: Progress) -> None:
        nonlocal run_id
        run_id = progress.run_id
        bars(progress)

    try:
        bars.begin(what)
        return service.run(
            prompt,
            wait=WAIT_S if wait is None else wait,
            patient=patient,
            idempotency_key=key,
            on_progress=on_progress,
            **fields,
        )
    except ClientError:
        if not leave and run_id is not None:
            _cancel(url, key, run_id, prompt, fields)
        raise
    except KeyboardInterrupt:
        bars.say("cancelling; Ctrl-C again leaves")
        said = "left at once; the run may go on on the tower"
        try:
            said = _cancel(url, key, run_id, prompt, fields)
        finally:
            bars.close()
            note(f"interrupted: {said}")
        raise


def _cancel(url: str, key: str, run_id: str | None, prompt: str, fields: Mapping[str, Any]) -> str:
    """Cancel the run and return how that went, in a clause."""
    try:
        with Specdec(url, CANCEL_S) as service:
            if run_id is None:
                asked = service.run(prompt, wait=WAIT_S, follow=False, idempotency_key=key, **fields)
                run_id = asked.run_id
            if run_id is None:
                return "no run was started"
            ended = service.cancel(run_id)
    except ClientError as error:
        gone = error.code in ("HTTP_404", "HTTP_410")
        return "no run is left on the tower" if gone else f"the run could not be cancelled: {error}"
    if ended.roadmap_code in ("CANCELLED", "RUNNING"):  # RUNNING: it ends, only not yet
        return f"run {run_id} is cancelled on the tower"
    if ended.measured or ended.roadmap_code in ENDED:
        return f"run {run_id} had already ended"
    return f"whether run {run_id} has ended is not known"
