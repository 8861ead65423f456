"""The HTTP client: asks, waits politely, and believes nothing that does not verify.

Every receipt is verified offline as it arrives and compared with what was asked. A run that outlasts the
server's wait is polled at the `Location` it names (RFC 9110 section 15.3.3), on the same origin only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic import ValidationError

from shared import labels
from shared.canonical import CanonicalError, strict_loads
from shared.errors import SpecdecError
from shared.models import explain, one_line
from shared.runid import RunIdError, prompt_commitment, split
from shared.schemas import CurveQuery, RunRequest
from shared.verify import verify_receipt

if TYPE_CHECKING:
    import httpx

MAX_ANSWER: Final = 4 * 1024 * 1024  # bytes
MIN_POLL_S: Final = 0.05
DEFAULT_POLL_S: Final = 1.0


class ClientError(SpecdecError):
    """The question was bad, the service did not answer, or its answer cannot be believed."""


class Specdec:
    """One service, for example the public one; use as a context manager or call `close`."""

    def __init__(
        self,
        base_url: str = labels.PUBLIC_BASE,
        timeout: float = 120.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Name the service.

        Args:
            base_url: Scheme, host and optionally port; a base path of our own may follow.
            timeout: Seconds for one call as a whole, all polling included.
            transport: What carries the requests, for tests.

        Raises:
            ClientError: If the URL or the timeout cannot be used.
        """
        import httpx

        if not 0 < timeout < float("inf"):
            raise ClientError("BAD_INPUT", "timeout must be a finite number of seconds above 0")
        try:
            base = httpx.URL(base_url.rstrip("/").removesuffix(labels.BASE_PATH))
        except (httpx.InvalidURL, UnicodeError):
            base = httpx.URL("")
        plain = re.fullmatch(rb"[A-Za-z0-9._:-]+", base.raw_host)  # httpx takes almost any text for a host
        if base.scheme not in ("http", "https") or not plain or base.query or base.fragment:
            raise ClientError("BAD_INPUT", "the URL must be like https://host or http://host:port")
        self._base = base
        self._root = str(base).rstrip("/") + labels.BASE_PATH
        self._timeout = timeout
        self._http = httpx.Client(transport=transport, follow_redirects=False)

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client."""
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def health(self) -> dict[str, Any]:
        """The service's health, which is no receipt.

        Raises:
            ClientError: If there is no usable answer.
        """
        return self._ask("GET", f"{self._root}/health", self._deadline())[1]

    def curve(self, **params: Any) -> dict[str, Any]:
        """The modeled curve as a verified receipt.

        Args:
            **params: Any of `k`, `cost_ratio`, `alpha` (a list) and `verify_cost`; see `CurveQuery`.

        Raises:
            ClientError: If a parameter is bad, there is no usable answer, or it answers another question.
        """
        asked = _validated(CurveQuery, params)
        receipt = self._receipt("GET", f"{self._root}/curve", self._deadline(), params=asked)
        block = receipt["payload"]["accounting_modeled"]
        answered = {**block, "alpha": [float(key) for key in block["expected_speedup_at_alpha"]]}
        if "alpha" in asked:  # each alpha is answered once
            asked["alpha"] = list(dict.fromkeys(asked["alpha"]))
        _require_echo(asked, answered)
        return receipt

    def run(
        self,
        prompt: str,
        *,
        wait: float | None = None,
        follow: bool = True,
        patient: bool = False,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Ask for a run and return its receipt, verified.

        Args:
            prompt: The prompt.
            wait: Seconds the server should wait before it answers 202 (RFC 7240 `Prefer: wait`).
            follow: Poll until the run has ended; if false, a 202's ROADMAP receipt is returned.
            patient: While the service has no room (429, or a ROADMAP that says BUSY), ask again after its
                Retry-After; what it said last is the answer when the next time would be too late.
            idempotency_key: Repeating a call under the same key never runs it twice.
            **fields: Further fields of `RunRequest`; the server fills in those left out.

        Returns:
            The receipt, with `prompt_salt` and, if asked for, `output` beside it.

        Raises:
            ClientError: If a field is bad, there is no usable answer in time, or it answers another question.
        """
        asked = _validated(RunRequest, {"prompt": prompt, **fields})
        headers = {}
        if wait is not None:
            if not 0 <= wait <= 3600:
                raise ClientError("BAD_INPUT", "wait must be a number of seconds from 0 to 3600")
            headers["Prefer"] = f"wait={round(wait)}"
        if idempotency_key is not None:
            if not (idempotency_key.isascii() and idempotency_key.isprintable() and idempotency_key.strip()):
                raise ClientError("BAD_INPUT", "idempotency_key must be printable ASCII, not blank")
            headers["Idempotency-Key"] = idempotency_key
        deadline = self._deadline()
        busy_is_fine = (429,) if patient else ()
        while True:
            response, first = self._ask(
                "POST", f"{self._root}/run", deadline, busy_is_fine, json=asked, headers=headers
            )
            pause = _retry_after(response)
            if not (patient and _no_room(response, first)) or time.monotonic() + pause >= deadline:
                break
            time.sleep(pause)
        if response.status_code == 429:
            raise _problem(response.status_code, first)
        receipt = _verified(first)
        if response.status_code == 202 and follow:
            receipt = self._poll(response, receipt["payload"].get("run_id"), deadline)
        if "prompt_salt" in first:  # the salt comes with the first answer only
            receipt["prompt_salt"] = first["prompt_salt"]
        _require_answer(receipt, asked)
        return receipt

    def get_run(self, run_id: str) -> dict[str, Any]:
        """A run's receipt as it stands, verified: ROADMAP while it is running.

        Raises:
            ClientError: If there is no usable answer.
        """
        return self._receipt("GET", self._run_url(run_id), self._deadline())

    def cancel(self, run_id: str) -> dict[str, Any]:
        """Cancel a run and return its receipt, verified.

        Raises:
            ClientError: If there is no usable answer.
        """
        return self._receipt("DELETE", self._run_url(run_id), self._deadline())

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout

    def _run_url(self, run_id: str) -> str:
        try:
            split(run_id)
        except RunIdError as error:
            raise ClientError("BAD_INPUT", error.cause) from None
        return f"{self._root}/runs/{run_id}"

    def _receipt(self, method: str, url: str, deadline: float, **options: Any) -> dict[str, Any]:
        return _verified(self._ask(method, url, deadline, **options)[1])

    def _poll(self, response: httpx.Response, run_id: Any, deadline: float) -> dict[str, Any]:
        """Ask again until the run has ended; only an answer for the same run counts."""
        url = self._own(response)
        while response.status_code in (202, 429, 503):
            pause = _retry_after(response)
            if time.monotonic() + pause >= deadline:
                raise ClientError("TIMEOUT", "the run has not ended in time", f"it goes on at {url}")
            time.sleep(pause)
            response, body = self._ask("GET", url, deadline, busy_is_fine=(429, 503))
        receipt = _verified(body)
        if receipt["payload"].get("run_id") != run_id:
            raise ClientError("BAD_ANSWER", "the service answered with another run")
        return receipt

    def _own(self, response: httpx.Response) -> str:
        """The `Location` of a 202, if it is on the origin that was asked."""
        import httpx

        try:
            url = self._base.join(response.headers["Location"])
        except (KeyError, httpx.InvalidURL):
            raise ClientError("BAD_ANSWER", "the service named no place to ask again") from None
        if (url.scheme, url.host, url.port) != (self._base.scheme, self._base.host, self._base.port):
            raise ClientError(
                "FOREIGN_LOCATION", "the service sent us to another host, which we do not follow"
            )
        return str(url)

    def _ask(
        self, method: str, url: str, deadline: float, busy_is_fine: tuple[int, ...] = (), **options: Any
    ) -> tuple[httpx.Response, dict[str, Any]]:
        """One request; its answer must be a small JSON object with a good or fine status, in time."""
        import httpx

        left = max(deadline - time.monotonic(), 0.001)
        data = bytearray()
        try:
            with self._http.stream(method, url, timeout=left, **options) as response:
                for chunk in response.iter_bytes():
                    data += chunk
                    if len(data) > MAX_ANSWER:
                        raise ClientError("BAD_ANSWER", "the service's answer is too large")
                    if time.monotonic() > deadline:
                        raise ClientError("TIMEOUT", "the service did not answer in time")
        except httpx.TimeoutException:
            raise ClientError("TIMEOUT", "the service did not answer in time") from None
        except (httpx.HTTPError, httpx.InvalidURL):
            cause = f"the service cannot be reached at {self._base.scheme}://{self._base.netloc.decode()}"
            raise ClientError("UNREACHABLE", cause, "check the URL (--url)") from None
        try:
            body = strict_loads(bytes(data))
        except CanonicalError:
            body = None
        if response.status_code in (200, 202) and isinstance(body, dict):
            return response, body
        if response.status_code in busy_is_fine:
            return response, body if isinstance(body, dict) else {}
        raise _problem(response.status_code, body)


