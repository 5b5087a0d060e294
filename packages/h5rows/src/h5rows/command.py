"""Write and look at HDF5 files.

pack photos/ photos.h5 --size 224 --crop center --split val=0.1
inspect photos.h5
repack old.h5 new.h5 --codec zstd

Exit status: 0, OUT holds all that SOURCE does; 3, all but what the lines "left out: ..." name; 2, an error, no OUT.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields

from h5rows.errors import ConfigError, clean, first_line
from h5rows.options import PackOptions, RepackOptions
from h5rows.program import Reading, Training, calling


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or (equals and not value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value or name


def share(text: str) -> tuple[str, float]:
    name, value = pair(text)
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SHARE, such as val=0.1") from None


def image_size(text: str) -> tuple[int, int]:
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(s.isdigit() and int(s) for s in sides):
        raise argparse.ArgumentTypeError(f"{text!r} is neither SIDE nor HEIGHTxWIDTH in pixels")
    return int(sides[0]), int(sides[-1])


def shard(text: str) -> tuple[int, int]:
    i, _, n = text.partition("/")
    if not (i.isdigit() and n.isdigit() and int(i) < int(n)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with I from 0 to N-1")
    return int(i), int(n)


def sign(text: str) -> str:
    return {"tab": "\t", "\\t": "\t", "space": " "}.get(text, text)


def parser() -> argparse.ArgumentParser:
    name, raw = " ".join(calling.command), argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(name, description=__doc__, formatter_class=raw)
    verbs = top.add_subparsers(dest="verb", required=True)

    # no defaults here (SUPPRESS): those of options.py hold; the help names them in brackets
    p = verbs.add_parser("pack", help="any known format into one .h5 file", argument_default=argparse.SUPPRESS)
    add = p.add_argument
    suffixes = ".npy .npz .pth .csv .tsv .parquet .txt .tar .tfrecord .lmdb .zarr .n5"
    add("source", help=f"a folder (images, arrays, shards), a pattern in quotes ('train-*.tar'), or a {suffixes}")
    add("out", help="the .h5 file to write")
    add("--format", help="images, numpy, torch, samples, lmdb, zarr, n5, tfrecord, webdataset, table, text [found out]")
    chosen = "fields to write, and their names; columns of a table together: a,b=x or 'pixel*=x' [all]"
    add("--fields", nargs="+", type=pair, metavar="SOURCE[=NAME]", help=chosen)
    kinds = "what a field's bytes or strings are: image, npy, pth, text, tokens, int, float, class, or raw numbers "
    add("--as", dest="kinds", nargs="+", type=pair, metavar="FIELD=KIND", help=f"{kinds}such as uint8:3,32,32")
    add("--files", dest="file_column", metavar="COLUMN", help="column of a table that names image files")
    add("--separator", type=sign, metavar="SIGN", help="between a CSV's columns, such as ';' or tab [found out]")
    named = "the first line of a CSV names its columns, or is a row [found out]"
    add("--header", action=argparse.BooleanOptionalAction, help=named)
    add("--decimal", choices=[".", ","], help="the point of a CSV's numbers [.]")
    add("--encoding", help="of a CSV, such as latin-1 [utf-8]")
    add("--escape", type=sign, metavar="SIGN", help="before a quote within quotes of a CSV, such as '\\' [doubled]")
    add(
        "--empty",
        metavar="stop|nan|TEXT",
        help="at an empty cell of a table, or one that holds TEXT [stop]; else NaN, or class -1",
    )
    add("--size", type=image_size, metavar="SIDE|HxW", help="resize images, in pixels")
    add("--crop", choices=["none", "center"], help="center: shorter side to --size, then its middle [none: stretch]")
    mode = "of images: RGB, L, RGBA, 'I;16', or P, the numbers of a palette [P if the first has a palette, else RGB]"
    add("--mode", help=mode)
    add("--exif", choices=["apply", "ignore"], help="the orientation of photos [one that has another is refused]")
    add("--variable", action="store_true", help="keep each image's size: flat values + offsets + shapes")
    add("--tokenizer", help="bytes, chars, or a tokenizers JSON file or its folder [bytes]")
    add("--length", type=int, metavar="IDS", help="of a text in a table (--as COLUMN=tokens) at most [all]")
    add("--reverse-axes", action="store_true", help="N5 whose axes are turned round (as z5py and zarr 2 write it)")
    add("--split", nargs="+", type=share, metavar="NAME=SHARE", help="shares of train drawn by --seed, of text its end")
    add("--shuffle", action="store_true", help="write the rows of each split in random order")
    add("--seed", type=int, help="of --shuffle and --split [0]")
    add("--shard", type=shard, metavar="I/N", help="write the I-th of N shares, into OUT.I-of-N.h5")
    many = "write N files and an index of them into OUT, a folder or an address such as s3://bucket/set"
    add("--shards", type=int, metavar="N", help=f"{many} [OUT: one file; an address: 1]")
    add("--append", action="store_true", help="add --shards to the set that is in OUT")
    add("--on-error", choices=["stop", "skip"], help="at a sample that cannot be read [stop]")
    left = "names, or patterns in quotes, that may be left out: exit status 0, if nothing else was"
    add("--ignore", nargs="+", metavar="NAME", help=left)
    add("--external", choices=["refuse", "allow"], help="read what links of SOURCE name outside of it [refuse]")
    add("--workers", type=int, help="processes or threads [all cores]")
    common(p)

    p = verbs.add_parser("inspect", help="how a file is laid out and read, and what to change")
    p.add_argument("file", help="an HDF5 file")

    p = verbs.add_parser("repack", help="another layout, chunking or codec", argument_default=argparse.SUPPRESS)
    p.add_argument("source", help="an HDF5 file")
    p.add_argument("out", help="the .h5 file to write")
    p.add_argument("--flatten", action="store_true", help="variable length and strings: into flat values + offsets")
    p.add_argument("--external", choices=["refuse", "allow"], help="copy what lies in other files than SOURCE [refuse]")
    p.add_argument(
        "--contiguous", action="store_true", help="what can grow becomes contiguous too, and can grow no more"
    )
    p.add_argument("--allow-larger", action="store_true", help="write a copy of many times SOURCE's size")
    codecs = ["none", "gzip", "zstd"]
    chosen = "compress, in chunks of whole rows [none: contiguous, fastest to read]"
    p.add_argument("--codec", choices=codecs, help=chosen)
    p.add_argument("--level", type=int, help="of the codec")
    p.add_argument("--rows-per-chunk", type=int, help="1 for rows of 64 KB and more [by the size of a row]")
    common(p)
    return top


def common(p: argparse.ArgumentParser) -> None:
    p.add_argument("--overwrite", action="store_true", help="replace OUT")
    p.add_argument("--quiet", action="store_true", help="print no progress")


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
    """-> the exit status. Raises ConfigError, which `run` shows."""
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
    if "length" in args and "tokens" not in args.get("kinds", {}).values():
        what = "cuts the ids that kinds={'COLUMN': 'tokens'} makes of a table's texts"
        raise ConfigError(f"length=: {what}; give that too")
    function = functions.pack if verb == "pack" else functions.repack
    return function(**args, command=shlex.join([*calling.command, *argv])).exit_status


TYPED = {"kinds": "as", "file_column": "files"}  # arguments of pack and repack that have another name here
ARGUMENTS = [one.name for one in (*fields(PackOptions), *fields(RepackOptions))] + ["shards", "append"]
ARGUMENT = re.compile(
    rf"""(?<![\w.])({"|".join(ARGUMENTS)})=(True|False|N\b|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|{{[^{{}}]*}}|\d+|(?=[\s,;:)]|$))"""
)


def as_options(text: str) -> str:
    """A message that names arguments as Python's callers give them, size=(2, 3), with options in their place."""

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


def run(
    command: tuple[str, ...] = calling.command,
    reading: Reading = calling.reading,
    training: Training = calling.training,
) -> int:
    """`main` with sys.argv, and errors on one line, with options as they are typed. command: how it is typed. reading,
    training: make the lines that say how a packed file is read, and a stranger's."""
    calling.command, calling.reading, calling.training = command, reading, training
    for stream in (sys.stdout, sys.stderr):  # what a terminal of ASCII cannot show is written as \\u6a21
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = main(sys.argv[1:])
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13
    except ConfigError as error:
        print(f"error: {clean(as_options(str(error)))}", file=sys.stderr)
        return 2
    except (OSError, MemoryError) as error:
        with suppress(OSError):  # if this is a full disk: what is left to print
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: {clean(first_line(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return 130
