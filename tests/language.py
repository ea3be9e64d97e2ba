"""Phrases that the documentation and the product do not use, each with what to write instead."""

from __future__ import annotations

BANNED = {
    r"signs? of life": "heartbeat",
    r"\banew\b": "again, new",
    r"\bso many (?:seconds|times|tasks|hours|runs)\b": "a number, `n` seconds, that many",
    r"\b[Ww]hoever\b": "the agent, the process, anyone who",
    r"repetition changes nothing": "idempotent",
    r"\bbear(?:s)? (?:being|a second)\b": "be idempotent",
    r"\b(?:brought|brings|bring) (?:it|this one|them) about\b": "caused",
    r"\bnone of these\b": "a clause with a subject",
    r"\b(?:is|are|was|were|be|been|being|as|unless|so) told\b": "reported, notified, set",
    r"\btold (?:of|apart|so|otherwise|to the|by the|what)\b": "reported, distinguished",
    r"\bneed(?:s)? (?:not )?be told\b": "must be given",
    r"\b(?<![Tt]here )(?:is|are) no (?!(?:longer|more|less|such|need|one|matter|better)\b)[a-z]": "is not",
    r"\b[Hh](?:ave|as) (?:it|nothing(?: new)?|them|what \w+) (?:\w+ed|done|taken|run|made|sent)\b": "verb",
    r"\b[Ii]t be (?:said|noted|told)\b": "a plain sentence",
    r"\bfor ever\b": "forever",
    r"\bof (?:its|their|our) own\b": "its own …, a separate …",
}

# A docstring or comment begins with the subject of its main clause, or with an imperative. These words
# begin a clause without one, and so do participles; the others only look like participles.
OPENINGS = r"(?:What|Whatever|Whether|Which|Whichever|Who|Whose|Those|[A-Z][a-z]+(?:ing|ed))\b"
NO_PARTICIPLES = (
    *("Nothing", "Everything", "Something", "Anything", "During", "String", "Ping", "Logging"),
    *("Need", "Feed", "Embed", "Seed", "Proceed", "Exceed", "Indeed", "Red", "Routing"),
    # Before a noun they are adjectives.
    *("Buried", "Missed", "Redelivered"),
)
