"""Opens Spark sessions: on this machine, on a cluster, or through Spark Connect."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import pwd
import re
import secrets
import socket
import sys
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from agentbus.core import settings
from agentbus.core.errors import AgentBusError, BackendUnavailable, ConfigError, UsageError
from agentbus.pipeline.spark import classes, home, java, quiet, scratch
from agentbus.pipeline.spark.errors import sentence, told
from agentbus.pipeline.spark.launch import launch
from agentbus.pipeline.spark.shipping import send, ship

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

# All cores of this machine, and four attempts per task, as on a cluster; by default, a local Spark
# tries once.
LOCAL = "local[*,4]"
LOG_LEVELS = ("off", "error", "warn", "info", "debug")
_OLDEST_SPARK = (4, 2)
_LOOPBACK = "127.0.0.1"
_MASTER_PORT, _CONNECT_PORT = 7077, 15002
_ANSWERS_WITHIN = 5.0

_CONNECT_NEEDS = ("pandas", "grpc", "grpc_status", "zstandard")

# Prefixes of lines that do not explain why a JVM did not start.
_NO_REASON = ("at ", "WARNING", "Error: Could not create", "Error: A fatal exception")

# Settings on which the pipeline's own code relies.
_NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    # INT96, the default, has no statistics, and other readers refuse it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    # This option needs pandas, and warns without it.
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
}
# Defaults for one machine; on a cluster its administrator's settings apply.
_LOCALLY = {
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "4",
    # Percentiles over a few hundred names need no sorting.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "2000",
}
# Options for a session with few rows on this machine, which would otherwise spend most of its time
# compiling plans to Java, and Java to machine code.
FEW_ROWS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}
# Options for a JVM that runs for a minute. HotSpot's defaults are for servers: with them, a run of
# all reports spends more than a third of its CPU time compiling. They also leave methods of more
# than 8,000 bytes uncompiled, which Spark generates for wide rows.
_SHORT_LIVED = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:-DontCompileHugeMethods",
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=10000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=1000000",
)
_COLLECTOR = "-XX:+UseParallelGC"


def session(
    master: str | None = None,
    *,
    remote: str | None = None,
    conf: Mapping[str, str] | None = None,
    log_level: str = "off",
    name: str = "agentbus",
) -> SparkSession:
    """Open Spark, or return the session that is already open in this process.

    Without `master` and `remote` it runs in a local JVM, on all cores. `master` is a cluster's URL
    (`spark://…`, `yarn`, `k8s://…`), to which the package is shipped; `remote` is a Spark Connect
    server's URL (`sc://…`). `conf` overrides every other setting. Spark logs to stderr from
    `log_level` on (`off`, `error`, `warn`, `info`, `debug`).

    Raises `ConfigError` if there is no Java, Spark does not start, or Connect lacks its packages,
    and `BackendUnavailable` if the cluster does not reply.
    """
    if master is not None and remote is not None:
        raise UsageError("both a master and a Connect server are given", hint="give one of them")
    if log_level not in LOG_LEVELS:
        raise UsageError(
            f"no such log level: {log_level!a}", hint=f"one of {', '.join(LOG_LEVELS)}"
        )
    _check_version()
    _check_reach(master, remote)
    given = dict(conf or {})
    try:
        if remote is not None:
            return _connect(remote, given)
        opened = _open(master or LOCAL, given, log_level, name)
    except AgentBusError:
        raise
    except Exception as error:
        raise told(error) from error
    if not is_local(master):
        ship(opened)
    return opened


def is_local(master: str | None) -> bool:
    """Tell whether a master runs in this process's own JVM, on this machine."""
    return master is None or master == "local" or master.startswith("local[")


