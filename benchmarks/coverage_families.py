"""One tiny member of each of many families of `transformers`, with random weights: nothing is downloaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from coverage_models import Inputs, Made
from torch import Tensor, nn

# What each family calls its sizes.
WIDE = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = {**WIDE, "vocab_size": 50, "max_position_embeddings": 32}
DECODER = {**TEXT, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {**WIDE, "image_size": 16, "patch_size": 8}
GPT = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
PAIR = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 16}
PAIR |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "vocab_size": 50, "max_position_embeddings": 32}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}
# family: (what it is called on, settings of its configuration)
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("text", TEXT),
    "roberta": ("text", {**TEXT, "max_position_embeddings": 34}),
    "distilbert": ("text", {"vocab_size": 50, "dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}),
    "albert": ("text", {**TEXT, "embedding_size": 8}),
    "electra": ("text", {**TEXT, "embedding_size": 8}),
    "deberta-v2": ("text", {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}),
    "mobilebert": ("text", {**TEXT, "embedding_size": 8, "true_hidden_size": 8, "intra_bottleneck_size": 8, "hidden_size": 16}),
    "mpnet": ("text", {**TEXT, "max_position_embeddings": 34}),
    "squeezebert": (
        "text",
        {**TEXT, "q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 2, "embedding_size": 16},
    ),
    "nystromformer": ("text", {**TEXT, "segment_means_seq_len": 6, "num_landmarks": 6}),
    "fnet": ("text", TEXT),
    "roformer": ("text", TEXT),
    "layoutlm": ("text", TEXT),
    "esm": ("text", {**TEXT, "pad_token_id": 0, "mask_token_id": 3, "position_embedding_type": "rotary"}),
    "modernbert": ("text", {**DECODER, "head_dim": None, "num_key_value_heads": None}),
    "xlnet": ("text", {"vocab_size": 50, "d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32}),
    "gpt2": ("text", GPT),
    "gptj": ("text", {**GPT, "rotary_dim": 4}),
    "codegen": ("text", {**GPT, "n_head": 4, "rotary_dim": 4}),
    "gpt_neo": ("text", {**TEXT, "num_layers": 1, "num_heads": 2, "attention_types": [[["global"], 1]]}),
    "gpt_neox": ("text", TEXT),
    "llama": ("text", DECODER),
    "mistral": ("text", DECODER),
    "qwen2": ("text", DECODER),
    "qwen3": ("text", DECODER),
    "phi": ("text", {**TEXT, "num_key_value_heads": 2}),
    "gemma": ("text", DECODER),
    "gemma2": ("text", DECODER),
    "falcon": ("text", {**TEXT, "bos_token_id": 1, "eos_token_id": 2}),
    "bloom": ("text", {"vocab_size": 50, "hidden_size": 16, "n_layer": 1, "n_head": 2}),
    "opt": ("text", {**TEXT, "ffn_dim": 32, "word_embed_proj_dim": 16}),
    "stablelm": ("text", DECODER),
    "olmo": ("text", DECODER),
    "mixtral": ("text", {**DECODER, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "mamba": ("text", {"vocab_size": 50, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1}),
    "t5": ("pair", {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}),
    "bart": ("pair", PAIR),
    "whisper": (
        "speech",
        {
            **PAIR,
            "num_mel_bins": 8,
            "max_source_positions": 4,
            "max_target_positions": 8,
            "decoder_start_token_id": 1,
            "pad_token_id": 0,
        },
    ),
    "vit": ("image", IMAGE),
    "deit": ("image", IMAGE),
    "beit": ("image", IMAGE),
    "dinov2": ("image", {**IMAGE, "mlp_ratio": 2}),
    "swin": (
        "image",
        {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2], "window_size": 4},
    ),
    "convnext": ("image", {**STAGES, "num_stages": 2}),
    "convnextv2": ("image", {**STAGES, "num_stages": 2}),
    "resnet": ("image", {**STAGES, "embedding_size": 8, "layer_type": "basic"}),
    "regnet": ("image", {**STAGES, "embedding_size": 8, "groups_width": 8}),
    "segformer": (
        "image",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
        },
    ),
    "poolformer": (
        "image",
        {"depths": [1, 1], "hidden_sizes": [8, 16], "num_encoder_blocks": 2, "patch_sizes": [7, 3], "strides": [4, 2]},
    ),
    "mobilenet_v2": ("image", {"image_size": 32, "depth_multiplier": 0.25}),
    "clip": ("text and image", {"text_config": {**TEXT, "eos_token_id": 49}, "vision_config": IMAGE, "projection_dim": 8}),
}


class First(nn.Module):
    """A model of the library, called by the names of its inputs; gives the first of its outputs."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, inputs, strict=True)), return_dict=False)[0]


def ids(batch: int) -> Tensor:
    return torch.randint(3, 49, (batch, 6))


def pixels(batch: int) -> Tensor:
    return torch.randn(batch, 3, 16, 16)


CALLED: dict[str, tuple[tuple[str, ...], Callable[[int], Inputs]]] = {
    "text": (("input_ids",), lambda batch: (ids(batch),)),
    "pair": (("input_ids", "decoder_input_ids"), lambda batch: (ids(batch), ids(batch)[:, :4])),
    "image": (("pixel_values",), lambda batch: (pixels(batch),)),
    "speech": (("input_features", "decoder_input_ids"), lambda batch: (torch.randn(batch, 8, 8), ids(batch)[:, :4])),
    "text and image": (("input_ids", "pixel_values"), lambda batch: (ids(batch), pixels(batch))),
}


def member(family: str) -> Made:
    """Needs `transformers`; raises ImportError without it."""
    from transformers import AutoConfig, AutoModel

    kind, sizes = FAMILIES[family]
    names, inputs = CALLED[kind]
    config = AutoConfig.for_model(family, **sizes)
    config.use_cache = False
    for part in (config, getattr(config, "text_config", None), getattr(config, "vision_config", None)):
        for setting, value in dict(vars(part) if part is not None else {}).items():
            # The check of values under plans needs a reference, which draws other random numbers.
            if "drop" in setting and isinstance(value, float):
                setattr(part, setting, 0.0)
    return First(AutoModel.from_config(config), names), inputs


MODELS: dict[str, Callable[[], Made]] = {family: functools.partial(member, family) for family in FAMILIES}
