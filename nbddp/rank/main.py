"""Entry of a rank process, called by `nbddp.agent.fork_server`.

Runs in: the rank process, main thread.
"""

import multiprocessing
import os
import signal
import traceback

from nbddp.rank import environment, preload, process_state, stack_writer, started_processes, streams
from nbddp.rank.exception_text import error_info
from nbddp.rank.server import RankServer
from nbddp.system import process_tree
from nbddp.wire.launch_specs import RankLaunch
from nbddp.wire.messages import StartFailed


def main(launch: RankLaunch) -> None:
    """Run a rank until it has to end; never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setsid()
    process_tree.die_with_parent(preload.FORK_SERVER_PID if launch.forked else launch.agent_pid)
    process_state.renew()
    # Our start method would leave DataLoader workers unable to find names defined in a cell.
    multiprocessing.set_start_method(multiprocessing.get_all_start_methods()[0], force=True)
    started_processes.install()
    streams.take_over(launch.stdout.take(), launch.stderr.take())
    stack_writer.install(launch.stacks.take())
    exit_code = 0
    try:
        environment.prepare(launch)
        server = RankServer(launch)
        try:
            server.serve()
        except Exception as error:  # noqa: BLE001 - any failure must reach the notebook
            server.link.send_in_order(
                StartFailed(
                    node=launch.node,
                    rank=launch.rank,
                    error=error_info(error, traceback.format_exception(error)),
                )
            )
            server.link.close()
            exit_code = 1
    except BaseException:  # noqa: BLE001 - the agent forwards the printed traceback
        traceback.print_exc()
        exit_code = 1
    finally:
        streams.flush_all()
        # After a return, multiprocessing would wait for threads that the user's cells have left.
        os._exit(exit_code)
