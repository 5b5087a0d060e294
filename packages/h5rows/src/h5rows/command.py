"""Write and inspect HDF5 files.

pack photos/ photos.h5 --size 224 --crop center --split val=0.1
inspect photos.h5
repack old.h5 new.h5 --codec zstd

Exit status: 0 if OUT contains everything in SOURCE; 3 if something was left out (the lines "left out: ..." name it);
2 after an error: OUT was not written.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import Any

from h5rows.errors import ConfigError, clean, first_line
from h5rows.interrupts import keep_interrupts
from h5rows.options import PackOptions, RepackOptions
from h5rows.program import Reading, Training, calling


def pair(text: str) -> tuple[str, str]:
    """Return (NAME, VALUE) of NAME=VALUE, or (NAME, NAME) if there is no equals sign."""
    name, equals, value = text.partition("=")
    if not name or (equals and not value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value or name


def share(text: str) -> tuple[str, float]:
    """Return (NAME, SHARE) of NAME=SHARE."""
    name, value = pair(text)
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SHARE, such as val=0.1") from None


def image_size(text: str) -> tuple[int, int]:
    """Return (height, width) of SIDE or HEIGHTxWIDTH."""
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(s.isdigit() and int(s) for s in sides):
        raise argparse.ArgumentTypeError(f"{text!r} is neither SIDE nor HEIGHTxWIDTH in pixels")
    return int(sides[0]), int(sides[-1])


def shard(text: str) -> tuple[int, int]:
    """Return (I, N) of I/N."""
    i, _, n = text.partition("/")
    if not (i.isdigit() and n.isdigit() and int(i) < int(n)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with I from 0 to N-1")
    return int(i), int(n)


def sign(text: str) -> str:
    """Return the character that is named: tab, space or the character itself."""
    return {"tab": "\t", "\\t": "\t", "space": " "}.get(text, text)


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of the three commands."""
    name, raw = " ".join(calling.command), argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(name, description=__doc__, formatter_class=raw)
    verbs = top.add_subparsers(dest="verb", required=True)

    # no defaults here (SUPPRESS), because options.py has them; the help shows them in brackets
    p = verbs.add_parser("pack", help="convert a known format to one .h5 file", argument_default=argparse.SUPPRESS)
    add = p.add_argument
    suffixes = ".npy .npz .pth .csv .tsv .parquet .txt .tar .tfrecord .lmdb .zarr .n5"
    add("source", help=f"a folder (images, arrays, shards), a quoted pattern ('train-*.tar'), or a file: {suffixes}")
    add("out", help="the .h5 file to write")
    add("--format", help="images, numpy, torch, samples, lmdb, zarr, n5, tfrecord, webdataset, table, text [detected]")
    chosen = "fields to write, and their new names; stack columns of a table: a,b=x or 'pixel*=x' [all]"
    add("--fields", nargs="+", type=pair, metavar="SOURCE[=NAME]", help=chosen)
    kinds = "decode a field's bytes or strings as image, npy, pth, text, tokens, int, float, class, or raw numbers "
    add("--as", dest="kinds", nargs="+", type=pair, metavar="FIELD=KIND", help=f"{kinds}such as uint8:3,32,32")
    add("--files", dest="file_column", metavar="COLUMN", help="table column with the paths of image files")
    add("--separator", type=sign, metavar="SIGN", help="column separator of a CSV file, such as ';' or tab [detected]")
    named = "if the first line of a CSV file contains the column names [detected]"
    add("--header", action=argparse.BooleanOptionalAction, help=named)
    add("--decimal", choices=[".", ","], help="decimal separator of a CSV file [.]")
    add("--encoding", help="text encoding of a CSV file, such as latin-1 [utf-8]")
    add("--escape", type=sign, metavar="SIGN", help="character before quotes in a CSV cell, such as '\\' [doubled]")
    empty = "empty table cells: stop, or read NaN (class -1 for classes); TEXT: also cells with this text [stop]"
    add("--empty", metavar="stop|nan|TEXT", help=empty)
    add("--size", type=image_size, metavar="SIDE|HxW", help="resize images, in pixels")
    add("--crop", choices=["none", "center"], help="center: resize shorter side to --size, crop center [none: stretch]")
    mode = "image mode: RGB, L, RGBA, 'I;16', or P (palette indices) [P if the first has a palette, otherwise RGB]"
    add("--mode", help=mode)
    add("--exif", choices=["apply", "ignore"], help="EXIF orientation of photos [error if a photo is rotated]")
    add("--variable", action="store_true", help="keep each image's size: flat values + offsets + shapes")
    add("--tokenizer", help="bytes, chars, or a tokenizer.json of Hugging Face or its folder [bytes]")
    add("--length", type=int, metavar="IDS", help="maximum ids per text of a table (--as COLUMN=tokens) [all]")
    add("--reverse-axes", action="store_true", help="reverse the axes of N5 arrays (written by z5py or zarr 2)")
    add("--split", nargs="+", type=share, metavar="NAME=SHARE", help="shares of train, at random (text: from its end)")
    add("--shuffle", action="store_true", help="write the rows of each split in random order")
    add("--seed", type=int, help="random seed of --shuffle and --split [0]")
    add("--shard", type=shard, metavar="I/N", help="write share I of N (from 0) to OUT.I-of-N.h5")
    many = "write N files and their index to OUT, a folder or a URL such as s3://bucket/set"
    add("--shards", type=int, metavar="N", help=f"{many} [OUT is one file; 1 for a URL]")
    add("--append", action="store_true", help="add --shards N shards to the existing set in OUT")
    add("--on-error", choices=["stop", "skip"], help="what to do if a sample cannot be read [stop]")
    left = "names or quoted patterns of what may be left out; exit status 0 if nothing else was"
    add("--ignore", nargs="+", metavar="NAME", help=left)
    add("--external", choices=["refuse", "allow"], help="allow: follow links that lead out of SOURCE [refuse]")
    add("--workers", type=int, help="number of processes or threads [all cores]")
    common(p)

    p = verbs.add_parser("inspect", help="show how a file is laid out and read, and what to change")
    p.add_argument("file", help="the .h5 file to inspect")

    p = verbs.add_parser("repack", help="copy with another layout or codec", argument_default=argparse.SUPPRESS)
    add = p.add_argument
    add("source", help="the .h5 file to read")
    add("out", help="the .h5 file to write")
    add("--flatten", action="store_true", help="variable-length data and strings: to flat values + offsets")
    add("--external", choices=["refuse", "allow"], help="allow: copy data in other files than SOURCE [refuse]")
    add("--contiguous", action="store_true", help="also make resizable datasets contiguous; they cannot grow any more")
    add("--allow-larger", action="store_true", help="write the copy even if it is many times larger than SOURCE")
    chosen = "compress in chunks of whole rows [none: contiguous, fastest to read]"
    add("--codec", choices=["none", "gzip", "zstd"], help=chosen)
    add("--level", type=int, help="compression level of the codec")
    add("--rows-per-chunk", type=int, help="use 1 if rows are 64 KB or larger [depends on the row size]")
    common(p)
    return top


