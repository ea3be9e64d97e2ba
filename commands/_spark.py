"""Options and sessions that the verbs of the pipeline share."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

from agentbus.commands._declare import Param
from agentbus.commands._output import ReaderGone
from agentbus.core import settings
from agentbus.core.errors import AgentBusError, ConfigError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from agentbus.commands._declare import Call
    from agentbus.pipeline.archives.places import Place


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not NAME=VALUE")
    return name, value


STORAGE = Param(
    "--storage-option NAME=VALUE",
    "Option of a bucket's storage, none with a secret; may be repeated.",
    dest="storage",
    convert=_setting,
    many=True,
)
# With fewer rows than this, compiling the query plans would take longer than the work.
_FEW = 200_000
PARAMS = (
    Param(
        "--master URL", "Spark cluster, as spark://HOST:PORT (default: all cores of this machine)."
    ),
    Param("--remote URL", "Spark Connect server, as sc://HOST:PORT."),
    Param(
        "--spark-conf NAME=VALUE",
        "Spark setting; may be repeated.",
        dest="conf",
        convert=_setting,
        many=True,
    ),
    Param("--verbose", "Show Spark's log."),
)


def located(call: Call, path: str) -> Place:
    """Return the place of an archive, with the options given for its storage."""
    with extra():
        from agentbus.pipeline.archives.location import place  # needs the extra `pipeline`

        return place(path, dict(call.args.storage))


@contextlib.contextmanager
def session(
    call: Call, path: str | Place | None = None, *, rows: int | None = None
) -> Iterator[SparkSession]:
    """Open Spark with the given options, and convert its errors to ours.

    `rows` is the number of rows to process, if known: a session for few rows has other settings.
    """
    with extra():
        # Needs the extra `pipeline`.
        from agentbus.pipeline.spark import classes, errors, quiet, reach

        # Needs the extra `pipeline`.
        from agentbus.pipeline.spark.session import FEW_ROWS, is_local, session as open_session
    args = call.args
    if not args.verbose:
        quiet.hush_warnings()
    few = rows is not None and rows < _FEW and args.remote is None and is_local(args.master)
    # Spark's processes find the server from the environment, since options appear in plans.
    handed = {"AGENTBUS_PROJECT": call.settings.project}
    if call.settings.url is not None:
        handed["AGENTBUS_URL"] = call.settings.url
    settings.hand_down(**handed)
    where = None if path is None else str(path)
    for warning in reach.warnings(args.master, args.remote, url=call.settings.url, path=where):
        call.out.warn(warning)
    with _ending() as heard:
        spark = open_session(
            args.master,
            remote=args.remote,
            conf={**(FEW_ROWS if few else {}), **dict(args.conf)},
            log_level="info" if args.verbose else "off",
        )
        _note(signal.SIGINT, heard)
        try:
            yield spark
        except Exception as error:
            # An interrupted Spark call may raise any error, even an AgentBusError.
            if heard:
                raise KeyboardInterrupt from error
            if isinstance(error, (AgentBusError, ReaderGone)):
                raise
            raise errors.told(error) from error
        finally:
            # The JVM may have been killed, which the error above reports.
            with contextlib.suppress(Exception):
                spark.stop()
        with contextlib.suppress(OSError):
            classes.prepare_later()


@contextlib.contextmanager
def _ending() -> Iterator[list[int]]:
    """Handle SIGTERM as an interrupt: temporary files are removed, and Spark is stopped.

    Yields the list of signals that were received.
    """
    heard: list[int] = []

    def end(number: int, _frame: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, end)
    try:
        yield heard
    finally:
        # Spark installs its own handler for interrupts.
        for number, handler in before.items():
            signal.signal(number, handler)


def _note(number: int, heard: list[int]) -> None:
    """Record a signal, then run its current handler, by which Spark cancels its jobs."""
    then = signal.getsignal(number)

    def noted(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if callable(then):
            then(number, frame)

    signal.signal(number, noted)


@contextlib.contextmanager
def extra() -> Iterator[None]:
    """Raise `ConfigError` if a package of the extra `pipeline` is missing.

    Files written from here on, including those of Spark's processes, are never world-writable.
    """
    os.umask(os.umask(0o077) | 0o002)
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"this verb needs the package {error.name}",
            hint="pip install 'agentbus-toolkit[pipeline]'",
        ) from None


def spark_free(args: object) -> None:
    """Raise `UsageError` if Spark's options are given to an action that does not use Spark."""
    given = [p.names[0] for p in PARAMS if getattr(args, p.dest)]
    if given:
        raise UsageError(f"{given[0]} has no effect here", hint="leave it out")
