"""Widgets as text: what is left of them in a saved notebook.

Runs in: the notebook's process. Pure: no clock, no I/O. It reads the states of models as ranks send
them to the front end, so nothing here needs ipywidgets.
"""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbddp.notebook.render.html import PRE_STYLE, clean, details, preformatted

#: How a rank shows a widget: the id of its model.
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"

#: More rows than this are folded but for the first ones.
MAX_OPEN_ROWS = 16
_FIRST_ROWS = 8
#: Ends the id of a display that would have none if it were no widget.
WIDGET_ID_SUFFIX = "-widget"

_REFERENCE = "IPY_MODEL_"
_TAG = re.compile(r"<[^<>]*>")
_BAR_CHARS = 20
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MAX_DEPTH = 20
_MAX_CHARS = 20_000
_BOXES = frozenset({"VBoxModel", "AccordionModel", "TabModel", "StackModel", "GridBoxModel"})
_ROWS = frozenset({"HBoxModel", "BoxModel"})
_TEXTS = frozenset({"HTMLModel", "HTMLMathModel", "LabelModel"})
_BARS = frozenset({"FloatProgressModel", "IntProgressModel"})
_IMAGES = ("image/png", "image/jpeg")
_MAX_IMAGE_CHARS = 2_000_000
#: A bar of full blocks is the darkest thing on the page.
_BLOCKS = re.compile(f"[█{_EIGHTHS.strip()}]+")
_BLOCKS_STYLE = "opacity:.45"
_ENDED_STYLES = frozenset({"success", "danger"})


@dataclass
class Model:
    """One model of a widget: where it lives, and its latest state."""

    rank: int
    state: dict[str, Any] = field(default_factory=dict)  #: without the binary parts
    binaries: dict[tuple[Any, ...], bytes] = field(default_factory=dict)  #: by path; see `buffers`

    @property
    def kind(self) -> str:
        """``FloatProgressModel``, for example."""
        return str(self.state.get("_model_name", ""))

    def told(self) -> dict[str, Any]:
        """As a front end is told of all models at once."""
        return {
            "model_name": self.kind,
            "model_module": self.state.get("_model_module", ""),
            "model_module_version": self.state.get("_model_module_version", ""),
            "state": dict(self.state),
        }


Models = Mapping[str, Model]


def display_id_of(data: Mapping[str, Any], scope: str) -> str | None:
    """An id for the display of a widget, so that it never waits for others; None: it is none."""
    view = data.get(WIDGET_MIME)
    return f"{scope}-{view.get('model_id')}{WIDGET_ID_SUFFIX}" if isinstance(view, dict) else None


def without_widget(data: Mapping[str, Any]) -> dict[str, Any]:
    """The bundle without its widget, for readers that cannot show it."""
    return {mime: value for mime, value in data.items() if mime != WIDGET_MIME}


def children_of(models: Models, model_id: str) -> list[str]:
    """Ids of the models that a box shows; those that are closed left out."""
    found = models[model_id].state.get("children") or ()
    ids = [str(each).removeprefix(_REFERENCE) for each in found]
    return [each for each in ids if each in models]


def parts_of(models: Models, model_id: str) -> set[str]:
    """All models that one is made of, itself too: children, layout, style."""
    found: set[str] = set()
    waiting: list[Any] = [f"{_REFERENCE}{model_id}"]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | tuple):
            waiting += value
        elif isinstance(value, str) and value.startswith(_REFERENCE):
            part = value.removeprefix(_REFERENCE)
            if part in models and part not in found:
                found.add(part)
                waiting += models[part].state.values()
    return found


def images_of(models: Models, model_id: str) -> list[str]:
    """Pictures in Output widgets, as addresses that hold them."""
    found: list[str] = []
    for part in sorted(parts_of(models, model_id)):
        for output in models[part].state.get("outputs") or ():
            data = output.get("data") or {}
            kinds = [mime for mime in _IMAGES if isinstance(data.get(mime), str)]
            if kinds:
                found.append(f"data:{kinds[0]};base64,{''.join(data[kinds[0]].split())}")
    return found if sum(map(len, found)) <= _MAX_IMAGE_CHARS else []


def is_finished(models: Models, model_id: str) -> bool:
    """Whether it is a progress bar, or holds some and texts, and each of them has ended."""
    kinds = set(_passive_kinds(models, model_id, 0))
    return "ended" in kinds and kinds <= {"ended", "text"}


def _passive_kinds(models: Models, model_id: str, depth: int) -> list[str]:
    model = models.get(model_id)
    if model is None:
        return []
    state = model.state
    if model.kind in _BARS:
        has_ended = state.get("bar_style") in _ENDED_STYLES or _share(state) >= 1
        return ["ended" if has_ended else "running"]
    if model.kind in _TEXTS:
        return ["text"]
    if model.kind in _BOXES | _ROWS and depth < _MAX_DEPTH:
        children = children_of(models, model_id)
        return [kind for each in children for kind in _passive_kinds(models, each, depth + 1)]
    return ["control"]


def text_of(models: Models, model_id: str, fallback: str = "") -> str:
    """The contents of a widget as plain text; ``fallback`` if nothing is known about its kind."""
    try:
        text = _text(models, model_id, 0, beside_text=False)
    except (LookupError, TypeError, ValueError):
        text = None  # a state that no widget of ipywidgets has
    return (fallback if text is None else text)[:_MAX_CHARS]


