"""How a pool was made."""

import hashlib
from collections.abc import Mapping
from typing import Any

from stmaml.pool.store import PoolRun
from stmaml.reports.content import Block, Cell, Code, Part, Table, Text, words
from stmaml.reports.made import duration, origin, said_versions


def made_part(store: PoolRun, result: Mapping[str, Any]) -> Part:
    """Command, members, seed, versions, machine, durations and a digest of the rows."""
    config = store.run.config()
    settings, table = store.settings(), store.table().table
    asked = ", ".join(settings.members) or "all that suit the table"
    order = f"the first in '{table.order}'" if table.order else "drawn at random"
    said = f"Members: {asked}. Labelled rows: {order}. Seed {config['seed']}, on {config.get('device', 'a device')}."
    blocks: list[Block] = [Code(config.get("command", "")), Text(said), Text(f"Made with {said_versions(config)}.")]
    blocks += [Text(text) for text in (origin(config), _digest(store)) if text]
    if seconds := result.get("seconds"):
        rows = [{"model": words(name), "time": Cell(duration(took), value=took)} for name, took in seconds.items()]
        blocks.append(Table(("model", "time"), tuple(rows), "Time each model took"))
    return Part("Run", tuple(blocks), folded=True)


def _digest(store: PoolRun) -> str:
    if not store.known_path.exists():
        return ""
    digest = hashlib.sha256(store.known_path.read_bytes()).hexdigest()[:16]
    return f"Digest of the rows kept: {digest} (SHA-256 of {store.known_path.name}, the first 16 letters)."
