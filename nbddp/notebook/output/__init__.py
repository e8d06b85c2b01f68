"""The output of a cell: from the messages of many ranks to one page.

Runs in: the notebook's process; for the running cell, on the thread that waits for it.

    from the run's queue: Output, Display, Result, ClearOutput of each rank
      |
    cell_view  View          takes each event; `nbddp.show` goes to show_pictures
      |
    cell_output  CellOutput  one of four, by ``--out``:
      |
      |  merged  MergedOutput    all ranks together; rank_slots once a rank clears its output
      |  gatherer  Gatherer      its first form; the stages:
      |    terminal_lines        chunks of text -> lines, as a terminal leaves them
      |    line_folder           equal items of several ranks -> one (items: types of its items)
      |    budget                limits the text; the rest is a gap (excerpt: its end)
      |    screen                labels, rank_grid for figures; all so far (shown_blocks), for
      |                          when a rank clears its part
      |    settled               the order when the cell ends (text_blocks: a tensor, a table)
      |    rank_text             beside these: the text of each rank, to compare ranks
      |
      |  per_rank_blocks  RankBlocks   rank by rank, when the cell ends (a gatherer for each)
      |  quiet  QuietOutput            values of last expressions only
      |  no_output  NoOutput           nothing: cells that nbddp runs for itself
      |
      | Text, Rich, Redraw
      |
    cell_view  View          shows them; widgets go to widget_blocks
      |
    folded_sink  FoldedSink  a long text: its head, a window on its end, all of it folded
      |                      (fair_excerpt: lines of every rank are shown)
    sinks                    the running cell, an earlier cell, or a terminal
                             (still_sink: printed lines keep their place above the live lines)

socket_log has torch's warnings about connections, in one quiet line for a pool.

kept_output keeps the events of the last cells: `%ddp output` gives them to another view.

start_display shows the start of a pool: how many ranks are ready; step_line what another verb does.

shows has the types that these pass on; rank_states the chips of the row that shows, while a cell
runs, what each rank does.

background shows the output of ranks while no cell runs, and has the thread that shows the cells of
``%%ddp --async``. Code outside this package imports from here, not from its modules.
"""

from nbddp.notebook.output.background import BackgroundOutput, BackgroundViews
from nbddp.notebook.output.cell_output import AnyOut, Out
from nbddp.notebook.output.cell_view import View
from nbddp.notebook.output.folded_sink import FoldedSink, printed_html
from nbddp.notebook.output.kept_output import MAX_CELLS, End, KeptOutput, KeptOutputs, Source
from nbddp.notebook.output.rank_grid import RankGrid
from nbddp.notebook.output.shows import Labels
from nbddp.notebook.output.sinks import CellSink, EarlierCellSink, Live, Sink, TerminalSink
from nbddp.notebook.output.socket_log import SocketLog
from nbddp.notebook.output.start_display import StartDisplay
from nbddp.notebook.output.step_line import StepLine
from nbddp.notebook.output.still_sink import StillSink
from nbddp.notebook.output.widget_blocks import WidgetBlocks

__all__ = [
    "MAX_CELLS",
    "AnyOut",
    "BackgroundOutput",
    "BackgroundViews",
    "CellSink",
    "EarlierCellSink",
    "End",
    "FoldedSink",
    "KeptOutput",
    "KeptOutputs",
    "Labels",
    "Live",
    "Out",
    "RankGrid",
    "Sink",
    "SocketLog",
    "Source",
    "StartDisplay",
    "StepLine",
    "StillSink",
    "TerminalSink",
    "View",
    "WidgetBlocks",
    "printed_html",
]
