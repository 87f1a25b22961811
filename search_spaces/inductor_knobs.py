"""Inductor settings that a plan may carry. Names are Inductor's own (torch/_inductor/config.py)."""

from __future__ import annotations

from tuner.search_spaces.parameters import Integer, Parameter

# When a pointwise value is written to memory instead of being recomputed by each of its readers. A value is realised once it has
# more readers, more operations or more reads of its own than the threshold. Defaults as in torch 2.11 to 2.13; where the default
# is None the compiler takes one by device (opcount 30, on the CPU 50; accumulated reads 8, on the CPU 12).
REALIZE_READS = Integer("realize_reads_threshold", 1, 64, 4, (1, 2, 16))
REALIZE_OPCOUNT = Integer("realize_opcount_threshold", 1, 1000, None, (1, 4, 10, 200))
REALIZE_ACC_READS = Integer("realize_acc_reads_threshold", 1, 64, None, (1, 4, 32))

KNOBS: dict[str, Parameter] = {knob.name: knob for knob in (REALIZE_READS, REALIZE_OPCOUNT, REALIZE_ACC_READS)}
