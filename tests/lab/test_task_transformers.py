"""docs/hugging_face.md: a model and a tokenizer of transformers from a folder, LoRA; tiny ones that are made here."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from common import ROOT, needs
from shipped import Stateless

from samebits.errors import ConfigError
from samebits.testing import SMALL, compose, last_checkpoint, start_run, values
from samebits.testing.processes import called, importing

pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
Pretrained = pytest.importorskip("lab.models.pretrained").Pretrained
pytestmark = needs("src/lab/models/pretrained.py")
H5ROWS = [sys.executable, "-m", "h5rows"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "a", "film", "very", "not", "the", "plot"]


def save_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bert/, gpt/: models as transformers saves them. texts.csv: as many good as bad films; texts.h5, packed."""
    home = tmp_path_factory.mktemp("hugging_face")
    torch.manual_seed(0)
    sizes = {"vocab_size": len(WORDS), "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = transformers.BertConfig(
        hidden_size=8, intermediate_size=16, max_position_embeddings=16, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, initializer_range=0.3, **sizes,
    )  # fmt: skip
    transformers.BertModel(bert).save_pretrained(home / "bert")
    gpt = transformers.GPT2Config(
        n_embd=8, n_positions=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, initializer_range=0.5, **sizes
    )
    transformers.GPT2LMHeadModel(gpt).save_pretrained(home / "gpt")
    save_tokenizer(home / "bert")
    random = np.random.default_rng(0)
    with open(home / "texts.csv", "w") as file:
        print("text,label,split", file=file)
        for i in range(80):
            words = [*random.choice(WORDS[6:], random.integers(1, 9)), ("bad", "good")[i % 2]]
            print(f"{' '.join(random.permutation(words))},{i % 2},{'val' if i >= 60 else 'train'}", file=file)
    arguments = ("--as", "text=tokens", "--tokenizer", home / "bert", "--length", 8, "--quiet")
    called([*H5ROWS, "pack", *map(str, (home / "texts.csv", home / "texts.h5", *arguments))])
    return home


def classifies(home: Path) -> tuple[str, ...]:
    return (
        "data=texts", f"data.path={home}/texts.h5", "data.splits.test=null", "task=transformers", "optim.lr=3e-2",
    )  # fmt: skip


def bert(home: Path) -> tuple[str, ...]:
    return (*classifies(home), "model=pretrained", f"model.folder={home}/bert")


def lora(home: Path) -> tuple[str, ...]:
    return (
        *classifies(home), "model=lora", f"model.model.folder={home}/bert", "model.rank=2",
    )  # fmt: skip


def test_texts_are_packed_as_the_tokenizer_says(home: Path) -> None:
    import h5py
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(home / "bert/tokenizer.json"))
    made.enable_truncation(8)
    texts = [line.split(",")[0] for line in (home / "texts.csv").read_text().splitlines()[1:61]]
    with h5py.File(home / "texts.h5") as file:
        values, offsets = file["train/text/values"][:], file["train/text/offsets"][:]
        assert file["train/text/values"].attrs["vocab_size"] == len(WORDS)
        assert values.dtype == np.uint8
    assert [part.tolist() for part in np.split(values, offsets[1:-1])] == [made.encode(text).ids for text in texts]


def test_what_cannot_be_packed_is_one_line(tmp_path: Path, home: Path) -> None:
    for arguments, line in (
        (("--as", "text=tokens"), "--tokenizer bytes: bytes is missing; give a tokenizer.json or its folder"),
        (("--as", "text=text", "--length", "8"), "--length: limits token ids, so it needs --as COLUMN=tokens"),
    ):
        done = called([*H5ROWS, "pack", str(home / "texts.csv"), str(tmp_path / "out.h5"), *arguments], code=2)
        assert line in done.stderr


class TestClassification(Stateless):
    @pytest.fixture
    def run(self, home: Path) -> tuple[str, ...]:
        # the keys' biases have no gradient but rounding, of which AdamW makes whole steps
        return (*bert(home), "optim=sgd", "optim.lr=0.05", "optim.weight_decay=0")


class TestLora(Stateless):
    @pytest.fixture
    def run(self, home: Path) -> tuple[str, ...]:
        return (*lora(home), "model.layers=[query,value,dense]", "model.trained=[classifier,LayerNorm]")


def batch_of(home: Path) -> tuple[dict[str, torch.Tensor], list[list[int]]]:
    import h5py

    with h5py.File(home / "texts.h5") as file:
        values, offsets = file["val/text/values"][:].astype(int), file["val/text/offsets"][:]
    rows = [part.tolist() for part in np.split(values, offsets[1:-1])]
    padded = torch.tensor([row + [0] * (8 - len(row)) for row in rows])
    return {"x": padded, "x_length": torch.tensor([len(row) for row in rows])}, rows


def test_a_run_begins_with_the_folders_weights_and_ignores_padding(home: Path) -> None:
    """Logits are those of transformers' own call of each text alone, with the run's new head."""
    from lab import build

    parts = build(compose(*bert(home), "hardware=cpu"))
    parts.close()
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(home / "bert", num_labels=2)
    theirs.classifier.load_state_dict(parts.model.net.classifier.state_dict())
    batch, rows = batch_of(home)
    wanted = torch.cat([theirs.eval()(input_ids=torch.tensor([row])).logits for row in rows])
    torch.testing.assert_close(parts.task.predict(parts.model.eval(), batch), wanted, rtol=1e-4, atol=1e-5)


