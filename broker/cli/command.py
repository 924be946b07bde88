"""A typer command whose help is readable in a terminal of any width, and the application of commands.

typer keeps the line breaks of a docstring in the source, adds brackets and dots to those of a metavar, and shows a flag
as <bool> and an argument as <list[str]>.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from copy import copy
from typing import Any, Final, cast, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from barnabas.broker.cli.connection_options import SERVERS, connection_options, given_to

UNSEEN = "[dim][/dim]"
"""Markup that prints nothing."""
PLAIN: Final = {
    r"is not a valid int(eger)?( range)?\.": "is no whole number.",
    r"is not a valid float( range)?\.": "is no number.",
    r"is not in the range x>=(\S+)\.": r"is below \1.",
    r"is not in the range x<=(\S+)\.": r"is above \1.",
}
"""typer's messages about invalid values, by patterns, and ours."""


class Command(TyperCommand):
    """A command whose help is reflowed, and whose usage line consists of the metavars as they are.

    Its arguments are available while the value of an option is being completed: click would drop them. A command that
    connects to brokers has the options for that.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.help = flowing(self.help or "")
        if any(each.name == SERVERS for each in self.params):
            self.params += connection_options([name for each in self.params for name in each.opts])

    def invoke(self, context: Any) -> Any:
        """Run the command."""
        with given_to(context):
            return super().invoke(context)

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """The remaining arguments; for completion parsed without an option at the end that lacks its value."""
        is_dangling = context.resilient_parsing and args and args[-1].startswith("-")
        try:
            return super().parse_args(context, args[:-1] if is_dangling else args)
        except typer.BadParameter as refusal:
            refusal.message = plainly(refusal.message)
            raise

    def collect_usage_pieces(self, context: Any) -> list[str]:
        """The rest of the usage line after the command's name."""
        arguments = (each for each in self.params if each.param_type_name == "argument")
        return ["[OPTIONS]", *(each.metavar or str(each.name).upper() for each in arguments)]

    def get_params(self, context: Any) -> list[Any]:
        """Arguments and options, including those of click and typer."""
        return _without_types(super().get_params(context))


class Group(TyperGroup):
    """Commands below one name."""

    def get_params(self, context: Any) -> list[Any]:
        """The command's options, including those of click and typer."""
        return _without_types(super().get_params(context))


class Application(typer.Typer):
    """Makes commands `Command`s, and is itself a `Group`; see typer.Typer for the arguments."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": Group, "no_args_is_help": True, **options})

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Register the decorated function as the command of this name. A parameter whose type is a dataclass stands for
        the options that are its fields: several commands have them."""
        register = super().command(name, **{"cls": Command, **options})

        def decorate(function: Any) -> Any:
            register(_with_single_options(function))
            return function

        return decorate


def _with_single_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the fields of dataclasses as parameters of their own, as typer reads it."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Any], list[str]]] = {}
    for each in inspect.signature(function, eval_str=True).parameters.values():
        if not dataclasses.is_dataclass(each.annotation):
            parameters.append(each.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        group = cast(type[Any], each.annotation)
        fields, types = dataclasses.fields(group), get_type_hints(group, include_extras=True)
        groups[each.name] = group, [field.name for field in fields]
        parameters += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
            )
            for field in fields
        ]
    if not groups:
        return function

    def run(**values: Any) -> Any:
        given = {
            name: group(**{field: values.pop(field) for field in fields}) for name, (group, fields) in groups.items()
        }
        return function(**given, **values)

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run


def plainly(message: str) -> str:
    """A message about an invalid value, in plain words where typer's are technical."""
    for pattern, words in PLAIN.items():
        message = re.sub(pattern, words, message)
    return message


def flowing(text: str) -> str:
    """A docstring without the line breaks of its paragraphs in the source; indented lines stay lines."""
    flowed = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
    # typer removes the common indentation of all lines but the first: this adds an empty line that typer does not
    # recognise as empty.
    return flowed.replace("\n\n  ", f"\n{UNSEEN}\n  ")


def _without_types(parameters: list[Any]) -> list[Any]:
    """Remove Python's types from the help of these parameters: flags take no value, and an argument's name is
    sufficient."""
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
        elif each.param_type_name == "argument":
            each.type = copy(each.type)  # the type of strings is shared
            each.type.get_metavar = _nothing
    return parameters


def _nothing(param: Any, ctx: Any) -> str:
    return ""
