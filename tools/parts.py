"""What a fork may leave out: the files of each part, and what else names it. fork.py deletes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PACKAGES = ("samebits", "h5rows")  # in packages/: not the fork's to edit


@dataclass(frozen=True)
class Part:
    """files: globs below the root, or path::name of a function or value in a module.

    lines: {file: patterns}, each line with one is deleted. texts: {file: {pattern: what stands there instead}}. A
    pattern is a regular expression. needs: parts without which this one is left out too. kind: method, experiment,
    room, extra.
    """

    about: str
    files: Sequence[str] = ()
    lines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    texts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    needs: Sequence[str] = ()
    kind: str = "method"


def method(name: str, about: str, *files: str, lines: Mapping[str, Sequence[str]] | None = None) -> Part:
    """One of src/lab/tasks, with its yaml, its test and its row in docs/tasks.md."""
    own = (f"src/lab/tasks/{name}.py", f"conf/task/{name}.yaml", f"tests/lab/test_task_{name}.py")
    return Part(about, (*own, *files), {"docs/tasks.md": [rf"^\| `{name}` \|"], **(lines or {})})


def optimizer(name: str, about: str, lines: Mapping[str, Sequence[str]] | None = None) -> Part:
    """One of src/lab/optimizers, with its yaml, its test and its row in docs/my_model.md."""
    files = (f"src/lab/optimizers/{name}.py", f"conf/optim/{name}.yaml", f"tests/lab/test_{name}.py")
    return Part(about, files, {"docs/my_model.md": [rf"^\| `{name}` \|"], **(lines or {})}, kind="extra")


TEMPLATE_ONLY = Part(
    "what a fork has no use for",
    (
        "CITATION.cff",
        "copier.yml",
        "tools/copier",
        "tests/lab/test_docs*.py",
        "tests/pages.py",
        "tests/lab/test_benchmarks.py::test_each_script_runs_in_a_test",
        "tests/lab/test_breaks.py",
        "tests/breaks.py",
        "tools/mutate.py",
        "tests/lab/test_fork*.py",
        "tests/lab/test_schema.py::test_the_schema_is_current",  # ./run lint asks; a new class leaves the tests green
        *(  # of lab too, which is a fork's to change
            f"tests/engine/test_wall.py::{name}"
            for name in (
                "test_all_that_a_page_shows_is_used_or_documented",
                "MOST_LINES",
                "test_to_read_the_loop_is_to_read_few_files",
                "test_no_files_and_no_folders_import_each_other",
            )
        ),
        "tests/engine/test_prose.py",
        *(
            f"tests/lab/test_fake_gpu.py::{name}"
            for name in (
                "FAST",
                "GPT",
                "TASKS",
                "files",
                "test_a_task_waits_for_nothing",
                "test_text_is_sampled_on_the_device",
            )
        ),
        *(f"tests/lab/test_suite.py::{name}" for name in ("ADDED", "DELETED", "FILES", "TESTS", "FOLDERS", "ASKED")),
        "tests/lab/test_suite.py::test_what_a_fork_adds_and_deletes_leaves_the_tests_green",
    ),
    {
        "pyproject.toml": ['"copier>='],
        "README.md": ["`\\./run fork my_project`"],
        "docs/contract.md": ["`tests/breaks\\.py`", "tools/mutate\\.py"],
        "CONTRIBUTING.md": ["`tests/breaks\\.py`"],
        ".github/workflows/test.yml": ["tools/mutate\\.py"],
    },
)

PARTS = {
    # methods
    "byol": method(
        "byol",
        "representations by a student and a teacher",
        "tests/lab/test_replicas.py::test_each_ranks_own_statistics_may_differ",
        lines={"tests/lab/test_trial.py": ['"task=byol"'], "tests/lab/test_notebook.py": ['"task=byol"']},
    ),
    "contrastive": method("contrastive", "representations by pairs"),
    "ddpm": method("ddpm", "denoising diffusion: images from noise"),
    "dino": method("dino", "representations by a student that sorts as its average does"),
    "distillation": method(
        "distillation",
        "a small model that learns from a trained one",
        lines={"tests/engine/config/test_wrong_kind.py": ["task=distillation"]},
    ),
    "dpo": method(
        "dpo",
        "preferences of a language model; LoRA",
        "conf/data/pairs.yaml",
        "conf/experiment/preferences.yaml",
        "conf/model/gpt_lora.yaml",
        "src/lab/models/lora.py",
        "tests/engine/config/test_config.py::pairs",
        lines={
            "tests/engine/config/test_config.py": ['"data=pairs": '],
            "tests/engine/config/test_wrong_kind.py": ['"pairs"', "task=dpo"],
        },
    ),
    "finetune": method(
        "finetune",
        "weights of another run, frozen parts",
        "tests/lab/test_resume_changes.py::test_moments_stay_with_their_parameters",
        lines={
            "tests/lab/test_notebook.py": ["finetune"],
            "tests/engine/config/test_door.py": ["finetune"],
            "tests/engine/config/test_wrong_kind.py": ["finetune"],
        },
    ),
    "fixmatch": method(
        "fixmatch",
        "few labels, many samples without",
        "conf/experiment/fixmatch.yaml",
        lines={"docs/my_data.md": ["experiment=fixmatch"]},
    ),
    "gan": method("gan", "a Wasserstein GAN: two optimizers"),
    "lbfgs": method(
        "lbfgs", "an optimizer with a closure", "conf/optim/lbfgs.yaml", lines={"docs/my_method.md": ["lbfgs\\.py"]}
    ),
    "pcgrad": method("pcgrad", "several losses whose gradients do not undo one another"),
    "pose": method("pose", "2-D to 3-D joints"),
    "sam": method("sam", "steps that look uphill first", lines={"docs/my_method.md": ["tasks/sam\\.py"]}),
    "segmentation": Part(
        "a label for each pixel",
        (
            "conf/task/segmentation.yaml",
            "conf/experiment/segmentation.yaml",
            "conf/model/unet.yaml",
            "src/lab/models/unet.py",
            "src/lab/losses/pixel_cross_entropy.py",
            "src/lab/transforms/label_map.py",
            "tests/lab/test_task_segmentation.py",
        ),
        {"docs/tasks.md": [r"^\| `segmentation` \|"]},
    ),
    "streaming": method(
        "streaming",
        "a recurrent network that reads one long text in lanes",
        "conf/experiment/streaming.yaml",
        "conf/model/token_gru.yaml",
        "src/lab/models/token_gru.py",
        lines={"docs/my_data.md": [r"experiment/streaming\.yaml"], "docs/my_method.md": [r"tasks/streaming\.py"]},
    ),
    "swa": method("swa", "the mean of weights of the last part of training"),
    "transformers": method(
        "transformers",
        "models of Hugging Face, LoRA",
        "src/lab/models/pretrained.py",
        "conf/model/pretrained.yaml",
        "conf/model/lora.yaml",
        "conf/data/texts.yaml",
        "docs/hugging_face.md",
        lines={
            "mkdocs.yml": ["hugging_face\\.md"],
            "tests/engine/config/test_wrong_kind.py": ['"(lora|pretrained|texts)",'],
            "pyproject.toml": ["^transformers ="],
            "src/lab/project.py": [
                '"transformers.AutoModel"',
                '"loads safetensors alone',
                '"model\\.(model\\.)?folder"',
            ],
            "src/lab/experiment.py": [
                "load_pretrained",
                "for part in model\\.modules\\(\\) if begins",
                r"logger\.say\(load\(\)\)",
            ],
        },
    ),
    "vae": method(
        "vae",
        "a variational autoencoder",
        "conf/model/autoencoder.yaml",
        "tests/lab/test_schema.py::test_keys_in_nested_classes_and_in_lists_are_checked",  # of its ModuleDict
    ),
    "whitened": Part(
        "CIFAR-10 in a few epochs: its network, first layer and flips",
        (
            "src/lab/tasks/whitened.py",
            "conf/task/whitened.yaml",
            "src/lab/models/cifar_fast.py",
            "conf/model/cifar_fast.yaml",
            "src/lab/transforms/alternating_flip.py",
            "conf/experiment/cifar10_fast.yaml",
            "tests/lab/test_model_cifar_fast.py",
        ),
        {"docs/tasks.md": [r"^\| `whitened` \|"], "tests/engine/config/test_wrong_kind.py": ["whitened"]},
    ),
    # experiments
    "cifar10": Part(
        "a ResNet on CIFAR-10",
        ("conf/experiment/cifar10.yaml",),
        {"conf/experiment/cifar10_fast.yaml": ["Splits as in experiment=cifar10"]},
        kind="experiment",
    ),
    "imagenet": Part(
        "a ResNet-50 of timm or torchvision on ImageNet",
        (
            "conf/experiment/imagenet.yaml",
            "conf/model/vision.yaml",
            "src/lab/models/vision.py",
            "tests/lab/test_model_vision.py",
        ),
        texts={"docs/my_data.md": {r"\. `experiment=imagenet` is the whole recipe": ""}},
        kind="experiment",
    ),
    "active_learning": Part(
        "labels rows of a pool while it trains",
        (
            "conf/experiment/active_learning.yaml",
            "conf/callback/active_learning.yaml",
            "src/lab/callbacks/active_learning.py",
            "tests/lab/test_active_learning.py",
        ),
        {"docs/callbacks.md": [r"^\| `active_learning` \|"], "docs/my_data.md": ["experiment=active_learning"]},
        kind="experiment",
    ),
    "sequences": Part(
        "a language model of whole sequences",
        (
            "conf/experiment/sequences.yaml",
            "tests/lab/test_sequences.py::test_the_shipped_experiment_learns",
        ),
        kind="experiment",
    ),
    "gpt2": Part(
        "GPT-2 124M",
        (
            "conf/experiment/gpt2.yaml",
            "tests/lab/test_model_gpt.py::test_the_recipe_is_gpt_2",
            "tests/lab/test_model_gpt.py::test_the_recipe_of_gpt_2_learns_in_small",
        ),
        kind="experiment",
    ),
    "shakespeare": Part(
        "a language model of characters, which writes at each evaluation",
        (
            "conf/experiment/shakespeare.yaml",
            "conf/callback/sample_text.yaml",
            "src/lab/callbacks/sample_text.py",
            *(
                f"tests/lab/test_model_gpt.py::{name}"
                for name in (
                    "text",
                    "SHAKESPEARE",
                    "texts",
                    "test_the_experiment_learns_and_writes",
                    "test_samples_have_the_models_probabilities",
                    "test_what_cannot_be_written_is_refused",
                )
            ),
        ),
        {"docs/callbacks.md": [r"^\| `sample_text` \|"], "tests/engine/config/test_wrong_kind.py": ["sample_text"]},
        kind="experiment",
    ),
    # optimizers
    "lion": optimizer("lion", "Lion, an optimizer that moves by signs", {"tests/lab/test_skipping.py": ['"lion"']}),
    "soap": optimizer("soap", "SOAP, an optimizer: AdamW in Shampoo's eigenbasis"),
    "lookahead": optimizer(
        "lookahead", "Lookahead around another optimizer", {"tests/lab/test_projected.py": ["lookahead"]}
    ),
    "schedule_free": optimizer(
        "schedule_free",
        "Schedule-free AdamW: a mean of the weights is scored",
        {"tests/lab/test_projected.py": ["schedule.free"]},
    ),
    # the rest
    "benchmarks": Part(
        "scripts that measure the engine beside other libraries",
        ("benchmarks", "tests/lab/test_benchmarks.py", "tests/lab/test_many_ranks.py", "docs/speed.md"),
        {"pyproject.toml": ["^bench = "], "run": [r"^  bench ", r"^bench\)"]},
        {
            "README.md": {r"\n## Measured\n(.*\n)*?(?=\n## |\Z)": "", r"  benchmarks/": ""},
            "run": {r" bench \|": ""},
            "docs/profiling.md": {r"^## On a GPU\n(.*\n)*?(?=## |\Z)": ""},
            "docs/scale.md": {
                r"Measured by `benchmarks/scale.py` on": "Measured on",
                r" \(`benchmarks/scale_ranks.py`\)": "",
            },
        },
        needs=("cifar10", "whitened"),
        kind="extra",
    ),
    "notebooks": Part(
        "a tour in a notebook",
        (
            "notebooks",
            "tests/lab/test_notebook.py::test_the_shipped_notebook_runs",
            "tests/lab/test_notebook.py::NOTEBOOK",
        ),
        {"pyproject.toml": ["^notebook = "]},
        {
            "README.md": {r"  notebooks/": ""},
            "pyproject.toml": {",notebook]": "]"},
        },
        kind="extra",
    ),
    "search": Part(
        "Optuna: `hydra/sweeper=optuna`, pruning",
        (
            "packages/samebits/src/samebits/sweeps/search",
            "packages/samebits/src/hydra_plugins/samebits_optuna",
            "conf/hydra/sweeper/optuna.yaml",
            "conf/hydra/sweeper/sampler",
            "conf/hydra/sweeper/pruner",
            "conf/experiment/digits_search.yaml",
            "docs/search.md",
            "tests/multirun/test_optuna*.py",
            "tests/multirun/test_report.py::test_importance_of_a_search_is_optuna_s",
            "tests/multirun/test_report.py::test_a_key_that_only_some_jobs_have_is_shown_for_these",
            "tests/engine/config/test_config.py::test_an_experiment_chooses_sweeper_and_launcher",
        ),
        {
            "packages/samebits/src/samebits/sweeps/__init__.py": [r"from samebits\.sweeps\.search", r"^    search/ "],
            "src/lab/run.py": [r"import Pruning$", r"pruning = Pruning\.of"],
            "pyproject.toml": ["^optuna = "],
        },
        {
            "src/lab/run.py": {
                r"\*\(\[\] if pruning is None else \[pruning\]\), ": "",
                r"^ +if state\.ended == .pruned.:\n.*\n": "",
            },
            "tests/engine/config/test_untrusted.py": {"OURS, ALLOWED, ": "OURS, "},
            "pyproject.toml": {"optuna,": ""},
        },
        kind="extra",
    ),
    "reports": Part(
        "reports of sweeps and runs, and uploading offline runs to W&B",
        (
            "packages/samebits/src/samebits/sweeps/report",
            "packages/samebits/src/samebits/loggers/wandb_later.py",
            "src/report.py",
            "src/sync.py",
            "docs/report.md",
            "docs/paper.md",
            "docs/assets/report.png",
            "docs/assets/paper.png",
            "tests/engine/loggers/test_wandb_sync.py",
            "tests/engine/config/test_terminal.py::test_names_of_another_script_on_a_terminal_of_ascii",
            "tests/multirun/test_report.py",
            "tests/multirun/test_merge.py",
            "tests/multirun/test_compare.py",
            "tests/multirun/test_paper_*.py",
            "tests/lab/test_paper.py",
            "tests/multirun/test_inference.py",
        ),
        {
            "packages/samebits/src/samebits/sweeps/__init__.py": [r"^    report/ "],
            "packages/samebits/src/samebits/loggers/__init__.py": [r"^    wandb_later "],
            "pyproject.toml": ["^report = "],
            "run": ["^  report ", "^  sync "],
            "README.md": ["experiment=best_lr"],  # a report makes it
            "tests/engine/config/test_door.py": [r"main\(\"(report|sync)\.py"],
        },
        {
            "packages/samebits/src/samebits/loggers/__init__.py": {
                r"^    from samebits\.loggers\.wandb_later import \([^)]*\)\n": ""
            },
            "pyproject.toml": {"report,": ""},
            "run": {r" report \| sync \|": ""},
            "README.md": {"; report on a sweep": "", "; sync with W&B": ""},
        },
        kind="extra",
    ),
    "packing": Part(
        "`src/h5.py`, other formats -> HDF5; `data=image_folder`, which reads images the same way",
        (
            "tests/engine/config/test_terminal.py::test_names_of_another_script_on_a_terminal_of_ascii",
            "src/h5.py",
            "packages/h5rows/src/h5rows/packing",
            "packages/h5rows/src/h5rows/importers",
            "packages/h5rows/src/h5rows/account.py",
            "packages/h5rows/src/h5rows/options.py",
            "packages/h5rows/src/h5rows/source.py",
            "packages/h5rows/src/h5rows/functions.py",
            "packages/h5rows/src/h5rows/command.py",
            "packages/h5rows/src/h5rows/program.py",
            "packages/h5rows/src/h5rows/__main__.py",
            "src/lab/datasets/image_folder.py",
            "src/lab/project.py::folder_classes",
            "conf/data/image_folder.yaml",
            "conf/experiment/image_folder.yaml",
            "tests/h5rows/*pack_*.py",
            "tests/lab/test_image_folder.py",
            # made files, which are inspected and repacked, too
            "tests/h5rows/test_h5_generated.py",
            "tests/h5rows/h5_fuzz.py",
            "tests/h5rows/h5_again.py",
            "tests/h5rows/test_meaning.py::test_inspect_prints_the_same",
            "tests/h5rows/test_meaning.py::test_what_inspect_prints_of_bool_labels_trains",
            "tests/h5rows/test_meaning.py::test_no_command_is_printed_that_cannot_train",
            "tests/h5rows/test_meaning.py::inspected",
            *(
                f"tests/h5rows/test_library.py::{name}"
                for name in (
                    "called",
                    "test_the_functions_do_what_the_command_does",
                    "test_it_works_alone",
                    "test_the_readme_s_code_runs",
                    "test_the_line_that_inspect_prints_reads_the_file",
                    "test_packing_imports_no_torch",
                )
            ),
        ),
        {
            "packages/h5rows/src/h5rows/__init__.py": [
                r"from h5rows\.functions",
                r'^    "(functions|inspect|pack|repack|write)\b',
                r"^    (functions, command|options, account|source|packing/|importers/) ",
            ],
            "packages/h5rows/src/h5rows/engines.py": [
                r"from h5rows\.(command|options|packing|importers)",
                r'^    "(command|options|packing|importers)\b',
                r"^    (PackOptions, open_source, FileSource|run, proposal) ",
            ],
            "pyproject.toml": ["^lmdb = ", "^zarr = ", "^n5 = ", "^tfrecord = ", "^text = ", '^  "zarr>='],
            "run": ["^  h5 "],
            "README.md": [r"outputs/digits-zstd\.h5"],
            "src/lab/project.py": ['"folder_classes": '],
            "tests/engine/config/test_config.py": ['"data=image_folder": '],
            "tests/engine/config/test_wrong_kind.py": ["image_folder"],
            "tests/lab/test_mistakes.py": ["image_folder"],
        },
        {
            "pyproject.toml": {"lmdb,zarr,n5,": "", "tfrecord,": ""},
            "run": {r" h5 \|": ""},
            "README.md": {"; h5: pack, inspect": ""},
        },
        kind="extra",
    ),
    "container": Part(
        "`Dockerfile`, `.devcontainer`",
        ("Dockerfile", ".dockerignore", ".devcontainer", "tests/lab/test_container.py"),
        texts={
            "docs/editors.md": {", containers$": "", r"\n## In a container\n(.*\n)*?(?=\n## |\Z)": ""},
            "mkdocs.yml": {"Editors, completion, containers": "Editors, completion"},
        },
        kind="extra",
    ),
    "engine": Part(
        "the libraries in `packages`, `samebits` and `h5rows`: their wheels stand in for them",
        (
            "packages",
            *(f"tests/{folder}" for folder in ("engine", "multirun", "h5rows")),
            *(
                f"tests/lab/test_readme.py::{name}"
                for name in (
                    "commands",
                    "test_a_command_without_any_environment_says_what_to_type",
                    "test_a_command_goes_on_with_the_environment_s_python_as_it_was_typed",
                    "test_an_environment_without_the_packages_is_tried_once",
                )
            ),
        ),
        {
            "pyproject.toml": ['^"packages/'],
            "README.md": [r"^packages/ "],
            "Dockerfile": ["^COPY .* packages packages"],
        },
        {
            "pyproject.toml": {
                r", \"packages/h5rows/src\", \"packages/samebits/src\"": "",
                r", \"tests/engine/data\", \"tests/h5rows\"": "",
                r" # packages/samebits and packages/h5rows: .*$": " # docs/fork.md says where the two come from",
            },
        },
        kind="extra",
    ),
}
