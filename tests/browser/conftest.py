"""One server, one browser, and an open notebook with a pool in each of the two applications."""

import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import browser as support
from tests.support.browser import App, Book, Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Pictures of what was seen when a test failed.
FAILURES = Path(__file__).resolve().parents[2] / "out" / "browser"

APPS = ["lab", pytest.param("notebooks", marks=pytest.mark.slow)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of this folder are `browser`, and skipped where there can be none."""
    reason = support.missing()
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.path).parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.full)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(180))  # a page loads for long on a busy machine
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep a picture of each notebook that a failed test had open."""
    report = yield
    if report.failed and report.when == "call":
        from playwright.sync_api import Error

        for name, value in getattr(item, "funcargs", {}).items():
            if isinstance(value, Book):
                path = FAILURES / f"{re.sub(r'[^A-Za-z0-9]+', '-', item.name)}-{name}.png"
                FAILURES.mkdir(parents=True, exist_ok=True)
                try:
                    value.page.screenshot(path=path)
                except Error as error:
                    report.sections.append(("picture", f"none: {error}"))
                else:
                    report.sections.append(("picture", str(path)))
    return report


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with support.serving(tmp_path_factory.mktemp("jupyter")) as running:
        yield running


@pytest.fixture(scope="package")
def browser() -> Iterator["Browser"]:
    with support.browsing() as running:
        yield running


@pytest.fixture(scope="package")
def open_book(server: Server, browser: "Browser") -> Callable[..., Book]:
    """Opens a notebook of the server's folder; one that is not there is made."""

    def opened(name: str, app: App = "lab", kernel: str = "python3") -> Book:
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        book = Book(server, page, name, app)
        if not book.path.exists():
            support.write_notebook(book.path, kernel=kernel)
        return book.open()

    return opened


@pytest.fixture(scope="package")
def lab_book(open_book: Callable[..., Book]) -> Iterator[Book]:
    """A notebook with a pool of two ranks in JupyterLab."""
    book = open_book("in-the-lab.ipynb")
    book.run("%load_ext nbddp\n%ddp start -n 2").wait_text("2 processes (ranks 0-1) on the CPU")
    yield book
    book.close()


@pytest.fixture(scope="package")
def wide_book(open_book: Callable[..., Book]) -> Iterator[Book]:
    """A notebook with a pool of four ranks in JupyterLab."""
    book = open_book("with-four-ranks.ipynb")
    book.run("%load_ext nbddp\n%ddp start -n 4").wait_text("4 processes (ranks 0-3) on the CPU")
    yield book
    book.close()


@pytest.fixture(scope="package", params=APPS)
def any_book(request: pytest.FixtureRequest, open_book: Callable[..., Book]) -> Iterator[Book]:
    """A notebook with a pool of two ranks, in each of the two applications."""
    app: App = request.param
    if app == "lab":
        yield request.getfixturevalue("lab_book")
        return
    book = open_book(f"in-{app}.ipynb", app)
    book.run("%load_ext nbddp\n%ddp start -n 2").wait_text("2 processes (ranks 0-1) on the CPU")
    yield book
    book.close()


@pytest.fixture(scope="package", params=APPS)
def own_book(request: pytest.FixtureRequest, open_book: Callable[..., Book]) -> Iterator[Book]:
    """A notebook whose kernel is ours, with two ranks, in each of the two applications."""
    app: App = request.param
    book = open_book(f"own-in-{app}.ipynb", app, "nbddp-2")
    yield book
    book.close()
