"""Tables, cards, timelines and pictures, as HTML and as text.

Runs in: the notebook's process. Pure.

    diagnosis_card   why a cell hangs or failed      status_table     ``%ddp status``
    stacks           ``%ddp stacks``                 trace_table      ``%ddp trace``
    timeline         ``%ddp timeline``               timeline_text    the sentences below it
    variables_table  ``%ddp vars``                   diff_report      ``%ddp diff``
    tensor_picture   `nbddp.show`, on a canvas with the letters of font
    rank_grid        figures of several ranks; embedded: a bundle inside of other HTML
    rank_strip       one chip for each rank of a running cell
    dumped_stacks    stacks that `faulthandler` wrote, when a rank did not answer
    html, tables, colours   the parts that all of them share

Callers import the modules, whose functions are named for them, as ``diff_report.bundle``. So a
module that only escapes a text loads no table.
"""
