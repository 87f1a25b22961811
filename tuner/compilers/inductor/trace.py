"""Lines in torch's structured trace (TORCH_TRACE, tlparse): what each program was told, and each graph compiled with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tuner.compilers.inductor.hooks import trace_structured


def trace(name: str, fields: Mapping[str, Any]) -> None:
    """An artifact `name` with `fields` as JSON; nothing where no trace is being written."""
    trace_structured(
        "artifact",
        metadata_fn=lambda: {"name": name, "encoding": "json"},
        payload_fn=lambda: json.dumps(fields),
    )
