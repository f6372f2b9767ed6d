"""The whole error tree of StrataMQ.

Every exception that leaves a package derives from `StrataError`. An error carries fields; its sentence is built
when it is shown and says what happened, where, and what to do next. Catch by class, at the layer that can decide.

``exit_code`` is what the command line returns for it, ``retryable`` says whether the same call may succeed later
without anybody doing something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar


class StrataError(Exception):
    """Root of all errors that StrataMQ raises on purpose."""

    exit_code: ClassVar[int] = 1
    retryable: ClassVar[bool] = False


class ConfigError(StrataError):
    """A setting is unknown, badly formed or out of bounds."""

    exit_code = 2

    def __init__(self, key: str, value: object, allowed: str, *, where: str = "") -> None:
        super().__init__(key, value, allowed, where)
        self.key = key
        self.value = value
        self.allowed = allowed
        self.where = where

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"setting {self.key}={self.value!r}{place} is not usable; allowed: {self.allowed}"


# --- store ----------------------------------------------------------------------------------------------------


class StoreError(StrataError):
    """Something about a store directory or its files."""

    exit_code = 3


class CorruptionError(StoreError):
    """Stored bytes are not what they must be. Nothing is changed by whoever raises this.

    Fields: the file, the byte offset in that file, what was expected there and what was found.
    """

    exit_code = 4
    what: ClassVar[str] = "damaged data"

    def __init__(self, path: str, offset: int, expected: object, found: object, *, hint: str = "") -> None:
        super().__init__(path, offset, expected, found, hint)
        self.path = path
        self.offset = offset
        self.expected = expected
        self.found = found
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.what} in {self.path} at byte {self.offset}: expected {self.expected}, found {self.found}"
        return f"{text}; {self.hint}" if self.hint else text


class ChecksumMismatch(CorruptionError):
    """Bytes do not match the checksum stored with them."""

    what = "checksum mismatch"


class BadMagic(CorruptionError):
    """A record does not begin with a known magic number."""

    what = "unknown magic number"


class TruncatedRecord(CorruptionError):
    """A record or file ends before its stated length."""

    what = "truncated data"


class BadLength(CorruptionError):
    """A length field, or the length of a whole file, cannot be right."""

    what = "impossible length"


class MisplacedRecord(CorruptionError):
    """A record is well formed but stands at another place than it says of itself."""

    what = "record at the wrong place"


class StrayFile(StoreError):
    """A file in a store directory that no part of the store made."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} does not belong here: {self.reason}; move it out of the store directory and try again"


class NotAStore(StoreError):
    """The directory holds no store."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path} is not a store directory: {self.reason}"


class OffsetOutOfRange(StoreError):
    """A queue offset or a physical offset outside of what is stored."""

    def __init__(self, asked: int, min_offset: int, max_offset: int, *, where: str = "") -> None:
        super().__init__(asked, min_offset, max_offset, where)
        self.asked = asked
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.where = where

    def __str__(self) -> str:
        place = f" of {self.where}" if self.where else ""
        return f"offset {self.asked}{place} is outside [{self.min_offset}, {self.max_offset})"


class StoreFull(StoreError):
    """No space on the device. Reads go on; writes are taken again when space is back."""

    retryable = True

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"no space left for {self.path}; free some space or let retention run, writes then go on by themselves"


class DiskAboveMark(StoreFull):
    """The disk is above the warning mark: writes are refused while there is still room for the store itself."""

    def __init__(self, path: str, percent: int, mark: int, resume: int) -> None:
        Exception.__init__(self, path, percent, mark, resume)
        self.path = path
        self.percent = percent
        self.mark = mark
        self.resume = resume

    def __str__(self) -> str:
        return (
            f"the disk of {self.path} was {self.percent} % full, above {self.mark} % (diskSpaceWarningLevelRatio); "
            f"messages are taken again at {self.resume} % or less (diskSpaceCleanForciblyRatio)"
        )


class StoreLocked(StoreError):
    """Another process has the store open."""

    def __init__(self, path: str, owner: str = "") -> None:
        super().__init__(path, owner)
        self.path = path
        self.owner = owner

    def __str__(self) -> str:
        by = f" by process {self.owner}" if self.owner else ""
        return f"{self.path} is in use{by}; stop that broker first, or give another --data-dir"


class StoreClosed(StoreError):
    """The store has been closed."""

    def __str__(self) -> str:
        return "the store is closed"


class StoreFailed(StoreError):
    """A write or sync failed, so what the disk holds is unknown: no more writes until restart and recovery."""

    def __init__(self, operation: str, path: str, cause: str) -> None:
        super().__init__(operation, path, cause)
        self.operation = operation
        self.path = path
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"{self.operation} of {self.path} failed ({self.cause}); the store takes no more writes. "
            "Check the disk, then restart: recovery finds what is safe"
        )


class LogsDiffer(StoreError):
    """A slave's log is not the beginning of its master's. Fields: where the slave's log ends, and what does not fit."""

    exit_code = 4

    def __init__(self, end: int, reason: str) -> None:
        super().__init__(end, reason)
        self.end = end
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"this slave's log, which ends at {self.end}, is not its master's: {self.reason}. Nothing was changed. "
            "Decide which log is the right one; to copy the master's anew, empty the slave's data directory"
        )


class MessageRefused(StoreError):
    """A message that the store cannot hold (too long, malformed); nothing was stored."""

    def __init__(self, field: str, found: object, allowed: str) -> None:
        super().__init__(field, found, allowed)
        self.field = field
        self.found = found
        self.allowed = allowed

    def __str__(self) -> str:
        return f"message refused: {self.field} is {self.found}, allowed is {self.allowed}"