def test_a_decoder_that_classifies_reads_the_last_token(tmp_path: Path, home: Path) -> None:
    """It searches for its own padding token, whatever pads the batch."""
    config = {"vocab_size": 12, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2, "pad_token_id": 11}
    transformers.GPT2ForSequenceClassification(transformers.GPT2Config(**config)).save_pretrained(tmp_path)
    model = Pretrained(str(tmp_path), "AutoModelForSequenceClassification", 2).eval()
    batch, rows = batch_of(home)
    mask = (torch.arange(8) < batch["x_length"][:, None]).long()
    with torch.no_grad():
        wanted = torch.cat([model.net(input_ids=torch.tensor([row])).logits for row in rows])
        torch.testing.assert_close(model(input_ids=batch["x"], attention_mask=mask).logits, wanted)


@needs("conf/data/sequences.yaml")
def test_a_causal_model_learns_to_go_on(tmp_path: Path, home: Path) -> None:
    """Losses are those of transformers' own loss, text by text; the folder has lost its weights when it is resumed."""
    folder = shutil.copytree(home / "gpt", tmp_path / "gpt")
    run = (
        *SMALL, "data=sequences", f"data.path={home}/texts.h5", "data.fields={tokens: text}", "model=pretrained",
        f"model.folder={folder}", "model.head=AutoModelForCausalLM", "model.num_outputs=null", "task=transformers",
        "data.splits.test=null", "data.input_shape=[8]", "data.num_outputs=12", "~task.metrics.accuracy",
        "task.criterion={_target_: lab.losses.next_token.NextToken}", "~task.criterion.label_smoothing",
    )  # fmt: skip
    trained = start_run(tmp_path / "run", *run)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    state = {name.removeprefix("net."): value for name, value in last_checkpoint(trained)["model"].items()}
    theirs.load_state_dict(state)
    _, rows = batch_of(home)
    with torch.no_grad():
        sums = [theirs(torch.tensor([row]), labels=torch.tensor([row])).loss.item() * (len(row) - 1) for row in rows]
    wanted = sum(sums) / sum(len(row) - 1 for row in rows)
    assert values(trained, "val/loss")[-1] == pytest.approx(wanted, rel=1e-4)
    (folder / "model.safetensors").unlink()
    start_run(trained, *run, "trainer.max_steps=14")
    assert last_checkpoint(trained)["step"] == 14


def test_lora_trains_little_and_saves_less(tmp_path: Path, home: Path) -> None:
    """The base stays bit for bit; of the moments there are only those of what is trained."""
    from lab.config import Config
    from lab.model_io import make_model

    trained = start_run(tmp_path / "lora", *SMALL, *lora(home))
    whole = start_run(tmp_path / "whole", *SMALL, *bert(home))
    model = make_model(Config.of(compose(*lora(home))))
    model.model.load_pretrained()
    last, moves = last_checkpoint(trained), dict(model.named_parameters())
    assert sorted(last["parameter_names"]) == sorted(n for n, p in moves.items() if "lora_" in n or "classifier" in n)
    for name, p in moves.items():
        assert torch.equal(last["model"][name], p) == (name not in last["parameter_names"]), name
    sizes = [
        sum(value.numel() for state in last_checkpoint(run)["optimizer"]["state"].values() for value in state.values())
        for run in (trained, whole)
    ]
    assert sizes[0] < sizes[1] / 4


def test_what_will_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Code of a folder is not run."""
    from lab.models.pretrained import Pretrained

    folder = shutil.copytree(home / "bert", tmp_path / "bert")
    (folder / "mine.py").write_text("raise SystemExit('code of a folder has run')")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSequenceClassification": "mine.Net"}
    (folder / "config.json").write_text(json.dumps(config))
    code = r"mine.Net is Python code in the folder, .* REMOTE_CODE_ALLOWED in lab/models/pretrained.py"
    for file, says in (
        (None, code),
        ("model.safetensors", r"model.folder=.*: contains no .safetensors"),
        ("config.json", r"model.folder=.*: contains no config.json"),
    ):
        if file:
            shutil.copy(home / "bert/config.json", folder)
            (folder / file).unlink()
        with pytest.raises(ConfigError, match=says):
            start_run(tmp_path / "run", *SMALL, *bert(home), f"model.folder={folder}")
    with pytest.raises(ConfigError, match=r"model.layers: no linear layer is named q_proj; names are query, key"):
        start_run(tmp_path / "run", *SMALL, *lora(home), "model.layers=[q_proj]")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"needs transformers, which is not installed - .*pip install .*transformers"):
        Pretrained(str(home / "bert"), "AutoModel", None)


@pytest.mark.slow
def test_the_pages_commands_run(tmp_path: Path, home: Path) -> None:
    """Each as typed, in a folder where texts.csv, bert/ and gpt/ are; then an evaluation after the folder has moved."""
    for name in ("bert", "gpt"):
        shutil.copytree(home / name, tmp_path / name)
    shutil.copy(home / "texts.csv", tmp_path)

    def run(script: str, *words: str) -> None:
        called(
            [sys.executable, ROOT / f"src/{script}.py", *words], cwd=tmp_path, env=importing(ROOT / "src"), fresh=True
        )

    page = (ROOT / "docs/hugging_face.md").read_text().replace("\\\n", " ")  # long commands have several lines
    blocks = re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]
    assert [words[0] for words in commands] == ["h5", "train", "train", "train", "train", "evaluate"]
    for number, (script, *words) in enumerate(commands[:4]):
        small = ("logger=none", "hardware=cpu", f"hydra.run.dir={tmp_path}/outputs/default/{number}")
        run(script, *words, *(small if script == "train" else ()))
    (tmp_path / "bert").rename(tmp_path / "moved")
    for script, run_dir, _, *more in commands[4:]:
        run(script, run_dir.replace("MY_RUN", "1"), "model.folder=moved", *more)