def common(p: argparse.ArgumentParser) -> None:
    """Add the options that `pack` and `repack` share."""
    p.allow_abbrev = False
    p.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    p.add_argument("--quiet", action="store_true", help="print only errors")


RENAMED = {  # {option in 0.2: option now}; to be removed in 0.4
    "--leave-out": "--ignore",
    "--inflate": "--allow-larger",
    "--fixed": "--contiguous",
}


def with_present_names(argv: Sequence[str]) -> list[str]:
    """Return the arguments with renamed options replaced. Print a line to stderr for each."""
    words = []
    for word in argv:
        name, equals, value = word.partition("=")
        if new := RENAMED.get(name):
            print(f"{name} was renamed to {new}, and will be removed in h5rows 0.4", file=sys.stderr)
        words.append(f"{new or name}{equals}{value}")
    return words


def main(argv: Sequence[str]) -> int:
    """Run the command with these arguments and return its exit status. Raise ConfigError for a wrong option or file."""
    from h5rows import functions

    argv = with_present_names(argv)
    args = vars(parser().parse_args(argv))
    verb = args.pop("verb")
    if verb == "inspect":
        functions.inspect(args["file"])
        return 0
    for name in ("fields", "kinds", "split"):
        if name in args:
            args[name] = dict(args[name])
    if "ignore" in args:
        args["ignore"] = tuple(args["ignore"])
    function = functions.pack if verb == "pack" else functions.repack
    return function(**args, command=shlex.join([*calling.command, *argv])).exit_status


