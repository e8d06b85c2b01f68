"""The panel of `%%ddp --step --panel`: its buttons work while the cell runs."""

from tests.support.browser import Book
from tests.support.polling import poll_until

CODE = """%%ddp --step --panel
x = torch.ones(2) * rank
dist.all_reduce(x)
print(x.tolist())"""


def test_ranks_are_stepped_with_the_mouse(any_book: Book):
    cell = any_book.start(CODE)
    output = cell.output
    step = output.get_by_role("button", name="Step", exact=True)
    poll_until(lambda: step.count() == 1 and step.is_enabled())
    output.get_by_role("button", name="0", exact=True).click()
    output.get_by_role("button", name="Step chosen").click()
    cell.wait_text("(step) step -r 0")
    waits = output.locator('td[title="rank 0: waits in it"]')
    poll_until(lambda: waits.count() == 1)
    poll_until(step.is_enabled)
    output.locator(".widget-text input").fill("print x")
    output.locator(".widget-text input").press("Enter")
    cell.wait_text("[1]   tensor([1., 1.])")
    poll_until(step.is_enabled)
    step.click()
    cell.wait_done()
    assert cell.text.endswith("(step) step\n[0-1] [1.0, 1.0]\n")
    assert output.locator("button").count() == 0  # a static table is left
    assert output.locator('td[title="rank 1: has passed it"]').count() == 1
