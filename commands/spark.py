"""spark: what the pipeline runs on here, and what it starts from."""

from __future__ import annotations

from agentbus.commands import _spark
from agentbus.commands._declare import Call, Param, Verb

VERB = Verb(
    "spark",
    "Tell what Spark runs on here, and have it start sooner.",
    Param(
        "prepare",
        "--prepare",
        flag=True,
        help="Keep Spark's classes as Java has read them, in a file of 200 MiB.",
    ),
    text="What runs Spark on this machine starts in about half of the time from then on. It is done once"
    " for a Java and a PySpark, takes a minute or two, and is not done again while the file is there,"
    " which may be deleted at any time. Asks no server. Needs the extra pipeline."
    " JSON: spark, java, java_version, home, classes (the file, null if there is none), bytes.",
    examples=("agentbus spark", "agentbus spark --prepare"),
    local=True,
)


def run(call: Call) -> None:
    """Tell what is there, after what was asked for is made."""
    try:
        from agentbus.pipeline import classes, home, java
    except ImportError as error:
        raise _spark.missing(error) from None
    found = java.find()
    file = classes.place(found)
    if call.args.prepare and not file.exists():
        from agentbus.pipeline.preparing import prepare

        prepare(found)
    size = file.stat().st_size if file.exists() else 0
    call.out.record(
        {
            "spark": home.version(),
            "java": found.program,
            "java_version": found.version,
            "home": home.kept(),
            "classes": str(file) if size else None,
            "bytes": size,
        },
        f"Spark {home.version()} on Java {found.version} ({found.program}), starts from "
        + (f"{file} ({size >> 20} MiB)" if size else "nothing that was kept: see --prepare"),
    )
