"""The full parser of command lines, made with click: help, completion, and messages for mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from agentbus.commands._declare import GLOBAL, GROUPS, VERBS, Param, Verb, module
from agentbus.commands._errors import tell
from agentbus.commands._output import to_stderr
from agentbus.core.errors import EXIT_CODES, UsageError

_INTERRUPTED = 130


def read(argv: Sequence[str], *, json: bool) -> int | tuple[Verb, dict[str, Any], Any]:
    """Return the call that a command line describes, or the exit code if click has handled it."""
    try:
        found = root().main(
            list(argv),
            prog_name="agentbus",
            complete_var="_AGENTBUS_COMPLETE",
            standalone_mode=False,
        )
    except click.ClickException as error:
        return _mistake(error, json)
    except click.exceptions.Exit as end:
        return end.exit_code
    except SystemExit as end:
        # Completion exits this way even without standalone mode.
        return end.code if isinstance(end.code, int) else 1
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    return found if isinstance(found, tuple) else int(found or 0)


def root() -> click.Group:
    """Return the group of all verbs; each is imported when it is needed."""
    version = click.Option(
        ["--version"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=_show_version,
        help="Show the version and exit.",
    )
    return _Verbs(
        name="agentbus",
        params=[*(_option(param) for param in GLOBAL), version],
        help="Coordination bus and task queue for agents, scripts and CI, on Redis streams.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return _command(name) if name in VERBS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            import difflib

            close = difflib.get_close_matches(name, VERBS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see 'agentbus --help'"
            raise click.UsageError(f"there is no verb {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name, module(name).VERB.summary) for name in names])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])


class _Command(click.Command):
    examples: Sequence[str] = ()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class _Type(click.ParamType[Any]):
    """Converts a parameter exactly as the fast parser does."""

    def __init__(self, param: Param) -> None:
        self.param = param
        self.name = param.metavar or "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.param.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return [
            click.shell_completion.CompletionItem(choice)
            for choice in self.param.choices
            if choice.startswith(incomplete)
        ]


def _command(name: str) -> click.Command:
    loaded = module(name)
    verb: Verb = loaded.VERB

    def callback(**given: Any) -> tuple[Verb, dict[str, Any], Any]:
        above = click.get_current_context().parent
        values = dict(above.params) if above is not None else {}
        for param in (*GLOBAL, *verb.params):
            value = given[param.dest]
            if param.many:
                values[param.dest] = list(value)
            elif param in verb.params or value not in (None, False):
                values[param.dest] = value
        return verb, values, loaded

    command = _Command(
        name,
        callback=callback,
        help=f"{verb.summary}\n\n{verb.text}",
        short_help=verb.summary,
        params=[_parameter(param) for param in verb.params] + [_option(p) for p in GLOBAL],
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    command.examples = verb.examples
    return command


def _parameter(param: Param) -> click.Parameter:
    if param.names:
        return _option(param)
    metavar = param.metavar or param.dest.upper()
    return click.Argument(
        [param.dest],
        type=_Type(param),
        nargs=-1 if param.many else 1,
        metavar=metavar if param.required else f"[{metavar}]",
        **_presence(param),
    )


def _option(param: Param) -> click.Option:
    names = [param.dest, *param.names]
    if param.flag:
        return click.Option(names, is_flag=True, default=False, help=param.help)
    return click.Option(
        names,
        type=_Type(param),
        multiple=param.many,
        metavar="|".join(param.choices) or param.metavar,
        help=param.help,
        **_presence(param),
    )


def _presence(param: Param) -> dict[str, Any]:
    # With a default, even None, click would not report that a required parameter is missing.
    if param.required:
        return {"required": True}
    return {"required": False, "default": None if param.many else param.default}


def _mistake(error: click.ClickException, json: bool) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        to_stderr(f"{error.format_message()}\n")
        return UsageError.exit_code
    message = error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "agentbus"
    mistake = UsageError(message[:1].lower() + message[1:], hint=f"see '{path} --help'")
    tell(mistake, json=json)
    return mistake.exit_code


def _show_version(ctx: click.Context, _param: click.Parameter, wished: bool) -> None:
    if wished and not ctx.resilient_parsing:
        from agentbus.core.version import __version__

        click.echo(f"agentbus {__version__}")
        ctx.exit()
