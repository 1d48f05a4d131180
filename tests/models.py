"""Tiny models of every kind with random weights, each with a function that makes a batch.

Weights are large, so that attention is far from uniform and a wrong scale, bias or mask shows.
"""

import copy
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import babn

Batch = dict[str, Any]
Kind = Literal["encoder", "decoder", "seq2seq", "vision", "torch"]

VOCABULARY = 99


def token_batch(length: int = 9, padding: int = 2) -> Batch:
    """Two sequences of tokens, the second padded on the right."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (2, length), generator=generator)
    seen = torch.ones_like(ids)
    seen[1, length - padding :] = 0
    return {"input_ids": ids, "attention_mask": seen}


def pair_batch() -> Batch:
    """Source and target tokens, both padded on the right."""
    target = token_batch(5, padding=1)
    return token_batch() | {f"decoder_{name}": value for name, value in target.items()}


def image_batch() -> Batch:
    return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))}


def audio_batch() -> Batch:
    frames = torch.randn(2, 8, 60, generator=torch.Generator().manual_seed(1))
    return {k: v for k, v in pair_batch().items() if "decoder" in k} | {"input_features": frames}


def vector_batch(length: int = 7) -> Batch:
    """Vectors in place of tokens; `padding` is true where there is none, as torch has it."""
    x = torch.randn(2, length, 16, generator=torch.Generator().manual_seed(1))
    padding = torch.zeros(2, length, dtype=torch.bool)
    padding[1, length - 2 :] = True
    return {"x": x, "padding": padding}


def vector_pair_batch() -> Batch:
    return vector_batch() | {"target": vector_batch(5)["x"]}


@dataclass(frozen=True)
class Case:
    """A tiny model.

    Attributes:
        build: Makes the model.
        batch: Makes its inputs, keyword arguments all.
        answers: Makes the further inputs with which it computes a loss; `None` if it cannot.
    """

    name: str
    kind: Kind
    build: Callable[[], nn.Module]
    batch: Callable[[], Batch]
    answers: Callable[[Batch], Batch] | None = None

    def model(self) -> Any:
        """A new model in evaluation mode, the same weights each time."""
        return copy.deepcopy(_built(self))

    def converted(self, **settings: Any) -> Any:
        """A new model with noise over pairs; belief parameters are large too."""
        return self._converted(babn.BeliefConfig.pairs(**{"max_length": 64, **settings}))

    def with_key_noise(self, **settings: Any) -> Any:
        """The same with noise per key."""
        return self._converted(babn.BeliefConfig(**settings))

    def _converted(self, config: babn.BeliefConfig) -> Any:
        model = babn.convert(self.model(), config, self.example)
        enlarge(model.babn, 0.1)
        return model

    @property
    def example(self) -> Batch | None:
        """What `convert` must be given: nothing for models of transformers."""
        return self.batch() if self.kind == "torch" else None

    def with_answers(self) -> Batch:
        batch = self.batch()
        return batch | self.answers(batch) if self.answers else batch

    def loss(self, model: nn.Module) -> Tensor:
        """A training loss, including the KL."""
        output = model(**self.with_answers())
        if self.answers:
            return output.loss
        return sum(x.square().mean() for x in floats(output)) + babn.weighted_kl(model)


@functools.cache
def _built(case: Case) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return enlarge(case.build(), 0.15).eval()


def enlarge(model: Any, std: float) -> Any:
    """Draws all weights and biases anew; norms keep theirs."""
    norms = [m for m in model.modules() if "norm" in type(m).__name__.lower()]
    kept = {id(p) for norm in norms for p in norm.parameters()}
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if id(parameter) not in kept:
                drawn = torch.empty(parameter.shape).normal_(0, std, generator=generator)
                parameter.copy_(drawn)
    return model


def without_dropout(model: Any) -> Any:
    """Turns off every kind of dropout: modules, probabilities that modules keep, skipped layers."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)
    return model


def checkpoint_activations(model: Any, *, use_reentrant: bool = False) -> None:
    """Switches checkpointing on, by the method that the installed transformers prefers."""
    new = getattr(model, "activation_checkpointing_enable", None)
    (new or model.gradient_checkpointing_enable)({"use_reentrant": use_reentrant})


def stop_checkpointing(model: Any) -> None:
    """Switches checkpointing off."""
    new = getattr(model, "activation_checkpointing_disable", None)
    (new or model.gradient_checkpointing_disable)()


