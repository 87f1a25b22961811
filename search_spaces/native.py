"""Op kinds that a plan may keep native: left undecomposed, and so run as one library call instead of being fused.

Each is in Inductor's decomposition table (torch 2.11 to 2.13), allocates its outputs, draws no random numbers, and has a kernel
of its own in ATen. Ops that Inductor lowers itself when they are not decomposed are not listed: keeping them changes nothing.
"""

from __future__ import annotations

NATIVE_OPS: frozenset[str] = frozenset(
    {
        # normalisation
        "aten.native_layer_norm.default",
        "aten.native_group_norm.default",
        "aten.native_batch_norm.default",
        "aten._native_batch_norm_legit_no_training.default",
        # softmax family and losses
        "aten._softmax.default",
        "aten._safe_softmax.default",
        "aten._log_softmax.default",
        "aten.logsumexp.default",
        "aten.nll_loss_forward.default",
        "aten.mse_loss.default",
        "aten.smooth_l1_loss.default",
        "aten.huber_loss.default",
        "aten.binary_cross_entropy.default",
        "aten.binary_cross_entropy_with_logits.default",
        # activations
        "aten.gelu.default",
        "aten.silu.default",
        "aten.mish.default",
        "aten.elu.default",
        "aten.leaky_relu.default",
        "aten.hardtanh.default",
        "aten.hardsigmoid.default",
        "aten.hardswish.default",
        "aten.softplus.default",
        "aten.log_sigmoid_forward.default",
        "aten._prelu_kernel.default",
        # casts, element-wise compositions
        "aten._to_copy.default",
        "aten.lerp.Scalar",
        "aten.lerp.Tensor",
        "aten.masked_fill.Scalar",
        "aten.masked_fill.Tensor",
        "aten.clamp.default",
        "aten.nan_to_num.default",
        "aten.floor_divide.default",
        "aten.logaddexp.default",
        "aten.rsub.Scalar",
        "aten.xlogy.Tensor",
        # reductions
        "aten.linalg_vector_norm.default",
        "aten.std.correction",
        "aten.std_mean.correction",
        "aten.aminmax.default",
        "aten.all.dim",
        "aten.count_nonzero.dim_IntList",
        # small linear algebra, data movement
        "aten.addmv.default",
        "aten.addr.default",
        "aten.dot.default",
        "aten.mv.default",
        "aten.stack.default",
        "aten.roll.default",
        "aten.flip.default",
        "aten.tril.default",
        "aten.triu.default",
        "aten.index_select.default",
        "aten.index_add.default",
        "aten.reflection_pad2d.default",
        "aten.replication_pad2d.default",
        "aten.grid_sampler_2d.default",
        "aten.pixel_shuffle.default",
        "aten.im2col.default",
        "aten.col2im.default",
    }
)
