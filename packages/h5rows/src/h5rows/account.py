"""What a source holds, what of it the file holds, and what was left out: counted, named, and in the exit status.

Kinds are plurals: "keys", "attributes", "rows".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from h5rows.errors import clean

LEFT_OUT = 3  # exit status: the file is there and right, but for what the lines name
MOST_NAMES = 20  # of a kind, in a line


@dataclass
class Account:
    """held: counted in the source; taken: in the file, where that can be; asked: left out as an option says so, which
    is no loss. What is neither taken nor asked for nor named is one."""

    held: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    left: dict[str, list[str]] = field(default_factory=dict)  # kind -> "name (reason)"
    notes: list[str] = field(default_factory=list)  # of what is another in the file, with the same values

    def leave(self, kind: str, name: str, why: str = "") -> None:
        """To be said of one of `held`."""
        self.left.setdefault(kind, []).append(clean(f"{name} ({why})" if why else name))

    @property
    def lost(self) -> dict[str, int]:
        """Kind -> how many the file does not have, though they were not asked to be left out."""
        counts = {
            kind: max(self.held[kind] - self.asked[kind] - self.taken[kind], len(self.left.get(kind, ())))
            for kind in dict.fromkeys([*self.held, *self.left])
        }
        return {kind: count for kind, count in counts.items() if count > 0}

    @property
    def exit_status(self) -> int:
        return LEFT_OUT if self.lost else 0

    @property
    def closing(self) -> str:
        """After the last byte was compared."""
        if not self.lost:
            return "all read back and compared"
        counts = ", ".join(f"{count:,} of {max(count, self.held[kind]):,} {kind}" for kind, count in self.lost.items())
        return f"what it holds was read back and compared; left out: {counts} (exit status {LEFT_OUT})"

    def lines(self) -> list[str]:
        """The notes, and one for each kind of which something was left out."""
        return [*self.notes, *(self._line(kind, count) for kind, count in self.lost.items())]

    def _line(self, kind: str, count: int) -> str:
        names = self.left.get(kind, [])
        shown = [*names[:MOST_NAMES], *[f"and {len(names) - MOST_NAMES:,} more"] * (len(names) > MOST_NAMES)]
        if count > len(names):
            shown.append(f"{count - len(names):,} that are in the source and, for no known reason, not in the file")
        return f"left out: {count:,} {kind}: {'; '.join(shown)}"
