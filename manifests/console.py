"""The command contract (DESIGN §5), once for every command: the result on stdout, all else on stderr, exit codes,
``--json``, ``-v/-q``, ``--config``, ``--set``, ``--dry-run``, ``PRVR_*`` variables. Imports nothing heavy: ``-h`` stays quick."""

import inspect
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click

from prvr.manifests.errors import PrvrError, UnknownName
from prvr.manifests.settings import Settings, assignments, merged, read_toml

SOME_FAILED = 3
_SETTINGS = "prvr.settings"


@dataclass(frozen=True)
class Outcome:
    """What a command gives back: ``result`` for ``--json``, ``text`` for a reader, and its exit code."""

    result: dict[str, Any]
    text: str
    exit_code: int = 0


@dataclass(frozen=True)
class Common:
    """The options that every command has. ``settings`` are the tables of ``--config`` under those of ``--set``."""

    settings: Settings
    json: bool
    dry_run: bool
    verbosity: int

    @property
    def forwarded(self) -> list[str]:
        """The same verbosity, as words for another command."""
        return ["-v"] * self.verbosity if self.verbosity > 0 else ["-q"] * -self.verbosity


class Command(click.Command):
    """A Click command whose failures are one line on stderr and an exit code of the contract."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except (KeyboardInterrupt, click.Abort):
            click.echo("interrupted: what was committed is kept; the same command continues", err=True)
            code = 130
        except PrvrError as error:
            click.echo(f"Error: {_one_line(error)}", err=True)
            code = error.exit_code
        except BrokenPipeError:
            sys.stderr.close()
            code = 1
        except OSError as error:
            click.echo(f"Error: {_one_line(error)}", err=True)
            code = 1
        sys.exit(code if isinstance(code, int) else 0)


def command(name: str, *, example: str) -> Callable[[Callable[..., Outcome]], Command]:
    """Make a function a command. It takes ``common: Common`` first, then its own options, and returns an ``Outcome``."""

    def decorate(function: Callable[..., Outcome]) -> Command:
        def callback(
            as_json: bool, verbose: int, quiet: int, assigned: tuple[str, ...], dry_run: bool, **options: Any
        ) -> int:
            tables: Settings = click.get_current_context().meta.get(_SETTINGS, {})
            common = Common(merged(tables, assignments(assigned)), as_json, dry_run, verbose - quiet)
            _log_to_stderr(common.verbosity)
            outcome = function(common, **options)
            click.echo(json.dumps(outcome.result, ensure_ascii=False) if as_json else outcome.text)
            return outcome.exit_code

        own = list(reversed(getattr(function, "__click_params__", [])))
        return Command(
            name,
            callback=callback,
            params=[*own, *_common_options()],
            help=inspect.getdoc(function),
            epilog=f"\b\nExample:\n  {example}",
            context_settings={
                "help_option_names": ["-h", "--help"],
                "auto_envvar_prefix": "PRVR",
                "show_default": True,
                "max_content_width": 120,
            },
        )

    return decorate


def listing(title: str, names: tuple[str, ...]) -> str:
    """One paragraph of ``--list``."""
    return "\n".join([f"{title}:", *(f"  {name}" for name in names)])


def _common_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--set", "assigned"], multiple=True, metavar="NAME.KEY=VALUE", help="Change one setting; repeatable."
        ),
        click.Option(
            ["--config"],
            type=click.Path(path_type=Path, dir_okay=False),
            metavar="FILE",
            is_eager=True,
            expose_value=False,
            callback=_read_config,
            help="TOML with options and tables of settings.",
        ),
        click.Option(["--dry-run"], is_flag=True, help="Say what would be done, and do nothing."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object as the last line of stdout."),
        click.Option(["-v", "--verbose"], count=True, help="Say more."),
        click.Option(["-q", "--quiet"], count=True, help="Say less."),
    ]


def _read_config(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    if path is None:
        return
    values = read_toml(path)
    options = {parameter.name for parameter in context.command.params if parameter.name}
    defaults = {}
    for key, value in values.items():
        name = key.replace("-", "_")
        if isinstance(value, dict):
            context.meta.setdefault(_SETTINGS, {})[key] = value
        elif name in options:
            defaults[name] = value
        else:
            raise UnknownName(f"option in {path}:", key, options)
    context.default_map = {**(context.default_map or {}), **defaults}


def _log_to_stderr(verbosity: int) -> None:
    level = logging.WARNING if verbosity < 0 else logging.DEBUG if verbosity > 0 else logging.INFO
    logger = logging.getLogger("prvr")
    logger.handlers[:] = [logging.StreamHandler(sys.stderr)]
    logger.setLevel(level)
    logger.propagate = False


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
