"""The full parser of command lines, made with click: help, completion, and usage errors."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import click

from agentbus.commands._bare import actions_of, no_action, unknown_action
from agentbus.commands._completion import items
from agentbus.commands._declare import GLOBAL, GROUPS, SUMMARIES, VERBS, Param, Verb, module
from agentbus.commands._errors import tell
from agentbus.commands._nearest import meant
from agentbus.commands._output import Out, to_stderr
from agentbus.commands._topics import TOPICS
from agentbus.core.errors import EXIT_CODES, UsageError
from agentbus.core.version import __version__

_INTERRUPTED = 130


def read(argv: Sequence[str], *, json: bool) -> int | tuple[Verb, dict[str, Any], Any]:
    """Return the call that a command line describes, or the exit code if click has handled it."""
    # Click handles an output error in its own way, so collect its output first.
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            outcome = root().main(
                list(argv),
                prog_name="agentbus",
                standalone_mode=False,
            )
        except click.ClickException as error:
            return _mistake(error, json)
        except (click.Abort, KeyboardInterrupt):
            return _INTERRUPTED
    if isinstance(outcome, tuple):
        return outcome
    Out(json=False).exactly(shown.getvalue().encode())
    return int(outcome or 0)


def root() -> click.Group:
    """Return the group of all verbs, each of which is imported on demand."""
    version = click.Option(
        ["-V", "--version"],
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


def help_text(name: str | None) -> str:
    """Return the help of a verb, or of the whole command line."""
    above = root().make_context("agentbus", [], resilient_parsing=True)
    if name is None:
        return f"{above.get_help()}\n"
    command = _command(name)
    return f"{command.get_help(click.Context(command, above, name, **command.context_settings))}\n"


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
            owners = [f"{verb} {name}" for verb in VERBS if _has(module(verb).VERB, name)]
            raise click.UsageError(f"there is no verb {name!r}{meant(name, VERBS, owners)}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        """Return the verbs and options with this prefix, without importing all verbs."""
        verbs = [
            click.shell_completion.CompletionItem(name, help=summary)
            for name, summary in SUMMARIES.items()
            if name.startswith(incomplete)
        ]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([*verbs.items()])
        with formatter.section("Topics"):
            formatter.write_dl([(name, topic.summary) for name, topic in TOPICS.items()])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])


class _Command(click.Command):
    verb: Verb

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections = {
            "Actions": [*actions_of(self.verb).items()],
            "Arguments": [
                (str(one.metavar), one.help)
                for one in self.verb.params
                if not one.names and one.dest != "action"
            ],
        }
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        everywhere = {param.dest for param in GLOBAL}
        options = [
            row
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and param.name not in everywhere
            if (row := param.get_help_record(ctx)) is not None
        ]
        with formatter.section("Options"):
            formatter.write_dl(options)
        with formatter.section("Global options (agentbus help options)"):
            formatter.write_text(" ".join(param.names[0] for param in GLOBAL))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            for example in self.verb.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class _NoAction(click.UsageError):
    """The verb does not have the action."""

    def __init__(self, verb: Verb, word: str) -> None:
        super().__init__(word)
        self.verb = verb


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
            if self.param.actions and ctx is not None and isinstance(ctx.command, _Command):
                raise _NoAction(ctx.command.verb, value) from None
            self.fail(f"{error}{meant(value, self.param.choices)}", param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return items(self.param, ctx, incomplete)


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
    command.verb = verb
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
    # If a required parameter had a default, even None, click would not report that it is missing.
    if param.required:
        return {"required": True}
    return {"required": False, "default": None if param.many else param.default}


def _mistake(error: click.ClickException, json: bool) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        to_stderr(f"{error.format_message()}\n")
        return UsageError.exit_code
    mistake = _described(error, json)
    tell(mistake, json=json)
    return mistake.exit_code


def _described(error: click.ClickException, json: bool) -> UsageError:
    if isinstance(error, _NoAction):
        return unknown_action(error.verb, error.message)
    context = getattr(error, "ctx", None)
    command = None if context is None else context.command
    if (
        isinstance(error, click.MissingParameter)
        and isinstance(command, _Command)
        and getattr(error.param, "name", None) == "action"
    ):
        return no_action(command.verb, json=json)
    message = error.format_message().rstrip(".")
    if isinstance(error, click.NoSuchOption) and command is not None:
        known = [name for param in command.params for name in param.opts]
        message = f"there is no option {error.option_name!r}{meant(error.option_name, known)}"
    path = "agentbus" if context is None else context.command_path
    return UsageError(message[:1].lower() + message[1:], hint=f"see '{path} --help'")


def _has(verb: Verb, action: str) -> bool:
    return any(usage.split()[0] == action for usage in actions_of(verb))


def _show_version(ctx: click.Context, _param: click.Parameter, wished: bool) -> None:
    if wished and not ctx.resilient_parsing:
        click.echo(f"agentbus {__version__}")
        ctx.exit()
