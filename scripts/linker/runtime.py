"""The beginning of each linked module: how it and the modules that are not linked get on with each other.

A class that is linked exists once: when its own module is imported after all, that gets the linked one.
What was linked as a function that makes objects is a class there, and its objects ask that for the rest.
"""

from __future__ import annotations

import _imp
import builtins
import posix
import sys
from typing import Any

# Each class that is linked, and its own module. Filled in at the end of the linked module.
_CLASSES: dict[str, str] = {}
# The modules that are looked up by a word of the command line: of the verb, of clients.
_MODULES: dict[str, Any] = {}


def _late(module: str, name: str) -> Any:
    """Import what is not linked, where it is used."""
    return getattr(__import__(module, fromlist=(name,)), name)


def _module(name: str, **symbols: Any) -> Any:
    """Return a module of these symbols; what else it has is imported where it is used."""
    found = type(sys)(name)
    vars(found).update(symbols, __getattr__=lambda symbol: _late(name, symbol))
    return found


def _loaded(module: str, name: str) -> tuple[Any, ...]:
    """Return the type to test a value for; none while its module is not imported: then nothing is of it."""
    found = sys.modules.get(module)
    return () if found is None else (getattr(found, name),)


def _here(name: str) -> tuple[Any, ...]:
    """Return the linked class to test a value for; none while its part is not loaded: nothing is of it."""
    return (globals()[name],) if name in globals() else ()


def _rest(name: str) -> Any:
    """Return what stands for a function of a later part, and loads that when it is called."""

    def later(*args: Any, **kwargs: Any) -> Any:
        while globals().get(name, later) is later:
            _load_rest()
        return globals()[name](*args, **kwargs)

    return later


def _branch(number: int, *values: Any) -> Any:
    """Run a branch of a function that was moved to the last part."""
    return _of_rest(f"branch{number}")(*values)


def _of_rest(name: str) -> Any:
    """Return a class or a function of a later part."""
    while name not in globals():
        _load_rest()
    return globals()[name]


def _load_second() -> None:
    """Load the second part, unless it was: while the server answers."""
    if len(_WAITING) > 1:
        _load_rest()


def _load_rest() -> None:
    """Load the next part; what handles a signal meanwhile loads it anew if it needs it."""
    from _frozen_importlib_external import SourceFileLoader

    path, making = _WAITING[-1], builtins.__build_class__
    code: Any = SourceFileLoader("agentbus", path).get_code("agentbus")
    builtins.__build_class__ = _make
    try:
        exec(code, globals())
    finally:
        builtins.__build_class__ = making
    if path in _WAITING:
        _WAITING.remove(path)


def _complete(value: object, name: str) -> Any:
    """Return what the class of a value lacks: a method of a later part, or what no linked code uses."""
    if _WAITING:
        _load_rest()
        return getattr(value, name)
    for each in type(value).__mro__:
        if each.__module__ in _CLASSES.values():
            __import__(each.__module__)
    return object.__getattribute__(value, name)


def _object(kind: str, methods: dict[str, Any], values: dict[str, Any]) -> Any:
    """Return an object that has methods and no class: to make a class takes twice as long."""
    made: Any = type(sys)(kind)
    known = vars(made)
    known.update(values)
    for name, method in methods.items():
        known[name] = _bound(method, made)
    known["__getattr__"] = _bound(_lacking, made)
    return made


def _lacking(value: Any, name: str) -> Any:
    """Return what an object that has no class lacks: a method of a later part, or of its own class."""
    kind = value.__name__
    found = f"{kind}__{name}"
    while _WAITING and found not in globals():
        _load_rest()
    if found in globals():
        # A function that is compiled is no descriptor.
        symbol = globals()[found]
        return symbol.__get__(value) if hasattr(symbol, "__get__") else _bound(symbol, value)
    own = _late(_CLASSES[kind], kind)
    for of in own.__mro__:
        if name in vars(of):
            method = vars(of)[name]
            return method.__get__(value, own) if hasattr(method, "__get__") else method
    raise AttributeError(f"{kind} has no {name}")


def _class(make: Any, name: str, *bases: Any, **options: Any) -> Any:
    """Make a class, or complete the linked one of this name and module, and return that."""
    made = _make(make, name, *bases, **options)
    if _CLASSES.get(name) != made.__module__ or made.__qualname__ != name:
        return made
    while _WAITING:
        _load_rest()
    linked = globals()[name]
    if not isinstance(linked, type):
        return made
    # What it inherits, too, where the linked one has what was linked of that.
    given = made.__mro__[-2::-1] if linked.__bases__ == (object,) else (made,)
    for key, value in {key: value for of in given for key, value in vars(of).items()}.items():
        if key[:2] != "__" and key not in vars(linked):
            setattr(linked, key, value)
    return linked


