"""Groupings of scheduler leaves: which leaves share a kernel. A grouping is a full partition of the leaves of one graph."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.plan import Groups, canonical_groups


def no_fusion(groups: Groups) -> Groups:
    """Every leaf alone."""
    return canonical_groups((leaf,) for group in groups for leaf in group)


def single_splits(groups: Groups) -> Iterator[Groups]:
    """Every partition that cuts one group of `groups` in two, at one place of its canonical order; middle cuts first.

    A group of n leaves gives n - 1 splits. Middle first: when a budget ends early, halves tell more than slivers.
    """
    for index, group in enumerate(groups):
        middle = len(group) / 2
        for place in sorted(range(1, len(group)), key=lambda i: (abs(i - middle), i)):
            yield canonical_groups((*groups[:index], group[:place], group[place:], *groups[index + 1 :]))
