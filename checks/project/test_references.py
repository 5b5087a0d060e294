"""The generated pages of docs/: up to date, complete, and with an address for each key. Usages say `./run`."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest
from checking import import_tool
from common import ROOT
from pages import OURS

pytestmark = pytest.mark.skipif(not OURS, reason="of the template's docs; this project has some of its own")


@pytest.fixture(scope="module")
def found() -> tuple[Any, Any]:
    """The pages as ./run docs would write them now, and the keys without a description."""
    return import_tool("reference").pages()


def test_the_pages_are_up_to_date(found: Any) -> None:
    stale = [path.name for path, text in found[0].items() if not path.exists() or path.read_text() != text]
    assert stale == [], "./run docs"


def test_each_key_and_option_has_a_description(found: Any) -> None:
    assert found[1] == []


def test_each_key_has_an_address(found: Any) -> None:
    page = found[0][ROOT / "docs/configuration.md"]
    ids = re.findall(r'<a id="([^"]+)"></a>', page)
    assert len(ids) == len(set(ids))
    assert {"trainer.clip_norm", "seed", "process.max_time", "data.path", "optim.lr", "task=dino:momentum"} <= set(ids)
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= set(ids)


def test_values_are_within_the_code_of_their_keys(found: Any) -> None:
    """sweep.zip=a,b is one piece of code: none ends within a word or a list."""
    page = found[0][ROOT / "docs/configuration.md"]
    assert "`optim=adamw,sgd` `optim.lr=1e-3,0.1` `sweep.zip=optim,optim.lr`" in page
    after_code = (text for line in page.splitlines() for text in line.split("`")[2::2])
    assert [text for text in after_code if re.match(r",?\w", text)] == []


def test_each_option_of_each_group_is_there(found: Any) -> None:
    page, schema = found[0][ROOT / "docs/configuration.md"], import_tool("schema")
    options = [
        f"{group.replace('.', '/')}={name}"
        for group, names in schema.options().items()
        for name in names
        if group not in ("", "hydra.help")
    ]
    assert len(options) > 100
    assert [option for option in options if f"`{option}`" not in page] == []


def test_usages_are_those_of_run() -> None:
    """And none accepts an abbreviated option, because a later option may have the same beginning."""
    tool = import_tool("reference_commands")
    for command, (module, _) in tool.COMMANDS.items():
        if command not in tool.NO_PARSER:
            parser = tool.parser_of(module)
            assert parser.prog == f"./run {command}"
            assert not (parser._actions[-1].choices["pack"] if command == "h5" else parser).allow_abbrev, command
    usage = re.findall(
        r"^  ([a-z0-9]+) +\S", (ROOT / "run").read_text().partition('usage="')[2].partition('"')[0], re.M
    )
    assert {*tool.COMMANDS, *tool.OTHERS} == set(usage)


def test_the_subcommands_of_h5_have_their_full_usage() -> None:
    page = (ROOT / "docs/commands.md").read_text()
    assert all(f"### ./run h5 {verb}\n" in page for verb in ("pack", "inspect", "repack"))


def test_documented_names_can_be_imported(found: Any) -> None:
    named = [name for text in found[0].values() for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]
    assert len(named) > 100
    for path in named:
        module, _, name = path.rpartition(".")
        assert getattr(importlib.import_module(module), name), path


def test_addresses_in_messages_exist() -> None:
    """A message may name docs/PAGE.md#ANCHOR, or a page alone."""
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "packages").glob("*/src/**/*.py")]
    named = {one for path in sources for one in re.findall(r"docs/\w+\.md#[\w-]+", path.read_text())}
    assert len(named) > 10
    for one in named:
        page, _, anchor = one.partition("#")
        titles = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
        slugs = {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}
        assert anchor in slugs, one
