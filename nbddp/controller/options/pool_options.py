"""The options of a pool: names, flags, defaults, help texts, and checks.

`PoolOptions` is the one definition: ``%ddp start``, ``nbddp kernel install`` and the spec of a
kernel follow from its fields. A new field also needs a parameter of `nbddp.start`, which a test
compares, and, if ranks have to know it, a field of `PoolSpec` that `PoolOptions.spec` fills.

Runs in: the notebook's process.
"""

import shlex
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args

from nbddp.controller.options import line_option
from nbddp.controller.options.checks import (
    DEFAULT_KEEP_S,
    MAX_PORT,
    check_backend,
    check_choice,
    check_devices,
    check_number,
    check_seconds,
    check_switch,
    check_torch,
    checked_folder,
    checked_keep,
    checked_threads,
    checked_variables,
)
from nbddp.controller.options.clusters import cluster_names, cluster_options, cluster_place
from nbddp.controller.options.host_slots import without_slots
from nbddp.controller.options.launcher_checks import (
    KINDS,
    LAUNCHERS,
    LOCAL,
    TAKEN_BY,
    check_hosts,
    check_launcher,
    checked_job,
    count_nodes,
    kept_job_step,
    launcher_names,
)
from nbddp.controller.options.line_option import LineOption
from nbddp.errors import BadOptionError
from nbddp.wire.message_types import Device, InitMethod, PoolSpec

#: More ranks than this on one machine are taken for a typing error.
MAX_RANKS = 1024
_DEFAULT_RANKS = 2
#: Long, or perhaps secret: not for one line.
_NOT_DESCRIBED = ("env", "cwd")


def _on_line(*flags: str, **details: Any) -> dict[str, LineOption]:
    """Metadata of a field: how a command line has it."""
    return {"line": LineOption(flags, **details)}