def _validated(model: type[RunRequest] | type[CurveQuery], values: Mapping[str, Any]) -> dict[str, Any]:
    """The given fields, checked and normalised; fields left out stay out."""
    try:
        return model.model_validate(values).model_dump(exclude_unset=True)
    except ValidationError as error:
        raise ClientError("BAD_INPUT", explain(error)) from None


def _verified(receipt: dict[str, Any]) -> dict[str, Any]:
    for check in verify_receipt(receipt).checks:
        if check.status == "failed":
            raise ClientError("BAD_RECEIPT", f"the receipt does not verify: {check.detail}")
    return receipt


def _require_answer(receipt: dict[str, Any], asked: dict[str, Any]) -> None:
    """Refuse a receipt for another prompt or other fields; one that repeats neither cannot be compared."""
    payload = receipt["payload"]
    if isinstance(payload.get("request"), dict):
        _require_echo({name: value for name, value in asked.items() if name != "prompt"}, payload["request"])
    commitment, salt = payload.get("prompt_commitment"), receipt.get("prompt_salt")
    if commitment is not None and salt is not None:
        try:
            same = prompt_commitment(bytes.fromhex(salt), asked["prompt"]) == commitment
        except (TypeError, ValueError):
            same = False
        if not same:
            raise ClientError("BAD_ANSWER", "the receipt commits to another prompt")


