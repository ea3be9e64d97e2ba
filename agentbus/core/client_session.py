"""The session of a coding agent's client that runs this process, and the name derived from its id.

A client names its session in a variable, or its hook writes a file for the client's process. Processes
below that one find the file by walking up their parents.
"""

from __future__ import annotations

import os

from agentbus.core.names import MAX_NAME_BYTES, SESSION_VARIABLES, is_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PRIME = 0x9E3779B97F4A7BB9
# Leave out l, 1, o and 0, which are easily confused.
_LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_LONGEST_CLIENT, _LONGEST_ID = 16, 200
# Seconds after which the record of a subagent is removed; its next hook writes it again.
_CHILD_KEPT = 86_400
# The same for the name of a session that has replaced another one.
_NAME_KEPT = 90 * 86_400
# Characters of a subagent's short name.
_PART = 6
# Limit on the number of ancestor processes to examine.
_HIGHEST = 64
_SHELLS = frozenset(
    ("sh", "bash", "dash", "zsh", "fish", "ksh", "ash", "busybox", "env", "timeout")
)


class ClientSession:
    """A session: its client, its id, its agent's name, the source of this information, and its process."""

    __slots__ = ("agent", "client", "id", "pid", "source")

    def __init__(self, client: str, id: str, agent: str, source: str, pid: int | None) -> None:
        self.client = client
        self.id = id
        self.agent = agent
        self.source = source
        self.pid = pid


def name(client: str, session: str) -> str:
    """Return the name of a client's session, `<client>-<word>-<3 letters>`, derived from its id.

    Raises `ValueError` for an unknown client, or an invalid id.
    """
    if not client or len(client) > _LONGEST_CLIENT or not _PLAIN.issuperset(client):
        raise ValueError(f"{client!r} is not the name of a client")
    if not is_id(session):
        raise ValueError(f"{session[:60]!r} is not the id of a session")
    word = WORDS.split()[_number(session) >> 15 & 511]
    return f"{client}-{word}-{_letters(session, 3)}"


def _number(text: str) -> int:
    # This is faster than importing hashlib, and spreads ids that differ in few places as evenly.
    return pow(int.from_bytes(text.encode("utf-8", "replace"), "big"), 3, _PRIME) >> 8


def _letters(text: str, many: int) -> str:
    number = _number(text)
    return "".join([_LETTERS[number >> 5 * at & 31] for at in range(many)])


def client_of(agent: str) -> str:
    """Return the client by whose session's id an agent is named, '' for another name."""
    client, _, rest = agent.partition("-")
    word, _, letters = rest.partition("-")
    named = client in SESSION_VARIABLES.values() and len(letters) == 3
    return client if named and word in WORDS.split() else ""


def is_id(session: str) -> bool:
    """Return whether a text may be a session id: printable ASCII without spaces."""
    return 0 < len(session) <= _LONGEST_ID and all("!" <= c <= "~" for c in session)


def part(agent_id: str) -> str:
    """Return the short form of a subagent's id, by which leases and messages name it."""
    # An id that begins with a time, or with a word, differs from others only at its end.
    random = "-" not in agent_id or agent_id[14:15] == "4"
    short = agent_id[:_PART] if random else agent_id[-_PART:]
    return short if is_plain(short) else _letters(agent_id, _PART)


def folder_in(state: str) -> str:
    """Return the directory of the client process files, which may not exist."""
    return os.path.join(state, "sessions")


def find(environment: Mapping[str, str], folder: str) -> ClientSession | None:
    """Return the session that this process belongs to; `folder` holds the client process files.

    If variables name several sessions, because one client runs another, the nearest client's session
    counts.
    """
    above = of_ancestor(folder)
    named = [
        (client, parent_of(folder, client, session) or session, variable)
        for variable, client in SESSION_VARIABLES.items()
        if (session := environment.get(variable)) and is_id(session)
    ]
    if not named:
        return above
    for client, session, variable in named:
        # A server of tools keeps its variables when the client goes on with another session.
        if above is not None and (
            above.id == session or above.agent == agent_of(folder, client, session)
        ):
            return ClientSession(client, above.id, above.agent, variable, above.pid)
    client, session, variable = named[0]
    return ClientSession(client, session, agent_of(folder, client, session), variable, None)


# -- the files of sessions that have the name of an earlier one, and of subagents with another id --


