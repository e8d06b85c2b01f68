"""Named clusters: options of pools in ``clusters.toml``, a table for each name.

    [gpu4]
    launcher = "slurm"
    nnodes = 2
    nproc_per_node = 4
    slurm = "--partition=gpu --gres=gpu:4 --time=1:00:00"

Runs in: the notebook's process, or that of the command ``nbddp``.
"""

import argparse
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbddp.controller.options.host_slots import HOSTFILE
from nbddp.controller.options.line_option import LineOption
from nbddp.errors import BadOptionError
from nbddp.legal_words import legal_words
from nbddp.settings import CONFIG_DIR_ENV

_FILE = "clusters.toml"
#: The option that names a table is in no table.
_CLUSTER = "cluster"
#: The file with the hosts, in their place.
_HOSTFILE, _HOSTS = "hostfile", "hosts"
_LEGAL_LINES = 'lines such as nnodes = 2, launcher = "ssh", hosts = ["a", "b"], tunnel = true'
#: The line with the name of a table.
_HEADER = re.compile(r"^\[[ \t]*([^\[\]\n]+?)[ \t]*\][ \t]*(?:#.*)?$")
#: Stands for lines of the file that are not TOML, above the first table or where a name should be.
_NAMELESS = ""


@dataclass(frozen=True)
class _Unreadable:
    """A table of the file that is not TOML."""

    why: str  #: with the line and the column


def clusters_file() -> Path:
    """Return the path of the file; it need not exist.

    Its folder is ``NBDDP_CONFIG_DIR``, or else ``nbddp`` in ``XDG_CONFIG_HOME``, or else
    ``~/.config/nbddp``.
    """
    if folder := os.environ.get(CONFIG_DIR_ENV):
        return Path(folder).expanduser() / _FILE
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "nbddp" / _FILE


def cluster_names() -> list[str]:
    """Return the names of the clusters, in the order of the file.

    Raises:
        BadOptionError: the file cannot be read, or no line of it is TOML.
    """
    tables = _tables()
    if list(tables) == [_NAMELESS]:
        raise BadOptionError(f"{clusters_file()} is not a file of TOML: {tables[_NAMELESS].why}")
    return [name for name in tables if name != _NAMELESS]


def lines_outside() -> str:
    """Say which lines of the file are not TOML and belong to no cluster; empty: there are none.

    Raises:
        BadOptionError: the file cannot be read.
    """
    nameless = _tables().get(_NAMELESS)
    return f"{clusters_file()} is not a file of TOML: {nameless.why}" if nameless else ""


def cluster_place(name: Any) -> str:
    """``[lab] in /home/u/.config/nbddp/clusters.toml``."""
    return f"[{name}] in {clusters_file()}"


def cluster_options(name: Any, line_options: Mapping[str, LineOption]) -> dict[str, Any]:
    """Read the options of a cluster.

    Args:
        name: of the cluster.
        line_options: the options that a table may have, by name.

    Returns:
        The options of its table, by name. Their values are as a command line would give them.

    Raises:
        BadOptionError: there is no such cluster, or its table has an option that does not exist or
            a value that is not legal; the message says what is.
    """
    tables = _tables()
    if _NAMELESS in tables and name not in tables:
        raise BadOptionError(f"{clusters_file()} is not a file of TOML: {tables[_NAMELESS].why}")
    if name not in tables:
        raise BadOptionError(f"--cluster {name}: {_no_cluster(name, tables)}")
    table = tables[name]
    where = cluster_place(name)
    if isinstance(table, _Unreadable):
        raise BadOptionError(f"{where} is not TOML: {table.why}; legal: {_LEGAL_LINES}")
    if not isinstance(table, dict):
        raise BadOptionError(f"{where} is no table; legal: a line [{name}], and options below it")
    known = {**line_options, _HOSTFILE: HOSTFILE}
    legal = [option for option in known if option != _CLUSTER]
    for key in table:
        if key not in legal:
            choices = legal_words(key.replace("-", "_"), legal)
            raise BadOptionError(f"{where}: there is no option {key!r}{choices}")
    if _HOSTS in table and _HOSTFILE in table:
        raise BadOptionError(
            f"{where} has {_HOSTS} and {_HOSTFILE}. Next: leave out one of the two"
        )
    if not _are_names(hosts := table.get(_HOSTS, [])):
        raise BadOptionError(f'{where}: {_HOSTS} is {hosts!r}; legal: names, such as ["a", "b"]')
    return {
        _HOSTS if key == _HOSTFILE else key: _read(f"{where}: {key}", known[key], table[key])
        for key in table
    }


def _are_names(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _tables() -> dict[str, Any]:
    """Read the file: tables by name, among them those that are `_Unreadable`."""
    path = clusters_file()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadOptionError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadOptionError(f"{path} is not a file of TOML: {error}") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return _tables_apart(text)


def _tables_apart(text: str) -> dict[str, Any]:
    """Read each table of the file alone, so that one that is not TOML hides no other."""
    tables: dict[str, Any] = {}
    seen: set[str] = set()
    for header, part in _parts(text):
        name = header.split(".")[0].strip("\"'")
        is_again = name != _NAMELESS and header in seen
        seen.add(header)
        try:
            for key, table in tomllib.loads(part).items():
                known: Any = tables.get(key)
                is_part = not is_again and isinstance(known, dict) and isinstance(table, dict)
                if is_part and not known.keys() & table:
                    tables[key] = known | table  # [lab] and [lab.env]
                elif known is None:
                    tables[key] = table
                elif not isinstance(known, _Unreadable):
                    line = len(part) - len(part.lstrip("\n")) + 1
                    tables[key] = _Unreadable(f"its name stands there twice (again at line {line})")
        except tomllib.TOMLDecodeError as error:
            before = f"{tables[name].why}; " if name == _NAMELESS and name in tables else ""
            tables[name] = _Unreadable(f"{before}{error}")
    return tables


def _parts(text: str) -> list[tuple[str, str]]:
    """Return the header of each table, and its lines below as many empty ones as stand above it."""
    parts: list[tuple[str, list[str]]] = [(_NAMELESS, [])]
    for number, line in enumerate(text.splitlines()):
        if line.startswith("["):
            header = _HEADER.match(line)
            parts.append((header[1] if header else _NAMELESS, [""] * number))
        parts[-1][1].append(line)
    return [(header, "\n".join([*lines, ""])) for header, lines in parts]


def _no_cluster(name: Any, tables: Iterable[str]) -> str:
    if names := [each for each in tables if each != _NAMELESS]:
        return f"{clusters_file()} has no table of this name{legal_words(str(name), names)}"
    return (
        f"there is no cluster in {clusters_file()}. Next: write the options of %ddp start there, "
        'such as launcher = "ssh", below a line with the name in brackets'
    )


def _read(what: str, option: LineOption, value: Any) -> Any:
    """Return the value of a table as a command line would give it."""
    if not option.metavar:
        if isinstance(value, bool):
            return value
        raise BadOptionError(f"{what} is {value!r}; legal: true or false")
    if option.is_repeated:
        if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
            return value
        raise BadOptionError(f'{what} is {value!r}; legal: a table of texts, {{NAME = "VALUE"}}')
    if isinstance(value, list) and "," in option.metavar:
        value = ",".join(map(str, value))
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise BadOptionError(f"{what} is {value!r}; legal: a value such as {option.metavar}")
    try:
        return option.read(str(value))
    except argparse.ArgumentTypeError as error:
        raise BadOptionError(f"{what}: {error}") from None
