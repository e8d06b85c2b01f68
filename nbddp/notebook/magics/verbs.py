"""The table of all verbs of ``%ddp``.

    line --find_verb--> Verb.parser --arguments by name--> Verb.action
                            |
                            +--> `%ddp help`, completion, and the legal words in errors

A new verb needs an entry here, its action, and a section of docs/magics.md, which a test runs.

Runs in: the notebook's process, thread of the running cell.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.options import HOSTFILE, LINE_OPTIONS, duration
from nbddp.errors import BadOptionError
from nbddp.legal_words import legal_words
from nbddp.line_breaks import wrapped
from nbddp.notebook.magics import (
    auto_mode,
    break_verbs,
    catch_up_verb,
    config_verb,
    debug_verbs,
    inspect_verbs,
    keep_verbs,
    log_verb,
    output_verb,
    pool_verbs,
    value_verbs,
)
from nbddp.notebook.magics.arg_parser import Parser, option_text
from nbddp.notebook.magics.cell_line import CELL, AutoParser
from nbddp.notebook.magics.expressions import ExpressionParser, NamesParser
from nbddp.notebook.magics.verb import Line, Verb
from nbddp.notebook.render.trace_table import DEFAULT_LAST

#: The columns at which explanations of the help begin and end, and the indent of options.
_COLUMN = 37
_WIDTH = 100
_INDENT = "    "
_ENDING = (
    "RANKS, behind -r or --ranks: all, a rank, a list such as 0,2-3, or dimensions of a DeviceMesh "
    "of your variables such as dp=0,tp=1:3: of the latest one, or of --mesh NAME. In a cell: rank, "
    "world_size, local_rank, local_world_size, device, torch, dist and nbddp are defined. "
    "nbddp.show(t) draws the tensor of every rank, `with nbddp.show(t):` before and after a block."
)


def find_verb(line: str) -> tuple[Verb, str]:
    """Find the verb of a line.

    Args:
        line: the text behind ``%ddp``.

    Returns:
        The verb, ``help`` for an empty line, and the text behind it.

    Raises:
        BadOptionError: the verb does not exist; the message has the legal ones.
    """
    name, text = [*line.split(maxsplit=1), "", ""][:2]
    if not name or name.startswith("#"):
        return VERBS["help"], ""
    if name not in VERBS:
        choices = legal_words(name.lower(), VERBS, before="%ddp ", alike=0.7)
        raise BadOptionError(f"%ddp has no verb {name!r}{choices}")
    return VERBS[name], text


def help_page() -> str:
    """The text of ``%ddp help``: a line for each verb and option, an empty one between groups."""
    sections = [[CELL], *_SECTIONS]
    texts = ["\n".join(row for line in section for row in _rows(line)) for section in sections]
    return "\n\n".join([*texts, "\n".join(wrapped(_ENDING, _WIDTH, indent=0))])


def _rows(line: Line) -> Iterator[str]:
    yield _row(line.usage or line.parser.usage_line(), line.summary)
    for action in line.parser.arguments():
        if action.option_strings and action.help not in (None, argparse.SUPPRESS):
            yield _row(_INDENT + option_text(action, is_long=True), action.help)
    for usage, explanation in line.rows:
        yield _row(usage, explanation)


def _row(usage: str, explanation: str) -> str:
    first, *rest = wrapped(explanation, _WIDTH - _COLUMN, indent=0)
    return "\n".join([f"{usage:<{_COLUMN}}{first}", *(" " * _COLUMN + text for text in rest)])


# --- parsers -------------------------------------------------------------------------------------


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _file(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("a file needs a name")
    return text


def _with_ranks(parser: Parser, **options: Any) -> Parser:
    parser.add_ranks(**options)
    return parser


#: Words for the number of ranks in other places: in ``%%ddp``, in torch, in mpirun.
_MEANT_RANKS = dict.fromkeys(("--ranks", "-r", "--world-size", "--np"), "-n")


def _start_parser() -> Parser:
    parser = Parser("%ddp start", bare="-n", meant=_MEANT_RANKS)
    for option in LINE_OPTIONS.values():
        option.add_to(parser)
        parser.offer(option.flags, option.legal)
        if option.has_options:
            parser.take_options(option.flags)
    HOSTFILE.add_to(parser, dest="hosts")
    parser.add_argument(
        "--print",
        action="store_true",
        dest="is_printed",
        default=argparse.SUPPRESS,
        help="with --launcher k8s: show the objects as YAML, and start nothing",
    )
    return parser


def _listen_parser() -> Parser:
    parser = Parser("%ddp listen", bare="-n", meant=_MEANT_RANKS)
    for name in ("nproc_per_node", "nnodes", "address", "port", "keep"):
        LINE_OPTIONS[name].add_to(parser)
    return parser


def _status_parser() -> Parser:
    parser = Parser("%ddp status")
    parser.add_argument(
        "--live",
        nargs="?",
        const="on",
        default="",
        choices=("on", "off"),
        help="keep the table up to date until the pool stops",
    )
    return parser


def _push_parser() -> Parser:
    parser = NamesParser("%ddp push")
    parser.add_argument("names", nargs="*", metavar="NAME", needs="a name")
    return _with_ranks(parser)


def _pull_parser() -> Parser:
    parser = ExpressionParser("%ddp pull")
    parser.add_argument("expression", nargs="?", metavar="EXPRESSION", needs="an expression")
    return _with_ranks(parser)


def _vars_parser() -> Parser:
    parser = NamesParser("%ddp vars")
    parser.add_argument("names", nargs="*", metavar="NAME")
    return _with_ranks(parser)


def _diff_parser() -> Parser:
    parser = ExpressionParser("%ddp diff")
    parser.add_argument("expressions", nargs="*", metavar="EXPRESSION", needs="an expression")
    return _with_ranks(parser)


def _catch_up_parser() -> Parser:
    parser = _with_ranks(Parser("%ddp catchup", bare="-r"))
    parser.add_argument(
        "--cells",
        type=catch_up_verb.cell_numbers,
        metavar="N,...",
        default=[],
        help="run these cells again, too, such as a training loop; with -r where no rank is fresh",
    )
    return parser


def _trace_parser() -> Parser:
    parser = Parser("%ddp trace", bare="--cell")
    parser.add_argument("--cell", type=_positive, metavar="N", help="of cell [N] only")
    _with_ranks(parser, help="with at least one of these ranks")
    parser.add_argument(
        "--last",
        type=_positive,
        metavar="N",
        default=DEFAULT_LAST,
        help=f"this many (default {DEFAULT_LAST})",
    )
    parser.add_argument(
        "--save",
        type=_file,
        metavar="FILE",
        help="write all of them as JSON for ui.perfetto.dev, a track for each rank",
    )
    return parser


def _break_parser() -> Parser:
    parser = break_verbs.BreakParser("%ddp break")
    parser.add_argument("place", nargs="*", metavar="PLACE")
    _with_ranks(parser)
    parser.add_argument(
        "--if",
        dest="condition",
        default="",
        metavar="EXPR",
        help="where this is true in the frame of your code, such as 'loss.isnan()'",
    )
    parser.add_argument(
        "--nan", action="store_true", dest="has_nan", help="where the rank sends NaN or Inf"
    )
    parser.add_argument("--group", default="", metavar="NAME", help="of this group only")
    parser.add_argument(
        "--cell",
        type=_positive,
        default=0,
        metavar="N",
        help="the line is of cell [N], which defines a function; default: the cell that runs",
    )
    parser.add_argument(
        "--on",
        choices=("mismatch", "deadlock", "error"),
        default="",
        help="instead of a place: an operation that does not match those of other ranks; a proven "
        "deadlock, before the ranks are freed; an error, before it ends the cell",
    )
    return parser


def _clear_parser() -> Parser:
    parser = Parser("%ddp clear")
    parser.add_argument("numbers", nargs="*", type=break_verbs.break_numbers, metavar="N")
    return parser


def _detach_parser() -> Parser:
    parser = Parser("%ddp detach", bare="--keep")
    parser.add_argument(
        "--keep",
        type=duration,
        metavar="TIME",
        help="end it after this time, such as 4h; default: the time of its start, or 2h",
    )
    return parser


def _attach_parser() -> Parser:
    parser = Parser("%ddp attach")
    parser.add_argument("name", nargs="?", metavar="POOL")
    parser.add_argument(
        "--wait",
        action="store_true",
        help="show the cell that ran in the foreground, with its questions, until it ends",
    )
    return parser


def _log_parser() -> Parser:
    parser = Parser("%ddp log")
    parser.add_argument("chosen", nargs="?", metavar="RANKS")
    _with_ranks(parser, help="the same: of these ranks; default: all")
    parser.add_argument(
        "--last",
        type=_positive,
        metavar="N",
        default=log_verb.DEFAULT_LAST,
        help=f"this many lines of each (default {log_verb.DEFAULT_LAST})",
    )
    return parser


def _output_parser() -> Parser:
    parser = Parser("%ddp output")
    parser.add_argument("cell", nargs="?", type=_positive, metavar="CELL")
    return _with_ranks(parser, help="of these ranks only")


def _timeline_parser() -> Parser:
    parser = Parser("%ddp timeline", bare="--cell")
    parser.add_argument("--cell", type=_positive, metavar="N", help="of cell [N]")
    return _with_ranks(parser, help="rows of these ranks")


# --- the table -----------------------------------------------------------------------------------


def _print_help(shell: InteractiveShell) -> None:
    print(help_page())


_SECTIONS = (
    (
        Verb(
            _start_parser(),
            "start a pool of N rank processes",
            usage="%ddp start [-n N] [options]",
            action=pool_verbs.start,
        ),
        Verb(
            _status_parser(),
            "the ranks: state, line, last collective, memory, process, logs",
            usage="%ddp status",
            action=inspect_verbs.status,
        ),
        Verb(
            _push_parser(),
            "copy variables of the notebook to the ranks",
            action=value_verbs.push,
            takes="names of the notebook",
        ),
        Verb(
            _pull_parser(),
            "get a value from each rank, or from one",
            usage="x = %ddp pull EXPRESSION [-r RANKS]",
            action=value_verbs.pull,
            takes="names of ranks",
        ),
        Verb(
            _vars_parser(),
            "variables of each rank; one row where ranks are equal",
            action=value_verbs.list_variables,
            takes="names of ranks",
        ),
        Verb(
            _diff_parser(),
            "model, state, tensor, rng: equal, or where it first differs",
            action=value_verbs.diff,
            takes="names of ranks",
        ),
        Verb(
            Parser("%ddp interrupt"),
            "interrupt the running cell, or else a widget's callback",
            action=pool_verbs.interrupt,
        ),
        Verb(
            _with_ranks(Parser("%ddp restart", bare="-r")),
            "replace the ranks, with the same options; variables are lost",
            action=pool_verbs.restart,
        ),
        Verb(
            _catch_up_parser(),
            "give fresh ranks the variables that they lack: cells run again",
            action=catch_up_verb.catch_up,
        ),
        Verb(
            _output_parser(),
            "show again what a cell printed, and how it ended; default: the last cell",
            usage="%ddp output [CELL] [-r RANKS]",
            action=output_verb.show_output,
        ),
        Verb(
            _log_parser(),
            "the end of the logs of ranks, also of those on other machines",
            usage="%ddp log [RANKS]",
            action=log_verb.show_logs,
        ),
        Verb(Parser("%ddp stop"), "end the pool", action=pool_verbs.stop),
        Verb(
            _detach_parser(),
            "let the pool go on without this kernel, with the running cell",
            action=keep_verbs.detach,
        ),
        Verb(
            _attach_parser(),
            "take a pool back that goes on without a kernel; default: the only one",
            usage="%ddp attach [POOL]",
            action=keep_verbs.attach,
        ),
        Verb(
            Parser("%ddp pools"),
            "your pools on this machine: which has a kernel, which goes on until when; the "
            "environment variable NBDDP_POOLS_DIR names the one folder in which they are",
            action=keep_verbs.pools,
        ),
        Verb(
            _listen_parser(),
            "start a pool whose agents you start on other machines",
            usage="%ddp listen --nnodes M [-n N]",
            action=pool_verbs.listen,
        ),
        Verb(
            Parser("%ddp clusters"),
            "the clusters of your clusters.toml, for %ddp start --cluster NAME",
            action=pool_verbs.list_clusters,
        ),
    ),
    (
        Verb(
            AutoParser("%ddp auto"),
            "run each cell as if %%ddp [options] stood above it",
            usage="%ddp auto on [options]",
            rows=(
                ("%ddp auto off", "end that; %ddp auto shows the mode"),
                (
                    "%%local",
                    "as the first line: run this cell in the notebook's process. In auto mode "
                    "these run there without it: %ddp, %pip, %history and similar magics, and cell "
                    "magics other than %%time, %%timeit, %%prun, %%capture",
                ),
            ),
            action=auto_mode.auto,
        ),
    ),
    (
        Verb(
            Parser("%ddp diagnose"),
            "which rank waits for which, and where each rank is",
            action=inspect_verbs.diagnose,
        ),
        Verb(
            _with_ranks(Parser("%ddp stacks", bare="-r")),
            "the Python stacks of the ranks, also of stuck ones",
            action=inspect_verbs.show_stacks,
        ),
        Verb(
            _with_ranks(Parser("%ddp debug", bare="-r"), metavar="RANK"),
            "open a rank's debugger at its last exception; q leaves",
            action=debug_verbs.debug,
        ),
        Verb(
            _with_ranks(Parser("%ddp debugger", bare="-r"), metavar="RANK"),
            "choose the rank of JupyterLab's debugger (nbddp kernel only)",
            action=debug_verbs.choose_debugger,
        ),
        Verb(
            _break_parser(),
            "stop ranks of later cells before such operations, and ask what they do",
            usage="%ddp break PLACE [-r RANKS]",
            rows=(("    PLACE", "all_reduce, #17 (its number), line 7 (of the cell)"),),
            action=break_verbs.set_break_point,
        ),
        Verb(
            Parser("%ddp breaks"),
            "list the break points, and how often ranks stopped there",
            action=break_verbs.list_break_points,
        ),
        Verb(
            _clear_parser(),
            "remove break points; default: all",
            usage="%ddp clear [N ...]",
            action=break_verbs.clear,
        ),
        Verb(
            _trace_parser(),
            "the last collectives, the ranks side by side",
            action=inspect_verbs.trace,
        ),
        Verb(
            _timeline_parser(),
            "the operations of the last cell along time, a row for each rank",
            action=inspect_verbs.show_timeline,
        ),
        Verb(
            config_verb.ConfigParser("%ddp config"),
            "show what happens when ranks disagree, or change it",
            usage="%ddp config [NAME=VALUE ...]",
            rows=config_verb.ROWS,
            action=config_verb.configure,
        ),
        Verb(Parser("%ddp help"), "this text", action=_print_help),
    ),
)
#: Every verb by its name, in the order of the help.
VERBS: dict[str, Verb] = {verb.name: verb for section in _SECTIONS for verb in section}