@dataclass(frozen=True)
class Row:
    """The text and the pictures in place of one rank's widget."""

    label: str
    text: str
    images: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The text behind the label."""
        first, *rest = clean(self.text).split("\n")
        if not self.label:
            return [first, *rest]
        return [f"{self.label} {first}", *(" " * (len(self.label) + 1) + line for line in rest)]


def bundle_of(rows: Sequence[Row]) -> dict[str, str]:
    """Rows as a MIME bundle that every reader shows."""
    plain = "\n".join(line for row in rows for line in row.lines)
    if not plain:
        return {"text/plain": ""}
    if len(rows) <= MAX_OPEN_ROWS:
        return {"text/plain": plain, "text/html": _pages(rows)}
    first, rest = rows[:_FIRST_ROWS], rows[_FIRST_ROWS:]
    more = details(f"{len(rest)} more ranks", _pages(rest))
    return {"text/plain": plain, "text/html": _pages(first) + more}


def _pages(rows: Sequence[Row]) -> str:
    parts: list[str] = []
    lines: list[str] = []
    for row in rows:
        lines += row.lines
        if row.images:
            parts.append(_page(lines))
            parts += [f'<img src="{html.escape(source)}" alt="picture" />' for source in row.images]
            lines = []
    if lines:
        parts.append(_page(lines))
    # A block that begins with <pre> ends with it for Markdown, so that the next one is none.
    return "".join(parts) if len(parts) == 1 else f"<div>{''.join(parts)}</div>"


def _page(lines: Sequence[str]) -> str:
    text = html.escape("\n".join(lines), quote=False)
    text = _BLOCKS.sub(rf'<span style="{_BLOCKS_STYLE}">\g<0></span>', text)
    return preformatted(text, PRE_STYLE)


def _text(  # noqa: PLR0911, PLR0912 - one for each kind of widget
    models: Models, model_id: str, depth: int, *, beside_text: bool
) -> str | None:
    model = models.get(model_id)
    if model is None or depth > _MAX_DEPTH:
        return ""
    state, kind = model.state, model.kind
    if kind in _TEXTS:
        return _described(state, _plain(str(state.get("value", "")), is_html=kind != "LabelModel"))
    if kind in _BARS:
        bar = _bar(state)
        if beside_text:
            return bar
        return _described(state, f"{bar} {state.get('value', 0):g}/{state.get('max', 100):g}")
    if kind in _BOXES | _ROWS:
        children = children_of(models, model_id)
        has_texts = any(models[each].kind in _TEXTS for each in children)
        parts = [
            _text(models, each, depth + 1, beside_text=kind in _ROWS and has_texts) or ""
            for each in children
        ]
        shown = [part for part in parts if part.strip()]
        return _beside(shown) if kind in _ROWS else "\n".join(shown)
    if kind == "OutputModel":
        return _outputs_text(state.get("outputs") or ())
    if kind in ("ButtonModel", "ToggleButtonModel"):
        return f"[{state.get('description', '')}]"
    if kind == "ImageModel":
        return "(image)"
    if kind == "PasswordModel":
        return _described(state, "(hidden)")
    if kind == "FileUploadModel":
        return _described(state, ", ".join(str(each["name"]) for each in state.get("value") or ()))
    if kind == "CheckboxModel":
        return _described(state, "yes" if state.get("value") else "no")
    labels, index = state.get("_options_labels"), state.get("index")
    if labels is not None:
        chosen = index if isinstance(index, list | tuple) else [index]
        return _described(state, ", ".join(str(labels[i]) for i in chosen if i is not None))
    if "value" in state:
        value = state["value"]
        return _described(state, f"{value:g}" if isinstance(value, float) else str(value))
    return None


def _share(state: Mapping[str, Any]) -> float:
    low, high = state.get("min", 0) or 0, state.get("max", 100) or 0
    value = state.get("value", 0) or 0
    return 1.0 if high <= low else min(1.0, max(0.0, (value - low) / (high - low)))


def _bar(state: Mapping[str, Any]) -> str:
    eighths = int(_share(state) * _BAR_CHARS * 8)
    bar = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return f"|{bar.ljust(_BAR_CHARS)}|"


def _described(state: Mapping[str, Any], text: str) -> str:
    description = _plain(str(state.get("description") or ""), is_html=False).strip()
    return f"{description.rstrip(':')}: {text}" if description else text


def _plain(text: str, *, is_html: bool) -> str:
    # tqdm pads with spaces that HTML keeps.
    text = text.replace("\u2007", " ")
    return html.unescape(_TAG.sub("", text)) if is_html else text


def _beside(parts: Sequence[str]) -> str:
    """In a row; a bar stands close to the number in front of it."""
    line = ""
    for part in parts:
        gap = "" if not line or part.startswith(("|", " ")) else " "
        line += gap + part
    return line


def _outputs_text(outputs: Sequence[Mapping[str, Any]]) -> str:
    text = ""
    for output in outputs:
        if output.get("output_type") == "stream":
            text += str(output.get("text", ""))
            continue
        text += "\n" if text and not text.endswith("\n") else ""
        if output.get("output_type") == "error":
            text += f"{output.get('ename')}: {output.get('evalue')}\n"
            continue
        data = output.get("data") or {}
        plain = str(data.get("text/plain", ""))
        if plain.startswith("<IPython.") and isinstance(data.get("text/html"), str):
            plain = _plain(data["text/html"], is_html=True).strip()
        text += f"{plain}\n"
    return text.rstrip("\n")
