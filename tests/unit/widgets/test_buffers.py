"""The binary parts of widgets are kept up to a limit."""

from nbddp.notebook.widgets.buffers import keep_within, paths_and_buffers, update
from nbddp.notebook.widgets.static_text import Model


def picture(size: int = 3) -> Model:
    model = Model(0, {"format": "png"})
    update(model, {"state": {"format": "png"}, "buffer_paths": [["value"]]}, [b"x" * size])
    return model


def test_the_last_buffer_at_a_path_is_told():
    model = picture()
    update(model, {"state": {}, "buffer_paths": [["value"]]}, [memoryview(b"new")])
    assert paths_and_buffers(model) == ([["value"]], [b"new"])


def test_a_change_of_something_else_leaves_them():
    model = picture()
    update(model, {"state": {"format": "jpeg"}, "buffer_paths": []}, [])
    assert paths_and_buffers(model) == ([["value"]], [b"xxx"])


def test_a_value_that_is_not_binary_any_more_takes_their_place():
    model = Model(0)
    paths = [["value", 0, "content"], ["value", 1, "content"], ["icon"]]
    update(model, {"state": {"value": [{}, {}]}, "buffer_paths": paths}, [b"a", b"b", b"c"])
    update(model, {"state": {"value": []}}, [])
    assert paths_and_buffers(model) == ([["icon"]], [b"c"])


def test_kept_buffers_are_bounded_and_the_newest_is_dropped_last():
    models = [picture(40) for _ in range(3)]
    keep_within(models, newest=models[0], limit_bytes=80)
    assert [len(each.binaries) for each in models] == [1, 0, 1]
    huge = picture(100)
    keep_within([*models, huge], newest=huge, limit_bytes=80)
    assert [len(each.binaries) for each in [*models, huge]] == [0, 0, 0, 0]
