"""Shared by the tests of language models."""

from common import needs

NEEDS_GPT = needs("conf/model/gpt.yaml", "src/lab/models/gpt.py", "conf/data/tokens.yaml")
SMALL_GPT = ("model=gpt", "model.width=16", "model.layers=1", "model.heads=2")
