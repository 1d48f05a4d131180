"""Shares converted models and adapters on the Hugging Face hub, with a card of measured numbers."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from babn.conversion.state import belief_states
from babn.errors import ConfigError, import_extra
from babn.evaluation.comparison import compare
from babn.evaluation.predictions import Evaluation, collect
from babn.model_folders import is_hub_name
from babn.persistence import save_adapter
from babn.prediction.stored_settings import get_noise_level, get_residual, get_temperature

TAGS = ["babn", "bayesian-attention", "calibration", "uncertainty"]

WHOLE = """\
model = babn.load("{name}")
tokenizer = transformers.AutoTokenizer.from_pretrained("{name}")"""

ADAPTER = """\
tokenizer = transformers.AutoTokenizer.from_pretrained("{base}")
model = transformers.{architecture}.from_pretrained("{base}"{labels})
babn.load_adapter(model, "{name}")"""

TEXT = """\
# {title}

{kind} with random attention weights, made with [babn](https://arxiv.org/abs/2106.05251):
{method}, noise level {level:.3g}, {fitted}.

## Use

```python
import babn
import transformers

{loading}
prediction = babn.predict(model, ["..."], tokenizer=tokenizer)
print(prediction.probs, prediction.disagreement)
```

## Evaluation

{evaluation}
"""


def push_to_hub(
    model: nn.Module,
    repo_id: str,
    *,
    tokenizer: Any = None,
    adapter: bool = False,
    base_model: str | None = None,
    evaluations: Sequence[Evaluation | str | Path] | str | Path = (),
    part: str | None = None,
    private: bool | None = None,
    token: str | None = None,
    **metadata: Any,
) -> str:
    """Uploads a converted model, or only its adapter, with a model card; returns the address.

    Args:
        model: A converted model of transformers; for adapters any converted model.
        repo_id: Name on the hub, such as `"me/reviews"`; the repository is made if needed.
        tokenizer: Its tokenizer, which is uploaded too.
        adapter: Whether to upload only what `babn.save_adapter` saves, a few kilobytes.
        base_model: Name on the hub or folder of the model that the adapter belongs to; by default
            the one that the model was loaded from.
        evaluations: What the table of the card is computed from, as for `babn.report`.
        part: Part of the data, for evaluations of several parts.
        private: Whether a new repository is private.
        token: Access token; by default that of `hf auth login`.
        **metadata: Further fields of the card, such as `license`, `language` and `datasets`.
    """
    if not is_hub_name(repo_id):
        raise ConfigError(f"repo_id={repo_id!r} is invalid. Give a name such as 'me/reviews'.")
    whole: Any = model
    if not adapter and not hasattr(whole, "save_pretrained"):
        raise ConfigError(
            f"{type(model).__name__} has no save_pretrained. Pass a transformers model, or "
            "adapter=True."
        )
    card = model_card(
        model, repo_id, adapter=adapter, base_model=base_model, evaluations=evaluations,
        part=part, **metadata,
    )  # fmt: skip
    api = _hub().HfApi(token=token, library_name="babn")
    with TemporaryDirectory() as folder:
        if adapter:
            save_adapter(model, folder)
        else:
            whole.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        Path(folder, "README.md").write_text(card, encoding="utf-8")
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        message = f"Upload {'adapter' if adapter else 'model'} with babn"
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message)
    return str(address)


def model_card(
    model: nn.Module,
    name: str,
    *,
    adapter: bool = False,
    base_model: str | None = None,
    evaluations: Sequence[Evaluation | str | Path] | str | Path = (),
    part: str | None = None,
    **metadata: Any,
) -> str:
    """The model card: how to load the model, its noise, and the numbers that were measured.

    Args:
        model: A converted model.
        name: Name on the hub, or folder.
        adapter: Whether the card is for the adapter alone.
        base_model: The model that the adapter belongs to; by default the one that the model was
            loaded from.
        evaluations: Evaluations, or folders with them, as for `babn.report`.
        part: Part of the data, for evaluations of several parts.
        **metadata: Further fields of the card, such as `license`, `language` and `datasets`.
    """
    config: Any = getattr(model, "config", None)
    base = base_model or str(getattr(config, "_name_or_path", ""))
    labels = getattr(config, "num_labels", None)
    loading = (ADAPTER if adapter else WHOLE).format(
        name=name,
        base=base or "BASE",
        architecture=type(model).__name__,
        labels=f", num_labels={labels}" if labels is not None and adapter else "",
    )
    residual, temperature = get_residual(model), get_temperature(model)
    text = TEXT.format(
        title=name.rpartition("/")[2],
        kind="An adapter" if adapter else "A model",
        method=type(belief_states(model)[0].config).__name__,
        level=get_noise_level(model),
        fitted=f"residual {residual:.3g}" if residual else f"temperature {temperature:.3g}",
        loading=loading,
        evaluation=_measured(evaluations, part),
    )
    known = {"base_model": base} if is_hub_name(base) else {}
    data = _hub().ModelCardData(library_name="babn", tags=TAGS, **{**known, **metadata})
    return f"---\n{data.to_yaml()}\n---\n\n{text}"


def _measured(evaluations: Any, part: str | None) -> str:
    """The table of the evaluations, as `babn report` writes it."""
    found = collect(evaluations, part)
    if not found:
        return "Not measured."
    chosen = part or found[0].details.get("part")
    seeds = sorted({each.seed for each in found})
    about = [f"{len(found[0].labels)} examples", f"seeds {', '.join(map(str, seeds))}"]
    if chosen:
        about.append(f"part {chosen}")
    return f"Measured on {', '.join(about)}.\n\n{compare(found).table().markdown()}".rstrip()


def _hub() -> Any:
    return import_extra("huggingface_hub", "The hub needs huggingface_hub", "transformers")
