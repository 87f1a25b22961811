"""Small networks of our own for the coverage benchmark: what torch.nn has, and what models are made of that no package ships."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = tuple[Tensor, ...]
# A network and the inputs of a call, given the batch size.
Made = tuple[nn.Module, Callable[[int], Inputs]]


class Function(nn.Module):
    """A network made of layers and a function of them: `run(layers, *inputs)`."""

    def __init__(self, run: Callable[..., Tensor], **layers: nn.Module):
        super().__init__()
        self.run = run
        self.layers = nn.ModuleDict(layers)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.run(self.layers, *inputs)


def images(batch: int) -> Inputs:
    return (torch.randn(batch, 3, 16, 16),)


def rows(batch: int) -> Inputs:
    return (torch.randn(batch, 16),)


def sequences(batch: int) -> Inputs:
    return (torch.randn(batch, 6, 16),)


def token_ids(batch: int) -> Inputs:
    return (torch.randint(0, 50, (batch, 6)),)


def mlp() -> Made:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4)), rows


def mlp_with_batch_norm() -> Made:
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 4)), rows


def autoencoder() -> Made:
    return nn.Sequential(nn.Linear(16, 8), nn.SiLU(), nn.Linear(8, 2), nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 16)), rows


def variational_autoencoder() -> Made:
    def run(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        mean, log = layers["encode"](x).chunk(2, -1)
        return torch.sigmoid(layers["decode"](mean + torch.randn_like(mean) * torch.exp(log / 2)))

    return Function(run, encode=nn.Linear(16, 8), decode=nn.Linear(4, 16)), rows


def conv_net() -> Made:
    layers = [
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(288, 4),
    ]
    return nn.Sequential(*layers), images


def residual_net() -> Made:
    def run(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        x = layers["stem"](x)
        x = F.relu(x + layers["norm"](layers["body"](x)))
        return layers["head"](x.mean((2, 3)))

    stem, body = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3, padding=1)
    return Function(run, stem=stem, body=body, norm=nn.BatchNorm2d(8), head=nn.Linear(8, 4)), images


def separable_convs() -> Made:
    layers = [nn.Conv2d(3, 8, 1), nn.Hardswish(), nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.BatchNorm2d(8), nn.Hardswish()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)), images


def generator() -> Made:
    layers = [nn.Linear(16, 128), nn.Unflatten(1, (8, 4, 4)), nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1), nn.BatchNorm2d(4)]
    return nn.Sequential(*layers, nn.LeakyReLU(0.2), nn.Upsample(scale_factor=2), nn.Conv2d(4, 3, 3), nn.Tanh()), rows


def transformer_encoder() -> Made:
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, norm_first=True), sequences


def transformer() -> Made:
    net = nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
    return net, lambda batch: (*sequences(batch), torch.randn(batch, 4, 16))


def lstm() -> Made:
    return Function(lambda layers, x: layers["lstm"](x)[0], lstm=nn.LSTM(16, 8, batch_first=True)), sequences


def gru() -> Made:
    return Function(lambda layers, x: layers["gru"](x)[0], gru=nn.GRU(16, 8, batch_first=True, bidirectional=True)), sequences


def recurrent_cells() -> Made:
    def run(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        state = x.new_zeros(x.shape[0], 8), x.new_zeros(x.shape[0], 8)
        for t in range(3):
            state = layers["cell"](x[:, t], state)
        return torch.cat(state, -1)

    return Function(run, cell=nn.LSTMCell(16, 8)), sequences


def embedding_bag() -> Made:
    net = nn.Sequential(nn.EmbeddingBag(50, 16, mode="mean"), nn.ReLU(), nn.Linear(16, 4))
    return net, token_ids


def unet_block() -> Made:
    """A block of a diffusion UNet: convolutions with the time's embedding, and attention over the places."""

    def run(layers: nn.ModuleDict, x: Tensor, time: Tensor) -> Tensor:
        waves = time[:, None] * torch.exp(torch.arange(4) * -1.5)
        embedded = layers["time"](torch.cat([waves.sin(), waves.cos()], -1))
        h = layers["conv1"](F.silu(layers["norm1"](x))) + embedded[:, :, None, None]
        h = x + layers["conv2"](F.silu(layers["norm2"](h)))
        places = layers["norm3"](h).flatten(2).transpose(1, 2)
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in layers["qkv"](places).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return h + layers["out"](mixed).transpose(1, 2).reshape(h.shape)

    net = Function(
        run,
        time=nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8)),
        norm1=nn.GroupNorm(2, 8),
        conv1=nn.Conv2d(8, 8, 3, padding=1),
        norm2=nn.GroupNorm(2, 8),
        conv2=nn.Conv2d(8, 8, 3, padding=1),
        norm3=nn.GroupNorm(2, 8),
        qkv=nn.Linear(8, 24),
        out=nn.Linear(8, 8),
    )
    return net, lambda batch: (torch.randn(batch, 8, 6, 6), torch.rand(batch) * 100)


