"""The last operation of a rank, in a few words.

Runs in: the notebook's process. Pure.
"""

from nbddp.controller.history import RankView
from nbddp.notebook.tables import duration
from nbddp.wire.observed import Operation, RankLook, ThreadLook, ending_of


def main_thread(look: RankLook | None) -> ThreadLook | None:
    """The thread that runs cells."""
    threads = look.threads if look is not None else ()
    return next((thread for thread in threads if thread.is_main), None)


def last_collective(view: RankView) -> tuple[str, str]:
    """``all_reduce #7``, and how it stands: ``for 3.2 s``, ``done``."""
    known = (*view.operations, *(view.look.operations if view.look else ()))
    told = [each for each in known if each.site.line or each.state == "scheduled"]
    if not told:
        return "", ""
    last = max(told, key=lambda each: each.record_id)
    main = main_thread(view.look)
    wait = main.wait if main is not None else None
    ending = ending_of(last.state, last.error)
    if ending != "open" or wait is None or view.look is None:
        return _name(last), ending
    return _name(last), f"for {duration(max(0, view.look.time_ns - wait.since_ns))}"


def _name(operation: Operation) -> str:
    signature = operation.signature
    match signature.kind:
        case "send":
            return f"{signature.op} to {operation.peer}"
        case "recv":
            return f"{signature.op} from {'any' if operation.peer < 0 else operation.peer}"
        case "store":
            return f"store {signature.op}"
        case _:
            number = operation.collective_seq_id
            return f"{signature.op} #{number}" if number else signature.op
