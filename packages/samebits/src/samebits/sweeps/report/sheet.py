"""A table of a report and its writers: Markdown, LaTeX, data of the page. csv files have other columns."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samebits.files import amount
from samebits.sweeps.report.analyse import show
from samebits.sweeps.report.escape import cell, code, text

SMALL, LARGE = -4, 6  # means and errors between these powers of ten are written without an exponent
TOO_FEW = "too few seeds"
MAX_ROWS = 200  # maximum number of rows in Markdown; the csv and the page contain all
MARKS = {"†": "not told from the best by its seeds", "‡": "too few seeds to tell it from the best"}
IN_TEX = {"±": r"$\pm$", "†": r"${}^\dagger$", "‡": r"${}^\ddagger$"}


@dataclass(frozen=True)
class Cell:
    """A cell. value: used for sorting on the page."""

    text: str
    value: Any = None
    is_code: bool = False


@dataclass(frozen=True)
class Score:
    """A score over its seeds or folds. error: the number after ±, None if n is too small. verdict: comparison with the
    best of its column, as in Comparison.verdict; "" for the best itself. factor: 100 for a percentage."""

    values: Sequence[float]
    error: float | None
    best: bool = False
    verdict: str = ""
    factor: float = 1.0
    note: str = ""  # " (n = 2)"

    @property
    def mean(self) -> float | None:
        """Return the mean score; None if there are no scores."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def mark(self) -> str:
        """Return the mark of a score that does not differ significantly from the best."""
        tied = self.verdict not in ("", "differs")
        return "" if not tied else "‡" if self.verdict == TOO_FEW else "†"

    @property
    def number(self) -> str:
        """Return mean and error as text."""
        return "-" if self.mean is None else plus_minus(*self._shown)

    @property
    def _shown(self) -> tuple[float, float | None]:
        return (self.mean or 0.0) * self.factor, self.error and self.error * self.factor

    @property
    def tex(self) -> str:
        """Return mean and error for LaTeX."""
        if self.mean is None:
            return "--"
        number = plus_minus(*self._shown, r"\pm", r"{} \times 10^{{{}}}")
        number = rf"\mathbf{{{number}}}" if self.best else number
        return f"${number}{IN_TEX.get(self.mark, '').strip('$')}$" + tex(self.note)


