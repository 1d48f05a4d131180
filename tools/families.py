"""Converts a tiny model of every architecture of transformers, and compares it with the original.

    python tools/families.py [--only bert llama] [--jobs 2] [--out docs/families.md]

Each architecture is built from its configuration class with sizes made small, nested classes
included, and random weights large enough that attention is far from uniform. Windows, chunks,
blocks and top-k are 8 or 16. The dry run sees 9 tokens; the comparison uses other inputs of 48
tokens, with and without padding. The converted model is at its posterior mean with `sigma=0`, which
is softmax attention, so its outputs must agree with the original's to 1e-4 of their size: with all
layers converted and with one, by torch's kernels and by the reference code. Reverted, it must give
the same outputs again. Every architecture runs in a process of its own with a time limit. The exit
code is 1 if one changes without being refused.
"""

import argparse
import inspect
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import babn

SHORT, LONG = 9, 48
"""Tokens in the dry run and in the comparison."""

TOLERANCE = 1e-4
PARAMETERS = 3e7
"""Largest size of a model that is tried."""

SECONDS = 300
"""Time limit of one architecture."""

VOCABULARY = 99

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("embedding_size", "projection_dim", "encoder_hidden_size"), 64),
    **dict.fromkeys(("hidden_dim", "emb_dim", "embed_dim", "encoder_embed_dim"), 64),
    **dict.fromkeys(("decoder_hidden_size", "decoder_embed_dim", "out_hidden_size"), 64),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_num_attention_heads", "encoder_num_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_num_experts", "index_n_heads", "rotary_dim"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "type_vocab_size"), 2),
    **dict.fromkeys(("num_experts_per_token", "zero_expert_num"), 2),
    **dict.fromkeys(("moe_k", "num_kv_heads", "top_k_experts", "moe_topk"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim", "global_head_dim"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "index_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "n_inner", "ffn_hidden_size"), 48),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size"), 48),
    **dict.fromkeys(("shared_expert_intermediate_size", "mlp_dim", "d_inner"), 48),
    **dict.fromkeys(("encoder_intermediate_size", "decoder_intermediate_size"), 48),
    "expert_ffn_hidden_size": 48,
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 128),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 4),
    **{"mamba_d_head": 32, "mamba_head_dim": 32, "mamba_d_ssm": 128, "mamba_d_state": 16},
    **dict.fromkeys(("mamba_n_groups", "n_groups", "num_kv_shared_layers"), 1),
    **dict.fromkeys(("image_size", "sample_size"), 32),
    **dict.fromkeys(("index_topk_blocks", "index_local_blocks"), 1),
    **{"patch_size": 8, "num_mel_bins": 8, "index_topk": 16, "mrope_section": [4, 2, 2]},
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
}
"""Sizes by the name of their field."""

LISTS = {"depths": 1, "hidden_sizes": 64, "image_size": 64}
LISTS |= {"num_heads": 4, "num_attention_heads": 4}
"""Sizes of the elements of lists, one for each stage."""

LAYERS = re.compile(r"^n_layers?$|(^|_)num_(\w*_)?layers$|^(en|de)coder_layers$|^depth$")
NOT_LAYERS = re.compile("feat|conv|adapter|shared")
THRESHOLDS = re.compile(r"window|chunk_size|local_attention|block_size|block_length")
"""Fields beyond which attention stops being dense."""