TYPED = {"kinds": "as", "file_column": "files"}  # arguments of pack and repack whose option has another name
ARGUMENTS = [one.name for one in (*fields(PackOptions), *fields(RepackOptions))] + ["shards", "append"]
ARGUMENT = re.compile(
    rf"""(?<![\w.])({"|".join(ARGUMENTS)})=(True|False|N\b|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|{{[^{{}}]*}}|\d+|(?=[\s,;:)]|$))"""
)


def as_options(text: str) -> str:
    """Return the message with Python arguments such as size=(2, 3) replaced by command-line options."""

    def option(found: re.Match[str]) -> str:
        name = TYPED.get(found[1], found[1].replace("_", "-"))
        with suppress(ValueError, SyntaxError):
            value = ast.literal_eval(found[2])
            if isinstance(value, bool):
                return f"--{name}" if value else f"--no-{name}"
            words = [f"{key}={one}" for key, one in value.items()] if isinstance(value, dict) else [str(value)]
            return shlex.join([f"--{name}", *words])
        return f"--{name} {found[2]}".rstrip()

    return ARGUMENT.sub(option, text)


class OutputLost(Exception):
    """The standard output cannot be written. It is no OSError, which would count as an error of the file being read."""


@contextmanager
def telling_output_errors() -> Iterator[None]:
    """Raise OutputLost if the standard output cannot be written within this block, except for a closed pipe."""
    stream = sys.stdout

    def telling(call: Callable[..., Any]) -> Callable[..., Any]:
        def tried(*args: str) -> Any:
            try:
                return call(*args)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise OutputLost(f"cannot write to the standard output: {error.strerror}") from error

        return tried

    calls = {name: getattr(stream, name) for name in ("write", "flush")}
    for name, call in calls.items():
        setattr(stream, name, telling(call))
    try:
        yield
    finally:
        for name, call in calls.items():
            setattr(stream, name, call)


def run(
    command: tuple[str, ...] = calling.command,
    reading: Reading = calling.reading,
    training: Training = calling.training,
    varying: str = calling.varying,
) -> int:
    """Run `main` with sys.argv, print an error as one line, and return the exit status.

    command: the words that start this program. reading, training: return the printed lines that read a packed file, and
    that train on any other HDF5 file. varying: how this program makes batches of rows of different length."""
    calling.command, calling.reading, calling.training, calling.varying = command, reading, training, varying
    if sys.stdout is None:  # closed by `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it stays open as long as the process
    for stream in (sys.stdout, sys.stderr):  # an ASCII terminal gets other characters as \\u6a21
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    keep_interrupts()
    try:
        with telling_output_errors():
            status = main(sys.argv[1:])
            sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except ConfigError as error:
        print(f"error: {clean(as_options(str(error)))}", file=sys.stderr)
        return 2
    except (OutputLost, OSError, MemoryError) as error:
        with suppress(OSError):  # drop buffered output, which a full disk cannot take
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: {clean(first_line(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
