"""What ``%ddp help`` prints.

Runs in: the notebook's process. Pure.
"""

HELP = """\
%%ddp [-r RANKS] [options]    run the cell on all ranks, or on some
    --timeout S               interrupt it after so long
    --async                   gives a handle: await it, or handle.wait()
    --trace                   a line about its collectives when it ends
    --out HOW                 merged: as it comes, equal lines together (default); ranks: a block
                              for each rank, at the end; quiet: last expressions and errors only
    --check                   compare operations between machines before each (slower)

%ddp start [-n N] [options]   start a pool of N rank processes
    -n, --nproc-per-node N    ranks on each node (default 2)
    --nnodes M                nodes, simulated on this machine (default 1)
    --backend NAME            auto, gloo, nccl, or another that torch knows
    --device NAME             auto, cpu or cuda
    --devices 0,1             CUDA devices by rank
    --init HOW                env, tcp, file; none leaves init_process_group to your cell
    --threads T               intra-op threads of a rank (default OMP_NUM_THREADS, or 1)
    --env K=V ...             variables for the ranks
    --cwd DIR                 working folder of the ranks
    --timeout S               of collectives of the default process group
    --plain                   stock process groups: no trace, no diagnosis, nothing is freed
%ddp status                   the ranks: state, line, last collective, memory, process, logs
    --live [off]              a table that changes with them, until the pool stops
%ddp push NAME ...            copy variables of the notebook to the ranks   [-r RANKS]
x = %ddp pull EXPRESSION      get a value from each rank, or from one       [-r RANKS]
%ddp vars [NAME ...]          what each rank has of its variables; one row if equal [-r RANKS]
%ddp diff EXPRESSION ...      model, state, tensor, rng: equal, or where it first differs [-r RANKS]
%ddp interrupt                interrupt the running cell, or else a widget's callback
%ddp restart [-r RANKS]       fresh ranks with the same options; their variables are lost
%ddp stop                     end the pool

%ddp auto on [options]        from now on every cell runs on the ranks, as below %%ddp [options]
%ddp auto off                 no longer; %ddp auto tells which it is
%%local                       in the first line: this cell runs in the notebook's process. In auto
                              mode these do so by themselves: %ddp, %pip, %history and their like,
                              and cell magics other than %%time, %%timeit, %%prun, %%capture

%ddp diagnose                 who waits for whom, and where each rank is
%ddp stacks [-r RANKS]        the Python stacks of the ranks, also of one that is stuck
%ddp debug [-r RANK]          the debugger of a rank, where it raised its last exception; q leaves
%ddp debugger [-r RANK]       on which rank JupyterLab's works, in a kernel of nbddp's own
%ddp trace [options]          the last collectives, the ranks side by side
    --cell N                  of cell [N] only
    -r RANKS                  in which these ranks take part
    --last N                  so many (default 20)
    --save FILE               all of them as JSON for ui.perfetto.dev, a track for each rank
%ddp timeline [options]       the operations of the last cell along time, a row for each rank
    --cell N                  of cell [N]
    -r RANKS                  rows of these ranks
%ddp config [NAME=VALUE ...]  show what happens when ranks disagree, or change it
    on_deadlock=abort         or report: shown, and left to you
    on_mismatch=raise         before data moves; or warn, off
    on_death=respawn          a fresh rank takes the place of a dead one; or keep
%ddp help                     this text

RANKS: all, a rank, or a list such as 0,2-3. In a cell: rank, world_size, local_rank,
local_world_size, device, torch, dist and nbddp are there already. nbddp.show(t) draws the tensor
of every rank, `with nbddp.show(t):` before and after a block."""
