"""What code is generated for, by what, under which settings; and the exact-match key made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tuner.canonical import digest, named_fields


@dataclass(frozen=True)
class Target:
    """A device as the search sees it.

    backend: "cpu", "cuda", "hip"; arch: "x86_64-avx2", "sm_90"; sku: the device's own name; cores: cores of a CPU, SMs or CUs
    of a GPU.
    """

    backend: str
    arch: str
    sku: str
    cores: int

    @property
    def name(self) -> str:
        """Canonical name: `cpu/<arch>/<cores>`, `cuda/<arch>/<sku>`."""
        return f"{self.backend}/{self.arch}/{self.cores if self.backend == 'cpu' else self.sku}"

    def fields(self) -> dict[str, Any]:
        """The fields that decide which winner is valid."""
        return {"backend": self.backend, "arch": self.arch, "sku": self.sku, "cores": self.cores}


@dataclass(frozen=True)
class Query:
    """What a look-up asks for: a workload on a target, for a toolchain, under ambient settings.

    kind: "graph", "region", "kernel" or "program". The three mappings are named fields of JSON values; they are stored beside
    the keys, so that a miss can say which field differs.
    """

    kind: str
    workload_key: str
    target: Mapping[str, Any] = field(hash=False)
    toolchain: Mapping[str, Any] = field(hash=False)
    ambient: Mapping[str, Any] = field(hash=False)

    @cached_property
    def target_key(self) -> str:
        return digest("target", self.target)

    @cached_property
    def toolchain_key(self) -> str:
        return digest("toolchain", self.toolchain)

    @cached_property
    def ambient_key(self) -> str:
        return digest("ambient", self.ambient)

    @cached_property
    def exact_key(self) -> str:
        """The exact-match key: workload, target, toolchain, ambient."""
        return digest(
            self.kind,
            {
                "workload": self.workload_key,
                "target": self.target_key,
                "toolchain": self.toolchain_key,
                "ambient": self.ambient_key,
            },
        )

    @property
    def target_name(self) -> str:
        """Canonical name of the target, as `Target.name`."""
        backend, arch, sku = (str(self.target.get(name, "")) for name in ("backend", "arch", "sku"))
        return Target(backend, arch, sku, int(self.target.get("cores", 0))).name

    def fields(self) -> dict[str, Any]:
        """All fields that decide the exact-match key, nested by part."""
        return {
            "target": named_fields(self.target),
            "toolchain": named_fields(self.toolchain),
            "ambient": named_fields(self.ambient),
        }

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "workload_key": self.workload_key, **self.fields()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Query:
        """The query that `to_json` wrote. Raises ValueError on any other structure."""
        parts = [data.get(name) for name in ("kind", "workload_key", "target", "toolchain", "ambient")]
        kind, workload_key, target, toolchain, ambient = parts
        if not (isinstance(kind, str) and isinstance(workload_key, str)):
            raise ValueError("a query has a kind and a workload_key")
        if not all(isinstance(part, Mapping) for part in (target, toolchain, ambient)):
            raise ValueError("a query's target, toolchain and ambient are objects")
        return Query(kind, workload_key, target, toolchain, ambient)  # type: ignore[arg-type]