@dataclass(frozen=True)
class PoolOptions:
    """Options of a pool, as `nbddp.start` takes them.

    Example:
        >>> pool.options.nproc_per_node, pool.options.device
        (2, 'auto')
    """

    nproc_per_node: int = field(
        default=_DEFAULT_RANKS,
        metadata=_on_line(
            "-n",
            "--nproc-per-node",
            metavar="N",
            read=line_option.whole_number,
            help=f"ranks on each node (default {_DEFAULT_RANKS})",
        ),
    )
    nnodes: int = field(
        default=1,
        metadata=_on_line(
            "--nnodes",
            metavar="M",
            read=line_option.whole_number,
            help="nodes, simulated on this machine unless there is a --launcher",
        ),
    )
    backend: str = field(
        default="auto",
        metadata=_on_line(
            "--backend",
            metavar="NAME",
            legal=lambda: ("auto", "gloo", "nccl"),
            help="auto, gloo, nccl, or another that torch knows",
        ),
    )
    device: Device = field(
        default="auto",
        metadata=_on_line(
            "--device", metavar="NAME", legal=lambda: get_args(Device), help="auto, cpu or cuda"
        ),
    )
    devices: tuple[int, ...] = field(
        default=(),
        metadata=_on_line(
            "--devices",
            metavar="0,1",
            read=line_option.devices,
            write=line_option.write_devices,
            help="CUDA devices by rank",
        ),
    )
    init: InitMethod = field(
        default="env",
        metadata=_on_line(
            "--init",
            metavar="HOW",
            legal=lambda: get_args(InitMethod),
            help="env, tcp, file; none leaves init_process_group to your cell",
        ),
    )
    threads: int = field(
        default=1,
        metadata=_on_line(
            "--threads",
            metavar="T",
            read=line_option.whole_number,
            help="intra-op threads of a rank (default OMP_NUM_THREADS, or 1)",
        ),
    )
    env: Mapping[str, str] = field(
        default_factory=dict,
        metadata=_on_line(
            "--env",
            metavar="NAME=VALUE",
            read=line_option.variable,
            write=line_option.write_variables,
            is_repeated=True,
            help="variables for the ranks",
        ),
    )
    cwd: str = field(
        default="",
        metadata=_on_line("--cwd", metavar="FOLDER", help="working folder of the ranks"),
    )
    timeout: float | None = field(  #: seconds; None: torch's default
        default=None,
        metadata=_on_line(
            "--timeout",
            metavar="SECONDS",
            read=line_option.seconds,
            help="of collectives of the default process group",
        ),
    )
    cluster: str = field(
        default="",
        metadata=_on_line(
            "--cluster",
            metavar="NAME",
            legal=cluster_names,
            help="take options from this table of your clusters.toml; those on the line win",
        ),
    )
    launcher: str = field(
        default=LOCAL,
        metadata=_on_line(
            "--launcher",
            metavar="NAME",
            legal=launcher_names,
            help=f"starts the agents: {', '.join(LAUNCHERS.values())}",
        ),
    )
    hosts: tuple[str, ...] = field(
        default=(),
        metadata=_on_line(
            "--hosts",
            metavar="A,B",
            read=line_option.names,
            write=line_option.write_names,
            help="machines for --launcher ssh, one node on each",
        ),
    )
    python: str = field(
        default="",
        metadata=_on_line(
            "--python",
            metavar="PATH",
            help="Python of the other machines (default: this path; k8s: that of the image)",
        ),
    )
    tunnel: bool = field(
        default=False,
        metadata=_on_line("--tunnel", help="ssh carries the connections to the notebook"),
    )
    via: str = field(
        default="",
        metadata=_on_line(
            "--via",
            metavar="LOGIN",
            help="the login node, reached by ssh, on which srun or ssh starts the agents",
        ),
    )
    address: str = field(
        default="",
        metadata=_on_line(
            "--address",
            metavar="IP",
            help="of this machine, at which the other ones reach it; with --launcher ray: of the "
            "Ray cluster",
        ),
    )
    port: int = field(
        default=0,
        metadata=_on_line(
            "--port",
            metavar="N",
            read=line_option.whole_number,
            help="of this machine for the other ones (default: any free one)",
        ),
    )
    slurm: str = field(
        default="",
        metadata=_on_line(
            "--slurm",
            metavar="OPTIONS",
            help='for srun, in quotes: "--partition=gpu --time=1:00:00"',
            has_options=True,
        ),
    )
    image: str = field(
        default="",
        metadata=_on_line(
            "--image", metavar="IMAGE", help="for --launcher k8s: has Python, torch and nbddp"
        ),
    )
    kind: str = field(
        default="",
        metadata=_on_line(
            "--kind",
            metavar="KIND",
            legal=lambda: KINDS,
            help="of the object that makes the pods: job (default), jobset, trainjob",
        ),
    )
    namespace: str = field(
        default="",
        metadata=_on_line(
            "--namespace", metavar="NAME", help="of Kubernetes (default: that of your context)"
        ),
    )
    k8s_template: str = field(
        default="",
        metadata=_on_line(
            "--k8s-template",
            metavar="FILE",
            help="YAML with a Pod, whose fields the pods get: nodeSelector, resources, volumes",
        ),
    )
    job: Mapping[str, str] = field(
        default_factory=dict,
        metadata=_on_line(
            "--job",
            metavar="NAME=VALUE",
            read=line_option.job_option,
            write=line_option.write_variables,
            is_repeated=True,
            help="of a batch job (pbs, lsf, flux, psij): queue=gpu duration=2h, ...",
        ),
    )
    keep: float = field(  #: seconds; 0: it ends with the notebook
        default=0.0,
        metadata=_on_line(
            "--keep",
            metavar="TIME",
            read=line_option.duration,
            write=line_option.write_duration_word,
            help="how long it goes on after the end of the kernel, such as 4h",
        ),
    )
    plain: bool = field(
        default=False,
        metadata=_on_line(
            "--plain", help="stock process groups: no trace, no diagnosis, nothing is freed"
        ),
    )

    @classmethod
    def checked(cls, nproc_per_node: int | None = None, **given: Any) -> "PoolOptions":
        """Check everything that can be checked before a process is started.

        Args:
            nproc_per_node: number of ranks on each node; None: that of the cluster, or 2.
            given: the other options, by the names of the fields, as `nbddp.start` takes them. They
                win over those of the cluster.

        Returns:
            The options, with defaults such as ``threads`` and ``cwd`` filled in.

        Raises:
            BadOptionError: an option is not legal; the message says what is.
            NoTorchError: torch is not installed.
            TypeError: there is no option of this name.

        Example:
            >>> from nbddp.controller.options import PoolOptions
            >>> PoolOptions.checked(4, plain=True).describe()
            '-n 4 --plain'
        """
        if nproc_per_node is not None:
            given = given | {"nproc_per_node": nproc_per_node}
        given = without_slots(given)
        if not (cluster := given.get("cluster")):
            return cls._checked(given)
        table = cluster_options(cluster, LINE_OPTIONS)
        try:
            options = cls._checked(without_slots(table) | given)
            if options.launcher == "ssh":  # without a cluster, the launcher says it at the start
                check_hosts(options.hosts, options.nnodes)
        except BadOptionError as error:
            raise BadOptionError(f"with {cluster_place(cluster)}: {error}") from None
        return options

    @classmethod
    def _checked(cls, given: Mapping[str, Any]) -> "PoolOptions":
        given = {**given}
        if given.get("nnodes") is None:
            nodes = count_nodes(given.get("launcher", LOCAL), given.get("hosts", ()))
            given["nnodes"] = nodes
        asked = cls(**given)
        check_number("nproc_per_node (-n)", asked.nproc_per_node, MAX_RANKS)
        check_number("nnodes", asked.nnodes, MAX_RANKS)
        check_number("nproc_per_node x nnodes", asked.world_size, MAX_RANKS)
        check_number("port", asked.port, MAX_PORT, low=0)
        check_choice("device", asked.device, get_args(Device))
        check_choice("init", asked.init, get_args(InitMethod))
        check_backend(asked.backend, asked.device)
        check_devices(asked.devices, asked.device)
        check_seconds("--timeout", asked.timeout)
        if asked.kind:
            check_choice("kind", asked.kind, KINDS)
        check_switch("plain", asked.plain)
        env = checked_variables(asked.env)
        threads = checked_threads(given.get("threads"), env)
        check_launcher(
            asked.launcher,
            {name: getattr(asked, name) for name in TAKEN_BY},
            init=asked.init,
            is_given="launcher" in given,
            of_cluster=bool(asked.cluster),
        )
        if asked.has_machines:
            cwd = asked.cwd
        else:
            cwd = checked_folder(asked.cwd)
            check_torch()
        return replace(
            asked,
            backend=asked.backend.lower(),
            devices=tuple(asked.devices),
            hosts=tuple(asked.hosts),
            job=checked_job(asked.job),
            threads=threads,
            env=env,
            cwd=cwd,
            keep=checked_keep(asked.keep, launcher=asked.launcher),
        )

    def keep_after_detach(self, keep: str | float | None) -> float:
        """Check for how long a pool is kept that is let go.

        Args:
            keep: seconds, or text such as ``4h``; None: as the pool was started, or 2 hours.

        Returns:
            The time in seconds.

        Raises:
            BadOptionError: it is not legal, or the agents end with their notebook.

        Example:
            >>> pool.options.keep_after_detach(None)
            7200.0
        """
        if self.launcher == "slurm" and not self.keep:
            raise BadOptionError(
                "the pool is not let go: its agents are a step of srun, which ends with this "
                f"notebook. Next: {kept_job_step(self.via)}"
            )
        return checked_keep(
            keep or self.keep or DEFAULT_KEEP_S,
            launcher=self.launcher,
            command="%ddp detach" if keep is None else "--keep",
        )

    @property
    def has_machines(self) -> bool:
        """Whether the nodes are machines of their own.

        Example:
            >>> pool.options.has_machines
            False
        """
        return self.launcher != LOCAL

    @property
    def world_size(self) -> int:
        """Number of ranks on all nodes together.

        Example:
            >>> pool.options.world_size
            2
        """
        return self.nproc_per_node * self.nnodes

    def differences(self, other: "PoolOptions") -> list[str]:
        """Get the names of the options in which ``other`` differs.

        Args:
            other: the options to compare with.

        Returns:
            The names of the fields, in the order of their declaration.

        Example:
            >>> pool.options.differences(PoolOptions.checked(3))  # imported as above
            ['nproc_per_node']
        """
        return [f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name)]

    def words(self, names: Collection[str]) -> list[str]:
        """Write options as ``%ddp start`` reads them.

        Args:
            names: names of the fields to write.

        Returns:
            The words of the command line.

        Example:
            >>> pool.options.words(["nproc_per_node", "device"])
            ['-n', '2', '--device', 'auto']
        """
        options = {name: option for name, option in LINE_OPTIONS.items() if name in names}
        return [w for name, option in options.items() for w in option.words(getattr(self, name))]

    def describe(self) -> str:
        """Write the options as on the command line, without those that have their default.

        Example:
            >>> pool.options.describe()
            '-n 2'
        """
        names = [name for name in self.differences(PoolOptions()) if name not in _NOT_DESCRIBED]
        return " ".join(self.words(["nproc_per_node", *names]))

    def start_words(self, *, with_env: bool = False) -> str:
        """Write the words behind ``%ddp start`` for a pool like this one, as a shell quotes them.

        A folder of this machine that is the current one is left out.

        Args:
            with_env: also write the variables of the ranks, which are long, or perhaps secret.

        Returns:
            The words of the command line.

        Example:
            >>> pool.options.start_words()
            '-n 2'
        """
        names = {"nproc_per_node", *self.differences(PoolOptions())}
        if not with_env:
            names.discard("env")
        with suppress(FileNotFoundError):  # the current folder was deleted
            if not self.has_machines and self.cwd == str(Path.cwd().resolve()):
                names.discard("cwd")
        return shlex.join(self.words(names))

    def spec(
        self,
        *,
        pool_id: str,
        generation: int,
        init_file: str,
        sys_path: Sequence[str],
        use_arena: bool,
    ) -> PoolSpec:
        """Make what the ranks get of these options and of their pool. For the layer of the pool.

        Args:
            pool_id: names the pool.
            generation: counts the restarts of the pool.
            init_file: path for ``init="file"``.
            sys_path: of the notebook; the ranks get the same.
            use_arena: whether values may travel through shared memory.

        Returns:
            The message for agents and ranks.
        """
        return PoolSpec(
            pool_id=pool_id,
            generation=generation,
            nproc_per_node=self.nproc_per_node,
            nnodes=self.nnodes,
            backend=self.backend,
            device=self.device,
            devices=self.devices,
            init=self.init,
            init_file=init_file,
            threads=self.threads,
            timeout_s=self.timeout or 0.0,
            cwd=self.cwd or str(Path.cwd()),
            needs_cwd=bool(self.cwd),
            has_machines=self.has_machines,
            sys_path=tuple(sys_path),
            # The hub has those of the store.
            env={name: value for name, value in self.env.items() if not name.startswith("MASTER_")},
            use_arena=use_arena,
            plain=self.plain,
        )


#: How command lines have the options, by the names of the fields.
LINE_OPTIONS: dict[str, LineOption] = {
    option.name: option.metadata["line"] for option in fields(PoolOptions)
}
