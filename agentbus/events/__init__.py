"""Events: written beside the change they tell of, and acted on exactly once."""

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
    from agentbus.events.consuming import Consumer as Consumer, Failure as Failure
    from agentbus.events.crashes import Window as Window
    from agentbus.events.event import StreamEvent as StreamEvent
    from agentbus.events.guarantee import Guarantee as Guarantee
    from agentbus.events.ledger import Ledger as Ledger
    from agentbus.events.opening import open_ledger as open_ledger
    from agentbus.events.parking import (
        Parked as Parked,
        drop as drop,
        parked as parked,
        retry as retry,
    )
    from agentbus.events.posts import (
        Happening as Happening,
        PostStatus as PostStatus,
        SupervisorStatus as SupervisorStatus,
    )
    from agentbus.events.quarantine import (
        Quarantined as Quarantined,
        quarantined as quarantined,
        release_consumer as release_consumer,
    )
    from agentbus.events.registry import (
        Context as Context,
        Registration as Registration,
        consumer as consumer,
        register as register,
        registered as registered,
        registration as registration,
    )
    from agentbus.events.relay import Relay as Relay
    from agentbus.events.roster import (
        Skipped as Skipped,
        forget_consumer as forget_consumer,
        forget_reader as forget_reader,
        register_consumer as register_consumer,
        skip_events as skip_events,
    )
    from agentbus.events.schemas import EventSchemas as EventSchemas
    from agentbus.events.sending import send_event as send_event
    from agentbus.events.standings import (
        LeaseStanding as LeaseStanding,
        Standing as Standing,
        standing as standing,
    )
    from agentbus.events.supervising import Supervisor as Supervisor

# Told here, before any module of the events loads what is not there.
if importlib.util.find_spec("sqlalchemy") is None:
    raise ConfigError(
        "events need sqlalchemy, which is not installed: it comes with an extra",
        hint="pip install 'agentbus-toolkit[events]'",
    )

_HOMES = {
    "CommitInTransactionError": "agentbus.core.errors",
    "Consumer": "consuming",
    "Context": "registry",
    "EventSchemas": "schemas",
    "Failure": "consuming",
    "Guarantee": "guarantee",
    "HandlerFailed": "agentbus.core.errors",
    "Happening": "posts",
    "LeaseStanding": "standings",
    "Ledger": "ledger",
    "Parked": "parking",
    "PostStatus": "posts",
    "Quarantined": "quarantine",
    "Registration": "registry",
    "Relay": "relay",
    "Skipped": "roster",
    "StaleLease": "agentbus.core.errors",
    "Standing": "standings",
    "StreamEvent": "event",
    "Supervisor": "supervising",
    "SupervisorStatus": "posts",
    "Window": "crashes",
    "consumer": "registry",
    "drop": "parking",
    "forget_consumer": "roster",
    "forget_reader": "roster",
    "open_ledger": "opening",
    "parked": "parking",
    "quarantined": "quarantine",
    "register": "registry",
    "register_consumer": "roster",
    "registered": "registry",
    "registration": "registry",
    "release_consumer": "quarantine",
    "retry": "parking",
    "send_event": "sending",
    "skip_events": "roster",
    "standing": "standings",
}
__all__ = [*_HOMES]
__getattr__ = lazily(__name__, _HOMES)
