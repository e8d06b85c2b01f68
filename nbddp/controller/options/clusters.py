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
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nbddp.controller.options.line_option import LineOption
from nbddp.errors import BadOptionError
from nbddp.legal_words import legal_words
from nbddp.settings import CONFIG_DIR_ENV

_FILE = "clusters.toml"
#: The option that names a table is in no table.
_CLUSTER = "cluster"


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
        BadOptionError: the file cannot be read.
    """
    return list(_tables())


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
    if name not in tables:
        raise BadOptionError(f"--cluster {name}: {_no_cluster(name, tables)}")
    table = tables[name]
    where = f"[{name}] in {clusters_file()}"
    if not isinstance(table, dict):
        raise BadOptionError(f"{where} is no table; legal: a line [{name}], and options below it")
    legal = [option for option in line_options if option != _CLUSTER]
    for key in table:
        if key not in legal:
            choices = legal_words(key.replace("-", "_"), legal)
            raise BadOptionError(f"{where}: there is no option {key!r}{choices}")
    return {key: _read(f"{where}: {key}", line_options[key], table[key]) for key in table}


def _tables() -> dict[str, Any]:
    path = clusters_file()
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadOptionError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # of TOML, or of UTF-8
        raise BadOptionError(f"{path} is not a file of TOML: {error}") from None


def _no_cluster(name: Any, tables: Iterable[str]) -> str:
    if names := list(tables):
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
