"""How many examples the property tests try: HYPOTHESIS_PROFILE is `ci` (the default) or `nightly`.

`scripts/test nightly` sets it. By hand:
`HYPOTHESIS_PROFILE=nightly .venv/bin/python -m pytest tests/test_names.py -o timeout=0`.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

_ALWAYS = {
    "deadline": None,
    "print_blob": True,
    # Examples that take a server along are slow to make, which is no fault of theirs.
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much],
}
# The same examples on every run: a merge is never stopped by a find that it did not cause.
settings.register_profile("ci", max_examples=40, derandomize=True, database=None, **_ALWAYS)
settings.register_profile("nightly", max_examples=2_000, **_ALWAYS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "ci")
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def times(factor: float) -> settings:
    """Return settings with so many times the profile's examples."""
    return settings(max_examples=max(10, round(settings.default.max_examples * factor)))


# To explain a find takes longer than to make it small, and says little of a machine.
_PHASES = tuple(phase for phase in Phase if phase is not Phase.explain)


def runs() -> settings:
    """Return settings for state machines: 12 runs in CI, 200 at night."""
    return settings(
        max_examples=200 if NIGHTLY else 12,
        stateful_step_count=50 if NIGHTLY else 30,
        phases=_PHASES,
    )


def few() -> settings:
    """Return settings for what is dear and comes in dozens: 8 examples in CI, 200 at night."""
    return settings(max_examples=200 if NIGHTLY else 8)


def share(nightly_examples: int) -> settings:
    """Return settings for a part of the 10,000 examples of forgeries at night; 6 in CI."""
    return settings(max_examples=nightly_examples if NIGHTLY else 6, phases=_PHASES)
