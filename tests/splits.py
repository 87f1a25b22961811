"""Groupings that differ from a given one in one place."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.plan import Groups, canonical_groups


def single_splits(groups: Groups) -> Iterator[Groups]:
    """Every partition that cuts one group of `groups` in two, at one place of its canonical order; middle cuts first.

    A group of n leaves gives n - 1 splits. Middle first: when a budget ends early, halves tell more than slivers.
    """
    for index, group in enumerate(groups):
        middle = len(group) / 2
        for place in sorted(range(1, len(group)), key=lambda i: (abs(i - middle), i)):
            yield canonical_groups((*groups[:index], group[:place], group[place:], *groups[index + 1 :]))