def _connect(remote: str, given: dict[str, str]) -> SparkSession:
    """Open a session on a Spark Connect server."""
    if not remote.startswith("sc://"):
        raise UsageError(
            f"{remote!a} is not a Spark Connect server", hint="its URL is sc://HOST:PORT"
        )
    # Check for the packages first: PySpark exits a `python -c` program that lacks one of them.
    missing = [each for each in _CONNECT_NEEDS if importlib.util.find_spec(each) is None]
    hint = f"pip install 'pyspark[connect]=={home.version()}'"
    if missing:
        raise ConfigError(
            f"Spark Connect needs packages that are not installed: {', '.join(missing)}", hint=hint
        )
    try:
        # These packages are installed only with Spark Connect.
        from pyspark.sql.connect.session import SparkSession as Remote
    except (ImportError, PySparkException) as error:
        raise ConfigError(
            f"Spark Connect cannot use what is installed: {sentence(str(error))}", hint=hint
        ) from error
    settings.hand_down(SPARK_CONNECT_MODE_ENABLED="1", SPARK_LOCAL_REMOTE=None)
    builder = Remote.builder.remote(remote)
    # A client cannot change the server's settings; these are the session's.
    for key, value in {**_NEEDED, **given}.items():
        builder = builder.config(key, value)
    opened = builder.getOrCreate()
    send(opened)  # type: ignore[arg-type]
    return opened  # type: ignore[return-value]


def _open(master: str, given: dict[str, str], log_level: str, name: str) -> SparkSession:
    """Open a session of this process's own JVM, starting the JVM if necessary."""
    options = _options(master, given)
    # These variables would override the given master.
    settings.hand_down(SPARK_REMOTE=None, SPARK_CONNECT_MODE_ENABLED=None, SPARK_API_MODE=None)
    builder = SparkSession.builder.master(master).appName(name).config(map={**options})
    if SparkContext._active_spark_context is None:
        options.setdefault("spark.sql.warehouse.dir", str(scratch.place() / "warehouse"))
        started = SparkConf(loadDefaults=False).setMaster(master).setAppName(name)
        started.setAll(list(options.items()))
        if log_level == "off":
            quiet.hush()
        if SparkContext._gateway is None:
            _start(started, master, log_level)
        context = SparkContext(conf=started)
        if log_level == "off":
            quiet.hush_ending(context)
    return builder.getOrCreate()