def agent_of(folder: str, client: str, session: str) -> str:
    """Return the agent of a session: the one of the session that it has replaced, or its own name."""
    own = name(client, session)
    return _recorded(_file(folder, "as", client, session)) or own


def of_process(folder: str, client: str) -> str | None:
    """Return the agent of the session that the client's process has had last."""
    pid = client_process()
    began = None if pid is None else start_of(pid)
    before = None if pid is None or began is None else read(folder, pid, began)
    return before.agent if before is not None and before.client == client else None


def keep_name(folder: str, client: str, session: str, agent: str) -> None:
    """Record the agent of a session that has replaced another one. Raises `OSError`."""
    if agent_of(folder, client, session) != agent:
        _record(_file(folder, "as", client, session), agent)


def write_child(folder: str, client: str, child: str, parent: str) -> None:
    """Record the session that a subagent belongs to. Raises `OSError`."""
    path = _file(folder, "sub", client, child)
    if not os.path.lexists(path) and child != parent:
        _record(path, parent)


def _record(path: str, text: str) -> None:
    from agentbus.core.settings_check import make_private

    folder = os.path.dirname(path)
    make_private(folder)
    for each in os.listdir(folder):
        # No hook has seen the end of the subagent, or the session was not resumed for long.
        kept = {"sub": _CHILD_KEPT, "call": _CHILD_KEPT, "as": _NAME_KEPT}.get(
            each.partition("-")[0]
        )
        if kept is not None and _is_old(os.path.join(folder, each), kept):
            _unlink(os.path.join(folder, each))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    beside = f"{path}.{os.getpid()}"
    descriptor = os.open(beside, flags, 0o600)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
    os.replace(beside, path)


def remove_child(folder: str, client: str, child: str) -> None:
    """Remove the record of a subagent that has ended."""
    _unlink(_file(folder, "sub", client, child))


def parent_of(folder: str, client: str, child: str) -> str | None:
    """Return the session that a subagent belongs to; None for the id of a session."""
    parent = _recorded(_file(folder, "sub", client, child))
    return parent if is_id(parent) else None


