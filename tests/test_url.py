"""The URLs of servers: each part is read as it was written, and no password is ever shown."""

from __future__ import annotations

import string
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given, strategies as st

from agentbus.errors import AgentBusError, ConfigError
from agentbus.store.schemes import backend
from agentbus.store.url import Url, read
from tests import profiles  # noqa: F401 (loads the profile)

text = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30)
hosts = st.lists(
    st.tuples(
        st.from_regex(r"[a-z0-9.-]{1,12}", fullmatch=True) | st.just("::1"),
        st.none() | st.integers(1, 65535),
    ),
    max_size=3,
)
SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster", "memory")


def written(host: str, port: int | None) -> str:
    return (f"[{host}]" if ":" in host else host) + ("" if port is None else f":{port}")


@given(
    scheme=st.sampled_from(SCHEMES),
    username=st.none() | text,
    password=st.none() | text,
    places=hosts,
    path=st.none() | text,
    options=st.lists(st.tuples(text, text), max_size=3),
)
def test_a_url_is_read_as_it_was_written(scheme, username, password, places, path, options):
    def safe(part: str | None) -> str:
        return quote(part or "", safe="")

    who = safe(username) + ("" if password is None else f":{safe(password)}")
    at = "@" if username or password is not None else ""
    tail = "" if path is None else f"/{safe(path)}"
    query = "&".join(f"{safe(key)}={safe(value)}" for key, value in options)
    url = f"{scheme}://{who}{at}{','.join(written(*p) for p in places)}{tail}"

    found = read(url + (f"?{query}" if query else ""))

    assert found == Url(
        scheme,
        username,
        password,
        tuple(places),
        "" if path is None else f"/{path}",
        tuple(options),
    )


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("redis://", ("redis", None, None, (), "", ())),
        ("REDIS://h", ("redis", None, None, (("h", None),), "", ())),
        ("redis://h:6380/2", ("redis", None, None, (("h", 6380),), "/2", ())),
        ("redis://:pw@h", ("redis", None, "pw", (("h", None),), "", ())),
        ("redis://:6380", ("redis", None, None, (("localhost", 6380),), "", ())),
        ("redis://:pw@:6380/1", ("redis", None, "pw", (("localhost", 6380),), "/1", ())),
        ("redis://u@h", ("redis", "u", None, (("h", None),), "", ())),
        ("redis://u:@h", ("redis", "u", "", (("h", None),), "", ())),
        ("redis://u:p%40%3A%2F@h", ("redis", "u", "p@:/", (("h", None),), "", ())),
        ("redis://u:p@q@h", ("redis", "u", "p@q", (("h", None),), "", ())),
        ("redis://[::1]:6380", ("redis", None, None, (("::1", 6380),), "", ())),
        ("unix:///tmp/a%20b.sock?db=1", ("unix", None, None, (), "/tmp/a b.sock", (("db", "1"),))),
        ("redis+sentinel://a:1,b:2/m/0", ("redis+sentinel", None, None, (("a", 1), ("b", 2)), "/m/0", ())),
    ],
)  # fmt: skip
def test_urls_and_their_parts(url, parts):
    assert read(url) == Url(*parts)


@pytest.mark.parametrize(
    "url",
    [
        *("", "x", "redis:", "redis:/h", "://h", "redis://h:0", "redis://h:65536", "redis://h:x"),
        *("redis://h:²", "redis://[::1", "redis://[::1]x", "redis://h/%", "redis://h/%g0"),
        *("redis://h/%ff", "redis://a b", "redis://h\n", "redis://h\x85", "redis://\udcff"),
        *("redis://%2", "redis://u:%@h", "redis://h:99999999999999999999"),
    ],
)
def test_urls_that_are_refused(url):
    with pytest.raises(ConfigError) as refused:
        read(url)
    assert refused.value.hint
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "url",
    [
        *("redis://h/x", "redis://h/-1", "redis://h?db=x", "redis://h?dbx=1", "redis://a,b"),
        *("unix://", "http://h", "x://h", "redis://h/1/2", "redis://h/9999999999"),
        *("redis+cluster://h/3", "redis+cluster://h/x", "redis+cluster://h?db=3"),
    ],
)
def test_urls_that_name_no_backend(url):
    with pytest.raises(AgentBusError) as refused:
        backend(url, "p")
    assert refused.value.exit_code == 2
    assert refused.value.hint