def _options(master: str, given: dict[str, str]) -> dict[str, str]:
    """Return all settings for a master; the caller's settings take precedence."""
    options = {
        **_NEEDED,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local(master):
        options.update(_LOCALLY)
    if master.startswith("local"):
        # Every user of this machine can connect to its loopback address.
        options["spark.authenticate"] = "true"
        options["spark.python.unix.domain.socket.enabled"] = "true"
        options["spark.python.unix.domain.socket.dir"] = str(scratch.sockets())
    if master.startswith("local-cluster"):
        options["spark.authenticate.secret"] = secrets.token_hex(32)
    if on_loopback(master):
        options["spark.driver.host"] = _LOOPBACK
        options["spark.driver.bindAddress"] = _LOOPBACK
    options.update(given)
    return options


def on_loopback(master: str) -> bool:
    """Tell whether a master and its workers listen on this machine only."""
    if master.startswith("local"):
        return True
    hosts = master.removeprefix("spark://").split(",")
    return master.startswith("spark://") and all(
        host.rpartition(":")[0] in (_LOOPBACK, "localhost", "[::1]") for host in hosts
    )


def _start(conf: SparkConf, master: str, log_level: str) -> None:
    """Start the JVM: with our Java, this Python and a quiet log."""
    found = java.find()
    variables = {"JAVA_HOME": found.home}
    chosen = settings.variable("PYSPARK_PYTHON")
    # A local Spark must use this Python: another one would lack this package.
    if chosen is None or is_local(master):
        variables["PYSPARK_PYTHON"] = sys.executable
    spark = settings.variable("SPARK_HOME") or home.installed()
    if is_local(master):
        spark = home.path()
    elif master.startswith("local-cluster"):
        spark = home.private()
    # Set SPARK_HOME, since Spark's own search fails on a path with a blank.
    variables["SPARK_HOME"] = spark
    if on_loopback(master) and settings.variable("SPARK_LOCAL_IP") is None:
        # The pages of `local-cluster` would be on all addresses.
        variables["SPARK_LOCAL_IP"] = _LOOPBACK
    settings.hand_down(**variables)
    own = conf.get("spark.driver.extraJavaOptions") or ""
    nameless = _is_nameless()
    if nameless:
        # Java takes the home directory from the passwd entry, too.
        folder = settings.variable("HOME") or str(scratch.place())
        own = f'"-Duser.home={folder}" {own}'
    if is_local(master):
        own = " ".join([*classes.options(found), own])
    conf.set("spark.driver.extraJavaOptions", java_options(master, own, log_level))
    if log_level != "off":
        _use(launch(conf), nameless=nameless)
        return
    # Output of the JVM, and of Spark before its log is set up, matters only if the JVM does not
    # start.
    said = scratch.place() / "stderr"
    try:
        gateway = launch(conf, said)
    except (PySparkRuntimeError, OSError) as error:
        raise ConfigError(
            f"Spark did not start on {found.program}: {_why(said, error)}",
            hint="log level `debug` shows all that it said",
        ) from error
    _use(gateway, nameless=nameless)


def _use(gateway: JavaGateway, *, nameless: bool) -> None:
    """Make a JVM Spark's, logged in to Hadoop, which refuses a user id without a name."""
    if nameless:
        login = gateway.jvm.org.apache.hadoop.security.UserGroupInformation
        login.setLoginUser(login.createRemoteUser(str(os.getuid())))
    SparkContext._ensure_initialized(gateway=gateway)


def _is_nameless() -> bool:
    """Tell whether the user id has no passwd entry, as in a container with a random one."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return True
    return False


def java_options(master: str, own: str, log_level: str) -> str:
    """Return the JVM's options: ours, then the user's `own`, which take precedence."""
    log = pathlib.Path(__file__).with_name("log4j2.properties").as_uri()
    options = [f"-Dlog4j2.configurationFile={log}", f"-Dagentbus.log={log_level}"]
    if is_local(master):
        options += _SHORT_LIVED
        # A JVM with options for two collectors does not start.
        options += [] if re.search(r"-XX:\+Use\w+GC\b", own) else [_COLLECTOR]
    return " ".join([*options, own]).strip()


def _why(said: pathlib.Path, error: Exception) -> str:
    """Return the line of the JVM's output that explains its end."""
    lines = [line.strip() for line in said.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith(_NO_REASON)]
    telling = [line for line in lines if "rror" in line or "xception" in line]
    return sentence((telling or lines or [str(error)])[0])


def _check_reach(master: str | None, remote: str | None) -> None:
    """Raise `BackendUnavailable` unless a server listens: Spark itself would retry for minutes."""
    given = remote or master or ""
    if not given.startswith(("spark://", "sc://")):
        return
    places = given.partition("://")[2].partition("/")[0].split(",")
    reasons = []
    for place in places:
        try:
            parts = urllib.parse.urlsplit(f"//{place}")
            port = parts.port or (_CONNECT_PORT if remote else _MASTER_PORT)
            with socket.create_connection((parts.hostname or "", port), _ANSWERS_WITHIN):
                return
        except (OSError, ValueError) as error:
            reasons.append(str(error))
    what = "Spark Connect server" if remote else "Spark master"
    raise BackendUnavailable(
        f"the {what} at {given.partition(';')[0]} does not answer: {reasons[0]}",
        hint=f"check that it runs, and {'remote' if remote else 'master'}",
        shell_hint=f"check that it runs, and {'--remote' if remote else '--master'}",
    )


def _check_version() -> None:
    if tuple(map(int, re.findall(r"\d+", pyspark.__version__)[:2])) < _OLDEST_SPARK:
        raise ConfigError(
            f"the pipeline needs PySpark {'.'.join(map(str, _OLDEST_SPARK))} or newer,"
            f" and {pyspark.__version__} is installed at {os.path.dirname(pyspark.__file__)}",
            hint="pip install 'agentbus-toolkit[pipeline]'",
        )