SOUND = {"conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
WHOLE_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
NO_ROPE = {"qk_rope_head_dim": 0, "head_dim": 0, "linear_head_dim": 8, "linear_num_heads": 4}
NO_ROPE |= {"index_kpool": 4}
SPARSE = {"layer_types": ["minimax_m3_sparse", "full_attention"] * 2, "index_n_heads": 2}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}}
HALF_ROPE = {
    "rope_parameters": ROPE["rope_parameters"]
    | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
}
SECTIONS = (
    "glm4v",
    "glm46v",
    "glm_image",
    "glm_ocr",
    "glmga",
    "paddleocr_vl",
    "qwen2_vl",
    "qwen2_5_vl",
)
OVERRIDES: dict[str, dict[str, Any]] = {
    **{name: {"text_config": ROPE} for name in SECTIONS},
    **{f"{name}_text": ROPE for name in SECTIONS},
    "glm4v_moe": {"text_config": HALF_ROPE},
    "glm4v_moe_text": HALF_ROPE,
    "bamba": {"attn_layer_indices": [1, 3]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mistral4": WHOLE_ROPE,
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2},
    "chameleon": {"vocabulary_map": {"<image>": VOCABULARY - 1}},
    "emu3": {"vocabulary_map": {"<image>": VOCABULARY - 1}},
    "glm5_next": {"text_config": NO_ROPE},
    "glm5_next_text": NO_ROPE,
    "esmc": {"num_key_value_heads": 4},
    **dict.fromkeys(("wav2vec2", "hubert", "wavlm", "unispeech", "data2vec-audio"), SOUND),
    "sew-d": {"conv_dim": [16] * 13, "squeeze_factor": 1, "feature_layer_norm_eps": 1e-5},
    "falcon": {"new_decoder_architecture": True},
    "luke": {"entity_vocab_size": 9, "entity_emb_size": 8},
    "esm": {"pad_token_id": 1, "mask_token_id": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "xlnet": {"d_head": 16},
    "minimax_m3_vl_text": SPARSE,
    "minimax_m3_vl": {"text_config": SPARSE},
}
"""Settings that an architecture needs besides small sizes."""


class NotBuilt(Exception):
    """The tiny model cannot be built, or does not run before conversion."""


def small(config: Any, widths: bool = True) -> dict[str, Any]:
    """Arguments for a tiny version of a configuration, nested configurations included.

    Args:
        config: The configuration with its default values.
        widths: Whether the sizes of vectors become small too.
    """
    made: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, transformers.PreTrainedConfig):
            made[name] = {**small(value, widths), "model_type": value.model_type}
        elif (size := small_value(name, value, widths)) is not None:
            made[name] = size
    if "kv_lora_rank" in made and "num_key_value_heads" in made:
        made["num_key_value_heads"] = made["num_attention_heads"]  # latent attention
        made["head_dim"] = SMALL["qk_rope_head_dim"]
    kinds = vars(config).get("layer_types")
    if isinstance(kinds, list | tuple) and kinds:
        distinct = list(dict.fromkeys(kinds))
        made["layer_types"] = [distinct[i % len(distinct)] for i in range(4)]
    return made


def small_value(name: str, value: Any, widths: bool) -> Any:
    """A small value for one field; `None` keeps its default."""
    if isinstance(value, dict) and "mrope_section" in value:
        return {**value, "mrope_section": SMALL["mrope_section"]}
    if isinstance(value, list | tuple):
        listed = name in LISTS and (widths or name == "depths")
        return [LISTS[name]] * len(value) if listed else None
    if isinstance(value, bool) or not isinstance(value, int | None):
        return None
    if "vocab_size" in name and name != "type_vocab_size":
        return VOCABULARY if value is None else min(value, VOCABULARY)
    if name in SMALL and (widths or name.endswith("token_id")):
        return SMALL[name]
    if value is None:
        return None
    if LAYERS.search(name) and not NOT_LAYERS.search(name):
        return min(value, 4)
    if THRESHOLDS.search(name):
        return min(value, 8)
    if name.endswith(("_token_id", "_token_index")) and value >= VOCABULARY:
        return 60 + sum(map(ord, name)) % (VOCABULARY - 60)  # above the tokens of the inputs
    return None


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Merges nested dictionaries; the second takes precedence."""
    deep = {k: merged(one[k], v) for k, v in other.items() if isinstance(v, dict) and k in one}
    return {**one, **other, **deep}


def model_class(family: str) -> Any:
    """The base model of an architecture, or its first class with a head."""
    heads = [name for name in dir(modeling_auto) if re.fullmatch("MODEL_FOR.*_MAPPING", name)]
    for mapping in ("MODEL_MAPPING", *sorted(heads)):
        classes = getattr(modeling_auto, mapping)
        if CONFIG_MAPPING[family] in classes:
            found = classes[CONFIG_MAPPING[family]]
            return found[0] if isinstance(found, tuple | list) else found
    raise NotBuilt("part of another architecture, without a model class of its own")


def tiny(family: str) -> nn.Module:
    """A tiny model with large random weights, in evaluation mode."""
    kind, made, reasons = CONFIG_MAPPING[family], model_class(family), []
    for widths in (True, False):
        for layout in range(len(SOUNDS)):
            try:
                config = kind(**merged(small(kind(), widths), OVERRIDES.get(family, {})))
                model = with_large_weights(made, config)
                model.__dict__["layout"] = layout
                run(model, inputs(model, SHORT, seed=1))
                return model
            except Exception as error:
                reasons.append(error)
            if made.main_input_name not in ("input_features", "input_values"):
                break
    raise NotBuilt(described(reasons[0])) from reasons[0]


def described(error: Exception) -> str:
    """An error in one line."""
    name = "" if isinstance(error, NotBuilt) else f"{type(error).__name__}: "
    return name + " ".join(str(error).split())


def with_large_weights(made: Any, config: Any) -> nn.Module:
    """A model with random matrices so large that attention is far from uniform."""
    with torch.device("meta"):
        count = sum(p.numel() for p in made._from_config(config).parameters())
    if count > PARAMETERS:
        raise NotBuilt(f"{count:,} parameters at the smallest sizes that were tried")
    torch.manual_seed(0)
    model: nn.Module = made._from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.is_floating_point():
                parameter.normal_(0.0, 0.85 / math.sqrt(max(1, parameter[0].numel())))
    return model


def inputs(model: Any, length: int, seed: int, padded: bool = True) -> dict[str, Any]:
    """Random inputs of the kinds that the model's forward names and needs."""
    generator = torch.Generator().manual_seed(seed)
    accepted = inspect.signature(model.forward).parameters
    config, main = model.config, model.main_input_name
    made: dict[str, Any] = {}
    if "grid_thw" in accepted:
        return patches(config, next(iter(accepted)), length, generator)
    if "input_ids" in accepted and main in ("input_ids", "pixel_values"):
        made |= tokens("", length, generator, padded)
        separator = getattr(config.get_text_config(), "sep_token_id", None)
        if separator is not None:
            made["input_ids"][:, 4] = separator
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
        made |= tokens("decoder_", length - 4, generator, padded)
    if main == "pixel_values" or ("pixel_values" in accepted and reads_images(config)):
        made["pixel_values"] = images(config, generator)
    if main in ("input_features", "input_values"):
        made[main] = SOUNDS[model.layout](config, length, generator)
    if main not in made:
        raise NotBuilt(f"main input {main!r} is of a kind that this script does not make")
    return {name: value for name, value in made.items() if name in accepted}


