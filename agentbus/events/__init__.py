"""Events: sent in the transaction of a change, and handled exactly once."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from agentbus.core.errors import ConfigError
from agentbus.core.lazy import lazily

if TYPE_CHECKING:
    from agentbus.core.errors import (
        CommitInTransactionError as CommitInTransactionError,
        HandlerFailed as HandlerFailed,
        StaleLease as StaleLease,
    )
    from agentbus.events.cleanup import Cleanup as Cleanup
    from agentbus.events.consumers_admin import (
        Skipped as Skipped,
        forget_consumer as forget_consumer,
        forget_reader as forget_reader,
        register_consumer as register_consumer,
        skip_events as skip_events,
    )
    from agentbus.events.declare import (
        Context as Context,
        Registration as Registration,
        consumer as consumer,
        register as register,
        registered as registered,
        registration as registration,
    )
    from agentbus.events.event import StreamEvent as StreamEvent
    from agentbus.events.event_consumer import Consumer as Consumer, Failure as Failure
    from agentbus.events.guarantee import Guarantee as Guarantee
    from agentbus.events.ledger import Ledger as Ledger
    from agentbus.events.ledger_steps import LedgerSteps as LedgerSteps
    from agentbus.events.opening import open_ledger as open_ledger
    from agentbus.events.parked_events import (
        Parked as Parked,
        drop as drop,
        parked as parked,
        retry as retry,
    )
    from agentbus.events.relay import Relay as Relay
    from agentbus.events.schemas import EventSchemas as EventSchemas
    from agentbus.events.send import send_event as send_event
    from agentbus.events.status import (
        LeaseStanding as LeaseStanding,
        Standing as Standing,
        standing as standing,
    )
    from agentbus.events.supervisor.options import SupervisedJob as SupervisedJob
    from agentbus.events.supervisor.quarantine import (
        Quarantined as Quarantined,
        quarantined as quarantined,
        release_consumer as release_consumer,
    )
    from agentbus.events.supervisor.status import (
        Happening as Happening,
        PostStatus as PostStatus,
        SupervisorStatus as SupervisorStatus,
    )
    from agentbus.events.supervisor.supervisor import Supervisor as Supervisor
    from agentbus.processes.crash_loop import Window as Window

# Raise this before a module of the package fails to import sqlalchemy.
if importlib.util.find_spec("sqlalchemy") is None:
    raise ConfigError(
        "events need sqlalchemy, which is not installed: it comes with an extra",
        hint="pip install 'agentbus-toolkit[events]'",
    )

_NAMES = {
    "agentbus.core.errors": "CommitInTransactionError HandlerFailed StaleLease",
    "agentbus.processes.crash_loop": "Window",
    "agentbus.events.supervisor.quarantine": "Quarantined quarantined release_consumer",
    "agentbus.events.supervisor.options": "SupervisedJob",
    "agentbus.events.supervisor.status": "Happening PostStatus SupervisorStatus",
    "agentbus.events.supervisor.supervisor": "Supervisor",
    "cleanup": "Cleanup",
    "consumers_admin": "Skipped forget_consumer forget_reader register_consumer skip_events",
    "declare": "Context Registration consumer register registered registration",
    "event": "StreamEvent",
    "event_consumer": "Consumer Failure",
    "guarantee": "Guarantee",
    "ledger": "Ledger",
    "ledger_steps": "LedgerSteps",
    "opening": "open_ledger",
    "parked_events": "Parked drop parked retry",
    "relay": "Relay",
    "schemas": "EventSchemas",
    "send": "send_event",
    "status": "LeaseStanding Standing standing",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
