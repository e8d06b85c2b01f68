"""Widgets that live in ranks, with a client that plays the front end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernel import LIMIT_S, Kernel, running_kernel
from tests.support.widgets import WIDGET, FrontEnd, now, only_view, playing, views


@pytest.fixture
def front(shared_kernel: Kernel) -> Iterator[FrontEnd]:
    with playing(shared_kernel) as front:
        yield front


SLIDER = (
    "%%ddp\nimport ipywidgets as widgets\nfrom IPython.display import display\n"
    "slider = widgets.IntSlider(description='scale', value=rank)\n"
    "slider.observe(lambda change: print('moved to', change.new), 'value')\nslider"
)


def test_a_slider_of_each_rank_is_a_row_of_one_block(front: FrontEnd):
    data = only_view(front.kernel.ok(SLIDER))
    tree = front.tree(data[WIDGET]["model_id"])
    assert [tree[0], [row[2] for row in tree[1:]]] == [
        "VBox",
        [("IntSlider", 0), ("IntSlider", 1)],
    ]
    assert data["text/plain"] == "[0]   scale: 0\n[1]   scale: 1"
    assert "scale: 1</pre>" in data["text/html"]


def test_a_slider_moved_in_the_front_end_moves_on_its_rank_only(front: FrontEnd):
    kernel = front.kernel
    shown = kernel.execute(SLIDER)
    cell = kernel.finish(shown)
    block = only_view(cell)[WIDGET]["model_id"]
    front.move(front.of_rank(block, 1), 7)
    # The text that the observer prints is shown in the cell with the slider.
    kernel.wait_text(shown, "[1]   moved to 7")
    assert kernel.ok("%%ddp\nprint(slider.value)").text == "[0]   0\n[1]   7\n"


def test_a_rank_moves_its_slider_in_the_front_end(front: FrontEnd):
    kernel = front.kernel
    block = only_view(kernel.ok(SLIDER))[WIDGET]["model_id"]
    kernel.ok("%%ddp -r 1\nslider.value = 5")
    slider = front.of_rank(block, 1)
    kernel.wait_for(lambda: front.models[slider]["value"] == 5)


def test_bars_of_tqdm_are_one_block_and_text_in_the_end(front: FrontEnd):
    before = set(front.ids("VBox"))
    cell = front.kernel.ok(
        "%%ddp\nfrom tqdm.notebook import tqdm\nfor n in tqdm(range(3), desc='load'): pass"
    )
    assert len([m for m in cell.of("display_data") if WIDGET in m.content["data"]]) == 1
    assert len(cell.page) == 1
    data = cell.page[0].content["data"]
    assert set(data) == {"text/plain", "text/html"}
    first, second = data["text/plain"].splitlines()
    assert first.startswith("[0]   load: 100%|████")
    assert second.startswith("[1]   load: 100%|████")
    assert "3/3 [" in first
    assert "load: 100%" in data["text/html"]
    # No model of the block is left behind in the front end.
    assert set(front.ids("VBox")) == before


def test_a_bar_that_moves_all_the_time_does_not_flood(front: FrontEnd):
    cell = front.kernel.ok(
        "%%ddp\nfrom tqdm.notebook import tqdm\nfor n in tqdm(range(10_000), mininterval=0): pass"
    )
    assert cell.page[-1].text.count("10000/10000 [") == 2
    assert len(cell.messages) < 1000


def test_the_event_loop_of_a_rank_hears_a_widget_while_a_cell_awaits_it(front: FrontEnd):
    kernel = front.kernel
    block = only_view(
        kernel.ok(
            "%%ddp -r 1\nimport asyncio, ipywidgets as widgets\n"
            "moved = asyncio.get_event_loop().create_future()\nslider = widgets.IntSlider()\n"
            "slider.observe(lambda change: moved.set_result(change.new), 'value')\nslider"
        )
    )[WIDGET]["model_id"]
    front.move(front.of_rank(block, 1), 6)
    assert kernel.ok("%%ddp -r 1\nprint(await moved)").text == "[1]   6\n"


def test_a_bar_that_has_ended_is_forgotten_by_the_front_end_until_it_is_shown_again(
    front: FrontEnd,
):
    kernel = front.kernel
    before = set(front.models)
    kernel.ok(
        "%%ddp\nimport ipywidgets as widgets\nfrom IPython.display import display\n"
        "bar = widgets.IntProgress(max=2)\ndisplay(bar)\nbar.value = 2"
    )
    assert set(front.models) == before
    kernel.ok("%%ddp\nbar.value = 1")
    again = kernel.ok("%%ddp\ndisplay(bar)")
    data = only_view(again)
    assert [row[2] for row in front.tree(data[WIDGET]["model_id"])[1:]] == [("IntProgress", 1)] * 2
    assert data["text/plain"].startswith("[0]   |██████████          | 1/2\n[1]   |")
    kernel.ok("%%ddp\nbar.value = 2")
    assert set(front.models) == before


def test_a_bar_that_was_not_to_stay_does_not(front: FrontEnd):
    cell = front.kernel.ok(
        "%%ddp\nfrom tqdm.notebook import tqdm\n"
        "for n in tqdm(range(3), leave=False): pass\nprint('done')"
    )
    assert [m.text for m in cell.page] == ["[0-1] done\n"]


def test_nested_bars_take_the_place_of_each_other(front: FrontEnd):
    kernel = front.kernel
    cell = kernel.ok(
        "%%ddp\nfrom tqdm.notebook import tqdm\n"
        "for epoch in tqdm(range(3), desc='epochs'):\n"
        "    for n in tqdm(range(2), desc=f'epoch {epoch}', leave=False): pass\n"
        "    dist.barrier()"
    )
    blocks = [m for m in cell.of("display_data") if WIDGET in m.content["data"]]
    assert len(blocks) <= 3  # one, or two where a rank was ahead
    assert [m.text[:20] for m in cell.page] == ["[0]   epochs: 100%|█"]


def test_bars_of_a_background_cell_stand_in_it_and_leave_text(front: FrontEnd):
    kernel = front.kernel
    started = kernel.execute(
        "%%ddp --async\nfrom tqdm.notebook import tqdm\nimport time\n"
        "for n in tqdm(range(3)): time.sleep(0.01)"
    )
    kernel.finish(started)
    kernel.ok("(await _).ranks('ok')")
    cell = kernel.cells[started]
    kernel.wait_for(lambda: any("3/3" in m.text for m in now(front, cell).page))
    assert views(now(front, cell)) == []


def test_a_display_that_gets_other_contents_keeps_them(front: FrontEnd):
    kernel = front.kernel
    cell = kernel.ok(
        "%%ddp -r 0\nimport ipywidgets as widgets\nfrom IPython.display import HTML, display\n"
        "handle = display(widgets.IntSlider(description='old'), display_id=True)"
    )
    assert only_view(cell)["text/plain"] == "old: 0"
    kernel.ok("%%ddp -r 0\nhandle.update(HTML('<b>new</b>'))")
    assert views(now(front, cell)) == []
    # The next cells do not bring the widget back.
    kernel.ok("%%ddp\npass")
    shown = now(front, cell).page[-1]
    assert "<b>new</b>" in shown.content["data"]["text/html"]
    kernel.ok("from nbddp.notebook import session")
    living = kernel.value("[block.display_id for block in session._relay.blocks]")
    assert str(shown.display_id) not in living


def test_rank_by_rank_each_widget_stands_with_its_rank(front: FrontEnd):
    cell = front.kernel.ok(f"{SLIDER.replace('%%ddp', '%%ddp --out ranks', 1)}")
    assert [data["text/plain"] for data in views(cell)] == ["scale: 0", "scale: 1"]


def test_a_bar_that_an_error_stopped_stays_where_it_was(front: FrontEnd):
    cell = front.kernel.run(
        "%%ddp -r 1\nfrom tqdm.notebook import tqdm\nfor n in tqdm(range(4)): 1 / (n - 2)"
    )
    texts = [m.text for m in cell.page]
    assert any("| 2/4 [" in text and text.startswith("[1]") for text in texts), texts
    assert "ZeroDivisionError" in cell.error
    assert views(cell) == []


def test_an_output_widget_captures_output_of_its_rank(front: FrontEnd):
    cell = front.kernel.ok(
        "%%ddp\nimport ipywidgets as widgets\nfrom IPython.display import HTML, display\n"
        "out = widgets.Output()\ndisplay(out)\n"
        "with out:\n    print('inside', rank)\n    display(HTML('<b>bold</b>'))\n"
        "print('outside')"
    )
    assert cell.text == "[0-1] outside\n"
    data = only_view(cell)
    assert "inside 1" in data["text/plain"]
    outputs = front.models[front.of_rank(data[WIDGET]["model_id"], 0)]["outputs"]
    assert [output["output_type"] for output in outputs] == ["stream", "display_data"]
    assert outputs[0]["text"] == "inside 0\n"
    assert outputs[1]["data"]["text/html"] == "<b>bold</b>"
    shown = front.kernel.ok("%%ddp -r 0\nwith out:\n    1 / 0\nout.clear_output()\nprint('next')")
    assert shown.text == "[0]   next\n"


def test_interact_calls_its_function_on_the_rank(front: FrontEnd):
    kernel = front.kernel
    cell = kernel.ok(
        "%%ddp -r 1\nimport ipywidgets as widgets\nseen = []\n"
        "@widgets.interact(n=3)\ndef show(n):\n    seen.append(n)\n    print('n is', n)"
    )
    assert "n is 3" in only_view(cell)["text/plain"]
    front.move(front.ids("IntSlider")[-1], 4)
    outputs = front.ids("Output")[-1]
    kernel.wait_for(lambda: "n is 4" in str(front.models[outputs]["outputs"]))
    assert kernel.ok("%%ddp -r 1\nprint(seen)").text == "[1]   [3, 4]\n"


@pytest.fixture
def subshell(front: FrontEnd) -> Iterator[str]:
    """A subshell, through which the kernel hears widgets while a cell runs."""
    client = front.kernel.client
    features = client.kernel_info(reply=True, timeout=LIMIT_S)["content"]
    if "kernel subshells" not in features.get("supported_features", []):
        pytest.skip("this ipykernel hears nothing while a cell runs")
    session, control = client.session, client.control_channel
    control.send(session.msg("create_subshell_request", {}))
    made: str = client.get_control_msg(timeout=LIMIT_S)["content"]["subshell_id"]
    yield made
    control.send(session.msg("delete_subshell_request", {"subshell_id": made}))
    client.get_control_msg(timeout=LIMIT_S)


def test_a_button_ends_the_cell_that_waits_for_it(front: FrontEnd, subshell: str):
    kernel = front.kernel
    before = set(front.ids("Button"))
    running = kernel.execute(
        "%%ddp\nimport ipywidgets as widgets, time\nfrom IPython.display import display\n"
        "stop = []\nbutton = widgets.Button(description='stop')\n"
        "button.on_click(lambda _: stop.append(1))\ndisplay(button)\n"
        "while not stop: time.sleep(0.01)\nprint('stopped')"
    )
    kernel.wait_for(lambda: len(set(front.ids("Button")) - before) == 2)
    for button in set(front.ids("Button")) - before:
        front.send(button, {"method": "custom", "content": {"event": "click"}}, subshell)
    cell = kernel.finish(running)
    assert (cell.status, cell.text) == ("ok", "[0-1] stopped\n")


UNFINISHED = """%%ddp -r 1
import ipywidgets as widgets, time
from IPython.display import display
from pathlib import Path

