"""The commands that look at what is known. They train nothing, and start without torch."""

from __future__ import annotations

import sys
from dataclasses import fields

from jsonargparse import ArgumentParser
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lightning_deba import policies
from lightning_deba.policies import DEBA
from lightning_deba.policies.registry import list_policies, policy_info
from lightning_deba.presets import Preset, get_preset, list_presets, match_preset
from lightning_deba.records import Decision, History, read_history


def presets(args: list[str]) -> None:
    """Lists the presets, or shows one."""
    if args[:1] == ["show"]:
        parser = _parser("presets show", "Show all of a preset.")
        parser.add_argument("name", help="name of a preset, or of a model such as resnet18.a1_in1k")
        _print(preset_table(match_preset(parser.parse_args(args[1:]).name)))
        return
    parser = _parser("presets", "List the presets. `lightning-deba presets show NAME` shows all of one.")
    parser.add_argument("pattern", nargs="?", default="*", help="which names to list, such as 'resnet*'")
    pattern = parser.parse_args(args).pattern
    found = [get_preset(name) for name in list_presets(pattern)]
    if not found:
        raise ValueError(f"no preset is named {pattern!r}; `lightning-deba presets show MODEL` finds that of a model")
    _print(presets_table(found))


def list_of_policies(args: list[str]) -> None:
    """Lists the policies."""
    parser = _parser("policies", "List the policies, each with what it does and where it comes from.")
    parser.add_argument("pattern", nargs="?", default="*", help="which names to list, such as '*batch'")
    pattern = parser.parse_args(args).pattern
    if not list_policies(pattern):
        raise ValueError(f"no policy is named {pattern!r}; `lightning-deba policies` lists them all")
    _print(policies_table(pattern))


def replay(args: list[str]) -> None:
    """Shows what a policy would have decided in a recorded run."""
    parser = _parser(
        "replay",
        "Show what DEBA, or the policy of a preset, would have decided at the end of each epoch of a recorded run. The "
        "measurements stay those under the batch sizes that the run really had.",
    )
    parser.add_argument("history", help="directory of a run, or its history.jsonl")
    parser.add_argument("--preset", help="preset that gives the parameters below; also by the name of a model")
    parser.add_class_arguments(DEBA)
    preset = parser.parse_args(args).preset
    policy = DEBA() if preset is None else match_preset(preset).policy
    if isinstance(policy, DEBA):
        parser.set_defaults(vars(policy))
    options = parser.parse_args(args)
    parameters = {field.name: options[field.name] for field in fields(DEBA)}
    if isinstance(policy, DEBA):
        policy = DEBA(**parameters)
    elif parameters != vars(DEBA()):
        raise ValueError(f"the preset {preset!r} has {policy!r}, which takes no parameters of DEBA: leave them out")
    read = read_history(options.history)
    for problem in read.problems:
        print(f"lightning-deba: {problem}", file=sys.stderr)
    _print(replay_table(read.history, policies.replay(policy, read.history)))


def report(args: list[str]) -> None:
    """Writes a page about one run or several."""
    parser = _parser("report", "Write one HTML page that holds all it shows, about one run or several side by side.")
    parser.add_argument("runs", nargs="+", help="directory of a run, such as lightning_logs/version_0")
    parser.add_argument(
        "-o", "--output", help="file to write, or a directory for report.html; by default the first run"
    )
    parser.add_argument("--figure", help="draw the first run into this file as well: .svg, .pdf or .png")
    options = parser.parse_args(args)
    from lightning_deba.report import write_figure, write_report  # matplotlib is imported only where a figure is made

    print(write_report(options.runs, options.output))
    if options.figure is not None:
        print(write_figure(options.runs[0], options.figure))


def presets_table(found: list[Preset]) -> Table:
    """Lays out presets, one a row, each cell cut off where the terminal is too narrow for it."""
    table = _table("preset", "confidence", "stability", "cooldown", "score", "verdict", expand=True)
    for long in ("architectures", "source"):
        table.add_column(long, no_wrap=True, ratio=1)
    for preset in found:
        parameters = vars(preset.policy)
        names = ("confidence_threshold", "stability_threshold", "cooldown")
        numbers = (f"{parameters[name]:g}" for name in names)
        evidence = ("-", "-") if preset.score is None else (f"{preset.score:.2f}", preset.verdict)
        table.add_row(preset.name, *numbers, *evidence, ", ".join(preset.architectures), preset.source)
    return table


def policies_table(pattern: str) -> Table:
    """Lays out the policies whose names match a pattern."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in ("policy", "what it does", "source"):
        table.add_column(column)
    for name in list_policies(pattern):
        row = policy_info(name)
        table.add_row(row.name, row.description, row.source)
    return table


def preset_table(preset: Preset) -> Table:
    """Lays out all of one preset, one field a row."""
    table = Table.grid("field", "value", padding=(0, 2, 0, 0))
    rows = {
        "name": preset.name,
        "architectures": ", ".join(preset.architectures),
        **vars(preset.policy),
        "score": preset.score,
        "verdict": preset.verdict,
        "source": preset.source,
        "note": preset.note,
    }
    for name, value in rows.items():
        table.add_row(Text(name, style="bold"), Text(str(value)))
    return table


def replay_table(history: History, decisions: list[Decision]) -> Table:
    """Lays out the decisions of a policy beside the batch sizes that the run really had."""
    table = _table("epoch", "recorded", "decided")
    table.add_column("reason")
    changes = [d.batch_size - r.batch_size for r, d in zip(history, decisions, strict=True)]
    for record, decision, change in zip(history, decisions, changes, strict=True):
        style = "green" if change > 0 else "yellow" if change < 0 else "dim"
        table.add_row(str(record.epoch), str(record.batch_size), str(decision.batch_size), decision.reason, style=style)
    ups, downs = sum(change > 0 for change in changes), sum(change < 0 for change in changes)
    table.caption = f"{ups} increases and {downs} rollbacks in {len(history)} epochs"
    return table


def _table(*columns: str, expand: bool = False) -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, expand=expand, caption_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column == "preset" else "right")
    return table


def _parser(command: str, description: str) -> ArgumentParser:
    return ArgumentParser(prog=f"lightning-deba {command}", description=description, exit_on_error=False)


def _print(table: Table) -> None:
    Console().print(table)
