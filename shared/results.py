"""What the client returns: the service's JSON as it came, with the parts that people ask for under typed names.

All are None where the service said nothing: a number that was not measured is never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shared import labels
from shared.schemas import EnergyMeasured, Measurement, SpeedupMeasured, Verdict


@dataclass(frozen=True)
class Progress:
    """How far a run is, as the service said while it went on.

    Attributes:
        run_id: Which run it is: what `cancel` takes.
        phase: What the tower is doing, for example `measuring`; `queued` while others are ahead.
        done: Steps of this phase that are done.
        total: Steps that this phase has.
        position: Number of runs ahead in the queue.
    """

    run_id: str | None
    phase: str
    done: int | None = None
    total: int | None = None
    position: int | None = None


class Health(dict[str, Any]):
    """The answer of `/health`, which is no receipt."""

    @property
    def label(self) -> str | None:
        """Whether runs can be measured, in the service's own words."""
        return _text(self.get("label"))

    @property
    def pair_found(self) -> bool:
        """Whether the tower holds a draft and a target of one family."""
        return _object(self.get("same_family_pair")).get("found") is True

    @property
    def measured_run_possible(self) -> bool:
        """Whether a run asked for now would be measured."""
        return self.get("measured_run_possible") is True


class Receipt(dict[str, Any]):
    """A receipt that has been verified: a dict that can be saved as JSON and verified again."""

    @property
    def payload(self) -> dict[str, Any]:
        """What the digest covers."""
        return _object(self.get("payload"))

    @property
    def digest(self) -> str:
        """SHA3-256 of the payload, hexadecimal: the receipt's address at the service."""
        return str(self["payload_sha3_256"])

    @property
    def signed(self) -> bool:
        """Whether there is a signature; whose, only `specdec verify --key` can say."""
        return _object(self.get("signature")).get("signed") is True

    @property
    def label(self) -> str | None:
        """What kind of answer it is, for example `SPEC-DECODE MEASURED`."""
        return _text(self.payload.get("label"))

    @property
    def measured(self) -> bool:
        """Whether it holds a measurement."""
        return self.payload.get("measured") == labels.MEASURED

    @property
    def run_id(self) -> str | None:
        """The run, if one was started: what `get_run` and `cancel` take."""
        return _text(self.payload.get("run_id"))

    @property
    def prompt_salt(self) -> str | None:
        """Proves the prompt, and can betray it; only the answer to `run` has it."""
        return _text(self.get("prompt_salt"))

    @property
    def output(self) -> str | None:
        """The text, if it was asked for."""
        return _text(self.get("output"))

    @property
    def measurement(self) -> Measurement | None:
        """Everything that was measured, with the counts from which it can be recomputed."""
        found = self.payload.get("measurement")
        return None if found is None else Measurement.model_validate(found)

    @property
    def accepted_rate(self) -> float | None:
        """MEASURED: accepted draft tokens / examined ones; None for an adaptive k, too."""
        measurement = self.measurement
        return None if measurement is None else measurement.accepted_rate

    @property
    def speedup_measured(self) -> SpeedupMeasured | None:
        """MEASURED: median, 95 % interval and number of pairs."""
        speedup = None if self.measurement is None else self.measurement.speedup
        return speedup if isinstance(speedup, SpeedupMeasured) else None

    @property
    def speedup_modeled(self) -> float | None:
        """MODELED: Theorem 3.8 at the measured rate and the configured cost ratio."""
        value = self.payload.get("speedup_modeled")
        return float(value) if isinstance(value, int | float) else None

    @property
    def energy(self) -> EnergyMeasured | None:
        """MEASURED: joules per token and what they come from."""
        found = _object(self.payload.get("energy"))
        return EnergyMeasured.model_validate(found) if found.get("label") == labels.MEASURED else None

    @property
    def energy_reason(self) -> str | None:
        """Why there is no energy."""
        found = _object(self.payload.get("energy"))
        return _text(found.get("reason")) or _text(found.get("code"))

    @property
    def verdict(self) -> Verdict | None:
        """Whether the measurement is good enough to rely on, and why not."""
        return None if self.measurement is None else self.measurement.verdict

    @property
    def roadmap_reason(self) -> str | None:
        """Why there is no measurement, or `running`."""
        return _text(_object(self.payload.get("roadmap")).get("reason"))

    @property
    def roadmap_code(self) -> str | None:
        """The same for programs, for example `NO_PAIR`, `BUSY` or `CANCELLED`."""
        return _text(_object(self.payload.get("roadmap")).get("code"))

    @property
    def runbook(self) -> list[str]:
        """What to do about it, step by step."""
        steps = _object(self.payload.get("roadmap")).get("runbook") or []
        return [str(step) for step in (steps if isinstance(steps, list) else [steps])]

    @property
    def progress(self) -> Progress | None:
        """How far the run is, while it goes on."""
        found = self.payload.get("progress")
        if not isinstance(found, dict):
            return None
        done, total, position = (_count(found.get(name)) for name in ("done", "total", "position"))
        return Progress(self.run_id, _text(found.get("phase")) or "running", done, total, position)


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