def _recorded(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(MAX_NAME_BYTES).decode()
    except (OSError, ValueError):
        return ""


def subagent(environment: Mapping[str, str], folder: str) -> str:
    """Return the subagent whose id a client gave to this process in place of a session's, '' if none."""
    for variable, client in SESSION_VARIABLES.items():
        child = environment.get(variable)
        if child and is_id(child) and parent_of(folder, client, child) is not None:
            return part(child)
    # Gemini CLI names no session in its shells.
    above = of_ancestor(folder) if environment.get("GEMINI_CLI") else None
    return "" if above is None else called(folder, above.client, above.id)


# -- the files of the calls of a tool that runs a subagent: a line for each, all with one short name --


def begin_call(folder: str, client: str, session: str) -> None:
    """Record a call, for which hooks will not name the subagent. Raises `OSError`."""
    calls = _recorded(_file(folder, "call", client, session)).split()
    short = calls[0] if calls else os.urandom(_PART // 2).hex()
    _record(_file(folder, "call", client, session), "\n".join([*calls, short]))


def end_call(folder: str, client: str, session: str) -> str:
    """Record the end of a call; return the short name with the last one, else ''. Raises `OSError`."""
    path = _file(folder, "call", client, session)
    calls = _recorded(path).split()
    if len(calls) > 1:
        _record(path, "\n".join(calls[1:]))
        return ""
    _unlink(path)
    return calls[0] if calls else ""


def end_calls(folder: str, client: str, session: str) -> None:
    """Remove the record of calls: a turn begins or ends, so none is left."""
    _unlink(_file(folder, "call", client, session))


def called(folder: str, client: str, session: str) -> str:
    """Return the short name of the subagent that acts while a call runs, '' if there is none."""
    short = _recorded(_file(folder, "call", client, session)).partition("\n")[0]
    return short if is_plain(short) else ""


def _file(folder: str, kind: str, client: str, id: str) -> str:
    safe = "".join([c if c.isalnum() else "-" for c in id])[-100:]
    return os.path.join(folder, f"{kind}-{client}-{safe}")


def _is_old(path: str, kept: float) -> bool:
    import time

    try:
        return time.time() - os.stat(path).st_mtime > kept
    except OSError:
        return False


# -- the files of the clients' processes --


def of_ancestor(folder: str) -> ClientSession | None:
    """Return the session of the nearest ancestor with a file, alive since the file was written."""
    try:
        written = set(os.listdir(folder))
    except OSError:
        return None
    if written:
        for pid, began in ancestors():
            if str(pid) in written:
                session = read(folder, pid, began)
                if session is not None:
                    return session
    return None


def write(folder: str, client: str, session: str, agent: str, pid: int | None = None) -> int | None:
    """Write the file of a client's process, by default the one above this process's shells; return its id.

    Returns None if there is no such process. Files of processes that have ended are removed. Raises
    `OSError`.
    """
    from agentbus.core.settings_check import make_private

    pid = client_process() if pid is None else pid
    began = None if pid is None else start_of(pid)
    if pid is None or began is None:
        return None
    make_private(folder)
    prune(folder)
    path = os.path.join(folder, str(pid))
    beside = f"{path}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(beside, flags, 0o600)
    try:
        os.write(descriptor, "\n".join((began, client, session, agent, "")).encode())
    finally:
        os.close(descriptor)
    os.replace(beside, path)
    return pid


def read(folder: str, pid: int, began: str) -> ClientSession | None:
    """Return the session in a process's file; None if an earlier process with this id wrote it."""
    try:
        with open(os.path.join(folder, str(pid)), "rb") as file:
            parts = file.read(4096).decode().split("\n")
    except (OSError, ValueError):
        return None
    if len(parts) != 5 or parts[0] != began or not is_id(parts[2]):
        return None
    _, client, session, agent, _ = parts
    return ClientSession(client, session, agent, "ancestor", pid)


def remove(folder: str, session: str) -> None:
    """Remove the files of a session that has ended."""
    for running in live(folder):
        if running.id == session:
            _unlink(os.path.join(folder, str(running.pid)))


def live(folder: str) -> list[ClientSession]:
    """Return the sessions whose client process has a file and is alive."""
    return [session for _, session in _files(folder) if session is not None]


def prune(folder: str) -> None:
    """Remove the files of processes that have ended."""
    for path, session in _files(folder):
        if session is None:
            _unlink(path)


def _files(folder: str) -> Iterator[tuple[str, ClientSession | None]]:
    try:
        written = os.listdir(folder)
    except OSError:
        return
    for each in written:
        # Temporary files, which are still being written, have a dot in their names.
        if each.isascii() and each.isdigit():
            began = start_of(int(each))
            session = None if began is None else read(folder, int(each), began)
            yield os.path.join(folder, each), session


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


# -- processes --


def process_name(pid: int | None) -> str:
    """Return `host boot-id pid-namespace pid start-time` of a process, unique; '' if it cannot be read."""
    began = None if pid is None else start_of(pid)
    return "" if began is None else f"{_place()} {pid} {began}"


def has_ended(process: str) -> bool:
    """Tell whether a process has certainly ended, by its name from `process_name`.

    It is not certain on another host, after another boot, and in another namespace: a host may share its
    name with another one.
    """
    place, pid, began = _place(), "", ""
    if process.startswith(f"{place} "):
        pid, _, began = process[len(place) + 1 :].partition(" ")
    if not (began and pid.isascii() and pid.isdigit()):
        return False
    status = _stat(int(pid))
    if status is not None:
        return status[1] != began
    from agentbus.core.running import runs

    # Other users' processes may be hidden.
    return not runs(int(pid))


def _place() -> str:
    """Return the host, its boot and the namespace of this process's children, `-` where unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb", buffering=0) as file:
            boot = file.read(64).decode().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except (OSError, ValueError):
        boot = namespace = "-"
    return f"{os.uname().nodename} {boot} {namespace}"


def client_process() -> int | None:
    """Return the nearest ancestor process that is not a shell: the client that started this process."""
    for pid, _ in ancestors():
        if command(pid) not in _SHELLS:
            return pid
    return None


def ancestors() -> Iterator[tuple[int, str]]:
    """Yield the ancestors of this process, the nearest first, each with its start time."""
    pid = os.getppid()
    for _ in range(_HIGHEST):
        # A client may be the first process of a container.
        if pid < 1:
            return
        status = _stat(pid)
        if status is None:
            return
        above, began = status
        yield pid, began
        pid = above


def start_of(pid: int) -> str | None:
    """Return a process's start time, as text unique among processes with its id; None if it has ended."""
    status = _stat(pid)
    return None if status is None else status[1] or None


def _stat(pid: int) -> tuple[int, str] | None:
    """Return a process's parent and start time, '' for one that has ended and was not waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            # The process name in parentheses may itself contain spaces and parentheses.
            parts = file.read().rpartition(b")")[2].split()
        return int(parts[1]), "" if parts[0] in (b"Z", b"X") else parts[19].decode()
    except FileNotFoundError:
        return None if os.path.isdir("/proc/self") else _asked(pid)
    except (OSError, ValueError, LookupError):
        return None


def _asked(pid: int) -> tuple[int, str] | None:
    """Return a process's parent and start time on systems without /proc."""
    import subprocess

    command = ["ps", "-o", "ppid=,lstart=", "-p", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    above, _, began = done.stdout.strip().partition(" ")
    return (int(above), " ".join(began.split())) if above.isdigit() else None


def command(pid: int) -> str:
    """Return the name of a process's program, '' if it is not known."""
    try:
        with open(f"/proc/{pid}/comm", "rb", buffering=0) as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        pass
    import subprocess

    command = ["ps", "-o", "comm=", "-p", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return os.path.basename(done.stdout.strip()).lstrip("-")


# The 512 words used in session names. A session's number selects its word by position: never
# reorder.
WORDS = """
acorn adder agate alder almond alpaca amber anchor ant antler anvil apple apricot arch arrow ash
aspen atlas attic auk avocado awning axle badge badger bagel balloon bamboo banana banjo barge
barley barn barrel basil basin basket bat bay beacon beagle bean bear beaver bee beech beet beetle
bell bench birch bison blanket boar boat bobcat bonnet book boot bottle bow bowl bramble bream brick
bridge brook broom buck bucket buckle bud bull button cabin cable cactus cake camel canal canary
candle canoe canvas canyon cape carp carpet carrot cart castle cat cave cedar celery cello chalk
cherry chest chive cicada civet clam cliff cloak clock cloud clove clover coal coast cobalt cobra
cocoa cod coin collie colt comb comet compass condor copper coral corgi corn cottage cotton cove cow
coyote crab crane crater creek cress cricket crow crown crystal cub cumin cup curlew currant curtain
cypress dace dahlia daisy date dawn deer delta desert desk diamond dill dingo dodo dog dolphin dome
donkey door dove drake drum duck dune dusk eagle easel eel egret eider elder elk elm ember emerald
emu endive ermine ewe falcon fawn fennel fern ferret fig finch fir fjord flame flax flint flute fly
foal fog forest forge fox frog frost galaxy garden garlic garnet gate gecko gerbil geyser gibbon
ginger giraffe glacier glade glove gnat gnu goat gold goose gopher gorse granite grape grass gravel
grouse grove gulf gull guppy hammer hamster harbor hare harp hat hawk hazel heath heather hen heron
hickory hill hippo holly honey hops hornet horse hound husky hyena ibex ibis iguana impala island
ivory ivy jackal jacket jade jaguar jar jasmine jay jetty jewel juniper kale kelp kestrel kettle
kite kitten kiwi koala krill ladder lagoon lake lamb lamp lantern larch lark laurel ledge lemon
lemur lens lentil leopard lettuce lilac lily lime linden linen linnet lion lizard llama lobster
locust loom loon lotus lynx lyre macaw magpie maize mallard mango mantis maple marble marlin marsh
marten martin meadow melon meteor mill mink minnow mint mirror mist mole monkey moon moose mosaic
moss moth mouse mule mussel myrtle nest nettle newt nutmeg oak oasis oat ocean ocelot octopus okapi
olive onion opal orange orbit orca orchid oregano oriole osprey ostrich otter owl ox oyster paddle
pagoda palm panda pansy panther papaya paper parrot parsley pea peach peanut pear pebble pecan
penguin peony pepper perch pewter piano pigeon pike pillow pine plover plum pond pony poodle poplar
poppy porch potato prawn puffin puma pumpkin puppy quail quarry quartz quill quince rabbit raccoon
radish raft rain ram raven ray reed rhubarb rice robin rook rose rowan rye saffron sage salmon
sardine savory seal sedge sesame shark sheep shrew shrimp skate skunk sloth snail snake snipe sole
sorrel sparrow spider spinach sponge spruce squash squid stag stoat stork sumac swallow swan swift
tansy tapir teal tern terrier thistle thrush thyme tiger toad tomato toucan trout tulip tuna turkey
turnip turtle vanilla vetch vine violet viper vole vulture walnut walrus warbler wasp weasel weevil
whale wheat willow wolf wombat wren yak yarrow yew yucca zebra
"""
