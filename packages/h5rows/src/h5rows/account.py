"""Count the things in a source and in its packed file, and those left out; derive the exit status.

Kinds of things are named in the plural: "keys", "attributes", "rows".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from h5rows.errors import clean

LEFT_OUT = 3  # exit status: the file is correct, but lacks the things that the lines list
MOST_NAMES = 20  # names per kind in a line


@dataclass
class Account:
    """Counts by kind. held: things in the source; taken: things in the file, if they can be counted; asked: things that
    an option excluded, which is not a loss. The rest is lost."""

    held: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    left: dict[str, list[str]] = field(default_factory=dict)  # kind -> "name (reason)"
    notes: list[str] = field(default_factory=list)  # values that are stored in another form

    def leave(self, kind: str, name: str, why: str = "") -> None:
        """Record that one thing of `held` was left out. why: the reason, or ""."""
        self.left.setdefault(kind, []).append(clean(f"{name} ({why})" if why else name))

    @property
    def lost(self) -> dict[str, int]:
        """Return kind -> number of things that the file lacks although no option left them out."""
        counts = {
            kind: max(self.held[kind] - self.asked[kind] - self.taken[kind], len(self.left.get(kind, ())))
            for kind in dict.fromkeys([*self.held, *self.left])
        }
        return {kind: count for kind, count in counts.items() if count > 0}

    @property
    def exit_status(self) -> int:
        """Return 0 if nothing was lost, otherwise LEFT_OUT."""
        return LEFT_OUT if self.lost else 0

    @property
    def closing(self) -> str:
        """Return the last line of a pack, printed after all bytes were compared."""
        if not self.lost:
            return "all read back and compared"
        counts = ", ".join(f"{count:,} of {max(count, self.held[kind]):,} {kind}" for kind, count in self.lost.items())
        return f"its content was read back and compared; left out: {counts} (exit status {LEFT_OUT})"

    def lines(self) -> list[str]:
        """Return the notes, and one line for each kind with losses."""
        return [*self.notes, *(self._line(kind, count) for kind, count in self.lost.items())]

    def _line(self, kind: str, count: int) -> str:
        names = self.left.get(kind, [])
        shown = [*names[:MOST_NAMES], *[f"and {len(names) - MOST_NAMES:,} more"] * (len(names) > MOST_NAMES)]
        if count > len(names):
            shown.append(f"{count - len(names):,} in the source but not in the file, for an unknown reason")
        return f"left out: {count:,} {kind}: {'; '.join(shown)}"