def _require_echo(asked: dict[str, Any], answered: dict[str, Any]) -> None:
    for name, value in asked.items():
        if answered.get(name) != value:
            raise ClientError("BAD_ANSWER", f"the service answered for another {name}")


def _no_room(response: httpx.Response, body: dict[str, Any]) -> bool:
    payload = body.get("payload")
    roadmap = payload.get("roadmap") if isinstance(payload, dict) else None
    return response.status_code == 429 or (isinstance(roadmap, dict) and roadmap.get("code") == "BUSY")


def _retry_after(response: httpx.Response) -> float:
    try:
        seconds = float(response.headers["Retry-After"])
    except (KeyError, ValueError):  # absent, or a date, which this service never sends
        return DEFAULT_POLL_S
    return max(seconds, MIN_POLL_S) if seconds < float("inf") else DEFAULT_POLL_S


def _problem(status: int, body: Any) -> ClientError:
    """The error for an answer that is not one: the problem's own sentence (RFC 9457), or the bare status."""
    detail = body.get("detail") if isinstance(body, dict) else None
    if status < 400 or not isinstance(detail, str):
        return ClientError("BAD_ANSWER", f"the service answered {status} without a JSON object we can read")
    return ClientError(f"HTTP_{status}", f"the service answered {status}: {one_line(detail)}")
