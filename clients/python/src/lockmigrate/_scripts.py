"""The server scripts: the same files that the Go library sends, so the server keeps each once. A test of the repository compares them."""
from __future__ import annotations

import hashlib
import os
import re
from typing import Any, Dict, List, Mapping, Tuple

from ._protocol import beside

_FOLDER = os.path.join(os.path.dirname(__file__), "lua")


class Script:
    """One script: its text, and the names of its keys and arguments as its header gives them."""

    def __init__(self, name: str) -> None:
        with open(os.path.join(_FOLDER, name + ".lua"), "rb") as file:
            self.text = file.read()
        self.name, self.digest = name, hashlib.sha1(self.text).hexdigest()
        self.keys: List[Tuple[str, bool]] = []
        self.args: List[Tuple[str, bool]] = []
        for kind, optional, word in re.findall(r"^-- (KEYS|ARGV) (\[?)(\w+)", self.text.decode(), re.M):
            names = self.keys if kind == "KEYS" else self.args
            if word not in [name for name, _ in names]:  # a part that is included may name it again
                names.append((word, optional != ""))

    def call(self, values: Mapping[str, Any]) -> Tuple[int, List[Any]]:
        """The number of keys, and keys and arguments; what may be left out at the end, and is not given, is left out."""
        keys, args = _fill(self.keys, values), _fill(self.args, values)
        return len(keys), keys + args


def _fill(names: List[Tuple[str, bool]], values: Mapping[str, Any]) -> List[Any]:
    filled, end = [], 0
    for name, optional in names:
        value = values.get(name)
        if value is None and not optional:
            raise KeyError("the script needs %s" % name)
        filled.append(0 if value is None else value)
        if not optional or value not in (None, 0, b"", ""):
            end = len(filled)
    return filled[:end]


SCRIPTS: Dict[str, Script] = {
    name: Script(name)
    for name in (
        "bridge_acquire", "bridge_settle", "bridge_renew", "bridge_release", "gated_write", "gated_compare_set", "compare_del",
        "stage_join", "stage_leave",
    )
}


def companions(key: bytes) -> Dict[str, bytes]:
    """The keys of the bridge's scripts, by the names in their headers."""
    return {"key": key, "guard": beside(key, b":guard"), "fence": beside(key, b":fence"), "yield": beside(key, b":yield"), "queue": beside(key, b":queue")}