# Nothing else in these URLs contains any of these letters, so what shows them shows the password.
secret = st.text(st.sampled_from("ßØλЖ中字"), min_size=3, max_size=20)


@pytest.mark.parametrize(
    "place", ["credentials", "user", "token", "option", "option-upper", "pass"]
)
@given(password=secret, escaped=st.booleans(), host=st.sampled_from(["h", "h:1", "[::1]:2"]))
def test_a_masked_url_shows_no_password(place, password, escaped, host):
    shown = quote(password, safe="") if escaped else password
    url = {
        "credentials": f"redis://:{shown}@{host}/0",
        "user": f"redis://u:{shown}@{host}/0",
        "token": f"redis://{shown}@{host}/0",
        "option": f"redis+sentinel://{host}/m?sentinel_password={shown}",
        "option-upper": f"redis://{host}/0?Password={shown}",
        "pass": f"redis://{host}/0?pass={shown}",
    }[place]

    masked = read(url).masked()

    assert password not in masked
    assert quote(password, safe="") not in masked
    assert "***" in masked


@given(password=st.text(string.printable, min_size=4, max_size=30), escaped=st.booleans())
@example(password="@@@@", escaped=False)
@example(password="a/bc", escaped=False)
@example(password="a?bc", escaped=False)
@example(password="ab%c", escaped=False)
@example(password="a:b@c", escaped=False)
def test_no_error_about_a_url_shows_its_password(password, escaped):
    shown = quote(password, safe="") if escaped else password
    url = f"redis://user:{shown}@host:6379/0"
    # A password that is a piece of the rest of the URL, or of our words, proves nothing.
    harmless = f"{url.replace(shown, '')} redis://user:***@host:6379/0?db, options in the path of a"
    assume(password.strip() == password and password.lower() not in harmless.lower())
    try:
        found = backend(url, "p")
    except AgentBusError as error:
        said = f"{error} {error.hint}"
        assume(not any(password in word for word in _WORDS))
        assert password not in said
    else:
        assert password not in found.name


_WORDS = (
    "the server's URL contains a blank or a control character; percent-encode it, as in %20",
    "the server's URL has a '%' that is not followed by two hex digits; write it as %25",
    "the server's URL has an unfinished [address]; close it with ]",
    "several hosts need redis+cluster:// or redis+sentinel://",
)


@pytest.mark.parametrize("separator", ["/", "?", "#", ",", "[", "]", ":", " ", "%"])
@pytest.mark.parametrize("start", ["sesame", "12345", "sesame:6379"])
def test_no_part_of_a_password_that_was_not_encoded_is_shown(start, separator):
    url = f"redis://user:{start}{separator}rest-of-it@host:6379/0"
    try:
        said = backend(url, "p").name
    except AgentBusError as error:
        said = f"{error} {error.hint}"

    assert start not in said
    assert "rest-of-it" not in said


@pytest.mark.parametrize("password", ["hunter2", "12345678", "s3cret-and-long"])
@pytest.mark.parametrize("who", ["", "user"])
def test_a_password_without_an_at_is_not_shown(who, password):
    with pytest.raises(ConfigError) as refused:
        read(f"redis://{who}:{password}/0")

    assert password[:4] not in f"{refused.value} {refused.value.hint}"


def test_a_wrong_database_behind_a_sentinel_is_named_with_its_whole_url():
    with pytest.raises(ConfigError, match=r"redis\+sentinel://h:1/main/x names the database 'x'"):
        backend("redis+sentinel://h:1/main/x", "p")


@given(url=st.text(max_size=60) | st.from_regex(r"[a-z+]{3,8}://[^\s]{0,40}", fullmatch=True))
def test_any_text_is_a_url_or_is_refused_in_a_sentence(url):
    try:
        found = read(url)
    except ConfigError as refused:
        assert str(refused).isprintable()  # noqa: PT017
    else:
        assert found.scheme == url.partition("://")[0].lower()
