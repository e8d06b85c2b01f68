"""The words about data that ranks have read twice, never, or in the same order.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.control_flow import Code
from nbddp.controller.diagnosis.data_changes import has_sampler, with_sampler, with_set_epoch
from nbddp.controller.diagnosis.data_reads import (
    DataFinding,
    DataNote,
    batches_by_count,
    compare_reads,
)
from nbddp.controller.diagnosis.phrases import Predicate, RankVerb, subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.report import ChangedLine, CodeChange, CodeLine, PerRank
from nbddp.controller.diagnosis.words.shared import Words, code_change
from nbddp.wire.flight_recorder import LoaderReads, ReadEpoch, Site
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet, ranks_by_value


def samples_twice(cause: Cause, reports: RankReports) -> Words:
    """Several ranks have read one sample in one pass."""
    finding = _finding(cause)
    ranks, some = finding.culprits, _some(finding)
    sampler, loop = some.sampler, _loop(finding)
    is_all = finding.is_all
    amount = (
        f"all {finding.length} samples"
        if is_all
        else f"{finding.count} of the {finding.length} samples"
    )
    what = f"{amount} of {finding.dataset}"
    verb = "each read" if is_all else "read"
    again = "" if is_all else f" more than once ({_indices(finding)})"
    made, made_sampler = (
        _line_of(some.site, "the loader", loop),
        _line_of(sampler.site, "the sampler", loop),
    )
    change = None
    match finding.reason:
        case "no-sampler":
            why = "no sampler gives each rank a share of its own"
            step = f"Perhaps give {made} a `DistributedSampler`."
            is_imported = has_sampler(some.site, reports.sources)
            change = _change(reports, some.site, partial(with_sampler, is_imported=is_imported))
        case "same-share":
            shares = _values(finding, lambda each: each.sampler.rank, "rank=")
            why = f"their samplers have the same share ({shares})"
            step = (
                f"{'Perhaps leave' if finding.is_open else 'Leave'} out `rank=` and "
                f"`num_replicas=` of {made_sampler}: the sampler asks the process group."
            )
        case "seeds":
            seeds = _values(finding, lambda each: each.sampler.seed, "seed=")
            why = f"their samplers shuffle by different seeds ({seeds})"
            step = f"Give {made_sampler} the same seed on all ranks."
        case "epochs":
            number = finding.number - 1
            values = _values(finding, lambda each: each.epochs[number].number, "")
            why = f"their samplers are in different epochs ({values})"
            step = "Call `set_epoch` with the same number on all ranks."
        case "subsets":
            why = "the subsets of ranks overlap"
            step = f"Perhaps the indices of the `Subset` that {made} reads are wrong."
        case _:
            why = f"{sampler.name} gives ranks the same samples"
            step = f"Perhaps let {sampler.name} give each rank a share of its own."
    known = "the dataset of each rank holds the same"
    if not some.contents and finding.reason != "subsets":
        known = f"whether sample 0 of {some.dataset} is the same on all ranks is not known"
    consequence = "`DistributedSampler` is there to give each rank other samples."
    if finding.is_open:
        step += (
            " If each rank uses a part of these batches of its own, or all are meant to read them, "
            "nothing is wrong."
        )
        consequence = (
            f"What {ranks.describe()} trained was combined: a sample counts several times if each "
            "of them trains on it."
        )
    return Words(
        f"{subject(ranks)} {verb} {what}{again} in {_pass(finding)}: {why}.",
        f"the indices were noted while {_line(loop)} read them, and {known}. {consequence}",
        step,
        code=_code((some.site, NO_RANKS), (sampler.site, NO_RANKS), (loop, ranks)),
        ranks=_rows(finding, reports, lambda each: f"read {_samples(each, finding)}"),
        change=change,
    )


def samples_unread(cause: Cause, reports: RankReports) -> Words:
    """No rank has read some samples in one pass."""
    finding = _finding(cause)
    some, loop = _some(finding), _loop(finding)
    shares, ranks = some.sampler.replicas, finding.culprits
    made = _line_of(some.sampler.site, "the sampler", loop)
    return Words(
        f"No rank read {finding.count} of the {finding.length} samples of {some.dataset} "
        f"({_indices(finding)}) in {_pass(finding)}.",
        f"the indices were noted while {_line(loop)} read them to the end. The sampler makes "
        f"{shares} shares, and {ranks.describe()} read {len(_shares(finding))} of them.",
        f"Leave out `rank=` and `num_replicas=` of {made}: the sampler asks the process group.",
        code=_code((some.site, NO_RANKS), (some.sampler.site, NO_RANKS), (loop, ranks)),
        ranks=_rows(finding, reports, lambda each: f"read share {each.sampler.rank} of {shares}"),
        begins_with_ranks=False,
    )


def uneven_batches(cause: Cause, reports: RankReports) -> Words:
    """Ranks have got different numbers of batches in one pass."""
    finding = _finding(cause)
    some, loop = _some(finding), _loop(finding)
    counts = _batches(batches_by_count(finding.epochs))
    headline = f"{counts} of {some.dataset} in {_pass(finding)}."
    ends = "" if cause.proven else "; no rank waited for another one in this cell"
    step = "A `DistributedSampler` gives all ranks equally much"
    if not cause.proven:  # a `break`, or an iterator that begins again, may make up for it
        meant = "If this is meant, and all ranks make equally many steps, nothing is wrong."
        step = f"{meant} Otherwise: a{step[1:]}"
    if any(epoch.has_ddp for epoch in finding.epochs.values()):
        step += "; with data of their own, use `with model.join():`."
    else:
        step += "; with data of their own, let all ranks end the loop after the fewest batches."
    return Words(
        headline[0].upper() + headline[1:],
        f"{finding.culprits.describe()} came to the end of the data at {_line(loop)} first{ends}. "
        "A collective in each iteration waits for ranks that have left the loop.",
        step,
        code=_code((some.site, NO_RANKS), (loop, finding.culprits)),
        ranks=_rows(
            finding, reports, lambda each: f"got {_count(_epoch(each, finding).batches, 'batch')}"
        ),
    )


def same_order(cause: Cause, reports: RankReports) -> Words:
    """Two passes that train had the same order."""
    finding = _finding(cause)
    some, loop = _some(finding), _loop(finding)
    number = _epoch(some, finding).number
    ranks, before = finding.culprits, finding.before
    earlier = some.epochs[before - 1]
    is_called = _epoch(some, finding).epochs_set > earlier.epochs_set
    why = "`set_epoch` was not called between them"
    step = f"Call `set_epoch` of the sampler before {_line(loop)} in each epoch."
    if is_called:
        why = f"`set_epoch` set {number} for both"
        step = f"Call `set_epoch` with another number before {_line(loop)} in each epoch."
    if not cause.proven:
        step += " If both passes belong to one epoch, nothing is wrong."
    return Words(
        f"{subject(ranks)} read {some.dataset} in the same order in passes {before} and "
        f"{finding.number}: {why}.",
        f"the sampler shuffles by its seed and its epoch, which was {number} in both passes; all "
        "indices came in the same order.",
        step,
        code=_code((some.site, NO_RANKS), (some.sampler.site, NO_RANKS), (loop, ranks)),
        ranks=_rows(finding, reports, lambda _: f"began pass {finding.number} in epoch {number}"),
        change=None if is_called or not cause.proven else _change(reports, loop, with_set_epoch),
    )


def data_notes(
    reads_by_rank: Mapping[Rank, Sequence[LoaderReads]], *, has_failed: bool
) -> list[str]:
    """Lines below a cell: facts about its data that are mostly right.

    Args:
        reads_by_rank: what each rank has read in the cell.
        has_failed: the cell has not ended well.
    """
    _, notes = compare_reads(reads_by_rank, len(reads_by_rank), has_failed=has_failed)
    return list(map(_note_text, notes))


def _note_text(note: DataNote) -> str:
    some = next(iter(note.reads.values()))
    where = str(some.epochs[0].site)
    of = f"of the {note.length} samples of {note.dataset}"
    shared = f"{note.ranks.describe()} read {note.count} {of}"
    shared += " each" if note.is_all else " more than once"
    match note.kind:
        case "padding":
            text = (
                f"{some.sampler.name} gave {note.count} {of} twice, so that all ranks have as many"
            )
        case "dropped":
            text = f"no rank read {note.count} {of}: drop_last leaves out the tail"
        case "uneven":
            text = f"{_batches(note.batches)} of {note.dataset}; nothing was trained in the loop"
        case "uneven-alone":
            text = (
                f"{_batches(note.batches)} of {note.dataset}; no operation in the loop waits for "
                "other ranks"
            )
        case "trained-alone":
            text = (
                f"{shared}; nothing that they trained was combined, as in a search for "
                "hyperparameters"
            )
        case _ if some.sampler.replicas == 1:
            text = (
                f"{note.ranks.describe()} read the one share of {some.sampler.name}(num_replicas=1)"
            )
        case _:
            text = f"{shared}; nothing was trained in the loop, as in a validation"
    return f"--sanitize data: {text} ({where})"


def _finding(cause: Cause) -> DataFinding:
    assert cause.data is not None  # noqa: S101 - each cause of these kinds has one
    return cause.data


def _some(finding: DataFinding) -> LoaderReads:
    return next(iter(finding.reads.values()))


def _epoch(loader_reads: LoaderReads, finding: DataFinding) -> ReadEpoch:
    return loader_reads.epochs[finding.number - 1]


def _loop(finding: DataFinding) -> Site:
    return next(iter(finding.epochs.values())).site


def _pass(finding: DataFinding) -> str:
    return "one pass" if finding.number == 1 else f"pass {finding.number}"


def _batches(ranks_by_count: Mapping[int, RankSet]) -> str:
    """``rank 1 got 4 batches, rank 0 got 5 batches``."""
    parts = sorted(ranks_by_count.items())
    return ", ".join(f"{ranks.describe()} got {_count(count, 'batch')}" for count, ranks in parts)


def _count(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def _indices(finding: DataFinding) -> str:
    more = ", ..." if finding.count > len(finding.indices) else ""
    noun = "index" if finding.count == 1 else "indices"
    return f"{noun} {', '.join(map(str, finding.indices))}{more}"


def _samples(loader_reads: LoaderReads, finding: DataFinding) -> str:
    return _count(_epoch(loader_reads, finding).samples, "sample")


def _shares(finding: DataFinding) -> set[int]:
    return {each.sampler.rank for each in finding.reads.values()}


def _values(finding: DataFinding, value: Callable[[LoaderReads], int], prefix: str) -> str:
    """``rank=0 on ranks 0-1``."""
    by_value = ranks_by_value({rank: value(each) for rank, each in finding.reads.items()})
    return ", ".join(f"{prefix}{one} on {ranks.describe()}" for one, ranks in by_value.items())


def _line(site: Site) -> str:
    return f"line {site.line}" if site.line else "a loop"


def _line_of(site: Site, noun: str, loop: Site) -> str:
    """``the sampler of line 7``, with its cell or file if that is not the one of the loop."""
    if not site.line:
        return noun
    is_here = site.position[:2] == loop.position[:2]
    return f"{noun} of line {site.line}" if is_here else f"{noun} of {site.place}"


def _change(
    reports: RankReports, site: Site, change: Callable[[Code, int], tuple[ChangedLine, ...]]
) -> CodeChange | None:
    code = reports.sources(site) if site.line else None
    return None if code is None else code_change(site, change(code, site.line))


def _code(*lines: tuple[Site, RankSet]) -> list[CodeLine]:
    """The lines in their order, each once."""
    known = {site.position: CodeLine(site, ranks) for site, ranks in lines if site.line}
    return sorted(known.values(), key=lambda line: line.site.position)


def _rows(
    finding: DataFinding, reports: RankReports, does: Callable[[LoaderReads], str]
) -> Mapping[Rank, PerRank]:
    """The line of each rank."""
    ranks: Iterable[Rank] = finding.reads
    return {
        rank: replace(
            reports.rank(rank),
            predicate=Predicate(RankVerb.NONE, does(finding.reads[rank])),
            site=finding.epochs[rank].site,
            since_s=None,
        )
        for rank in ranks
    }
