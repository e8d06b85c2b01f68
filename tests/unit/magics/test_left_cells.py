"""How the user waits for a cell that was taken back: the advice names what works."""

import pytest

from nbddp.notebook.magics.keep_verbs import how_to_wait

_HANDLE = object()


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        ({"_oh": {7: _HANDLE}, "handle": _HANDLE}, "Out[7].wait()"),
        ({"_oh": {7: "text"}, "_": _HANDLE, "handle": _HANDLE}, "handle.wait()"),
        ({"_oh": {}, "_": _HANDLE}, "%ddp detach, then %ddp attach ab12 --wait"),
        ({"_oh": {3: _HANDLE}}, "%ddp detach, then %ddp attach ab12 --wait"),
    ],
)
def test_the_advice_names_a_handle_only_where_it_is(names: dict[str, object], advice: str):
    assert how_to_wait(_HANDLE, 7, names, "ab12") == advice