def tokens(prefix: str, length: int, generator: torch.Generator, padded: bool) -> dict[str, Tensor]:
    """Two sequences of tokens; the second may be padded on the right."""
    ids = torch.randint(3, 60, (2, length), generator=generator)
    seen = torch.ones_like(ids)
    if padded:
        seen[1, length - length // 4 :] = 0
    return {f"{prefix}input_ids": ids, f"{prefix}attention_mask": seen}


def reads_images(config: Any) -> bool:
    """Whether a model takes one image beside each text, without placeholders among the tokens."""
    placeholders = ("image_token_id", "image_token_index", "media_placeholder_token_id")
    placed = any(getattr(config, name, None) is not None for name in placeholders)
    return hasattr(config, "vision_config") and not placed


def images(config: Any, generator: torch.Generator) -> Tensor:
    """Two images."""
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 64
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(vision, "num_channels", 3)
    return torch.randn(2, channels, height, width, generator=generator)


def patches(config: Any, name: str, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Patches of two images of different sizes in one sequence."""
    grid = torch.tensor([[1, 4, 4], [1, 4, 4 * (1 + length // SHORT)]])
    channels = getattr(config, "in_channels", getattr(config, "num_channels", 3))
    size = channels * getattr(config, "temporal_patch_size", 1) * config.patch_size**2
    count = int(grid.prod(-1).sum())
    return {name: torch.randn(count, size, generator=generator), "grid_thw": grid}


def _bins(config: Any) -> int:
    return int(getattr(config, "num_mel_bins", getattr(config, "feature_size", 80)))


SOUNDS: tuple[Callable[[Any, int, torch.Generator], Tensor], ...] = (
    lambda config, length, g: torch.randn(2, 400 * length, generator=g),
    lambda config, length, g: torch.randn(2, _bins(config), 128, generator=g),
    lambda config, length, g: torch.randn(2, 8 * length, _bins(config), generator=g),
    lambda config, length, g: torch.randn(2, _bins(config), 8 * length, generator=g),
    lambda config, length, g: torch.randn(2, 1, 400 * length, generator=g),
)
"""Layouts of sound: waveforms and spectrograms."""


def run(model: nn.Module, batch: dict[str, Any]) -> list[Tensor]:
    """The floating-point outputs, with zeros at padding, where a model may compute anything."""
    torch.manual_seed(0)  # masked autoencoders draw their masks
    batch = pytree.tree_map_only(Tensor, Tensor.clone, batch)
    output = model(**batch)
    seen = [value.bool() for name, value in batch.items() if name.endswith("attention_mask")]
    leaves = [x for x in pytree.tree_leaves(output) if isinstance(x, Tensor)]
    found = [_at_tokens(x.detach(), seen) for x in leaves if x.is_floating_point()]
    if not found:
        raise NotBuilt("gives no floating-point output")
    return found


def _at_tokens(x: Tensor, seen: list[Tensor]) -> Tensor:
    fitting = [mask for mask in seen if x.ndim > 2 and mask.shape == x.shape[:2]]
    return x.masked_fill(~fitting[0][..., None], 0.0) if fitting else x


def gap(expected: list[Tensor], found: list[Tensor]) -> float:
    """Largest difference, relative to the size of each expected tensor; infinite if not finite."""
    worst = 0.0
    for x, y in zip(expected, found, strict=True):
        if x.numel():
            difference = (x - y).abs().max() / x.abs().max().clamp(min=1e-6)
            worst = max(worst, float(difference.nan_to_num(math.inf)))
    return worst


@dataclass(frozen=True)
class Verdict:
    """The result for one architecture: it converts, is refused, not built, or changed."""

    family: str
    verdict: str
    reason: str = ""
    gap: float = 0.0
    calls: int = 0
    chains: int = 0
    seconds: float = 0.0


def judge(family: str) -> Verdict:
    """Builds, converts, compares and reverts a tiny model of one architecture."""
    try:
        model = tiny(family)
        batches = [inputs(model, LONG, 2), inputs(model, LONG, 3, padded=False)]
        with torch.no_grad():
            expected = [run(model, batch) for batch in batches]
            if not gap(expected[0], run(model, batches[0])) < TOLERANCE:
                raise NotBuilt("outputs differ from one run to the next, or are not finite")
    except Exception as error:
        return Verdict(family, "not built", described(error))
    try:
        return compared(family, model, batches, expected)
    except babn.errors.BabnError as error:
        return Verdict(family, "refused", described(error))


def compared(
    family: str, model: nn.Module, batches: list[dict[str, Any]], expected: list[list[Tensor]]
) -> Verdict:
    """Converts all layers, then one, and reverts."""
    worst, found = 0.0, None
    for layers in ("all", [0]):
        convert(model, layers)
        found = found or babn.inspect(model)
        for batch, before, gradients in zip(batches, expected, (True, False), strict=True):
            with torch.set_grad_enabled(gradients):  # with gradients by the reference
                worst = max(worst, gap(before, run(model, batch)))
        babn.revert(model)
    with torch.no_grad():
        worst = max(worst, gap(expected[0], run(model, batches[0])))
    assert found is not None
    verdict = "converts" if worst < TOLERANCE else "changed"
    return Verdict(family, verdict, "", worst, found.calls, len(found.chains))


def convert(model: nn.Module, layers: Any) -> None:
    """Converts, with inputs of this script where the library makes none."""
    config = babn.BeliefConfig.pairs(upward="heads", sigma=0.0, layers=layers)
    try:
        babn.convert(model, config)
    except babn.errors.ExampleInputsError:
        babn.convert(model, config, inputs(model, SHORT, seed=1))


def judge_all(families: Iterable[str], jobs: int) -> Iterator[Verdict]:
    """Yields verdicts as they arrive, each from its own process."""
    context, waiting = get_context("fork"), list(families)[::-1]
    running: dict[Any, tuple[Any, str, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            family = waiting.pop()
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_send_verdict, args=(family, sender))
            process.start()
            sender.close()
            running[receiver] = process, family, time.monotonic()
        ready = connection.wait(list(running), timeout=5)
        for receiver, (process, family, start) in list(running.items()):
            seconds = time.monotonic() - start
            if receiver not in ready and seconds < SECONDS:
                continue
            late = f"took longer than {SECONDS} seconds"
            verdict = Verdict(family, "not built", late, seconds=seconds)
            if receiver in ready:
                verdict = _received(receiver, family)
            process.kill()
            process.join()
            del running[receiver]
            yield verdict


def _send_verdict(family: str, sender: Any) -> None:
    start = time.process_time()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    try:
        verdict = judge(family)
    except Exception as error:
        verdict = Verdict(family, "changed", described(error))
    sender.send(replace(verdict, seconds=time.process_time() - start))


def _received(receiver: Any, family: str) -> Verdict:
    try:
        verdict: Verdict = receiver.recv()
    except EOFError:
        verdict = Verdict(family, "not built", "ended its process")
    return verdict


def every_family() -> list[str]:
    """All architectures with a model class."""
    return sorted(name for name in CONFIG_MAPPING if name in modeling_auto.MODEL_MAPPING_NAMES)


PAGE = """# Model families

This page shows which architectures of transformers {version} babn can convert. It covers every
architecture that has a base model, and is written by the following command, which takes
{minutes:.0f} minutes of processor time:

```console
python tools/families.py --out docs/families.md
```

Each architecture is built at a tiny size with random weights, and converted at the posterior mean
with `sigma=0`, which is softmax attention. Its outputs must agree with those of the original model
to a relative difference of {tolerance:g}: with all layers converted and with one, with and without
gradients, and again after `babn.revert`. The dry run of the conversion sees {short} tokens. The
comparison uses other inputs of {long} tokens, with and without padding, while windows, chunks,
blocks and top-k are 8 or 16. Models of text and images run on text alone if images need
placeholders among the tokens; most of their vision towers are architectures of their own.

- **converts**: the outputs agree.
- **refused**: babn refuses the model, for the reason shown.
- **not built**: the script could not build or run the tiny model, so it says nothing about babn.
- **changed**: the model converts, but its outputs differ.

| verdict | architectures |
|---|---|
{counts}

## Converts

| architecture | attention calls | chains | largest difference |
|---|---|---|---|
{converts}
"""


def page(verdicts: list[Verdict]) -> str:
    """The page of the documentation."""
    found: dict[str, list[Verdict]] = {
        "converts": [],
        "refused": [],
        "not built": [],
        "changed": [],
    }
    for verdict in sorted(verdicts, key=lambda verdict: verdict.family):
        found[verdict.verdict].append(verdict)
    text = PAGE.format(
        version=transformers.__version__,
        minutes=sum(verdict.seconds for verdict in verdicts) / 60,
        short=SHORT,
        long=LONG,
        tolerance=TOLERANCE,
        counts="\n".join(f"| {name} | {len(some)} |" for name, some in found.items()),
        converts="\n".join(
            f"| {v.family} | {v.calls} | {v.chains} | {v.gap:.0e} |" for v in found["converts"]
        ),
    )
    for name in ("refused", "not built", "changed"):
        if found[name]:
            text += f"\n## {name.capitalize()}\n\n| architecture | reason |\n|---|---|\n"
            text += "".join(f"| {v.family} | {short(v)} |\n" for v in found[name])
    return text


def short(verdict: Verdict) -> str:
    """A reason in a few words."""
    reason = " ".join(verdict.reason.split())
    if verdict.verdict == "changed" and not reason:
        return f"outputs move by {verdict.gap:.1e} of their size"
    if found := re.search(r"Modules that look like attention: ([^.]*)\.", reason):
        return f"computes attention itself: {found[1]}"
    if reason.startswith("NothingToConvertError"):
        return "no attention"
    if found := re.search(r"passes (\w+) to its attention function", reason):
        return f"attention with `{found[1]}`"
    if found := re.search(r"outputs move by ([^ ]+) of their size", reason):
        return f"conversion would move outputs by {found[1]} of their size"
    reason = re.sub(r"<module '([^']*)'[^>]*>", r"\1", reason)
    reason = re.split(r"(?<=[a-z)`'\"])\. |; ", reason)[0]
    return (reason if len(reason) < 160 else f"{reason[:157]}...").replace("|", "\\|")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="architectures; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--out", type=Path, help="where to write the page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    judge("bert")  # imports everything before processes are forked
    verdicts = []
    for verdict in judge_all(options.only or every_family(), options.jobs):
        verdicts.append(verdict)
        text = short(verdict) if verdict.reason else f"{verdict.gap:.0e}"
        sys.stdout.write(f"{verdict.family}: {verdict.verdict} ({text}) {verdict.seconds:.1f} s\n")
        sys.stdout.flush()
    if options.out:
        options.out.write_text(page(verdicts))
    sys.exit(any(verdict.verdict == "changed" for verdict in verdicts))


if __name__ == "__main__":
    main()
