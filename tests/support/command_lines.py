"""Lines of %ddp, read or refused by their parsers."""

from typing import Any

import pytest

from nbddp.errors import BadOptionError
from nbddp.notebook.magics.verbs import find_verb, help_page

HELP = help_page()


def read(line: str) -> dict[str, Any]:
    """The arguments of the verb's action."""
    verb, text = find_verb(line)
    return vars(verb.parser.read(text))


def refusal(line: str) -> str:
    """The error for a line that is not legal."""
    with pytest.raises(BadOptionError) as caught:
        read(line)
    return str(caught.value)
