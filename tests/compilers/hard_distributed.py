"""Cases over several ranks, with this process alone: in a fake group of two, whose collectives do nothing, or of one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from hard_graphs import Case, numbers, once, small_net
from torch import Tensor, nn

RANKS = 2


@contextlib.contextmanager
def fake_ranks() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextlib.contextmanager
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    first_bucket = dist._DEFAULT_FIRST_BUCKET_BYTES
    try:
        yield
    finally:
        dist._DEFAULT_FIRST_BUCKET_BYTES = first_bucket
        dist.destroy_process_group()


class Net(nn.Module):
    """A module of our own: Dynamo does not begin at frames of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = small_net()

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layers(x))


def mesh() -> Any:
    return dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))


def functional_collectives() -> Case:
    from torch.distributed import _functional_collectives as funcol

    def function(x: Tensor) -> Tensor:
        y = funcol.all_reduce(torch.sin(x), "sum", dist.group.WORLD)
        z = funcol.all_gather_tensor(y * 2, 0, dist.group.WORLD)
        return torch.cos(z) + funcol.reduce_scatter_tensor(z, "sum", 0, dist.group.WORLD).sum()

    return once(function, numbers(4, 8))


def collective_in_place() -> Case:
    def function(x: Tensor) -> Tensor:
        y = torch.sin(x)
        dist.all_reduce(y)
        return y * 2

    return once(function, numbers(4, 8))


def distributed_tensors() -> Case:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    w = distribute_tensor(numbers(8, 8, seed=1), mesh(), [Shard(0)])
    x = distribute_tensor(numbers(4, 8), mesh(), [Replicate()])
    return once(lambda x, w: torch.sin(x @ w).redistribute(placements=[Replicate()]).to_local() * 2, x, w)


def distributed_tensors_that_train() -> Case:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    w = distribute_tensor(numbers(8, 8, seed=1), mesh(), [Shard(0)]).requires_grad_()
    x = distribute_tensor(numbers(4, 8), mesh(), [Replicate()])
    return once(lambda x, w: torch.sin(x @ w).redistribute(placements=[Replicate()]).to_local(), x, w, training=True)


def tensor_parallel() -> Case:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    with torch.no_grad():
        for i, weight in enumerate(net.parameters()):
            weight.copy_(numbers(*weight.shape, seed=i))
    parallelize_module(net, mesh(), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return once(net, numbers(4, 8), training=True)


def fully_sharded() -> Case:
    from torch.distributed.fsdp import fully_shard

    net = Net()
    fully_shard(net, mesh=mesh())
    return once(net, numbers(4, 8), training=True)


def data_parallel() -> Case:
    net = nn.parallel.DistributedDataParallel(Net())
    # so small that Dynamo splits the graph between the layers
    net.bucket_bytes_cap = dist._DEFAULT_FIRST_BUCKET_BYTES = 64
    return once(net, numbers(4, 8), training=True)


OF_TWO = (
    functional_collectives,
    collective_in_place,
    distributed_tensors,
    distributed_tensors_that_train,
    tensor_parallel,
    fully_sharded,
)
ALONE = (functional_collectives, fully_sharded, data_parallel)