def _find(name: str, path: Any = None, target: Any = None) -> Any:
    """Find a module that is installed, where Python was started without `site`, which knows the places.

    The package itself, which an error needs, is the one that this file is in.
    """
    if name == "agentbus":
        from _frozen_importlib_external import PathFinder

        return PathFinder.find_spec(name, [_FOLDER.rsplit("/", 2)[0]])
    import site

    sys.meta_path.remove(_finder)
    site.main()
    found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
    return next(filter(None, found), None)


def _extension(name: str) -> Any:
    """Load an extension of Python's own: `import` takes three times as long for one that is built in."""
    spec = _namespace(name=name, origin=None)
    if name in sys.builtin_module_names:
        made = _imp.create_builtin(spec)
        _imp.exec_builtin(made)
    else:
        # From the folder of them, without listing those before it.
        folder = next(filter(lambda place: place.endswith("lib-dynload"), sys.path), "")
        spec.origin = f"{folder}/{name}{_imp.extension_suffixes()[0]}"
        try:
            made = _imp.create_dynamic(spec)
        except ImportError:
            # It is elsewhere.
            return __import__(name)
        _imp.exec_dynamic(made)
    sys.modules[name] = made
    return made


def _sockets() -> Any:
    """Return what a compiled module has of `_socket`, which takes longer to load, or that."""
    if _FILE[-3:] == ".py":
        return _extension("_socket")
    made = _imp.create_dynamic(_namespace(name="unix_socket", origin=_FILE))
    _imp.exec_dynamic(made)
    return made


def _system() -> Any:
    """Return what linked code uses of `os` and `posix` has not: to import it takes a tenth of a verb.

    Of the environment, that is only `get`.
    """
    coding = sys.getfilesystemencoding()
    known = sys.modules.get("os")
    # Where `site` ran, it may have run what sets variables.
    environment = posix.environ if known is None else known.environ._data

    def get(name: str, default: str | None = None) -> str | None:
        value = environment.get(name.encode())
        return default if value is None else value.decode(coding, "surrogateescape")

    def join(path: str, *parts: str) -> str:
        for part in parts:
            if part[:1] == "/" or not path:
                path = part
            else:
                path += part if path[-1] == "/" else f"/{part}"
        return path

    def dirname(path: str) -> str:
        head = path[: path.rfind("/") + 1]
        return head.rstrip("/") or head

    def lexists(path: str) -> bool:
        try:
            posix.lstat(path)
        except (OSError, ValueError):
            return False
        return True

    def isdir(path: str) -> bool:
        try:
            return bool(stat.S_ISDIR(posix.stat(path).st_mode))
        except (OSError, ValueError):
            return False

    found, path = type(sys)("os"), type(sys)("posixpath")
    vars(found).update(
        environ=_namespace(get=get),
        devnull="/dev/null",
        fsencode=lambda name: name.encode(coding, sys.getfilesystemencodeerrors()),
        path=path,
        __getattr__=lambda name: getattr(__import__("os"), name),
    )
    vars(path).update(
        join=join,
        dirname=dirname,
        isdir=isdir,
        lexists=lexists,
        isabs=lambda name: name[:1] == "/",
        normpath=lambda name: posix._path_normpath(name) or ".",  # type: ignore[attr-defined]
        __getattr__=lambda name: getattr(__import__("os").path, name),
    )
    return found


# The path of the linked module: in a compiled one, its `__file__` (see compile.py).
_FILE: str = _load_rest.__code__.co_filename
_FOLDER, _, _name = _FILE.rpartition("/")
# What has attributes, and needs no class.
_namespace: Any = type(sys.implementation)
# A method of an object: `types` would have to be imported.
_bound: Any = type(sys.modules["_frozen_importlib"].BuiltinImporter.find_spec)
# Nothing that a quick verb makes is garbage.
gc: Any = sys.modules.get("gc") or _extension("gc")
gc.disable()
if sys.flags.no_site:
    # Python's own option, and the path of this file.
    del sys.argv[:2]
elif "searched" not in globals() and not sys.path[3].endswith("/lib-dynload"):
    # The second command took the fifth place on the path for this package's: others come before it.
    raise ImportError(f"{sys.path[4]} may not be the first place of the package agentbus")
# The paths of the parts that are not loaded, the next one at the end.
_WAITING: list[str] = [
    f"{_FOLDER}/{_name.partition('.')[0]}_{part}.py" for part in ("rare", "after")
]
_make: Any = builtins.__build_class__
_finder: Any = _namespace(find_spec=_find)
if sys.flags.no_site:
    sys.meta_path.append(_finder)
stat: Any = sys.modules.get("_stat") or _extension("_stat")
os: Any = _system()
_socket: Any = sys.modules.get("_socket") or _sockets()