def floats(output: Any) -> list[Tensor]:
    """The floating-point tensors of an output."""
    leaves = pytree.tree_leaves(output)
    return [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]


def outputs(model: nn.Module, batch: Batch) -> list[Tensor]:
    """What a model computes, with zeros at padding, where it may compute anything."""
    seen = [value.bool() for name, value in batch.items() if name.endswith("attention_mask")]
    seen += [~batch["padding"]] if "padding" in batch else []
    return [_at_tokens(x, seen) for x in floats(model(**batch))]


def _at_tokens(x: Tensor, seen: list[Tensor]) -> Tensor:
    fitting = [mask for mask in seen if x.ndim > 2 and mask.shape == x.shape[:2]]
    return x.masked_fill(~fitting[0][..., None], 0.0) if fitting else x


def gap(expected: list[Tensor], found: list[Tensor]) -> float:
    """Largest difference of two models' outputs, relative to the size of the first."""
    pairs = list(zip(expected, found, strict=True))
    assert pairs
    return max(float((x - y).detach().abs().max() / x.detach().abs().max()) for x, y in pairs)


class TorchEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        hidden = self.encoder(x, src_key_padding_mask=padding)
        return hidden.masked_fill(padding.unsqueeze(-1), 0.0)


class TorchTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Transformer(16, 4, 2, 2, 24, batch_first=True)

    def forward(self, x: Tensor, padding: Tensor, target: Tensor) -> Tensor:
        causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        return self.inner(
            x,
            target,
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )


class Multihead(nn.Module):
    """Bare `nn.MultiheadAttention` layers; gives the weights as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(16, 4, dropout=0.1, batch_first=True) for _ in range(2)
        )

    def forward(self, x: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            update, weights = layer(x, x, x, key_padding_mask=padding)
            x = x + update
        return x, weights


class SdpaLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 4).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, seen).transpose(1, 2).flatten(2)


class Sdpa(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SdpaLayer() for _ in range(2))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, ~padding[:, None, None])
        return x


class HandmadeAttention(nn.Module):
    """Attention with a softmax of its own, and a bias that depends on distance."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        q, k, v = (
            part(x).view(*x.shape[:2], 4, 4).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        places = torch.arange(x.shape[1])
        scores = q @ k.transpose(-1, -2) - (places - places[:, None]).abs()
        weights = scores.masked_fill(padding[:, None, None], -1e9).softmax(-1)
        return (self.dropout(weights) @ v).transpose(1, 2).flatten(2)


class Handmade(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(HandmadeAttention() for _ in range(2))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, padding)
        return x


babn.register_family("HandmadeAttention", babn.SoftmaxSpec(keys="key"))

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
TEXT = {**SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 64, "pad_token_id": 0}
IMAGE = {**SIZES, "image_size": 16, "patch_size": 8}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PAIR = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": VOCABULARY,
    "decoder_start_token_id": 1,
    **SPECIAL,
}


def encoder(name: str, family: str, **settings: Any) -> Case:
    """A text encoder that classifies tokens."""

    def build() -> nn.Module:
        config = getattr(hf, f"{family}Config")(**settings)
        return getattr(hf, f"{family}ForTokenClassification")(config)

    return Case(name, "encoder", build, token_batch, lambda b: {"labels": b["input_ids"] % 2})


def decoder(name: str, model: str, **settings: Any) -> Case:
    """A causal language model."""

    def build() -> nn.Module:
        kind = getattr(hf, model)
        made = kind(kind.config_class(**settings))
        made.loss_type = "ForCausalLM"  # GPT-2 knows no type, and its warning cannot be compiled
        return made

    return Case(name, "decoder", build, token_batch, lambda b: {"labels": b["input_ids"]})


def seq2seq(
    name: str, family: str, batch: Callable[[], Batch] = pair_batch, **settings: Any
) -> Case:
    """An encoder with a decoder."""

    def build() -> nn.Module:
        config = getattr(hf, f"{family}Config")(**settings)
        return getattr(hf, f"{family}ForConditionalGeneration")(config)

    return Case(name, "seq2seq", build, batch, lambda b: {"labels": b["decoder_input_ids"]})


def vit() -> nn.Module:
    return hf.ViTForImageClassification(hf.ViTConfig(**IMAGE))


def clip() -> nn.Module:
    config = hf.CLIPConfig(text_config=TEXT | SPECIAL, vision_config=IMAGE, projection_dim=16)
    return hf.CLIPModel(config)


