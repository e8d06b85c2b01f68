"""Printed text takes no memory of the rank."""

from nbddp.controller.pool.pool import Pool
from tests.support.views import run_cell


def test_printed_text_is_not_kept(pool: Pool):
    assert run_cell(pool, "print('p' * 1_000_000)").text(0) == "p" * 1_000_000 + "\n"
    # Later versions of IPython keep the outputs of each cell there.
    outputs = "getattr(get_ipython().history_manager, 'outputs', {}).values()"
    kept = f"sum(len(str(output)) for outputs in {outputs} for output in outputs)"
    found = run_cell(pool, kept).result(0)
    assert found is not None
    assert int(found) < 1_000_000
