"""Inductor settings that a plan may carry: those that change what is put into memory, what shares a kernel, or how its loops are.

Names, types and defaults are Inductor's own (torch/_inductor/config.py, read in torch 2.13); each is in the key of the compile
caches. Not here:

* what is looked at again when generated code is loaded, as everything is that makes the C++ compiler's command line
  (`cpp.simdlen`, `cpp.enable_unsafe_math_opt_flag`, `cpp.enable_floating_point_contract_flag`): a warm compile cache loads code
  without the plan in force, and code for vectors of one width, compiled for another, writes beyond its buffers;
* `cpp.dynamic_threads`, which takes the number of threads out of that key, but not out of the code;
* what times kernels while it compiles (`benchmark_fusion`, `benchmark_combo_kernel`, ...), for what is served must be what was
  measured; what runs before the graph's key is taken;
* how a GEMM template is blocked, and C++ templates, which are made with frozen weights alone; `cpp.force_inline_kernel`, whose
  C++ did not compile wherever it was tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tuner.plan import Plan
from tuner.search_spaces.parameters import GPUS, Choice, Flag, Integer, Parameter

CPU = frozenset({"cpu"})
REDUCTIONS = tuple(
    f"aten.{op}."
    for op in ("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "var", "var_mean", "std", "prod", "any", "all")
)
VARIANCES = ("aten.var.", "aten.var_mean.", "aten.std.", "aten.native_")
# Operations that hold graphs.
NESTED = "higher_order."
TANH = ("aten.tanh.", "aten.gelu.")

# When a pointwise value is written to memory instead of being recomputed by each of its readers. A value is realised once it has
# more readers, more operations or more reads of its own than the threshold. Defaults as in torch 2.11 to 2.13; where the default
# is None the compiler takes one by device (opcount 30, on the CPU 50; accumulated reads 8, on the CPU 12).
REALIZE = (
    Integer("realize_reads_threshold", 1, 64, 4, (1, 2, 16)),
    Integer("realize_opcount_threshold", 1, 1000, None, (1, 4, 10, 200)),
    Integer("realize_acc_reads_threshold", 1, 64, None, (1, 4, 32)),
)
# What else is decided when operations are lowered.
LOWERING = (
    Flag("force_pointwise_cat", False, ops=("aten.cat.", "aten.stack.", "aten.constant_pad_nd.")),
    # Up to so many numbers a variance takes two passes, beyond them one with a running mean. Two were 1.2 to 3 times as fast and
    # no less exact, with a mean of 1000 deviations fifty times as exact (2,048 to 262,144 numbers, AVX-512).
    Integer("cpp.use_two_step_variance_threshold", 0, 1 << 20, 1024, (1 << 20, 0), backends=CPU, ops=VARIANCES),
    Integer("unroll_reductions_threshold", 1, 32, 8, (1, 32), ops=REDUCTIONS),
    Flag("split_reductions", True, ops=REDUCTIONS, backends=GPUS, variable="TORCHINDUCTOR_SPLIT_REDUCTIONS"),
    # Bytes read together, by reads of one size, from which on a value is realised.
    Integer("realize_acc_reads_size_threshold", 1, 1 << 40, None, (1,)),
    Flag(
        "layout_optimization",
        True,
        ops=("aten.convolution.", "mkldnn."),
        backends=frozenset({"cpu", "cuda"}),
        variable="TORCHINDUCTOR_LAYOUT_OPTIMIZATION",
    ),
    Flag("online_softmax", True, ops=("aten.amax.",), backends=GPUS, variable="TORCHINDUCTOR_ONLINE_SOFTMAX"),
    Integer("max_complex_pointwise_cat_inputs", 0, 256, 8, (2, 32), ops=("aten.cat.",), backends=GPUS),
    Integer("max_pointwise_cat_inputs", 0, 256, 8, (2, 32), ops=("aten.cat.",), backends=GPUS),
)
# By another formula, or under weaker rules: who allows these wants them tried.
NUMERICS = (
    Flag("cpp.use_decompose_tanh", False, backends=CPU, ops=TANH, numerics=True, variable="TORCHINDUCTOR_CPP_USE_DECOMPOSE_TANH"),
    Flag("use_fast_math", False, backends=GPUS, numerics=True, variable="TORCHINDUCTOR_USE_FAST_MATH"),
    Flag("triton.codegen_upcast_to_fp32", True, backends=GPUS, numerics=True),
)
# What the scheduler fuses, where no groups are asked for; and how it goes about it, where some are.
SCHEDULER = (
    Integer("max_fusion_unique_io_buffers", 1, 1000, None, (4, 8)),
    Integer("max_fusion_size", 1, 256, 64, (4, 16, 256)),
    Flag("pick_loop_orders", True),
    Flag("inplace_buffers", True),
    # Bytes that both must read for two kernels to be fused that do not read each other.
    Integer("score_fusion_memory_threshold", 1, 1 << 40, 10, (1 << 20, 1)),
    # What part of the buffers that two kernels read must be the same; more than 1: their indices must be.
    Choice("min_overlap_ratio", (0.0, 0.5, 1.1), 1.1),
    Flag("epilogue_fusion", True, backends=GPUS),
    Flag("epilogue_fusion_first", False, backends=GPUS),
    Flag("prologue_fusion", True, backends=GPUS, variable="TORCHINDUCTOR_PROLOGUE_FUSION"),
)
# Those that gave the default's code for a CPU on each of thirteen small graphs.
SELDOM = (
    Flag("aggressive_fusion", False),
    Flag("loop_ordering_after_fusion", True, variable="TORCHINDUCTOR_LOOP_ORDERING_AFTER_FUSION"),
    Flag("loop_reindexing_after_fusion", True, variable="TORCHINDUCTOR_LOOP_REINDEXING_AFTER_FUSION"),
    Flag("loop_index_inversion_in_fusion", True),
    Flag("reorder_for_peak_memory", True),
    Flag("delay_realize_cheap_outputs", True, variable="TORCHINDUCTOR_DELAY_REALIZE_CHEAP_OUTPUTS"),
    Integer("max_fusion_buffer_group_pairwise_attempts", 1, 1024, 64, (8, 1024)),
)
CPP = (
    # Nodes in a fusion of kernels that do not read each other.
    Integer(
        "cpp.max_horizontal_fusion_size",
        1,
        1000,
        16,
        (1, 64),
        backends=CPU,
        variable="TORCHINDUCTOR_CPP_MAX_HORIZONTAL_FUSION_SIZE",
    ),
    Flag("cpp.enable_loop_tail_vec", True, backends=CPU),
    Flag("cpp.enable_tiling_heuristics", True, backends=CPU, variable="TORCHINDUCTOR_CPP_ENABLE_TILING_HEURISTIC"),
    Integer(
        "cpp.min_chunk_size",
        1,
        1 << 20,
        512,
        (64, 4096),
        backends=CPU,
        threaded=True,
        variable="TORCHINDUCTOR_CPP_MIN_CHUNK_SIZE",
    ),
    Flag(
        "cpp.fallback_scatter_reduce_sum",
        True,
        backends=CPU,
        threaded=True,
        ops=("aten.scatter",),
        variable="TORCHINDUCTOR_CPP_FALLBACK_SCATTER_REDUCE_SUM",
    ),
)
TRITON = (
    Flag("triton.persistent_reductions", True, ops=REDUCTIONS, backends=GPUS, variable="TORCHINDUCTOR_PERSISTENT_REDUCTIONS"),
    Flag("triton.cooperative_reductions", False, ops=REDUCTIONS, backends=GPUS, variable="TORCHINDUCTOR_COOPERATIVE_REDUCTIONS"),
    Flag("triton.mix_order_reduction", True, ops=REDUCTIONS, backends=GPUS, variable="TORCHINDUCTOR_MIX_ORDER_REDUCTION"),
    Flag("triton.nested_reduction", False, ops=REDUCTIONS, backends=GPUS, variable="TORCHINDUCTOR_NESTED_REDUCTION"),
    Flag("triton.tiling_prevents_pointwise_fusion", True, backends=GPUS),
    Flag("triton.tiling_prevents_reduction_fusion", True, ops=REDUCTIONS, backends=GPUS),
    Integer("triton.max_tiles", 1, 3, None, (1, 2, 3), backends=GPUS),
    Flag("triton.prefer_nd_tiling", False, backends=GPUS),
    Flag("triton.tile_reductions", False, ops=REDUCTIONS, backends=GPUS),
    Flag("triton.coalesce_tiling_analysis", True, backends=GPUS, variable="TORCHINDUCTOR_COALESCE_TILING_ANALYSIS"),
    Choice("triton.multi_kernel", (0, 1), 0, ops=REDUCTIONS, backends=GPUS, variable="TORCHINDUCTOR_MULTI_KERNEL"),
    Flag("combo_kernels", False, backends=GPUS),
    Integer("combo_kernel_max_num_nodes", 2, 256, 8, (4, 32), backends=GPUS),
    Choice("combo_kernel_allow_mixed_sizes", (0, 1, 2), 1, backends=GPUS),
    Flag("combo_kernels_pointwise_only", False, backends=GPUS),
)

# In the order in which they are worth trying: what has helped, or changed anything, comes first.
KNOBS: dict[str, Parameter] = {knob.name: knob for knob in (*REALIZE, *LOWERING, *NUMERICS, *SCHEDULER, *CPP, *SELDOM, *TRITON)}


def knobs_for(backend: str, threads: int = 1, calls: Iterable[str] | None = None, numerics: bool = False) -> dict[str, Parameter]:
    """The knobs that may change what is compiled for a target and a graph, in order of promise.

    backend: of the target, "cpu". calls: names of the graph's operations, "aten.cat.default"; None: any, and what a nested graph
    holds is not known either. numerics: also those that change how values are computed.
    """
    called = None if calls is None else frozenset(calls)
    if called is not None and any(call.startswith(NESTED) for call in called):
        called = None
    return {
        name: knob
        for name, knob in KNOBS.items()
        if backend in knob.backends
        and (numerics or not knob.numerics)
        and (threads > 1 or not knob.threaded)
        and (called is None or not knob.ops or any(call.startswith(knob.ops) for call in called))
    }


def fixed_by_user(ambient: Mapping[str, Any]) -> frozenset[str]:
    """Names of the settings that the user has set for the whole process, in Inductor's config or by variables."""
    variables = ambient.get("environment") or {}
    by_variable = {name for name, knob in KNOBS.items() if knob.variable and knob.variable in variables}
    return frozenset(by_variable) | frozenset(ambient.get("inductor") or {})


def changes_numerics(plan: Plan) -> bool:
    """Whether it carries a knob that changes how values are computed: it is proposed to those alone who allow it."""
    return any(name in KNOBS and KNOBS[name].numerics for name, _ in plan.config)