ALL = (
    encoder("albert", "Albert", embedding_size=16, **TEXT),
    encoder("bert", "Bert", **TEXT),
    encoder("roberta", "Roberta", **TEXT),
    encoder(
        "distilbert",
        "DistilBert",
        dim=32,
        n_layers=3,
        n_heads=4,
        hidden_dim=48,
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
    ),
    encoder("electra", "Electra", embedding_size=16, **TEXT),
    encoder(
        "modernbert",
        "ModernBert",
        local_attention=8,
        **TEXT | SPECIAL,
        cls_token_id=1,
        sep_token_id=2,
    ),
    encoder("mpnet", "MPNet", **TEXT),
    encoder(
        "deberta",
        "DebertaV2",
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=8,
        **TEXT,
    ),
    Case("vit", "vision", vit, image_batch, lambda _: {"labels": torch.tensor([0, 1])}),
    Case(
        "clip",
        "vision",
        clip,
        lambda: token_batch() | image_batch(),
        lambda _: {"return_loss": True},
    ),
    decoder(
        "gpt2",
        "GPT2LMHeadModel",
        n_embd=32,
        n_layer=3,
        n_head=4,
        n_positions=64,
        vocab_size=VOCABULARY,
        **SPECIAL,
    ),
    decoder("llama", "LlamaForCausalLM", **GROUPED),
    decoder("qwen2", "Qwen2ForCausalLM", **TEXT, num_key_value_heads=2),
    decoder("qwen3", "Qwen3ForCausalLM", **GROUPED),
    decoder(
        "gemma2",
        "Gemma2ForCausalLM",
        sliding_window=4,
        attn_logit_softcapping=5.0,
        query_pre_attn_scalar=8,
        **GROUPED,
    ),
    decoder("mistral", "MistralForCausalLM", sliding_window=4, **GROUPED),
    seq2seq("bart", "Bart", max_position_embeddings=64, **PAIR),
    seq2seq(
        "t5",
        "T5",
        d_model=32,
        d_kv=8,
        d_ff=48,
        num_layers=3,
        num_heads=4,
        vocab_size=VOCABULARY,
        decoder_start_token_id=1,
    ),
    seq2seq(
        "whisper",
        "Whisper",
        audio_batch,
        num_mel_bins=8,
        max_source_positions=30,
        max_target_positions=30,
        **PAIR,
    ),
    Case("torch-encoder", "torch", TorchEncoder, vector_batch),
    Case("torch-transformer", "torch", TorchTransformer, vector_pair_batch),
    Case("multihead", "torch", Multihead, vector_batch),
    Case("sdpa", "torch", Sdpa, vector_batch),
    Case("handmade", "torch", Handmade, vector_batch),
)
CASES = {case.name: case for case in ALL}

ESSENTIAL = ("bert", "gpt2", "llama", "bart", "vit", "multihead", "sdpa")
"""One case of each kind and route of conversion."""


def cases(*names: str, kinds: Iterable[Kind] = ()) -> list[Any]:
    """Parameters for a test: cases by name or kind, all by default.

    Of cases that are not named only the essential ones run in `make test`.
    """
    import pytest

    chosen = [c for c in ALL if c.name in names or c.kind in kinds or not (names or kinds)]
    # Torch's own encoder warns so when it takes its fast path.
    quiet = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    thorough = [quiet, pytest.mark.thorough]
    fast = {*ESSENTIAL, *names}
    return [
        pytest.param(case, id=case.name, marks=quiet if case.name in fast else thorough)
        for case in chosen
    ]


def surface(model: nn.Module) -> dict[str, Any]:
    """Everything that can be seen of a model besides its weights: attributes, hooks, settings."""
    seen: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            seen[f"{path}:{name}"] = _outline(value)
    return seen


def _outline(value: Any) -> Any:
    if isinstance(value, hf.PreTrainedConfig):
        return value.to_dict() | {"attention": value._attn_implementation}
    if isinstance(value, dict):
        return list(value)
    return value if isinstance(value, bool | int | float | str | None) else type(value)


def assert_same_weights(loaded: nn.Module, saved: nn.Module) -> None:
    """Checks that two models have the same state, bit for bit.

    Their outputs may differ by rounding: the alignment of the weights in memory decides in which
    order products are summed.
    """
    found, expected = loaded.state_dict(), saved.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
