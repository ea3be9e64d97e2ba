"""Flags against a model: one holder, tokens that only grow, completions that are consumed once."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, multiple, precondition, rule

from agentbus import FlagFailed, FlagHeld, NotHolder, TimedOut
from tests.machines.base import Machine, refused

FLAGS = ("build", "deploy")
# Most of what is done concerns one flag and two agents, so that they meet.
flags = st.sampled_from(["build", "build", "build", "deploy"])
agents = st.sampled_from(["ada", "ada", "bob", "bob", "cyd"])
some_flags = st.lists(st.sampled_from(FLAGS), min_size=1, max_size=2, unique=True)
ttls = st.sampled_from([None, 600.0])
STATES = {"satisfy": "satisfied", "fail": "failed", "release": "released"}
SPAN = 0.001


class Held(NamedTuple):
    """Who holds a flag in the model, by which token, and whether that ends by itself."""

    agent: str
    token: int
    ends: bool


class FlagMachine(Machine):
    """Three agents announce, renew, satisfy, fail, release and await two flags."""

    holds: Bundle[Any] = Bundle("holds")

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, Held] = {}
        self.done: dict[str, tuple[str, str | None]] = {}
        self.failed: dict[str, tuple[str, str | None]] = {}
        self.last_token = dict.fromkeys(FLAGS, 0)

    @initialize(target=holds, agent=agents, ttl=ttls)
    def somebody_holds_a_flag(self, agent: str, ttl: float | None) -> Any:
        return self.announce(agent, "build", ttl, force=False)

    def _new_token(self, flag: str, token: int | None) -> int:
        assert token is not None
        assert token > self.last_token[flag], "a fencing token did not grow"
        self.last_token[flag] = token
        return token

    @rule(target=holds, agent=agents, flag=flags, ttl=ttls, force=st.booleans())
    def announce(self, agent: str, flag: str, ttl: float | None, force: bool) -> Any:
        held = self.held.get(flag)
        if held and held.agent != agent and not force:
            with refused(FlagHeld):
                self.bus(agent).announce(flag, ttl=ttl)
            return multiple()
        hold = self.bus(agent).announce(flag, ttl=ttl, force=force)
        assert (hold.flag, hold.agent_id) == (flag, agent)
        if held and held.agent == agent:
            assert hold.renewed
            assert hold.token == held.token
            self._renewed(flag, held, ttl)
        else:
            assert not hold.renewed
            token = self._new_token(flag, hold.token)
            forced = {"forced_from": held.agent} if held else {}
            self.expect_event(agent, "announced", flag=flag, token=str(token), **forced)
            self.held[flag] = Held(agent, token, ttl is not None)
            self.done.pop(flag, None)
            self.failed.pop(flag, None)
        assert (hold.ttl is not None) == self.held[flag].ends
        return hold

    def _renewed(self, flag: str, held: Held, ttl: float | None) -> None:
        if ttl is not None and not held.ends:
            self.expect_event(held.agent, "renewed", flag=flag)
            self.held[flag] = held._replace(ends=True)

    @rule(hold=holds)
    def renew(self, hold: Any) -> None:
        held = self.held.get(hold.flag)
        if held and (held.agent, held.token) == (hold.agent_id, hold.token):
            assert hold.renew(600).token == hold.token
            self._renewed(hold.flag, held, 600)
        else:
            with refused(NotHolder):
                hold.renew(600)

    @precondition(lambda self: self.held)
    @rule(agent=agents, flag=flags)
    def hold(self, agent: str, flag: str) -> None:
        if flag in self.held:
            with refused(FlagHeld):
                self.bus(agent).announce(flag, renew=False)

    @rule(
        agent=agents,
        flag=flags,
        force=st.booleans(),
        how=st.sampled_from(["satisfy", "satisfy", "fail"]),
        note=st.sampled_from([None, "42 tests"]),
    )
    def end(self, agent: str, flag: str, force: bool, how: str, note: str | None) -> None:
        held = self.held.get(flag)
        verb = getattr(self.bus(agent), how)
        if held and held.agent != agent and not force:
            with refused(NotHolder):
                verb(flag, note=note)
            return
        state = verb(flag, force=force, note=note)
        assert (state.flag, state.state, state.agent_id) == (flag, STATES[how], agent)
        if not held:
            self._new_token(flag, state.token)
        self._ended(agent, flag, STATES[how], state.token, note)

    @precondition(lambda self: self.held)
    @rule(agent=agents, flag=flags, force=st.booleans())
    def release(self, agent: str, flag: str, force: bool) -> None:
        held = self.held.get(flag)
        if not held or (held.agent != agent and not force):
            with refused(NotHolder):
                self.bus(agent).release(flag, force=force)
            return
        state = self.bus(agent).release(flag, force=force)
        self._ended(agent, flag, "released", state.token, None)

    @rule(hold=holds, how=st.sampled_from(list(STATES)))
    def end_by_token(self, hold: Any, how: str) -> None:
        end = getattr(self.bus(hold.agent_id), how)
        held = self.held.get(hold.flag)
        if held and (held.agent, held.token) == (hold.agent_id, hold.token):
            end(hold.flag, token=hold.token)
            self._ended(hold.agent_id, hold.flag, STATES[how], hold.token, None)
        else:
            with refused(NotHolder):
                end(hold.flag, token=hold.token)

    def _ended(self, agent: str, flag: str, how: str, token: int | None, note: str | None) -> None:
        held = self.held.pop(flag, None)
        assert token == self.last_token[flag]
        assert held is None or held.token == token
        said = {} if note is None else {"note": note}
        self.expect_event(agent, how, flag=flag, token=str(token), **said)
        if how != "released":
            here, there = self.done, self.failed
            if how == "failed":
                here, there = there, here
            here[flag] = agent, note
            there.pop(flag, None)

    @precondition(lambda self: any(held.ends for held in self.held.values()))
    @rule()
    def the_holds_expire(self) -> None:
        for flag in [flag for flag, held in self.held.items() if held.ends]:
            self.expire(self.keys.flag(flag))
            del self.held[flag]

    @precondition(lambda self: self.done or self.failed)
    @rule(flag=flags)
    def an_outcome_expires(self, flag: str) -> None:
        if self.done.pop(flag, None):
            self.expire(self.keys.done(flag))
        if self.failed.pop(flag, None):
            self.expire(self.keys.failed(flag))

    @rule(
        agent=agents,
        wanted=some_flags,
        until=st.sampled_from(["satisfied", "announced", "free"]),
        any_=st.booleans(),
        ignore=st.booleans(),
    )
    def await_(self, agent: str, wanted: list[str], until: str, any_: bool, ignore: bool) -> None:
        met = [flag for flag in wanted if self._is(flag, until)]
        wait = {"until": until, "any": any_, "timeout": SPAN, "ignore_failures": ignore}
        if until == "satisfied" and not ignore and self._cannot_succeed(wanted, any_):
            with refused(FlagFailed):
                self.bus(agent).await_(*wanted, **wait)
        elif len(met) == len(wanted) or (any_ and met):
            found = self.bus(agent).await_(*wanted, **wait)
            assert [(one.flag, one.state) for one in found] == [(flag, until) for flag in met]
            if until == "satisfied":
                assert [(one.by, one.note) for one in found] == [self.done[flag] for flag in met]
        else:
            with refused(TimedOut):
                self.bus(agent).await_(*wanted, **wait)

    def _is(self, flag: str, state: str) -> bool:
        if state == "announced":
            return flag in self.held
        return flag not in self.held and (state == "free" or flag in self.done)

    def _cannot_succeed(self, wanted: list[str], any_: bool) -> bool:
        return (all if any_ else any)(flag in self.failed for flag in wanted)

    @precondition(lambda self: self.done or self.failed)
    @rule(agent=agents, wanted=some_flags, any_=st.booleans())
    def consume(self, agent: str, wanted: list[str], any_: bool) -> None:
        met = [flag for flag in wanted if flag in self.done]
        wait = {"any": any_, "timeout": SPAN, "delete": True}
        if self._cannot_succeed(wanted, any_):
            with refused(FlagFailed):
                self.bus(agent).await_(*wanted, **wait)
            for flag in wanted if any_ else [flag for flag in wanted if flag in self.failed][:1]:
                del self.failed[flag]
        elif len(met) == len(wanted) or (any_ and met):
            found = self.bus(agent).await_(*wanted, **wait)
            gone = [one.flag for one in found]
            assert gone == (met[:1] if any_ else met)
            assert [(one.by, one.note) for one in found] == [self.done.pop(flag) for flag in gone]
        else:
            with refused(TimedOut):
                self.bus(agent).await_(*wanted, **wait)

    @precondition(lambda self: self.done or self.failed)
    @rule(agent=agents, flag=flags)
    def an_outcome_from_before_is_not_fresh(self, agent: str, flag: str) -> None:
        with refused(TimedOut):
            self.bus(agent).await_(flag, fresh=True, timeout=SPAN)

    @invariant()
    def the_states_are_the_models(self) -> None:
        found = {
            one.flag: (one.state, one.agent_id, one.token, one.note, one.ttl is not None)
            for one in self.bus().flags()
        }
        assert found == {
            **{
                flag: ("satisfied", agent, self.last_token[flag], note, False)
                for flag, (agent, note) in self.done.items()
            },
            **{
                flag: ("failed", agent, self.last_token[flag], note, False)
                for flag, (agent, note) in self.failed.items()
            },
            **{
                flag: ("held", held.agent, held.token, None, held.ends)
                for flag, held in self.held.items()
            },
        }

    @invariant()
    def the_channel_says_what_happened(self) -> None:
        self.check_events()
