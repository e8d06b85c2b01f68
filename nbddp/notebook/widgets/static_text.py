"""The text form of widgets, for saved notebooks.

Runs in: the notebook's process. Pure: no clock, no I/O. It reads the states of models as ranks send
them to the front end, so it does not need ipywidgets.
"""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbddp.notebook.render.html import PRE_STYLE, clean, details, preformatted
from nbddp.wire.widget_references import REFERENCE, WIDGET_MIME

#: If there are more rows than this, all but the first ones are folded.
MAX_OPEN_ROWS = 16
_FIRST_ROWS = 8
#: End of the id of a display to which the user gave no id.
WIDGET_ID_SUFFIX = "-widget"

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
#: Full blocks would be the darkest part of the page.
_BLOCKS = re.compile(f"[█{_EIGHTHS.strip()}]+")
_BLOCKS_STYLE = "opacity:0.65"
_ENDED_STYLES = frozenset({"success", "danger"})


@dataclass
class Model:
    """One model of a widget, and its latest state."""

    rank: int  #: the rank that owns it; -1: the relay
    state: dict[str, Any] = field(default_factory=dict)  #: without the binary parts
    binaries: dict[tuple[Any, ...], bytes] = field(default_factory=dict)  #: by path; see `buffers`

    @property
    def kind(self) -> str:
        """``FloatProgressModel``, for example."""
        return str(self.state.get("_model_name", ""))

    def full_state(self) -> dict[str, Any]:
        """Return the model as in a message with the states of all models."""
        return {
            "model_name": self.kind,
            "model_module": self.state.get("_model_module", ""),
            "model_module_version": self.state.get("_model_module_version", ""),
            "state": dict(self.state),
        }


Models = Mapping[str, Model]


def display_id_of(data: Mapping[str, Any], scope: str) -> str | None:
    """Return an id for the display of a widget, so that it never folds; None: it is no widget."""
    view = data.get(WIDGET_MIME)
    return f"{scope}-{view.get('model_id')}{WIDGET_ID_SUFFIX}" if isinstance(view, dict) else None


def without_widget(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bundle without its widget, for front ends that cannot show it."""
    return {mime: value for mime, value in data.items() if mime != WIDGET_MIME}


def children_of(models: Models, model_id: str) -> list[str]:
    """Return the ids of the open models that a box shows."""
    references = models[model_id].state.get("children") or ()
    ids = [str(reference).removeprefix(REFERENCE) for reference in references]
    return [child_id for child_id in ids if child_id in models]


def parts_of(models: Models, model_id: str) -> set[str]:
    """Return the ids of a model and its parts: children, layout, style."""
    parts: set[str] = set()
    waiting: list[Any] = [f"{REFERENCE}{model_id}"]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | tuple):
            waiting += value
        elif isinstance(value, str) and value.startswith(REFERENCE):
            part = value.removeprefix(REFERENCE)
            if part in models and part not in parts:
                parts.add(part)
                waiting += models[part].state.values()
    return parts


def images_of(models: Models, model_id: str) -> list[str]:
    """Return the pictures in Output widgets as ``data:`` URLs; none if they are too large."""
    urls: list[str] = []
    for part in sorted(parts_of(models, model_id)):
        for output in models[part].state.get("outputs") or ():
            data = output.get("data") or {}
            kinds = [mime for mime in _IMAGES if isinstance(data.get(mime), str)]
            if kinds:
                urls.append(f"data:{kinds[0]};base64,{''.join(data[kinds[0]].split())}")
    return urls if sum(map(len, urls)) <= _MAX_IMAGE_CHARS else []


def is_finished(models: Models, model_id: str) -> bool:
    """Return whether a widget consists of progress bars that have ended, and of texts."""
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
        return [kind for child in children for kind in _passive_kinds(models, child, depth + 1)]
    return ["control"]


def text_of(models: Models, model_id: str, fallback: str = "") -> str:
    """Return the contents of a widget as plain text; ``fallback`` if its kind is not known."""
    try:
        text = _text(models, model_id, 0, beside_text=False)
    except (LookupError, TypeError, ValueError):
        text = None  # a state that no widget of ipywidgets has
    return (fallback if text is None else text)[:_MAX_CHARS]


@dataclass(frozen=True)
class Row:
    """The text and the pictures that replace the widget of one rank."""

    label: str
    text: str
    images: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The text after the label."""
        first, *rest = clean(self.text).split("\n")
        if not self.label:
            return [first, *rest]
        return [f"{self.label} {first}", *(" " * (len(self.label) + 1) + line for line in rest)]


def bundle_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return rows as a MIME bundle that every front end shows."""
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
    # Markdown ends an HTML block that begins with <pre> at its end, so <div> keeps them together.
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
        has_texts = any(models[child].kind in _TEXTS for child in children)
        parts = [
            _text(models, child, depth + 1, beside_text=kind in _ROWS and has_texts) or ""
            for child in children
        ]
        shown = [part for part in parts if part.strip()]
        return _joined(shown) if kind in _ROWS else "\n".join(shown)
    if kind == "OutputModel":
        return _outputs_text(state.get("outputs") or ())
    if kind in ("ButtonModel", "ToggleButtonModel"):
        return f"[{state.get('description', '')}]"
    if kind == "ImageModel":
        return "(image)"
    if kind == "PasswordModel":
        return _described(state, "(hidden)")
    if kind == "FileUploadModel":
        return _described(state, ", ".join(str(file["name"]) for file in state.get("value") or ()))
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


def _joined(parts: Sequence[str]) -> str:
    """Join the parts of a row; a bar follows the number before it without a space."""
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
