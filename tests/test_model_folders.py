"""A folder's configuration makes transformers neither fetch nor run code."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import modeling_utils
from transformers.integrations import hub_kernels

import babn
from babn.errors import FormatError
from models import TEXT, token_batch


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("saved")
    base = hf.BertForTokenClassification(hf.BertConfig(**TEXT)).eval()
    babn.convert(base, babn.BeliefConfig.pairs(max_length=16)).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "model")


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What transformers fetches or imports by a name."""
    calls: list[Any] = []

    def note(*args: Any, **_: Any) -> None:
        calls.append(args)

    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", note)
    monkeypatch.setattr(hub_kernels, "get_kernel", note)
    return calls


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


KERNEL = "kernels-community/flash-attn2"


@pytest.mark.parametrize(
    "change",
    [
        {"_attn_implementation": KERNEL},
        {"attn_implementation": "somebody/kernel@main:attention"},
        {"attn_implementation": "flash_attention_2"},
        {"_attn_implementation": {"": "sdpa", "text_config": KERNEL}},
        {"_attn_implementation_internal": KERNEL},
        {"text_config": {"layers": [{"_attn_implementation": KERNEL}]}},
        {"experts_implementation": "sonicmoe"},
        {"attn_implementation": ["sdpa"]},
        {"quantization_config": {"quant_method": "mxfp4"}},
        {"quantization_config": {"quant_method": ["bitsandbytes"]}},
        {"transformers_weights": "other.safetensors"},
    ],
    ids=str,
)
def test_fields_that_fetch_code_are_refused(
    folder: Path, change: dict[str, Any], fetched: list[Any]
) -> None:
    edit(folder, **change)
    with pytest.raises(FormatError, match=r"config\.json has ") as found:
        babn.load(folder)
    assert not fetched and "\n" not in str(found.value)


@pytest.mark.parametrize("value", ["eager", "sdpa", None])
def test_attention_that_comes_with_torch_is_allowed(folder: Path, value: Any) -> None:
    edit(folder, _attn_implementation=value)
    assert babn.load(folder)(**token_batch()).logits.isfinite().all()


def test_code_in_the_folder_is_not_run(folder: Path) -> None:
    """Neither a class of the folder's own nor its way to generate."""
    code = f"open({str(folder / 'ran')!r}, 'w')"
    (folder / "modeling.py").write_text(code)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate/generate.py").write_text(code)
    names = ("AutoConfig", "AutoModel", "AutoModelForTokenClassification")
    edit(folder, auto_map={name: "modeling.Model" for name in names}, trust_remote_code=True)
    assert babn.load(folder)(**token_batch()).logits.isfinite().all()
    for name in names:
        edit(folder, architectures=[name])
        with pytest.raises(FormatError, match=f"architecture '{name}'"):
            babn.load(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    "name", [3, None, [], {}, "", "B", "pipeline", "Trainer", "BertConfig", "__name__", "a.b", "é"]
)
def test_an_architecture_that_is_no_model_is_refused(folder: Path, name: Any) -> None:
    for architectures in (name, [name]):
        edit(folder, architectures=architectures)
        with pytest.raises(FormatError, match=r"names the architecture .*Pass model_class"):
            babn.load(folder)


def test_an_adapter_beside_the_model_is_refused(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "somebody/model"}')
    with pytest.raises(FormatError, match="holds an adapter"):
        babn.load(folder)
