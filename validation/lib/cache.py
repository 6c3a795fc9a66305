"""Results of runs as JSON lines, so that tables and charts can be made again without running anything."""

import hashlib
import json
from pathlib import Path


class Cache:
    """A file of {"key": ..., "value": ...} lines. The last line of a key counts."""

    def __init__(self, path: Path):
        self.path = path
        self.values = {}
        if path.exists():
            for line in path.read_text().splitlines():
                try:
                    entry = json.loads(line)
                except json.JSONDecodeError:
                    continue  # the end of a run that was interrupted
                self.values[entry["key"]] = entry["value"]

    def get(self, key: str):
        return self.values.get(key)

    def put(self, key: str, value):
        self.values[key] = value
        with self.path.open("a") as out:
            out.write(json.dumps({"key": key, "value": value}, separators=(",", ":")) + "\n")


def digest(paths) -> str:
    """Of the contents of files, and of all files in directories."""
    total = hashlib.sha256()
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file():
                total.update(file.read_bytes())
    return total.hexdigest()[:12]