@dataclass(frozen=True)
class Sheet:
    """A table. rows: as many cells as `head`; the first `labels` cells are names. spans: headings above groups of
    equally many columns between the labels and the last column; in `head` these columns begin with the heading."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell | Score]]
    labels: int = 1
    spans: Sequence[str] = ()
    notes: Sequence[str] = ()  # lines below the table

    def without(self, *headings: str) -> Sheet:
        """Return the sheet without these columns; unknown headings are ignored."""
        kept = [i for i, heading in enumerate(self.head) if i < self.labels or heading not in headings]
        return replace(self, head=[self.head[i] for i in kept], rows=[[row[i] for i in kept] for row in self.rows])

    def without_empty(self, *headings: str) -> Sheet:
        """Return the sheet without those of these columns that are empty in every row."""
        said = {self.head[i] for row in self.rows for i, each in enumerate(row) if isinstance(each, Score) or each.text}
        return self.without(*(heading for heading in headings if heading not in said))


def markdown_table(sheet: Sheet) -> str:
    """Return the table in Markdown, without its notes."""

    def shown(each: Cell | Score) -> str:
        if isinstance(each, Score):
            number = each.number + each.mark
            return (f"**{number}**" if each.best else number) + each.note
        # not a code span if it contains a pipe, because some viewers end the cell there, escaped or not
        return code(each.text) if each.is_code and "|" not in each.text else text(each.text)

    lines = [map(text, sheet.head), ["---"] * len(sheet.head), *(map(shown, row) for row in sheet.rows[:MAX_ROWS])]
    more = len(sheet.rows) - MAX_ROWS
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + (
        f"\n\n{amount(more, 'more row')} in the csv." if more > 0 else ""
    )


def latex_table(sheet: Sheet, warning: str | None = None) -> str:
    """Return the table for LaTeX (booktabs), with its notes below in a minipage, for use with or without a table
    environment. warning: written as a comment."""
    labels, wide = sheet.labels, len(sheet.head) - sheet.labels
    heads, above = list(sheet.head), []
    if sheet.spans:
        width = (wide - 1) // len(sheet.spans)
        heads[labels:-1] = [h.removeprefix(f"{sheet.spans[i // width]} ") for i, h in enumerate(heads[labels:-1])]
        spans = " & ".join(rf"\multicolumn{{{width}}}{{c}}{{{tex(span)}}}" for span in sheet.spans)
        begins = [labels + 1 + i * width for i in range(len(sheet.spans))]
        rules = " ".join(rf"\cmidrule(lr){{{begin}-{begin + width - 1}}}" for begin in begins)
        above = [" & " * labels + spans + r" & \\", rules]
    rows = [[each.tex if isinstance(each, Score) else tex(each.text) for each in row] for row in sheet.rows]
    beneath = " \\\\\n".join(map(tex, sheet.notes))
    return "\n".join([
        "% \\usepackage{booktabs}", *([f"% {warning}"] if warning else []),
        rf"\begin{{tabular}}{{{'l' * labels}{'r' * wide}}}", r"\toprule", *above, _tex_row(map(tex, heads)),
        r"\midrule", *map(_tex_row, rows), r"\bottomrule", r"\end{tabular}",
        r"\par\smallskip", r"\begin{minipage}{\linewidth}\footnotesize\raggedright", beneath, r"\end{minipage}",
    ]) + "\n"  # fmt: skip


def _tex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def tex(value: str) -> str:
    """Return plain text escaped for LaTeX. After the end of a row a bare [ or * would be an argument."""
    named = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
    special = {c: rf"\text{name}{{}}" for c, name in named.items()} | {c: f"{{{c}}}" for c in "[*"} | IN_TEX
    return "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in value)


def page_table(sheet: Sheet) -> dict[str, Any]:
    """Return the table as JSON types. rows: lists of {text, value, best}; missing entries are null."""

    def shown(each: Cell | Score) -> dict[str, Any]:
        if isinstance(each, Score):
            return {"text": each.number + each.mark + each.note, "value": each.mean, "best": each.best}
        return {"text": each.text, "value": each.text if each.value is None else each.value}

    rows = [[shown(each) for each in row] for row in sheet.rows]
    return {"head": list(sheet.head), "rows": rows, "notes": list(sheet.notes)}


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return the text of a csv file, with escaped cells."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([cell(value) for value in row] for row in [head, *rows])
    return out.getvalue()


# ---- a mean and its error, rounded to the digits that the error justifies


def rounded(mean: float, error: float | None) -> tuple[str, str | None, int]:
    """Return (mean, error, n) as text, both to be multiplied by 10^n: 83.47, 3.28 -> ("83.5", "3.3", 0).

    The error has two digits if they are at most 35, otherwise one; the mean has as many decimal places (Particle Data
    Group, Review of Particle Physics, 5.3). Without an error, or if it is 0, the mean has four digits.
    """
    if not error:
        digits, _, power_text = show(mean + 0.0).partition("e")
        return digits, error if error is None else "0", int(power_text or 0)
    power = math.floor(math.log10(max(abs(mean), error)))
    power = 0 if SMALL < power < LARGE else power
    mean, error = mean / 10.0**power, error / 10.0**power
    exponent = math.floor(math.log10(error))
    places = (1 if error / 10.0**exponent < 3.55 else 0) - exponent
    mean, error = round(mean, places), round(error, places)
    shown = max(places, 0)
    return f"{mean + 0.0:.{shown}f}", f"{error:.{shown}f}", power


def plus_minus(mean: float, error: float | None, sign: str = "±", scaled: str = "{}e{}") -> str:
    """Return mean and error as text: 83.5 ± 3.3. scaled: the form of (the text, the power of ten) if it is not 0."""
    mean_text, error_text, power = rounded(mean, error)
    plain = mean_text if error_text is None else f"{mean_text} {sign} {error_text}"
    in_brackets = plain if error_text is None else f"({plain})"
    return scaled.format(in_brackets, power) if power else plain