# --- cold tier ------------------------------------------------------------------------------------------------


class TierError(StoreError):
    """Something about the cold tier."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class BackendError(TierError):
    """The place that keeps cold objects did not do what it was asked; what it did is unknown. Trying again may help."""

    retryable = True

    def __init__(self, operation: str, name: str, cause: str) -> None:
        super().__init__(f"{operation} of {name or 'the backend'} failed: {cause}")
        self.operation = operation
        self.name = name
        self.cause = cause


class ObjectMissing(TierError):
    """There is no object of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no object {name}")
        self.name = name


class ObjectExists(TierError):
    """An object of that name is there already; it was not changed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is an object {name} already")
        self.name = name


class WriterFenced(TierError):
    """A writer with a higher epoch has taken over: this one must not write to the cold tier any more."""

    def __init__(self, name: str, own_epoch: int, found_epoch: int) -> None:
        super().__init__(
            f"{name} was written under epoch {found_epoch}, and ours is {own_epoch}: another process has taken over"
        )
        self.name = name
        self.own_epoch = own_epoch
        self.found_epoch = found_epoch


class ReadPending(TierError):
    """What was asked for is being fetched from the cold tier; ask again when told.

    ``when_ready`` takes a callable and calls it, once, on the thread that reads: at once when the answer has come
    meanwhile, also when fetching failed, so that asking again says so.
    """

    retryable = True

    def __init__(self, what: str, when_ready: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(f"{what} is being fetched from the cold tier")
        self.when_ready = when_ready


# --- broker ---------------------------------------------------------------------------------------------------


class BrokerError(StrataError):
    """A request that the broker refuses. Each protocol maps these to its own reply codes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class TopicNotFound(BrokerError):
    """The topic does not exist and may not be created."""


class TopicRefused(BrokerError):
    """The topic name is not legal, or the topic is reserved."""


class QueueNotFound(BrokerError):
    """The topic has no such queue."""


class GroupNotFound(BrokerError):
    """The consumer group does not exist."""


class AccessDenied(BrokerError):
    """The topic, the group or the broker does not allow this."""


class MessageTooLarge(BrokerError):
    """The message or one of its parts is larger than allowed."""


class MessageIllegal(BrokerError):
    """The message is malformed."""


class FlowControlled(BrokerError):
    """Too much is waiting; try again later."""

    retryable = True


class TimerRefused(BrokerError):
    """A message for a set time is not taken: the timer is off, or too many wait for that second."""

    retryable = True


class RecallRefused(BrokerError):
    """A message cannot be recalled: the handle is not one, is another topic's or broker's, or its time has come."""


class ServiceUnavailable(BrokerError):
    """The broker does not take writes now (stopping, disk full, failed store)."""

    retryable = True


class SubscriptionUnknown(BrokerError):
    """The broker does not know (yet) what this consumer subscribes to."""

    retryable = True


class SubscriptionStale(BrokerError):
    """The broker knows only an older subscription of this consumer."""

    retryable = True


class SubscriptionIllegal(BrokerError):
    """The subscription expression cannot be parsed."""


class FilterUnknown(BrokerError):
    """The broker does not know (yet) the SQL92 filter of this consumer, or cannot parse it."""

    retryable = True


class FilterStale(BrokerError):
    """The broker knows only an older SQL92 filter of this consumer."""

    retryable = True


class NothingFound(BrokerError):
    """A query found nothing."""


class InvalidArgument(BrokerError):
    """A request field is missing, malformed or out of bounds."""


class NotSupported(BrokerError):
    """A request that this broker does not serve."""


class MappingRefused(BrokerError):
    """A static topic's queue mapping is malformed, contradicts itself, or does not follow the known one."""


class NotLeaderForQueue(BrokerError):
    """A logical queue of a static topic is led by another broker; the topic's route says by which."""

    retryable = True


# --- protocols ------------------------------------------------------------------------------------------------


class ProtocolError(StrataError):
    """Bytes or calls that break a wire protocol."""


class LocalProtocolError(ProtocolError):
    """Our own side tried to send something illegal."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something illegal. ``reply_hint`` names the reply code that fits, where the protocol has one."""

    def __init__(self, text: str, *, reply_hint: int | None = None) -> None:
        super().__init__(text, reply_hint)
        self.text = text
        self.reply_hint = reply_hint

    def __str__(self) -> str:
        return self.text


class PeerUnreachable(StrataError):
    """A name server or broker that we asked cannot be reached, or did not answer. Fields: its address, and why."""

    exit_code = 6
    retryable = True

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.address} cannot be reached: {self.reason}; is it running, and is that its address?"


class PeerRefused(StrataError):
    """A name server or broker answered, and not with success. Fields: address, what was asked, code and remark."""

    exit_code = 1

    def __init__(self, address: str, what: str, code: int, remark: str) -> None:
        super().__init__(address, what, code, remark)
        self.address = address
        self.what = what
        self.code = code
        self.remark = remark

    def __str__(self) -> str:
        return f"{self.address} refused {self.what}: code {self.code}, {self.remark or 'without a remark'}"


# --- pipeline -------------------------------------------------------------------------------------------------


class PipelineError(StrataError):
    """A bulk job cannot run or cannot go on."""

    exit_code = 5

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return self.text


class DataLost(PipelineError):
    """Records that a job was asked to read are gone."""