def selective_scan() -> Made:
    """As in Mamba: a state per channel whose decay and input depend on the data, step after step."""

    def run(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        h, gate = layers["in"](x).chunk(2, -1)
        h = F.silu(layers["conv"](h.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
        step, b, c = layers["select"](h).split((16, 4, 4), -1)
        decay = torch.exp(-F.softplus(step)[..., None] * torch.arange(1.0, 5.0))
        state, out = h.new_zeros(x.shape[0], 16, 4), []
        for t in range(x.shape[1]):
            state = state * decay[:, t] + h[:, t, :, None] * b[:, t, None]
            out.append((state * c[:, t, None]).sum(-1))
        return layers["out"](torch.stack(out, 1) * F.silu(gate))

    conv = nn.Conv1d(16, 16, 3, padding=2, groups=16)
    layers = {"in": nn.Linear(16, 32), "conv": conv, "select": nn.Linear(16, 24), "out": nn.Linear(16, 16)}
    return Function(run, **layers), sequences


def mixture_of_experts() -> Made:
    """Two of four experts for each row, all computed, weighted by the router."""

    def run(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        weights, chosen = torch.topk(torch.softmax(layers["router"](x), -1), 2)
        weights = torch.zeros(x.shape[0], 4, dtype=x.dtype).scatter(1, chosen, weights / weights.sum(-1, keepdim=True))
        return sum(weights[:, i, None] * layers[f"expert{i}"](x) for i in range(4)) + x  # type: ignore[return-value]

    experts = {f"expert{i}": nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 16)) for i in range(4)}
    return Function(run, router=nn.Linear(16, 4), **experts), rows


def dispatched_experts() -> Made:
    """Rows sent to the expert that is chosen for each: sizes that depend on data."""

    def run(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        chosen, out = layers["router"](x).argmax(-1), torch.zeros_like(x)
        for i in range(2):
            (places,) = torch.where(chosen == i)
            out = out.index_add(0, places, layers[f"expert{i}"](x[places]))
        return out

    return Function(run, router=nn.Linear(16, 2), expert0=nn.Linear(16, 16), expert1=nn.Linear(16, 16)), rows


def decoder_block() -> Made:
    """RMSNorm, rotary embedding, causal attention with fewer keys than queries, SwiGLU."""

    def turn(x: Tensor) -> Tensor:
        angle = torch.arange(x.shape[2])[:, None] * torch.tensor([1.0, 0.1])
        a, b = x.chunk(2, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def run(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        y = layers["norm1"](x)
        q = turn(layers["q"](y).unflatten(-1, (4, 4)).transpose(1, 2))
        k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in layers["kv"](y).chunk(2, -1))
        mixed = F.scaled_dot_product_attention(q, turn(k), v, is_causal=True, enable_gqa=True)
        x = x + layers["out"](mixed.transpose(1, 2).flatten(2))
        gate, up = layers["up"](layers["norm2"](x)).chunk(2, -1)
        return x + layers["down"](F.silu(gate) * up)

    sizes = {"q": (16, 16), "kv": (16, 16), "out": (16, 16), "up": (16, 64), "down": (32, 16)}
    layers = {name: nn.Linear(*size, bias=False) for name, size in sizes.items()}
    return Function(run, norm1=nn.RMSNorm(16), norm2=nn.RMSNorm(16), **layers), sequences


def mixer() -> Made:
    def run(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        x = x + layers["tokens"](layers["norm"](x).transpose(1, 2)).transpose(1, 2)
        return layers["channels"](x).mean(1)

    return Function(run, norm=nn.LayerNorm(16), tokens=nn.Linear(6, 6), channels=nn.Linear(16, 8)), sequences


def language_model() -> Made:
    def run(layers: nn.ModuleDict, ids: Tensor) -> Tensor:
        logits = layers["norm"](layers["embed"](ids).cumsum(1)) @ layers["embed"].weight.T
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")

    return Function(run, embed=nn.Embedding(50, 16), norm=nn.LayerNorm(16)), token_ids


def graph_net() -> Made:
    def run(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        near = torch.softmax(-torch.cdist(x, x), -1)
        return F.elu(layers["second"](near @ F.elu(layers["first"](near @ x))))

    return Function(run, first=nn.Linear(16, 8), second=nn.Linear(8, 4)), sequences


def contrastive() -> Made:
    def run(layers: nn.ModuleDict, a: Tensor, b: Tensor) -> Tensor:
        a, b = (F.normalize(layers["project"](one), dim=-1) for one in (a, b))
        return F.log_softmax(a @ b.T * 10, -1).diagonal()

    return Function(run, project=nn.Linear(16, 8)), lambda batch: (*rows(batch), *rows(batch))


def spectral() -> Made:
    def run(layers: nn.ModuleDict, x: Tensor) -> Tensor:
        return layers["out"](torch.fft.irfft(torch.fft.rfft(x, dim=1) * 0.5, n=x.shape[1], dim=1) + x)

    return Function(run, out=nn.Linear(16, 8)), sequences


MODELS: dict[str, Callable[[], Made]] = {
    made.__name__: made
    for made in (
        mlp,
        mlp_with_batch_norm,
        autoencoder,
        variational_autoencoder,
        conv_net,
        residual_net,
        separable_convs,
        generator,
        transformer_encoder,
        transformer,
        lstm,
        gru,
        recurrent_cells,
        embedding_bag,
        unet_block,
        selective_scan,
        mixture_of_experts,
        dispatched_experts,
        decoder_block,
        mixer,
        language_model,
        graph_net,
        contrastive,
        spectral,
    )
}
