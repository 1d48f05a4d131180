"""The steps that are timed: training and prediction of models with random weights."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import babn
from babn.attention.method import MethodConfig
from babn.benchmark.results import Form, Size
from babn.benchmark.timing import Step
from babn.errors import BabnWarning


def model_config(size: Size) -> Any:
    """The configuration of the model."""
    import transformers

    sizes: dict[str, Any] = {
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "hidden_size": size.width,
        "intermediate_size": 4 * size.width,
    }
    if size.model == "llama":
        groups, length = max(size.heads // 4, 1), 2 * size.length
        return transformers.LlamaConfig(
            **sizes, num_key_value_heads=groups, max_position_embeddings=length
        )
    return transformers.AlbertConfig(**sizes, max_position_embeddings=max(512, size.length))


def make_model(size: Size, config: MethodConfig | None, device: torch.device) -> Any:
    """A converted model, or one with torch's softmax kernels if `config` is `None`.

    The decoder has weights in half precision on a GPU, and no gradient checkpointing.
    """
    import transformers

    torch.manual_seed(0)
    decoder = size.model == "llama"
    kind = (
        transformers.LlamaForCausalLM if decoder else transformers.AlbertForSequenceClassification
    )
    with device:
        model: Any = kind(model_config(size))
    if decoder and device.type == "cuda":
        model.to(torch.bfloat16)
    if config is None:
        return without_mask(model)
    if isinstance(config, babn.BeliefConfig) and config.max_keys is not None:
        config = replace(config, max_length=size.length)
    return babn.convert(model, config)


def without_mask(model: Any) -> Any:
    """Keeps transformers from building a mask where nothing is masked.

    The fastest kernels of torch do not support masks.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register("unmasked", sdpa_attention_forward)
    AttentionMaskInterface.register("unmasked", lambda *args, **kwargs: None)
    model.config._attn_implementation = "unmasked"
    return model


def make_batch(size: Size, device: torch.device) -> dict[str, Tensor]:
    """Texts of random tokens, all of full length."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(10, 1000, (size.batch, size.length), generator=generator)
    labels = tokens if size.model == "llama" else torch.zeros_like(tokens[:, 0])
    return {"input_ids": tokens.to(device), "labels": labels.to(device)}


def half_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast to bfloat16 on a GPU; float32 elsewhere."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


def compiled(model: nn.Module, form: Form) -> Callable[..., Any]:
    """The model, compiled if the form requires it."""
    if form not in ("compiled", "graphs"):
        return model
    mode = "reduce-overhead" if form == "graphs" else None
    return torch.compile(model, dynamic=False, mode=mode)


def training_step(model: nn.Module, batch: dict[str, Tensor], form: Form) -> Step:
    """A training step with optimiser."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    run = compiled(model, form)
    device = batch["input_ids"].device

    def step() -> None:
        with half_precision(device):
            loss = run(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def inference(model: nn.Module, batch: dict[str, Tensor], form: Form) -> Step:
    """A forward pass at the posterior mean, without gradients."""
    model.eval()
    run = compiled(model, form)
    inputs = {"input_ids": batch["input_ids"]}
    device = batch["input_ids"].device

    def step() -> None:
        with torch.no_grad(), half_precision(device):
            run(**inputs)

    return step


def sampled(model: nn.Module, batch: dict[str, Tensor], samples: int, form: Form) -> Step:
    """A batch of samples of one text, or one pass at the posterior mean."""
    model.eval()
    inputs = {"input_ids": batch["input_ids"][:1]}
    if form == "pass":
        return inference(model, inputs, "eager")

    def step() -> None:
        with half_precision(inputs["input_ids"].device), warnings.catch_warnings():
            warnings.simplefilter("ignore", BabnWarning)  # random weights predict nothing
            babn.predict(model, inputs, samples=samples)

    return step


def generation(model: Any, batch: dict[str, Tensor], tokens: int) -> Step:
    """Generation with a cache; a converted model uses one sample of attention."""
    model.eval()
    inputs = {"input_ids": batch["input_ids"], "attention_mask": torch.ones_like(batch["labels"])}
    settings = {"do_sample": False, "min_new_tokens": tokens, "max_new_tokens": tokens}

    def step() -> None:
        sample = (
            babn.sampling(model, seed=0, fixed=True) if hasattr(model, "babn") else nullcontext()
        )
        with torch.no_grad(), sample:
            model.generate(**inputs, **settings, pad_token_id=0)

    return step
