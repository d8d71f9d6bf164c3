"""Every error a user can meet. Each message says what is wrong, where, and what to do.

TandemError                      exit code 1
├── UsageError                   exit code 2: the command line asks for something impossible
├── CheckpointError              a checkpoint is missing, damaged or of an unknown kind
├── CompileError                 a bundle cannot be built from a sound checkpoint
│   ├── LoweringError            an operator without a lowering
│   ├── ProofError               an entry moved a bit
│   └── QualityError             a low-bit profile costs more quality than its limits allow
├── BundleError                  a bundle cannot be opened
│   ├── BundleCorrupt            a file is missing, extra, short or changed
│   ├── BundleMismatch           sound, but not for this machine or this version
│   └── BundleUntrusted          sound, but its native code comes from elsewhere
├── DeviceError                  a GPU's driver is missing or refuses a call
├── TransferError                a registry or hub cannot be reached, or says no
├── RequestError                 a client's request is wrong (HTTP 4xx)
└── CapacityError                no room for it now (HTTP 429 or 503)
"""

from __future__ import annotations


class TandemError(Exception):
    """Root of the tree. `exit_code` is what a command exits with."""

    exit_code = 1


class UsageError(TandemError):
    exit_code = 2


class CheckpointError(TandemError):
    pass


class CompileError(TandemError):
    pass


class LoweringError(CompileError):
    pass


class ProofError(CompileError):
    pass


class QualityError(CompileError):
    pass


class BundleError(TandemError):
    pass


class BundleCorrupt(BundleError):
    pass


class BundleMismatch(BundleError):
    pass


class BundleUntrusted(BundleError):
    pass


class DeviceError(TandemError):
    """A call into a GPU's driver failed; `call` and `code` are the driver's own name and number for it."""

    def __init__(self, message: str, *, call: str = "", code: int = 0) -> None:
        super().__init__(message)
        self.call, self.code = call, code


class TransferError(TandemError):
    """A push or pull that stopped; what came so far is kept. `passing`: the same request may succeed a moment later."""

    def __init__(self, message: str, *, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class RequestError(TandemError):
    """A request that can never succeed as it stands; `status`, `param` and `code` follow OpenAI's error body."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


class CapacityError(TandemError):
    """No lane, page or queue place is free; trying again later may succeed."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0, status: int = 429) -> None:
        super().__init__(message)
        self.retry_after_s, self.status = retry_after_s, status
