"""Finds which ranks are stuck and why: the wait-for graph, its causes, their words. Pure."""

from nbddp.controller.diagnosis.analysis import CompareScope, compare_records, diagnose
from nbddp.controller.diagnosis.control_flow import Code, Sources, no_sources
from nbddp.controller.diagnosis.divergence import is_met
from nbddp.controller.diagnosis.exit_phrase import EXITED, ExitPhrase
from nbddp.controller.diagnosis.late_members import completed, late_ranks, settled_views
from nbddp.controller.diagnosis.node_parts import NodePart, PoolNodes, node_sentence
from nbddp.controller.diagnosis.phrases import (
    Predicate,
    RankVerb,
    describe_arguments,
    describe_branch,
    describe_call,
    describe_calls,
    describe_handled,
    describe_operation,
    iteration,
    last_operation,
    left_to_timeout,
    place,
    quote,
    rank_at,
    waits_for,
)
from nbddp.controller.diagnosis.rank_conditions import holds
from nbddp.controller.diagnosis.rank_reports import in_group
from nbddp.controller.diagnosis.rank_view import RankView, nothing_known
from nbddp.controller.diagnosis.report import (
    TITLES,
    ChangedLine,
    CodeChange,
    CodeLine,
    Finding,
    GroupRef,
    PerRank,
    RankStatus,
    Report,
)
from nbddp.controller.diagnosis.small_diff import marked_lines
from nbddp.controller.diagnosis.words.data_reads import data_notes
from nbddp.controller.diagnosis.words.ended_ranks import AgentLoss, exited_ranks

__all__ = [
    "EXITED",
    "TITLES",
    "AgentLoss",
    "ChangedLine",
    "Code",
    "CodeChange",
    "CodeLine",
    "CompareScope",
    "ExitPhrase",
    "Finding",
    "GroupRef",
    "NodePart",
    "PerRank",
    "PoolNodes",
    "Predicate",
    "RankStatus",
    "RankVerb",
    "RankView",
    "Report",
    "Sources",
    "compare_records",
    "completed",
    "data_notes",
    "describe_arguments",
    "describe_branch",
    "describe_call",
    "describe_calls",
    "describe_handled",
    "describe_operation",
    "diagnose",
    "exited_ranks",
    "holds",
    "in_group",
    "is_met",
    "iteration",
    "last_operation",
    "late_ranks",
    "left_to_timeout",
    "marked_lines",
    "no_sources",
    "node_sentence",
    "nothing_known",
    "place",
    "quote",
    "rank_at",
    "settled_views",
    "waits_for",
]
