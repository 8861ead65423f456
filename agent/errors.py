"""Errors of the agent.

* `AgentError`: base, code ``INTERNAL``
    * `NoPair`: ``NO_PAIR``
    * `LoadFailed`: ``LOAD_FAILED``
    * `OutOfMemory`: ``OUT_OF_MEMORY``
    * `GpuBusy`: ``GPU_BUSY``
    * `RequestRefused`: ``BAD_REQUEST``
    * `Cancelled`: ``CANCELLED``
    * `DeadlineExceeded`: ``DEADLINE``
    * `WorkerDied`: ``WORKER_DIED``
    * `WorkerHung`: ``WORKER_HUNG``
    * `Busy`: ``BUSY``
    * `Conflict`: ``CONFLICT``
    * `NotFound`: ``NOT_FOUND``
    * `Expired`: ``EXPIRED``
    * `StoreError`: ``INTERNAL``
    * `agent.nvml.NvmlError`: ``INTERNAL``, and the code of an energy that is UNAVAILABLE
    * `WorkerError`: the code the decode worker has sent

Each carries a code of the wire protocol's closed list, so any of them can be answered as a ``failed`` frame.
Their texts reach the log, the caller and, through a receipt, everyone: never put a prompt, an output or a path of
this machine into one that may be raised once the agent serves.
"""

from shared.errors import SpecdecError


class AgentError(SpecdecError):
    """Something the agent can name; `code` is a wire code, `cause` and `remedy` are clauses, no full stop."""

    code = "INTERNAL"
    default_remedy = "look at the agent's log"

    def __init__(self, cause: str, remedy: str | None = None) -> None:
        """Keep what went wrong and what to do about it.

        Args:
            cause: What went wrong, as a clause.
            remedy: What the reader can do about it; the class's own remedy if not given.
        """
        super().__init__(self.code, cause, remedy or self.default_remedy)


class NoPair(AgentError):
    """No same-family draft and target pair is at hand."""

    code = "NO_PAIR"
    default_remedy = "install a draft and a target of one family, or name them with --draft and --target"


class LoadFailed(AgentError):
    """A model could not be loaded."""

    code = "LOAD_FAILED"
    default_remedy = "check that the model files are whole and readable"


class OutOfMemory(AgentError):
    """The pair or its context does not fit in memory."""

    code = "OUT_OF_MEMORY"
    default_remedy = "free memory or choose smaller models"


class GpuBusy(AgentError):
    """Another program computes on the GPU, and the operator wants no run beside it."""

    code = "GPU_BUSY"
    default_remedy = "try again when it has gone"


class RequestRefused(AgentError):
    """The request cannot be run as asked."""

    code = "BAD_REQUEST"
    default_remedy = "change the request"


class Cancelled(AgentError):
    """Somebody cancelled the run."""

    code = "CANCELLED"
    default_remedy = "start another run"


class DeadlineExceeded(AgentError):
    """The deadline passed before one step was done."""

    code = "DEADLINE"
    default_remedy = "allow more time, or ask for fewer steps"


class WorkerDied(AgentError):
    """The decode worker ended while it was needed."""

    code = "WORKER_DIED"
    default_remedy = "try again: the next run gets a fresh worker"


class WorkerHung(AgentError):
    """The decode worker stopped making progress and was killed."""

    code = "WORKER_HUNG"
    default_remedy = "try again: the next run gets a fresh worker"


class Busy(AgentError):
    """The queue is full, or the agent is shutting down."""

    code = "BUSY"
    default_remedy = "try again later"

    def __init__(self, cause: str, *, retry_after: float) -> None:
        """Keep the cause and the number of seconds after which trying again makes sense."""
        super().__init__(cause)
        self.retry_after = retry_after


class Conflict(AgentError):
    """The ID already names another request."""

    code = "CONFLICT"
    default_remedy = "use a new ID for a new request"


class NotFound(AgentError):
    """No run has this ID."""

    code = "NOT_FOUND"
    default_remedy = "check the run id"


class Expired(AgentError):
    """The run is no longer kept."""

    code = "EXPIRED"
    default_remedy = "start another run"

    def __init__(self, cause: str, *, busy_s: float | None = None) -> None:
        """Keep the cause and, if that is still known, the seconds for which the run held the decode worker."""
        super().__init__(cause)
        self.busy_s = busy_s


class StoreError(AgentError):
    """The run store cannot be used."""

    default_remedy = "check the state directory, or name another one with --state"


class WorkerError(AgentError):
    """A failure the decode worker has reported, passed on as it is."""

    def __init__(self, code: str, detail: str) -> None:
        """Keep the code and the whole sentence."""
        super().__init__(detail)
        self.code = code
        self.remedy = ""