class Canvas(widgets.Button):
    # As that of ipympl: a front end has its model, and speaks to it, before it is complete.
    def __init__(self):
        super().__init__(description='canvas')
        self.manager = None
        self.on_msg(lambda widget, content, buffers: self.manager.handle(content))

class Manager:
    def handle(self, content):
        print('the manager got', content['type'])
        canvas.manager = None

canvas = Canvas()
while not Path({path!r}).exists(): time.sleep(0.01)
canvas.manager = Manager()
{show}
"""


@pytest.mark.parametrize("show", ["display(canvas)", "box.children = [canvas]", "pass"])
def test_a_widget_hears_nothing_before_it_is_shown_or_the_cell_ends(
    front: FrontEnd, subshell: str, tmp_path: Path, show: str
):
    kernel, gate = front.kernel, tmp_path / "gate"
    block = only_view(kernel.ok(SLIDER))[WIDGET]["model_id"]
    kernel.ok("%%ddp -r 1\nbox = widgets.VBox()\nbox")
    before = set(front.ids("Button"))
    # Where it is shown, the cell waits until it has heard.
    wait = "" if show == "pass" else "while canvas.manager: time.sleep(0.01)"
    code = UNFINISHED.format(path=str(gate), show=f"{show}\n{wait}")
    running = kernel.execute(code)
    kernel.wait_for(lambda: set(front.ids("Button")) - before)
    (canvas,) = set(front.ids("Button")) - before
    front.send(canvas, {"method": "custom", "content": {"type": "refresh"}}, subshell)
    # A later message for a widget that is shown has been handled: the first one was passed over.
    data = {"method": "update", "state": {"value": 3}, "buffer_paths": []}
    front.send(front.of_rank(block, 1), data, subshell)
    kernel.wait_text(running, "moved to 3")
    gate.touch()
    assert kernel.finish(running).status == "ok"
    kernel.wait_text(running, "the manager got refresh")
    assert "Error" not in "".join(message.text for message in kernel.cells[running].messages)


@pytest.mark.parametrize(
    "show",
    [
        "display(made)",
        "display(widgets.VBox([made]))",
        "box.children = [made]",
        "with output: display(made)",
    ],
)
def test_a_front_end_has_the_whole_state_of_a_widget_before_it_is_shown(front: FrontEnd, show: str):
    """Views of plotly draw what their model has when they are shown, and no later change."""
    kernel = front.kernel
    kernel.ok(
        "%%ddp\nimport ipywidgets as widgets\nfrom IPython.display import display\n"
        "box = widgets.VBox()\noutput = widgets.Output()\ndisplay(box, output)"
    )
    before = set(front.ids("Label"))
    kernel.ok(
        f"%%ddp\nmade = widgets.Label()\nfor made.value in ('some', 'more', 'all'): pass\n{show}"
    )
    made = set(front.ids("Label")) - before
    assert len(made) == 2
    values: dict[str, str] = {}
    shown_with: dict[str, str] = {}
    for message in front.messages():
        comm_id, text = message.content.get("comm_id", ""), str(message.content)
        if comm_id in made:
            state = message.content["data"]["state"]
            values[comm_id] = state.get("value", values.get(comm_id))
        else:
            for each in made - shown_with.keys():
                if each in text:
                    shown_with[each] = values[each]
    assert shown_with == dict.fromkeys(made, "all")


def test_a_page_that_is_loaded_again_gets_the_state_of_a_model(front: FrontEnd):
    kernel = front.kernel
    block = only_view(kernel.ok(SLIDER))[WIDGET]["model_id"]
    slider = front.of_rank(block, 1)
    asked = front.send(slider, {"method": "request_state"})
    kernel.wait_for(lambda: asked in kernel.cells and kernel.cells[asked].of("comm_msg"))
    reply = kernel.cells[asked].of("comm_msg")[0].content
    assert (reply["comm_id"], reply["data"]["state"]["value"]) == (slider, 1)
    known = kernel.client.comm_info("jupyter.widget", reply=True, timeout=LIMIT_S)
    assert {slider, block} <= set(known["content"]["comms"])


def test_a_page_that_is_loaded_again_gets_them_beside_the_notebook_s_own(front: FrontEnd):
    kernel = front.kernel
    kernel.ok("import ipywidgets\nown = ipywidgets.IntSlider(value=9)")
    block = only_view(kernel.ok(SLIDER))[WIDGET]["model_id"]
    content = {"comm_id": "control", "target_name": "jupyter.widget.control", "data": {}}
    opening = kernel.client.session.msg("comm_open", content)
    opening["metadata"] = {"version": "1.0.0"}
    kernel.client.shell_channel.send(opening)
    asked = front.send("control", {"method": "request_states"})
    kernel.wait_for(lambda: asked in kernel.cells and kernel.cells[asked].of("comm_msg"))
    states = kernel.cells[asked].of("comm_msg")[0].content["data"]["states"]
    assert {block, front.of_rank(block, 0), front.of_rank(block, 1)} <= set(states)
    sliders = [s for s in states.values() if s["model_name"] == "IntSliderModel"]
    assert {0, 1, 9} <= {slider["state"]["value"] for slider in sliders}
    kernel.ok("own.close()")


def test_clear_output_takes_the_widgets_of_the_cell_along(front: FrontEnd):
    cell = front.kernel.ok(
        "%%ddp\nimport ipywidgets as widgets\nfrom IPython.display import clear_output, display\n"
        "display(widgets.IntSlider(description='first'))\nclear_output()\n"
        "display(widgets.IntSlider(description='second'))"
    )
    assert [data["text/plain"] for data in views(cell)] == ["[0]   second: 0\n[1]   second: 0"]


def test_widgets_end_with_their_rank_and_with_the_pool():
    with running_kernel() as kernel:
        front = FrontEnd(kernel)
        kernel.ok("%load_ext nbddp\n%ddp start -n 2")
        shown = kernel.execute(SLIDER)
        cell = kernel.finish(shown)
        block = only_view(cell)[WIDGET]["model_id"]
        front.move(front.of_rank(block, 1), 7)
        kernel.wait_text(shown, "moved to 7")
        kernel.ok("%ddp restart -r 1")
        # Rank 0 has its slider still; of the other there is text.
        kernel.wait_for(lambda: len(front.ids("IntSlider")) == 1)
        kernel.wait_for(lambda: "scale: 7" in str([front.tree(i) for i in front.ids("VBox")]))
        kernel.ok("%ddp stop")
        kernel.wait_for(lambda: not views(now(front, cell)))
        assert now(front, cell).page[0].text == "[0]   scale: 0\n[1]   scale: 7"
        kernel.wait_for(lambda: front.models == {})


PANEL = """%%ddp --step --panel
x = torch.ones(2) * rank
dist.all_reduce(x)
print(x.tolist())"""


def test_a_panel_writes_the_commands_of_the_prompt(front: FrontEnd, subshell: str):
    kernel = front.kernel

    def wait_model(kind: str, **state: object) -> str:
        found = [""]

        def is_open() -> bool:
            found[0] = next(
                (i for i in front.ids(kind) if state.items() <= front.models[i].items()), ""
            )
            return bool(found[0])

        kernel.wait_for(is_open)
        return found[0]

    def send(model: str, **data: object) -> None:
        front.send(model, data, subshell)

    running = kernel.execute(PANEL)
    send(wait_model("Play"), method="update", state={"value": 1}, buffer_paths=[])
    wait_model("Button", description="Step", disabled=False)
    chosen = wait_model("ToggleButton", description="0")
    send(chosen, method="update", state={"value": True}, buffer_paths=[])
    click = {"method": "custom", "content": {"event": "click"}}
    send(wait_model("Button", description="Step chosen"), **click)
    kernel.wait_text(running, "(step) step -r 0\n")
    field = wait_model("Text", disabled=False)
    kernel.wait_for(lambda: "rank 0: waits in it" in front.models[front.ids("HTML")[-1]]["value"])
    send(field, method="update", state={"value": "print x"}, buffer_paths=[])
    send(field, method="custom", content={"event": "submit"})
    kernel.wait_text(running, "[1]   tensor([1., 1.])")
    send(wait_model("Button", description="Step", disabled=False), **click)
    cell = kernel.finish(running)
    assert cell.status == "ok"
    assert cell.text.endswith(
        "(step) step -r 0\n(step) print x\n[1]   tensor([1., 1.])\n(step) step\n[0-1] [1.0, 1.0]\n"
    )
    updates = [m for m in cell.of("update_display_data") if "panel" in (m.display_id or "")]
    assert WIDGET not in updates[-1].content["data"]
    assert "✓  ✓" in updates[-1].content["data"]["text/plain"]
    assert not front.ids("Play")


def test_a_panel_that_is_never_heard_gives_way_to_the_prompt(front: FrontEnd):
    cell = front.kernel.run(PANEL, "step", stdin=True)
    assert cell.status == "ok"
    assert "sends no clicks while a cell runs, so the prompt takes the commands" in cell.text
    assert "[0-1] [1.0, 1.0]" in cell.text
