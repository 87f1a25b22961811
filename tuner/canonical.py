"""Canonical JSON and the one hash that every key of the project is made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

KEY_SCHEMA = 1


def canonical_json(value: Any) -> str:
    """The one text of a JSON value: sorted keys, no spaces, no NaN. Raises ValueError on what JSON cannot hold."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def named_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that count: those left at their default (None or empty) are omitted, so a new field changes no old key."""
    return {name: value for name, value in fields.items() if value not in (None, "", (), [], {})}


def digest(kind: str, fields: Mapping[str, Any]) -> str:
    """Key of named fields: 64 hex digits of sha256 over `kind`, the key schema and the fields that are not default."""
    text = canonical_json({"kind": kind, "schema": KEY_SCHEMA, "fields": named_fields(fields)})
    return hashlib.sha256(text.encode()).hexdigest()


def differing_fields(asked: Mapping[str, Any], stored: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Names of the fields (nested ones with dots) whose values differ, each with both values, for a miss's reason."""
    differences = []
    for name in sorted({*asked, *stored}):
        left, right = asked.get(name), stored.get(name)
        if left == right:
            continue
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            differences += differing_fields(left, right, f"{prefix}{name}.")
        else:
            differences.append(f"{prefix}{name} (stored {right!r}, asked {left!r})")
    return differences
