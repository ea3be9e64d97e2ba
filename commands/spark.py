"""spark: show what Spark runs on here, and make it start faster."""

from __future__ import annotations

from agentbus.commands import _spark
from agentbus.commands._declare import Call, Param, Verb

VERB = Verb(
    "spark",
    Param(
        "--prepare", "Store Spark's classes, as Java has loaded them, in a file of about 200 MiB."
    ),
    text="With the file, Spark starts on this machine in about half the time. --prepare takes a minute"
    " or two, once for each Java and PySpark, and does nothing if the file exists; the file may be"
    " deleted at any time. The first verb that uses Spark does the same in the background when it has"
    " ended, unless AGENTBUS_SPARK_PREPARE is off. Connects to no server. Needs the extra pipeline."
    " JSON: spark, java, java_version, home, classes (the file, null if there is none), bytes.",
    examples=("agentbus spark", "agentbus spark --prepare"),
)


def run(call: Call) -> None:
    """Create the file of classes if requested, and show the Spark and Java in use."""
    with _spark.extra():
        from agentbus.pipeline.spark import classes, home, java  # needs the extra `pipeline`
    jvm = java.find()
    file = classes.path(jvm)
    if call.args.prepare and not file.exists():
        from agentbus.pipeline.spark.prepare import prepare  # needs the extra `pipeline`

        prepare(jvm)
    size = file.stat().st_size if file.exists() else 0
    call.out.record(
        {
            "spark": home.version(),
            "java": jvm.program,
            "java_version": jvm.version,
            "home": home.path(),
            "classes": str(file) if size else None,
            "bytes": size,
        },
        f"Spark {home.version()} on Java {jvm.version} ({jvm.program}), "
        + (
            f"starts from {file} ({size >> 20} MiB)" if size else "no stored classes: see --prepare"
        ),
    )
